/* Compute instances and the MIG devices that they are. */
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "tree.h"

static void fill_compute(const struct gpu_profile *parent, int compute, nvmlComputeInstanceProfileInfo_t *info)
{
    const struct compute_profile *profile = &parent->compute[compute];
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = compute_maximum(parent, compute),
        .multiprocessorCount = profile->multiprocessors,
        .sharedCopyEngineCount = parent->engines[ENGINE_COPY],
        .sharedDecoderCount = parent->engines[ENGINE_DECODER],
        .sharedEncoderCount = parent->engines[ENGINE_ENCODER],
        .sharedJpegCount = parent->engines[ENGINE_JPEG],
        .sharedOfaCount = parent->engines[ENGINE_OFA],
    };
}

static const struct gpu_profile *enumerated(struct call *call, nvmlGpuInstance_t handle, unsigned int enumeration,
                                            unsigned int engines, int *compute)
{
    int slot, instance;
    struct gpu *gpu = call_instance(call, handle, &slot, &instance);
    int known = enumeration < NVML_COMPUTE_INSTANCE_PROFILE_COUNT && engines < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT;
    if (!gpu || !call_require(call, known, NVML_ERROR_INVALID_ARGUMENT))
        return NULL;
    const struct gpu_profile *parent = instance_profile(gpu, &gpu->instances[instance]);
    *compute = compute_by_enumeration(parent, enumeration);
    return call_require(call, *compute >= 0, NVML_ERROR_NOT_SUPPORTED) ? parent : NULL;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned int enumeration,
                                                                 unsigned int engines,
                                                                 nvmlComputeInstanceProfileInfo_t *info)
{
    ENTER(nvmlGpuInstanceGetComputeInstanceProfileInfo, handle);
    int compute;
    const struct gpu_profile *parent = enumerated(&call, handle, enumeration, engines, &compute);
    if (parent && call_require(&call, info != NULL, NVML_ERROR_INVALID_ARGUMENT))
        fill_compute(parent, compute, info);
    return call_end(&call);
}

/* A partial compute instance is named with its slices in front of the GPU instance's profile. */
static void compute_name(const struct call *call, const struct gpu_profile *parent, int compute, char *text, size_t size)
{
    const char *prefix = call->state->prefix_names ? "MIG " : "";
    if (parent->compute[compute].slices == parent->slices)
        snprintf(text, size, "%s%s", prefix, parent->name);
    else
        snprintf(text, size, "%s%uc.%s", prefix, parent->compute[compute].slices, parent->name);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t handle, unsigned int enumeration,
                                                                  unsigned int engines,
                                                                  nvmlComputeInstanceProfileInfo_v2_t *info)
{
    ENTER(nvmlGpuInstanceGetComputeInstanceProfileInfoV, handle);
    int compute;
    const struct gpu_profile *parent = enumerated(&call, handle, enumeration, engines, &compute);
    if (!parent || !call_require(&call, info != NULL, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    unsigned int version = info->version;
    int newer = version == (3u << 24 | sizeof(nvmlComputeInstanceProfileInfo_v3_t));
    if (!call_require(&call, newer || version == (2u << 24 | sizeof(nvmlComputeInstanceProfileInfo_v2_t)),
                      NVML_ERROR_ARGUMENT_VERSION_MISMATCH))
        return call_end(&call);
    nvmlComputeInstanceProfileInfo_t plain;
    fill_compute(parent, compute, &plain);
    /* Both forms begin with the version and the plain form, then the name. */
    memset(info, 0, newer ? sizeof(nvmlComputeInstanceProfileInfo_v3_t) : sizeof(*info));
    info->version = version;
    memcpy(&info->id, &plain, sizeof(plain));
    compute_name(&call, parent, compute, info->name, sizeof(info->name));
    return call_end(&call);
}

/* Resolves a GPU instance and one of its compute profiles by id; both, or an error. */
static struct gpu *with_profile(struct call *call, nvmlGpuInstance_t handle, unsigned int profile_id, int *slot,
                                int *instance, int *compute)
{
    struct gpu *gpu = call_instance(call, handle, slot, instance);
    if (!gpu)
        return NULL;
    call->entry.profile_id = (int32_t)profile_id;
    *compute = compute_by_id(instance_profile(gpu, &gpu->instances[*instance]), profile_id);
    return call_require(call, *compute >= 0, NVML_ERROR_INVALID_ARGUMENT) ? gpu : NULL;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle,
                                                                       unsigned int profile_id, unsigned int *count)
{
    ENTER(nvmlGpuInstanceGetComputeInstanceRemainingCapacity, handle);
    int slot, instance, compute;
    struct gpu *gpu = with_profile(&call, handle, profile_id, &slot, &instance, &compute);
    if (gpu && call_require(&call, count != NULL, NVML_ERROR_INVALID_ARGUMENT))
        *count = compute_capacity(gpu, &gpu->instances[instance], compute);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t handle,
                                                                        unsigned int profile_id,
                                                                        nvmlComputeInstancePlacement_t *placements,
                                                                        unsigned int *count)
{
    ENTER(nvmlGpuInstanceGetComputeInstancePossiblePlacements, handle);
    int slot, instance, compute;
    struct gpu *gpu = with_profile(&call, handle, profile_id, &slot, &instance, &compute);
    if (gpu && call_require(&call, count != NULL, NVML_ERROR_INVALID_ARGUMENT)) {
        const struct compute_profile *profile =
            &instance_profile(gpu, &gpu->instances[instance])->compute[compute];
        for (int i = 0; placements && i < profile->start_count; i++)
            placements[i] = (nvmlComputeInstancePlacement_t){profile->starts[i], profile->slices};
        *count = profile->start_count;
    }
    return call_end(&call);
}

static nvmlReturn_t create_compute(struct call *call, nvmlGpuInstance_t handle, unsigned int profile_id,
                                   const nvmlComputeInstancePlacement_t *placement, nvmlComputeInstance_t *created)
{
    int slot, instance, compute, id;
    struct gpu *gpu = with_profile(call, handle, profile_id, &slot, &instance, &compute);
    if (!gpu || !call_require(call, created != NULL, NVML_ERROR_INVALID_ARGUMENT) || !call_privileged(call))
        return call_end(call);
    const struct gpu_profile *parent = instance_profile(gpu, &gpu->instances[instance]);
    if (placement &&
        !call_require(call, placement->size == parent->compute[compute].slices, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(call);
    call->result = compute_create(call->state, slot, instance, compute, placement ? placement->start : START_BY_DRIVER,
                                  &id);
    if (call->result == NVML_SUCCESS) {
        call->entry.compute_instance = id;
        call->entry.start = gpu->instances[instance].compute[id].start;
        call->entry.size = gpu->instances[instance].compute[id].size;
        *created = handle_of_compute(call, slot, instance, id);
        tree_show(session_directory(call->state), call->state, slot, instance, id);
    }
    return call_end(call);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned int profile_id,
                                                         nvmlComputeInstance_t *created)
{
    ENTER(nvmlGpuInstanceCreateComputeInstance, handle);
    return create_compute(&call, handle, profile_id, NULL, created);
}

EXPORT nvmlReturn_t
nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t handle, unsigned int profile_id,
                                                  const nvmlComputeInstancePlacement_t *placement,
                                                  nvmlComputeInstance_t *created)
{
    ENTER(nvmlGpuInstanceCreateComputeInstanceWithPlacement, handle);
    if (!call_require(&call, placement != NULL, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    call.entry.start = (int32_t)placement->start;
    call.entry.size = (int32_t)placement->size;
    return create_compute(&call, handle, profile_id, placement, created);
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle)
{
    ENTER(nvmlComputeInstanceDestroy, handle);
    int slot, instance, compute;
    struct gpu *gpu = call_compute(&call, handle, &slot, &instance, &compute);
    if (gpu && call_privileged(&call)) {
        call.result = compute_destroy(call.state, slot, instance, compute);
        if (call.result == NVML_SUCCESS)
            tree_hide(session_directory(call.state), call.state, slot, instance, compute);
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned int profile_id,
                                                       nvmlComputeInstance_t *instances, unsigned int *count)
{
    ENTER(nvmlGpuInstanceGetComputeInstances, handle);
    int slot, instance, compute;
    struct gpu *gpu = with_profile(&call, handle, profile_id, &slot, &instance, &compute);
    if (gpu && call_require(&call, instances && count, NVML_ERROR_INVALID_ARGUMENT)) {
        *count = 0;
        for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++) {
            const struct compute_instance *candidate = &gpu->instances[instance].compute[i];
            if (candidate->live && candidate->profile == compute)
                instances[(*count)++] = handle_of_compute(&call, slot, instance, i);
        }
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned int id,
                                                          nvmlComputeInstance_t *found)
{
    ENTER(nvmlGpuInstanceGetComputeInstanceById, handle);
    int slot, instance;
    struct gpu *gpu = call_instance(&call, handle, &slot, &instance);
    if (gpu && call_require(&call, found != NULL, NVML_ERROR_INVALID_ARGUMENT) &&
        call_require(&call, id < MAX_COMPUTE_INSTANCES && gpu->instances[instance].compute[id].live,
                     NVML_ERROR_NOT_FOUND))
        *found = handle_of_compute(&call, slot, instance, (int)id);
    return call_end(&call);
}

static nvmlReturn_t compute_info(int symbol, nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info)
{
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, handle);
    if (entered != NVML_SUCCESS)
        return entered;
    int slot, instance, id;
    struct gpu *gpu = call_compute(&call, handle, &slot, &instance, &id);
    if (gpu && call_require(&call, info != NULL, NVML_ERROR_INVALID_ARGUMENT)) {
        const struct compute_instance *compute = &gpu->instances[instance].compute[id];
        const struct gpu_profile *parent = instance_profile(gpu, &gpu->instances[instance]);
        /* The device of a compute instance is its MIG device, not the card. */
        *info = (nvmlComputeInstanceInfo_t){handle_of_mig_device(&call, slot, instance, id),
                                            handle_of_instance(&call, slot, instance), (unsigned int)id,
                                            parent->compute[compute->profile].id, {compute->start, compute->size}};
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info)
{
    return compute_info(SYMBOL_nvmlComputeInstanceGetInfo, handle, info);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info)
{
    return compute_info(SYMBOL_nvmlComputeInstanceGetInfo_v2, handle, info);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *answer)
{
    ENTER(nvmlDeviceIsMigDeviceHandle, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu && call_require(&call, answer != NULL, NVML_ERROR_INVALID_ARGUMENT))
        *answer = instance != NONE;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER(nvmlDeviceGetGpuInstanceId, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu && call_require(&call, id && instance != NONE, NVML_ERROR_INVALID_ARGUMENT))
        *id = (unsigned int)instance;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER(nvmlDeviceGetComputeInstanceId, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu && call_require(&call, id && instance != NONE, NVML_ERROR_INVALID_ARGUMENT))
        *id = (unsigned int)compute;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ENTER(nvmlDeviceGetMaxMigDeviceCount, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, count != NULL, NVML_ERROR_INVALID_ARGUMENT))
        *count = gpu->mig_current ? gpu_model(gpu)->compute_slices : 0;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *found)
{
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (!gpu || !call_require(&call, found != NULL, NVML_ERROR_INVALID_ARGUMENT) ||
        !call_require(&call, gpu_model(gpu)->mode_change != MODE_CHANGE_UNSUPPORTED, NVML_ERROR_NOT_SUPPORTED) ||
        !call_require(&call, index < gpu_model(gpu)->compute_slices, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    call.result = NVML_ERROR_NOT_FOUND;
    for (int i = 0; i < MAX_GPU_INSTANCES; i++)
        for (int c = 0; gpu->instances[i].live && c < MAX_COMPUTE_INSTANCES; c++)
            if (gpu->instances[i].compute[c].live && visible_mig_device(&call, slot_of(&call, gpu), i, c) &&
                seen_mig_index(&call, slot_of(&call, gpu), i, c) == (int)index) {
                *found = handle_of_mig_device(&call, slot_of(&call, gpu), i, c);
                call.result = NVML_SUCCESS;
            }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *parent)
{
    ENTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu && call_require(&call, parent && instance != NONE, NVML_ERROR_INVALID_ARGUMENT))
        *parent = handle_of_gpu(&call, slot_of(&call, gpu));
    return call_end(&call);
}

static nvmlReturn_t attributes_of(int symbol, nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, device);
    if (entered != NVML_SUCCESS)
        return entered;
    int instance, id;
    struct gpu *gpu = call_device(&call, device, &instance, &id);
    if (!gpu || !call_require(&call, attributes != NULL, NVML_ERROR_INVALID_ARGUMENT) ||
        !call_require(&call, instance != NONE, NVML_ERROR_NOT_SUPPORTED))
        return call_end(&call);
    const struct gpu_profile *parent = instance_profile(gpu, &gpu->instances[instance]);
    const struct compute_instance *compute = &gpu->instances[instance].compute[id];
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = parent->compute[compute->profile].multiprocessors,
        .sharedCopyEngineCount = parent->engines[ENGINE_COPY],
        .sharedDecoderCount = parent->engines[ENGINE_DECODER],
        .sharedEncoderCount = parent->engines[ENGINE_ENCODER],
        .sharedJpegCount = parent->engines[ENGINE_JPEG],
        .sharedOfaCount = parent->engines[ENGINE_OFA],
        .gpuInstanceSliceCount = parent->slices,
        .computeInstanceSliceCount = compute->size,
        .memorySizeMB = parent->memory_mib,
    };
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return attributes_of(SYMBOL_nvmlDeviceGetAttributes, device, attributes);
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return attributes_of(SYMBOL_nvmlDeviceGetAttributes_v2, device, attributes);
}
