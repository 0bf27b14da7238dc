/*
 * Handles: 64-bit words that look like pointers and point nowhere.
 *
 * The upper 16 bits make an address that no process can have, so that following one by mistake fails at once, and
 * garbage collectors that meet one in a pointer variable know that it is not theirs. The rest says which card,
 * GPU instance and compute instance is meant, and the generation that it had: the same place with another
 * generation is something else.
 */
#include "call.h"

#define TAG 0x4753ULL

void *handle_encode(struct handle handle)
{
    uint64_t word = TAG << 48 | (uint64_t)handle.kind << 44 | (uint64_t)handle.gpu << 38 |
                    (uint64_t)handle.gpu_instance << 33 | (uint64_t)handle.compute_instance << 29 | handle.generation;
    return (void *)(uintptr_t)word;
}

int handle_decode(const void *value, struct handle *handle)
{
    uint64_t word = (uint64_t)(uintptr_t)value;
    if (word >> 48 != TAG)
        return 0;
    handle->kind = (enum handle_kind)(word >> 44 & 0xf);
    handle->gpu = (int)(word >> 38 & 0x3f);
    handle->gpu_instance = (int)(word >> 33 & 0x1f);
    handle->compute_instance = (int)(word >> 29 & 0xf);
    handle->generation = (uint32_t)(word & 0x1fffffff);
    return handle->gpu < MAX_GPUS && handle->gpu_instance < MAX_GPU_INSTANCES &&
           handle->compute_instance < MAX_COMPUTE_INSTANCES;
}

nvmlDevice_t handle_of_gpu(const struct call *call, int slot)
{
    return handle_encode((struct handle){HANDLE_GPU, slot, 0, 0, call->state->gpus[slot].generation});
}

nvmlGpuInstance_t handle_of_instance(const struct call *call, int slot, int instance)
{
    return handle_encode((struct handle){HANDLE_GPU_INSTANCE, slot, instance, 0,
                                         call->state->gpus[slot].instances[instance].generation});
}

static void *of_compute(const struct call *call, enum handle_kind kind, int slot, int instance, int compute)
{
    uint32_t generation = call->state->gpus[slot].instances[instance].compute[compute].generation;
    return handle_encode((struct handle){kind, slot, instance, compute, generation});
}

nvmlComputeInstance_t handle_of_compute(const struct call *call, int slot, int instance, int compute)
{
    return of_compute(call, HANDLE_COMPUTE_INSTANCE, slot, instance, compute);
}

nvmlDevice_t handle_of_mig_device(const struct call *call, int slot, int instance, int compute)
{
    return of_compute(call, HANDLE_MIG_DEVICE, slot, instance, compute);
}

int slot_of(const struct call *call, const struct gpu *gpu)
{
    return (int)(gpu - call->state->gpus);
}

/* Checks everything that all kinds of handles have in common. */
static struct gpu *resolve(struct call *call, const void *value, struct handle *handle)
{
    if (!call_require(call, handle_decode(value, handle), NVML_ERROR_INVALID_ARGUMENT))
        return NULL;
    struct gpu *gpu = &call->state->gpus[handle->gpu];
    int known = (uint32_t)handle->gpu < call->state->gpu_count;
    if (!call_require(call, known, NVML_ERROR_INVALID_ARGUMENT) ||
        !call_require(call, gpu->present && !gpu->lost, NVML_ERROR_GPU_IS_LOST))
        return NULL;
    struct gpu_instance *instance = &gpu->instances[handle->gpu_instance];
    struct compute_instance *compute = &instance->compute[handle->compute_instance];
    int current;
    if (handle->kind == HANDLE_GPU)
        current = gpu->generation == handle->generation;
    else if (handle->kind == HANDLE_GPU_INSTANCE)
        current = instance->live && instance->generation == handle->generation;
    else
        current = instance->live && compute->live && compute->generation == handle->generation;
    return call_require(call, current, NVML_ERROR_INVALID_ARGUMENT) ? gpu : NULL;
}

struct gpu *call_gpu(struct call *call, nvmlDevice_t device)
{
    struct handle handle;
    struct gpu *gpu = resolve(call, device, &handle);
    if (!gpu || !call_require(call, handle.kind == HANDLE_GPU, NVML_ERROR_INVALID_ARGUMENT))
        return NULL;
    return gpu;
}

struct gpu *call_device(struct call *call, nvmlDevice_t device, int *instance, int *compute)
{
    struct handle handle;
    struct gpu *gpu = resolve(call, device, &handle);
    if (!gpu)
        return NULL;
    int is_device = handle.kind == HANDLE_GPU || handle.kind == HANDLE_MIG_DEVICE;
    if (!call_require(call, is_device, NVML_ERROR_INVALID_ARGUMENT))
        return NULL;
    *instance = handle.kind == HANDLE_GPU ? NONE : handle.gpu_instance;
    *compute = handle.kind == HANDLE_GPU ? NONE : handle.compute_instance;
    return gpu;
}

struct gpu *call_instance(struct call *call, nvmlGpuInstance_t value, int *slot, int *instance)
{
    struct handle handle;
    struct gpu *gpu = resolve(call, value, &handle);
    if (!gpu || !call_require(call, handle.kind == HANDLE_GPU_INSTANCE, NVML_ERROR_INVALID_ARGUMENT))
        return NULL;
    *slot = handle.gpu;
    *instance = handle.gpu_instance;
    call->entry.gpu_instance = handle.gpu_instance;
    return gpu;
}

struct gpu *call_compute(struct call *call, nvmlComputeInstance_t value, int *slot, int *instance, int *compute)
{
    struct handle handle;
    struct gpu *gpu = resolve(call, value, &handle);
    if (!gpu || !call_require(call, handle.kind == HANDLE_COMPUTE_INSTANCE, NVML_ERROR_INVALID_ARGUMENT))
        return NULL;
    *slot = handle.gpu;
    *instance = handle.gpu_instance;
    *compute = handle.compute_instance;
    call->entry.gpu_instance = handle.gpu_instance;
    call->entry.compute_instance = handle.compute_instance;
    return gpu;
}
