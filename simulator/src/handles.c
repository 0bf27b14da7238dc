/*
 * Handles: which card or instance of the shared state one means, and the ones that we hand out.
 */
#include "call.h"

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
