/* MIG mode, GPU instances and what can be made of them. */
#include <stdio.h>
#include <string.h>

#include "call.h"
#include "tree.h"

static int mig_capable(struct call *call, const struct gpu *gpu)
{
    return call_require(call, gpu_model(gpu)->mode_change != MODE_CHANGE_UNSUPPORTED, NVML_ERROR_NOT_SUPPORTED);
}

/* A virtual machine that was given a slice of a card cannot partition it. */
static int mig_manageable(struct call *call, const struct gpu *gpu)
{
    return mig_capable(call, gpu) &&
           call_require(call, gpu->virtualization != NVML_GPU_VIRTUALIZATION_MODE_VGPU, NVML_ERROR_NOT_SUPPORTED);
}

static int mig_enabled(struct call *call, const struct gpu *gpu)
{
    return mig_manageable(call, gpu) && call_require(call, gpu->mig_current == 1, NVML_ERROR_NOT_SUPPORTED);
}

static int find_profile(struct call *call, const struct gpu *gpu, unsigned int id)
{
    int profile = profile_by_id(gpu_model(gpu), id);
    call->entry.profile_id = (int32_t)id;
    call_require(call, profile >= 0, NVML_ERROR_INVALID_ARGUMENT);
    return profile;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER(nvmlDeviceGetMigMode, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, current && pending, NVML_ERROR_INVALID_ARGUMENT) && mig_capable(&call, gpu)) {
        *current = gpu->mig_current;
        *pending = gpu->mig_pending;
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    ENTER(nvmlDeviceSetMigMode, device);
    struct gpu *gpu = call_gpu(&call, device);
    call.entry.value = (int32_t)mode;
    if (!gpu || !call_require(&call, activation && mode <= NVML_DEVICE_MIG_ENABLE, NVML_ERROR_INVALID_ARGUMENT) ||
        !mig_manageable(&call, gpu) || !call_privileged(&call))
        return call_end(&call);
    if (call.activation != NVML_SUCCESS) {
        *activation = call.activation;
        gpu->mig_pending = (uint8_t)mode;
    } else {
        call.result = mode_set(call.state, slot_of(&call, gpu), (int)mode, activation);
    }
    call.entry.activation = (int32_t)*activation;
    return call_end(&call);
}

/* The name under which the driver lists a profile. */
static void profile_name(const struct call *call, const struct gpu_profile *profile, char *text, size_t size)
{
    snprintf(text, size, "%s%s", call->state->prefix_names ? "MIG " : "", profile->name);
}

static void fill_profile(const struct gpu_profile *profile, nvmlGpuInstanceProfileInfo_t *info)
{
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->max_instances,
        .multiprocessorCount = profile->multiprocessors,
        .copyEngineCount = profile->engines[ENGINE_COPY],
        .decoderCount = profile->engines[ENGINE_DECODER],
        .encoderCount = profile->engines[ENGINE_ENCODER],
        .jpegCount = profile->engines[ENGINE_JPEG],
        .ofaCount = profile->engines[ENGINE_OFA],
        .memorySizeMB = profile->memory_mib,
    };
}

/* The versioned forms share their beginning up to the version word, and are told apart by it. */
static void fill_versioned_profile(struct call *call, const struct gpu_profile *profile,
                                   nvmlGpuInstanceProfileInfo_v2_t *info)
{
    nvmlGpuInstanceProfileInfo_t plain;
    unsigned int version = info->version;
    fill_profile(profile, &plain);
    if (version == (2u << 24 | sizeof(nvmlGpuInstanceProfileInfo_v2_t))) {
        *info = (nvmlGpuInstanceProfileInfo_v2_t){version, plain.id, 0, plain.sliceCount, plain.instanceCount,
                                                  plain.multiprocessorCount, plain.copyEngineCount, plain.decoderCount,
                                                  plain.encoderCount, plain.jpegCount, plain.ofaCount,
                                                  plain.memorySizeMB, ""};
        profile_name(call, profile, info->name, sizeof(info->name));
    } else if (version == (3u << 24 | sizeof(nvmlGpuInstanceProfileInfo_v3_t))) {
        nvmlGpuInstanceProfileInfo_v3_t *newer = (nvmlGpuInstanceProfileInfo_v3_t *)info;
        *newer = (nvmlGpuInstanceProfileInfo_v3_t){version, plain.id, plain.sliceCount, plain.instanceCount,
                                                   plain.multiprocessorCount, plain.copyEngineCount,
                                                   plain.decoderCount, plain.encoderCount, plain.jpegCount,
                                                   plain.ofaCount, plain.memorySizeMB, "", 0};
        profile_name(call, profile, newer->name, sizeof(newer->name));
    } else {
        call->result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
}

/* Enumeration values that the card lacks are unsupported, values beyond the enumeration are wrong. */
static const struct gpu_profile *enumerated(struct call *call, const struct gpu *gpu, unsigned int enumeration)
{
    if (!mig_capable(call, gpu) ||
        !call_require(call, enumeration < NVML_GPU_INSTANCE_PROFILE_COUNT, NVML_ERROR_INVALID_ARGUMENT))
        return NULL;
    int profile = profile_by_enumeration(gpu_model(gpu), enumeration);
    if (!call_require(call, profile >= 0, NVML_ERROR_NOT_SUPPORTED))
        return NULL;
    return &gpu_model(gpu)->profiles[profile];
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int enumeration,
                                                        nvmlGpuInstanceProfileInfo_t *info)
{
    ENTER(nvmlDeviceGetGpuInstanceProfileInfo, device);
    struct gpu *gpu = call_gpu(&call, device);
    const struct gpu_profile *profile = NULL;
    if (gpu && call_require(&call, info != NULL, NVML_ERROR_INVALID_ARGUMENT))
        profile = enumerated(&call, gpu, enumeration);
    if (profile)
        fill_profile(profile, info);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int enumeration,
                                                         nvmlGpuInstanceProfileInfo_v2_t *info)
{
    ENTER(nvmlDeviceGetGpuInstanceProfileInfoV, device);
    struct gpu *gpu = call_gpu(&call, device);
    const struct gpu_profile *profile = NULL;
    if (gpu && call_require(&call, info != NULL, NVML_ERROR_INVALID_ARGUMENT))
        profile = enumerated(&call, gpu, enumeration);
    if (profile)
        fill_versioned_profile(&call, profile, info);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                             nvmlGpuInstanceProfileInfo_v2_t *info)
{
    ENTER(nvmlDeviceGetGpuInstanceProfileInfoByIdV, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, info != NULL, NVML_ERROR_INVALID_ARGUMENT) && mig_capable(&call, gpu)) {
        int profile = find_profile(&call, gpu, id);
        if (profile >= 0)
            fill_versioned_profile(&call, &gpu_model(gpu)->profiles[profile], info);
    }
    return call_end(&call);
}

static nvmlReturn_t possible_placements(int symbol, nvmlDevice_t device, unsigned int id,
                                        nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, device);
    if (entered != NVML_SUCCESS)
        return entered;
    struct gpu *gpu = call_gpu(&call, device);
    if (!gpu || !call_require(&call, count != NULL, NVML_ERROR_INVALID_ARGUMENT) || !mig_capable(&call, gpu))
        return call_end(&call);
    int profile = find_profile(&call, gpu, id);
    if (profile >= 0) {
        const struct gpu_profile *wanted = &gpu_model(gpu)->profiles[profile];
        for (int i = 0; placements && i < wanted->start_count; i++)
            placements[i] = (nvmlGpuInstancePlacement_t){wanted->starts[i], wanted->size};
        *count = wanted->start_count;
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                               nvmlGpuInstancePlacement_t *placements,
                                                               unsigned int *count)
{
    return possible_placements(SYMBOL_nvmlDeviceGetGpuInstancePossiblePlacements, device, id, placements, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                                  nvmlGpuInstancePlacement_t *placements,
                                                                  unsigned int *count)
{
    return possible_placements(SYMBOL_nvmlDeviceGetGpuInstancePossiblePlacements_v2, device, id, placements, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                              unsigned int *count)
{
    ENTER(nvmlDeviceGetGpuInstanceRemainingCapacity, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, count != NULL, NVML_ERROR_INVALID_ARGUMENT) && mig_enabled(&call, gpu)) {
        int profile = find_profile(&call, gpu, id);
        if (profile >= 0)
            *count = instance_capacity(gpu, profile);
    }
    return call_end(&call);
}

static nvmlReturn_t create_instance(struct call *call, nvmlDevice_t device, unsigned int profile_id,
                                    unsigned int start, nvmlGpuInstance_t *created)
{
    struct gpu *gpu = call_gpu(call, device);
    int id;
    if (!gpu || !call_require(call, created != NULL, NVML_ERROR_INVALID_ARGUMENT) || !mig_enabled(call, gpu) ||
        !call_privileged(call))
        return call_end(call);
    int profile = find_profile(call, gpu, profile_id);
    if (profile < 0)
        return call_end(call);
    int slot = slot_of(call, gpu);
    call->result = instance_create(call->state, slot, profile, start, &id);
    if (call->result == NVML_SUCCESS) {
        call->entry.gpu_instance = id;
        call->entry.start = gpu->instances[id].start;
        call->entry.size = gpu->instances[id].size;
        *created = handle_of_instance(call, slot, id);
        tree_show(session_directory(call->state), call->state, slot, id, NONE);
    }
    return call_end(call);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile_id,
                                                nvmlGpuInstance_t *created)
{
    ENTER(nvmlDeviceCreateGpuInstance, device);
    return create_instance(&call, device, profile_id, START_BY_DRIVER, created);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile_id,
                                                             const nvmlGpuInstancePlacement_t *placement,
                                                             nvmlGpuInstance_t *created)
{
    ENTER(nvmlDeviceCreateGpuInstanceWithPlacement, device);
    if (!call_require(&call, placement != NULL, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    call.entry.start = (int32_t)placement->start;
    call.entry.size = (int32_t)placement->size;
    struct handle target;
    if (handle_decode(device, &target)) {
        const struct gpu_model *model = gpu_model(&call.state->gpus[target.gpu]);
        int profile = profile_by_id(model, profile_id);
        int fits = profile < 0 || (model->profiles[profile].size == placement->size && placement->start < 32);
        if (!call_require(&call, fits, NVML_ERROR_INVALID_ARGUMENT))
            return call_end(&call);
    }
    return create_instance(&call, device, profile_id, placement->start, created);
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle)
{
    ENTER(nvmlGpuInstanceDestroy, handle);
    int slot, instance;
    struct gpu *gpu = call_instance(&call, handle, &slot, &instance);
    if (gpu && call_privileged(&call)) {
        call.entry.profile_id = instance_profile(gpu, &gpu->instances[instance])->id;
        call.result = instance_destroy(call.state, slot, instance);
        if (call.result == NVML_SUCCESS)
            tree_hide(session_directory(call.state), call.state, slot, instance, NONE);
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id,
                                              nvmlGpuInstance_t *instances, unsigned int *count)
{
    ENTER(nvmlDeviceGetGpuInstances, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (!gpu || !call_require(&call, instances && count, NVML_ERROR_INVALID_ARGUMENT) || !mig_enabled(&call, gpu))
        return call_end(&call);
    int profile = find_profile(&call, gpu, profile_id);
    if (profile >= 0) {
        *count = 0;
        for (int i = 0; i < MAX_GPU_INSTANCES; i++)
            if (gpu->instances[i].live && gpu->instances[i].profile == profile)
                instances[(*count)++] = handle_of_instance(&call, slot_of(&call, gpu), i);
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *found)
{
    ENTER(nvmlDeviceGetGpuInstanceById, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, found != NULL, NVML_ERROR_INVALID_ARGUMENT) && mig_enabled(&call, gpu) &&
        call_require(&call, id < MAX_GPU_INSTANCES && gpu->instances[id].live, NVML_ERROR_NOT_FOUND))
        *found = handle_of_instance(&call, slot_of(&call, gpu), (int)id);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info)
{
    ENTER(nvmlGpuInstanceGetInfo, handle);
    int slot, id;
    struct gpu *gpu = call_instance(&call, handle, &slot, &id);
    if (gpu && call_require(&call, info != NULL, NVML_ERROR_INVALID_ARGUMENT)) {
        const struct gpu_instance *instance = &gpu->instances[id];
        *info = (nvmlGpuInstanceInfo_t){handle_of_gpu(&call, slot), (unsigned int)id,
                                        instance_profile(gpu, instance)->id, {instance->start, instance->size}};
    }
    return call_end(&call);
}
