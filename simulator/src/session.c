/*
 * The only memory of this library outside the shared state: whether this process has the library initialised.
 *
 * A mapping lives while the library is initialised with it or a call is under way in it, so that a call which hangs
 * in one thread survives a shutdown by another. After the last of both nothing is left, and the library may be
 * unloaded, or initialised again for another node.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

/* More than one is in use only while calls hang in an earlier one. */
#define MAX_MAPPINGS 8

struct mapping {
    struct state *state;
    unsigned int users;
    int sees_everything;
    char directory[PATH_MAX];
};

static pthread_mutex_t session_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping mappings[MAX_MAPPINGS];
static struct mapping *current;
static unsigned int initialised;

static struct mapping *mapping_of(const struct state *state)
{
    for (int i = 0; i < MAX_MAPPINGS; i++)
        if (mappings[i].state == state)
            return &mappings[i];
    return NULL;
}

static void release(struct mapping *mapping)
{
    if (--mapping->users > 0)
        return;
    state_unmap(mapping->state);
    mapping->state = NULL;
}

static struct mapping *map_node(int *reason)
{
    struct mapping *mapping = mapping_of(NULL);
    *reason = EAGAIN;
    if (!mapping)
        return NULL;
    int told = state_directory(mapping->directory, sizeof(mapping->directory));
    mapping->state = state_map(mapping->directory);
    *reason = errno;
    if (!mapping->state)
        return NULL;
    /* Found without being told where to look means: inside a container, where device nodes decide. */
    const char *visibility = getenv("GPUSIM_VISIBLE");
    mapping->sees_everything = visibility && *visibility ? strcmp(visibility, "devices") != 0 : told;
    mapping->users = 1;
    return mapping;
}

int session_open(int *reason)
{
    pthread_mutex_lock(&session_lock);
    if (!initialised)
        current = map_node(reason);
    int opened = current != NULL;
    initialised += (unsigned int)opened;
    pthread_mutex_unlock(&session_lock);
    return opened;
}

int session_close(void)
{
    pthread_mutex_lock(&session_lock);
    int closed = initialised > 0;
    if (closed && --initialised == 0) {
        release(current);
        current = NULL;
        closed = 2;
    }
    pthread_mutex_unlock(&session_lock);
    return closed;
}

struct state *session_acquire(void)
{
    pthread_mutex_lock(&session_lock);
    struct state *state = current ? current->state : NULL;
    if (current)
        current->users++;
    pthread_mutex_unlock(&session_lock);
    return state;
}

void session_release(struct state *state)
{
    pthread_mutex_lock(&session_lock);
    release(mapping_of(state));
    pthread_mutex_unlock(&session_lock);
}

const char *session_directory(const struct state *state)
{
    return mapping_of(state)->directory;
}

int session_sees_everything(const struct state *state)
{
    return mapping_of(state)->sees_everything;
}
