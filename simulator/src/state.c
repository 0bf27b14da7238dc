/* Mapping, locking and the few primitives that everything else builds upon. See state.h for the theory. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int holds_state(const char *directory)
{
    char probe[PATH_MAX + 32];
    snprintf(probe, sizeof(probe), "%s/" STATE_FILE, directory);
    return access(probe, F_OK) == 0;
}

/* Cuts the last `levels` names off a path; 0 when it has no more than these. */
static int climb(char *path, int levels)
{
    while (levels--) {
        char *slash = strrchr(path, '/');
        if (!slash)
            return 0;
        *slash = '\0';
    }
    return 1;
}

/*
 * What lies at ROOT/usr/lib64 or ROOT/usr/bin belongs to the node whose driver root this is: DIR where that is DIR/root,
 * and ROOT/run/gpusim where only the driver root was brought to another place, as into a container.
 */
static int directory_above(char *buffer, size_t size)
{
    char root[PATH_MAX], directory[PATH_MAX + 32];
    if (!place_of_code(root) || !climb(root, 3) || !*root)
        return 0;
    snprintf(directory, sizeof(directory), "%s", root);
    climb(directory, 1);
    if (!*directory || !holds_state(directory))
        snprintf(directory, sizeof(directory), "%s" DEFAULT_DIRECTORY, root);
    if (!holds_state(directory))
        return 0;
    snprintf(buffer, size, "%s", directory);
    return 1;
}

int state_directory(char *buffer, size_t size)
{
    const char *given = getenv("GPUSIM_DIR");
    if (given && *given)
        snprintf(buffer, size, "%s", given);
    else if (!directory_above(buffer, size)) {
        int injected = !holds_state(DEFAULT_DIRECTORY) && access(INJECTED_DIRECTORY "/" INJECTED_FILE, F_OK) == 0;
        snprintf(buffer, size, "%s", injected ? INJECTED_DIRECTORY : DEFAULT_DIRECTORY);
        return 0;
    }
    return 1;
}

static struct state *map_descriptor(int descriptor)
{
    void *address = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    int saved = errno;
    close(descriptor);
    errno = saved;
    return address == MAP_FAILED ? NULL : address;
}

static int state_path(char *path, size_t size, const char *directory)
{
    const char *name = strcmp(directory, INJECTED_DIRECTORY) == 0 ? INJECTED_FILE : STATE_FILE;
    if ((size_t)snprintf(path, size, "%s/%s", directory, name) < size)
        return 1;
    errno = ENAMETOOLONG;
    return 0;
}

struct state *state_map(const char *directory)
{
    char path[PATH_MAX];
    struct stat status;
    if (!state_path(path, sizeof(path), directory))
        return NULL;
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0)
        return NULL;
    /* A file that is still being created is shorter; a file of another build may be longer. Both are no driver. */
    if (fstat(descriptor, &status) != 0 || status.st_size != (off_t)sizeof(struct state)) {
        close(descriptor);
        errno = EPROTO;
        return NULL;
    }
    struct state *state = map_descriptor(descriptor);
    if (state && (__atomic_load_n(&state->magic, __ATOMIC_ACQUIRE) != STATE_MAGIC || state->layout != STATE_LAYOUT ||
                  state->size != sizeof(struct state))) {
        state_unmap(state);
        errno = EPROTO;
        return NULL;
    }
    return state;
}

void state_unmap(struct state *state)
{
    munmap(state, sizeof(*state));
}

struct state *state_create(const char *directory, const struct state *node, int replace)
{
    char path[PATH_MAX], temporary[PATH_MAX + 16];
    if (!state_path(path, sizeof(path), directory))
        return NULL;
    if (!replace && access(path, F_OK) == 0) {
        errno = EEXIST;
        return NULL;
    }
    /* Written beside its place and renamed, so that nobody ever maps an unfinished file. */
    snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)getpid());
    int descriptor = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return NULL;
    if (fchmod(descriptor, 0666) != 0 || ftruncate(descriptor, sizeof(struct state)) != 0) {
        close(descriptor);
        return NULL;
    }
    struct state *state = map_descriptor(descriptor);
    if (!state)
        return NULL;
    /* Everything but the header and the lock, which are made here. */
    size_t body = offsetof(struct state, seed);
    memcpy((char *)state + body, (const char *)node + body, sizeof(*state) - body);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    state->layout = STATE_LAYOUT;
    state->size = sizeof(*state);
    __atomic_store_n(&state->magic, STATE_MAGIC, __ATOMIC_RELEASE);
    if (rename(temporary, path) != 0) {
        state_unmap(state);
        return NULL;
    }
    return state;
}

void state_lock(struct state *state)
{
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&state->lock);
}

void state_unlock(struct state *state)
{
    pthread_mutex_unlock(&state->lock);
}

uint32_t state_generation(struct state *state)
{
    /* Handles hold 29 bits of it; zero is never used, so that a zeroed handle is always wrong. */
    state->generations = (state->generations + 1) & 0x1fffffff;
    if (state->generations == 0)
        state->generations = 1;
    return state->generations;
}

static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ULL;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

void state_uuid(char *buffer, const char *prefix, const uint64_t *words, int count)
{
    uint64_t high = 0x67707573696d0001ULL, low = 0x67707573696d0002ULL;
    for (int i = 0; i < count; i++) {
        high = mix(high ^ words[i]);
        low = mix(low + high + words[i]);
    }
    /* Version 5, variant 1: the form of name-based identifiers. */
    high = (high & ~0xf000ULL) | 0x5000ULL;
    low = (low & 0x3fffffffffffffffULL) | 0x8000000000000000ULL;
    snprintf(buffer, UUID_SIZE, "%s%08x-%04x-%04x-%04x-%012llx", prefix, (unsigned)(high >> 32),
             (unsigned)(high >> 16) & 0xffff, (unsigned)high & 0xffff, (unsigned)(low >> 48),
             (unsigned long long)low & 0xffffffffffffULL);
}

void state_reap_clients(struct state *state)
{
    for (int i = 0; i < MAX_CLIENTS; i++) {
        struct client *client = &state->clients[i];
        if (client->live && client->while_alive && kill((pid_t)client->pid, 0) != 0 && errno == ESRCH)
            client->live = 0;
    }
}

void state_publish(struct state *state, int gpu, uint64_t type, uint64_t data, uint32_t gpu_instance,
                   uint32_t compute_instance)
{
    uint64_t sequence = state->event_sequence + 1;
    struct event *event = &state->events[sequence % MAX_EVENTS];
    *event = (struct event){.sequence = sequence,
                            .type = type,
                            .data = data,
                            .gpu = (int16_t)gpu,
                            .gpu_instance = gpu_instance,
                            .compute_instance = compute_instance};
    memcpy(event->uuid, state->gpus[gpu].uuid, UUID_SIZE);
    state->event_sequence = sequence;
    __atomic_add_fetch(&state->event_wakeup, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &state->event_wakeup, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
