/* See call.h. */
#define _GNU_SOURCE
#include "call.h"
#include "faults.h"
#include "instances.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

nvmlReturn_t call_begin(struct call *call, int symbol, const void *handle)
{
    struct handle target;
    return call_begin_at(call, symbol, handle_decode(handle, &target) ? target.gpu : ANY);
}

nvmlReturn_t call_begin_at(struct call *call, int symbol, int gpu)
{
    memset(call, 0, sizeof(*call));
    call->symbol = symbol;
    call->state = session_acquire();
    if (!call->state)
        return NVML_ERROR_UNINITIALIZED;
    call->entry.symbol = (int16_t)symbol;
    call->entry.gpu = (int16_t)gpu;
    call->entry.gpu_instance = call->entry.compute_instance = NONE;
    call->entry.profile_id = call->entry.start = call->entry.size = call->entry.value = NONE;
    struct fault fault = fault_meet(call->state, symbol, gpu);
    nvmlReturn_t decided = NVML_SUCCESS;
    if (fault.live && fault.mode == FAULT_BEFORE)
        decided = (nvmlReturn_t)fault.code;
    else if (fault.live && fault.mode == FAULT_AFTER)
        call->override = (nvmlReturn_t)fault.code;
    else if (fault.live && fault.mode == FAULT_ACTIVATION)
        call->activation = (nvmlReturn_t)fault.code;
    state_lock(call->state);
    if (decided == NVML_SUCCESS)
        return NVML_SUCCESS;
    call->result = decided;
    return call_end(call);
}

nvmlReturn_t call_end(struct call *call)
{
    call->entry.effect = (int32_t)call->result;
    if (call->override != NVML_SUCCESS)
        call->result = call->override;
    call->entry.result = (int32_t)call->result;
    if (symbol_table[call->symbol].writes)
        journal_write(call->state, call->entry);
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

int seen_mig_index(const struct call *call, int slot, int instance, int compute)
{
    const struct gpu *gpu = &call->state->gpus[slot];
    int own = mig_index(gpu, instance, compute), seen = 0;
    if (session_sees_everything(call->state))
        return own;
    for (int i = 0; i < MAX_GPU_INSTANCES; i++)
        for (int c = 0; gpu->instances[i].live && c < MAX_COMPUTE_INSTANCES; c++)
            seen += gpu->instances[i].compute[c].live && mig_index(gpu, i, c) < own && visible_mig_device(call, slot, i, c);
    return seen;
}
