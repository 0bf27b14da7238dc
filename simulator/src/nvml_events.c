/*
 * Events. The shared state holds one ring of them; every event set of every process reads it from its own place, so
 * each set sees each event. A set is a slot in this process's memory and its handle carries a generation, so that a
 * freed or foreign handle is refused.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "call.h"

#define MAX_SETS 64
#define SUPPORTED_EVENTS                                                                               \
    (nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypePState |           \
     nvmlEventTypeXidCriticalError | nvmlEventTypeClock)

struct event_set {
    int used;
    uint32_t generation;
    const struct state *state;    /* The node that the set was made for. */
    uint64_t seen;                /* Everything up to this sequence was delivered or is older than the set. */
    uint64_t wanted[MAX_GPUS];    /* Event types per slot. */
    uint64_t since[MAX_GPUS];     /* Events up to this sequence happened before the registration. */
    char uuids[MAX_GPUS][UUID_SIZE]; /* The card that was registered; another in its slot is not meant. */
};

static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER;
static struct event_set sets[MAX_SETS];
static uint32_t generations;

/* Sets are told from other handles by a tag of their own. */
#define SET_TAG 0x4745ULL

static nvmlEventSet_t encode(const struct event_set *set)
{
    return (nvmlEventSet_t)(uintptr_t)(SET_TAG << 48 | (uint64_t)(set - sets) << 32 | set->generation);
}

/* Call with sets_lock held. */
static struct event_set *decode(nvmlEventSet_t handle)
{
    uint64_t word = (uint64_t)(uintptr_t)handle;
    uint64_t position = word >> 32 & 0xffff;
    if (word >> 48 != SET_TAG || position >= MAX_SETS)
        return NULL;
    struct event_set *set = &sets[position];
    return set->used && set->generation == (uint32_t)word ? set : NULL;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *created)
{
    ENTER(nvmlEventSetCreate, NULL);
    if (!call_require(&call, created != NULL, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    call.result = NVML_ERROR_MEMORY;
    pthread_mutex_lock(&sets_lock);
    for (int i = 0; i < MAX_SETS; i++) {
        if (sets[i].used)
            continue;
        memset(&sets[i], 0, sizeof(sets[i]));
        sets[i].used = 1;
        sets[i].generation = ++generations;
        sets[i].state = call.state;
        sets[i].seen = call.state->event_sequence;
        *created = encode(&sets[i]);
        call.result = NVML_SUCCESS;
        break;
    }
    pthread_mutex_unlock(&sets_lock);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle)
{
    ENTER(nvmlEventSetFree, NULL);
    pthread_mutex_lock(&sets_lock);
    struct event_set *set = decode(handle);
    if (call_require(&call, set != NULL, NVML_ERROR_INVALID_ARGUMENT))
        set->used = 0;
    pthread_mutex_unlock(&sets_lock);
    return call_end(&call);
}

void event_sets_forget(void)
{
    pthread_mutex_lock(&sets_lock);
    for (int i = 0; i < MAX_SETS; i++)
        sets[i].used = 0;
    pthread_mutex_unlock(&sets_lock);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    ENTER(nvmlDeviceGetSupportedEventTypes, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, types != NULL, NVML_ERROR_INVALID_ARGUMENT))
        *types = SUPPORTED_EVENTS;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle)
{
    ENTER(nvmlDeviceRegisterEvents, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (!gpu || !call_require(&call, (types & ~SUPPORTED_EVENTS) == 0, NVML_ERROR_NOT_SUPPORTED))
        return call_end(&call);
    pthread_mutex_lock(&sets_lock);
    struct event_set *set = decode(handle);
    if (call_require(&call, set && set->state == call.state, NVML_ERROR_INVALID_ARGUMENT)) {
        int slot = slot_of(&call, gpu);
        if (!set->wanted[slot])
            set->since[slot] = call.state->event_sequence;
        set->wanted[slot] |= types;
        memcpy(set->uuids[slot], gpu->uuid, UUID_SIZE);
    }
    pthread_mutex_unlock(&sets_lock);
    return call_end(&call);
}

/* Takes the next event that the set asked for. Call with both locks held. */
static const struct event *next_event(const struct state *state, struct event_set *set)
{
    /* Events that fell out of the ring are lost to a waiter that was too slow, as in a real driver. */
    if (state->event_sequence > MAX_EVENTS && set->seen < state->event_sequence - MAX_EVENTS)
        set->seen = state->event_sequence - MAX_EVENTS;
    while (set->seen < state->event_sequence) {
        const struct event *event = &state->events[++set->seen % MAX_EVENTS];
        if ((set->wanted[event->gpu] & event->type) && event->sequence > set->since[event->gpu] &&
            strcmp(set->uuids[event->gpu], event->uuid) == 0)
            return event;
    }
    return NULL;
}

static uint64_t now_milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Sleeps until something was published after `wakeup` was read, or the time is over. Call without locks. */
static void sleep_until_published(struct state *state, uint32_t wakeup, uint64_t milliseconds)
{
    struct timespec timeout = {.tv_sec = (time_t)(milliseconds / 1000), .tv_nsec = (long)(milliseconds % 1000) * 1000000};
    syscall(SYS_futex, &state->event_wakeup, FUTEX_WAIT, wakeup, &timeout, NULL, 0);
}

static nvmlReturn_t wait_for_event(int symbol, nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int milliseconds)
{
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, NULL);
    if (entered != NVML_SUCCESS)
        return entered;
    uint64_t deadline = now_milliseconds() + milliseconds;
    if (!call_require(&call, data != NULL, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    for (;;) {
        uint32_t wakeup = __atomic_load_n(&call.state->event_wakeup, __ATOMIC_ACQUIRE);
        pthread_mutex_lock(&sets_lock);
        struct event_set *set = decode(handle);
        int valid = set && set->state == call.state;
        const struct event *event = valid ? next_event(call.state, set) : NULL;
        if (event)
            *data = (nvmlEventData_t){handle_of_gpu(&call, event->gpu), event->type, event->data, event->gpu_instance,
                                      event->compute_instance};
        pthread_mutex_unlock(&sets_lock);
        uint64_t now = now_milliseconds();
        if (event || !call_require(&call, valid, NVML_ERROR_INVALID_ARGUMENT) ||
            !call_require(&call, now < deadline, NVML_ERROR_TIMEOUT))
            return call_end(&call);
        state_unlock(call.state);
        sleep_until_published(call.state, wakeup, deadline - now);
        state_lock(call.state);
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int milliseconds)
{
    return wait_for_event(SYMBOL_nvmlEventSetWait, handle, data, milliseconds);
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int milliseconds)
{
    return wait_for_event(SYMBOL_nvmlEventSetWait_v2, handle, data, milliseconds);
}
