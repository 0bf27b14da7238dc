/* See call.h. */
#define _GNU_SOURCE
#include "call.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

static void sleep_microseconds(uint64_t microseconds)
{
    struct timespec left = {.tv_sec = (time_t)(microseconds / 1000000),
                            .tv_nsec = (long)(microseconds % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static int symbol_matches(int wanted, int family, int symbol)
{
    if (wanted == SYMBOL_ANY)
        return 1;
    if (wanted == SYMBOL_WRITES)
        return symbol_table[symbol].writes;
    return wanted == symbol || (family && symbol_table[wanted].family == symbol_table[symbol].family);
}

static uint64_t latency_of(const struct state *state, int symbol, int gpu)
{
    uint64_t total = state->global_latency_microseconds;
    for (int i = 0; state->live_latencies && i < MAX_LATENCIES; i++) {
        const struct latency *rule = &state->latencies[i];
        if (rule->live && symbol_matches(rule->symbol, rule->family, symbol) && (rule->gpu == ANY || rule->gpu == gpu))
            total += rule->microseconds;
    }
    return total;
}

/* Lets every matching fault count this call and returns the first one that is due. */
static struct fault fault_due(struct state *state, int symbol, int gpu)
{
    struct fault due = {.live = 0};
    state_lock(state);
    for (int i = 0; i < MAX_FAULTS; i++) {
        struct fault *fault = &state->faults[i];
        if (!fault->live || !symbol_matches(fault->symbol, fault->family, symbol) ||
            (fault->gpu != ANY && fault->gpu != gpu))
            continue;
        if (fault->skip > 0) {
            fault->skip--;
            continue;
        }
        if (fault->remaining == 0 || due.live)
            continue;
        due = *fault;
        fault->hits++;
        if (fault->remaining > 0)
            fault->remaining--;
    }
    state_unlock(state);
    return due;
}

/* A fault decides before anything else; the answer of the call when it does not go on, else NVML_SUCCESS. */
static nvmlReturn_t apply_fault(struct call *call, int gpu)
{
    if (!__atomic_load_n(&call->state->live_faults, __ATOMIC_RELAXED))
        return NVML_SUCCESS;
    struct fault fault = fault_due(call->state, call->symbol, gpu);
    if (!fault.live)
        return NVML_SUCCESS;
    if (fault.hang_milliseconds)
        sleep_microseconds((uint64_t)fault.hang_milliseconds * 1000);
    if (fault.mode == FAULT_AFTER)
        call->override = (nvmlReturn_t)fault.code;
    else if (fault.mode == FAULT_ACTIVATION)
        call->activation = (nvmlReturn_t)fault.code;
    return fault.mode == FAULT_BEFORE ? (nvmlReturn_t)fault.code : NVML_SUCCESS;
}

static void journal(struct call *call)
{
    struct state *state = call->state;
    uint64_t sequence = ++state->journal_sequence;
    call->entry.sequence = sequence;
    call->entry.pid = (uint32_t)getpid();
    call->entry.symbol = (int16_t)call->symbol;
    call->entry.result = (int32_t)call->result;
    state->journal[sequence % MAX_JOURNAL] = call->entry;
}

nvmlReturn_t call_begin(struct call *call, int symbol, const void *handle)
{
    struct handle target;
    memset(call, 0, sizeof(*call));
    call->symbol = symbol;
    call->state = session_acquire();
    if (!call->state)
        return NVML_ERROR_UNINITIALIZED;
    __atomic_add_fetch(&call->state->calls[symbol], 1, __ATOMIC_RELAXED);
    int gpu = handle_decode(handle, &target) ? target.gpu : ANY;
    call->entry.gpu = (int16_t)gpu;
    call->entry.gpu_instance = call->entry.compute_instance = NONE;
    call->entry.profile_id = call->entry.start = call->entry.size = call->entry.value = NONE;
    if (call->state->global_latency_microseconds || call->state->live_latencies) {
        uint64_t microseconds = latency_of(call->state, symbol, gpu);
        if (microseconds)
            sleep_microseconds(microseconds);
    }
    nvmlReturn_t decided = apply_fault(call, gpu);
    state_lock(call->state);
    if (decided == NVML_SUCCESS)
        return NVML_SUCCESS;
    call->result = decided;
    call->override = NVML_SUCCESS;
    return call_end(call);
}

nvmlReturn_t call_end(struct call *call)
{
    call->entry.effect = (int32_t)call->result;
    if (call->override != NVML_SUCCESS)
        call->result = call->override;
    if (symbol_table[call->symbol].writes)
        journal(call);
    state_unlock(call->state);
    session_release(call->state);
    return call->result;
}

nvmlReturn_t call_unimplemented(int symbol)
{
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, NULL);
    if (entered != NVML_SUCCESS)
        return entered;
    call.result = NVML_ERROR_NOT_SUPPORTED;
    return call_end(&call);
}

int call_require(struct call *call, int condition, nvmlReturn_t otherwise)
{
    if (!condition && call->result == NVML_SUCCESS)
        call->result = otherwise;
    return call->result == NVML_SUCCESS;
}

int call_privileged(struct call *call)
{
    int allowed = call->state->privilege == PRIVILEGE_ALLOW ||
                  (call->state->privilege == PRIVILEGE_AUTO && geteuid() == 0);
    return call_require(call, allowed, NVML_ERROR_NO_PERMISSION);
}

void call_copy(struct call *call, char *buffer, unsigned int length, const char *text)
{
    if (!call_require(call, buffer != NULL, NVML_ERROR_INVALID_ARGUMENT))
        return;
    if (call_require(call, strlen(text) < length, NVML_ERROR_INSUFFICIENT_SIZE))
        strcpy(buffer, text);
}

/* A device node counts when it is the right character device, as the driver's own open would find out. */
static int node_exists(const char *path, unsigned int major_number, unsigned int minor_number)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISCHR(status.st_mode) && major(status.st_rdev) == major_number &&
           minor(status.st_rdev) == minor_number;
}

int visible_gpu(const struct call *call, int slot)
{
    char path[64];
    if (session_sees_everything(call->state))
        return 1;
    unsigned int number = call->state->gpus[slot].minor_number;
    snprintf(path, sizeof(path), "/dev/nvidia%u", number);
    return node_exists(path, 195, number);
}

int visible_mig_device(const struct call *call, int slot, int instance, int compute)
{
    char path[64];
    if (session_sees_everything(call->state))
        return 1;
    unsigned int number = 3 + 135 * call->state->gpus[slot].minor_number + 9 * (unsigned int)instance;
    snprintf(path, sizeof(path), "/dev/nvidia-caps/nvidia-cap%u", number);
    if (!visible_gpu(call, slot) || !node_exists(path, call->state->caps_major, number))
        return 0;
    number += 1 + (unsigned int)compute;
    snprintf(path, sizeof(path), "/dev/nvidia-caps/nvidia-cap%u", number);
    return node_exists(path, call->state->caps_major, number);
}
