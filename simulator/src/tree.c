/* See tree.h. Failures are ignored on purpose: a missing file is what the programs under test have to cope with. */
#define _GNU_SOURCE
#include "tree.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

unsigned int capability_minor(unsigned int gpu_minor, int instance, int compute)
{
    unsigned int number = 3 + 135 * gpu_minor + 9 * (unsigned int)instance;
    return compute == NONE ? number : number + 1 + (unsigned int)compute;
}

/* Writes the folder of an instance to `path`. */
static void instance_folder(char *path, const char *directory, const struct state *state, int slot, int instance,
                            int compute)
{
    int length = snprintf(path, PATH_MAX, "%s/root/proc/driver/nvidia/capabilities/gpu%u/mig/gi%d", directory,
                          state->gpus[slot].minor_number, instance);
    if (compute != NONE && length < PATH_MAX)
        snprintf(path + length, (size_t)(PATH_MAX - length), "/ci%d", compute);
}

void tree_show(const char *directory, const struct state *state, int slot, int instance, int compute)
{
    char folder[PATH_MAX], path[PATH_MAX + 64];
    unsigned int number = capability_minor(state->gpus[slot].minor_number, instance, compute);
    instance_folder(folder, directory, state, slot, instance, compute);
    if (mkdir(folder, 0555) == 0) {
        snprintf(path, sizeof(path), "%s/access", folder);
        FILE *file = fopen(path, "w");
        if (file) {
            fprintf(file, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", number);
            fclose(file);
        }
    }
    if (state->caps_nodes != CAPS_NODES_LIVE)
        return;
    snprintf(path, sizeof(path), "%s/root/dev/nvidia-caps/nvidia-cap%u", directory, number);
    if (mknod(path, S_IFCHR | 0444, makedev(state->caps_major, number)) == 0)
        chmod(path, 0444);
}

void tree_hide(const char *directory, const struct state *state, int slot, int instance, int compute)
{
    char folder[PATH_MAX], path[PATH_MAX + 64];
    instance_folder(folder, directory, state, slot, instance, compute);
    snprintf(path, sizeof(path), "%s/access", folder);
    unlink(path);
    rmdir(folder);
    /* The device node stays, as on a real node, where a helper made it. */
}
