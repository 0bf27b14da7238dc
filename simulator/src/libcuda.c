/*
 * The least that passes for the compute library: programs look for the file, its soname and its version, and a few
 * ask these two questions.
 */
#define EXPORT __attribute__((visibility("default")))

EXPORT int cuInit(unsigned int flags);
EXPORT int cuDriverGetVersion(int *version);

int cuInit(unsigned int flags)
{
    (void)flags;
    return 100; /* No device: there is nothing to compute on. */
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}
