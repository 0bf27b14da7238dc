/* What a card is, and the modes that it can be put into. */
#include <stdio.h>
#include <string.h>

#include "call.h"

/* The whole of a function that reads one unsigned value of a card. */
#define READ_UNSIGNED(name, type, expression)                                        \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, type *value)                       \
    {                                                                                \
        ENTER(name, device);                                                         \
        struct gpu *gpu = call_gpu(&call, device);                                   \
        if (gpu && call_require(&call, value != NULL, NVML_ERROR_INVALID_ARGUMENT))  \
            *value = (type)(expression);                                             \
        return call_end(&call);                                                      \
    }

READ_UNSIGNED(nvmlDeviceGetMinorNumber, unsigned int, gpu->minor_number)
READ_UNSIGNED(nvmlDeviceGetModuleId, unsigned int, gpu->module_id)
READ_UNSIGNED(nvmlDeviceGetArchitecture, unsigned int, gpu->architecture)
READ_UNSIGNED(nvmlDeviceGetPersistenceMode, unsigned int, gpu->persistence_mode)
READ_UNSIGNED(nvmlDeviceGetVirtualizationMode, unsigned int, gpu->virtualization)
READ_UNSIGNED(nvmlDeviceGetNumGpuCores, unsigned int, gpu_model(gpu)->multiprocessors * 128)
READ_UNSIGNED(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
READ_UNSIGNED(nvmlDeviceGetBoardId, unsigned int, gpu->pci_bus << 8)
READ_UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, 5)
READ_UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, 5)
READ_UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)
READ_UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16)

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand)
{
    ENTER(nvmlDeviceGetBrand, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, brand != NULL, NVML_ERROR_INVALID_ARGUMENT)) {
        *brand = NVML_BRAND_NVIDIA;
        if (strncmp(gpu->name, "Tesla", 5) == 0)
            *brand = NVML_BRAND_TESLA;
        else if (strstr(gpu->name, "RTX"))
            *brand = NVML_BRAND_NVIDIA_RTX;
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    ENTER(nvmlDeviceGetNumaNodeId, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, node != NULL, NVML_ERROR_INVALID_ARGUMENT) &&
        call_require(&call, gpu->numa_node >= 0, NVML_ERROR_NOT_SUPPORTED))
        *node = (unsigned int)gpu->numa_node;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ENTER(nvmlDeviceGetIndex, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (!gpu || !call_require(&call, index != NULL, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    if (instance != NONE) {
        *index = (unsigned int)seen_mig_index(&call, slot_of(&call, gpu), instance, compute);
        return call_end(&call);
    }
    *index = 0;
    for (int slot = 0; slot < slot_of(&call, gpu); slot++)
        *index += call.state->gpus[slot].present && visible_gpu(&call, slot);
    return call_end(&call);
}

/* A MIG device is named after its card and its profile, with the compute part in front where it is partial. */
static void mig_device_name(const struct gpu *gpu, int instance, int compute, char *text, size_t size)
{
    const struct gpu_instance *parent = &gpu->instances[instance];
    const struct gpu_profile *profile = instance_profile(gpu, parent);
    unsigned int slices = parent->compute[compute].size;
    if (slices == profile->slices)
        snprintf(text, size, "%s MIG %s", gpu->name, profile->name);
    else
        snprintf(text, size, "%s MIG %uc.%s", gpu->name, slices, profile->name);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ENTER(nvmlDeviceGetName, device);
    int instance, compute;
    char text[160];
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu && instance == NONE)
        call_copy(&call, name, length, gpu->name);
    if (gpu && instance != NONE) {
        mig_device_name(gpu, instance, compute, text, sizeof(text));
        call_copy(&call, name, length, text);
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ENTER(nvmlDeviceGetUUID, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu)
        call_copy(&call, uuid, length,
                  instance == NONE ? gpu->uuid : gpu->instances[instance].compute[compute].uuid);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    ENTER(nvmlDeviceGetSerial, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu)
        call_copy(&call, serial, length, gpu->serial);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *number, unsigned int length)
{
    ENTER(nvmlDeviceGetBoardPartNumber, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu)
        call_copy(&call, number, length, gpu->part_number);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
    ENTER(nvmlDeviceGetVbiosVersion, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu)
        call_copy(&call, version, length, gpu->vbios);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER(nvmlDeviceGetCudaComputeCapability, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu && call_require(&call, major && minor, NVML_ERROR_INVALID_ARGUMENT)) {
        *major = (int)gpu->compute_major;
        *minor = (int)gpu->compute_minor;
    }
    return call_end(&call);
}

static nvmlReturn_t pci_info(int symbol, nvmlDevice_t device, nvmlPciInfo_t *info)
{
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, device);
    if (entered != NVML_SUCCESS)
        return entered;
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, info != NULL, NVML_ERROR_INVALID_ARGUMENT)) {
        memset(info, 0, sizeof(*info));
        info->domain = gpu->pci_domain;
        info->bus = gpu->pci_bus;
        info->device = gpu->pci_device;
        info->pciDeviceId = gpu_model(gpu)->pci_device_id << 16 | CARD_VENDOR;
        info->pciSubSystemId = CARD_SUBSYSTEM << 16 | CARD_VENDOR;
        snprintf(info->busIdLegacy, sizeof(info->busIdLegacy), "%04X:%02X:%02X.0", gpu->pci_domain & 0xffff,
                 gpu->pci_bus & 0xff, gpu->pci_device & 0xff);
        snprintf(info->busId, sizeof(info->busId), "%08X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus & 0xff,
                 gpu->pci_device & 0xff);
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    return pci_info(SYMBOL_nvmlDeviceGetPciInfo, device, info);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    return pci_info(SYMBOL_nvmlDeviceGetPciInfo_v2, device, info);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    return pci_info(SYMBOL_nvmlDeviceGetPciInfo_v3, device, info);
}

/* Memory of the card or of the GPU instance behind a MIG device, in bytes. */
static void memory_of(struct call *call, struct gpu *gpu, int instance, nvmlMemory_v2_t *memory)
{
    uint64_t used = 0;
    memset(memory, 0, sizeof(*memory));
    state_reap_clients(call->state);
    for (int i = 0; i < MAX_CLIENTS; i++) {
        const struct client *client = &call->state->clients[i];
        if (client->live && client->gpu == slot_of(call, gpu) && (instance == NONE || client->gpu_instance == instance))
            used += client->memory_bytes;
    }
    uint64_t mib = instance == NONE ? gpu->memory_mib : instance_profile(gpu, &gpu->instances[instance])->memory_mib;
    memory->total = mib << 20;
    memory->reserved = instance == NONE ? (uint64_t)gpu->reserved_mib << 20 : 0;
    if (used > memory->total - memory->reserved)
        used = memory->total - memory->reserved;
    memory->used = used;
    memory->free = memory->total - memory->reserved - used;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER(nvmlDeviceGetMemoryInfo, device);
    int instance, compute;
    nvmlMemory_v2_t detailed;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu && call_require(&call, memory != NULL, NVML_ERROR_INVALID_ARGUMENT)) {
        memory_of(&call, gpu, instance, &detailed);
        *memory = (nvmlMemory_t){detailed.total, detailed.free, detailed.used + detailed.reserved};
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER(nvmlDeviceGetMemoryInfo_v2, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    unsigned int version = 2u << 24 | sizeof(*memory);
    if (gpu && call_require(&call, memory != NULL, NVML_ERROR_INVALID_ARGUMENT) &&
        call_require(&call, memory->version == version, NVML_ERROR_ARGUMENT_VERSION_MISMATCH)) {
        memory_of(&call, gpu, instance, memory);
        memory->version = version;
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ENTER(nvmlDeviceGetBAR1MemoryInfo, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu && call_require(&call, memory != NULL, NVML_ERROR_INVALID_ARGUMENT)) {
        int is_mig = instance != NONE;
        memory->bar1Total = 1ULL << 37;
        memory->bar1Used = is_mig ? 0 : 1ULL << 20;
        /* A MIG device has as much of the window as of the card's memory. */
        if (is_mig)
            memory->bar1Total = memory->bar1Total / gpu_model(gpu)->memory_units * gpu->instances[instance].size;
        memory->bar1Free = memory->bar1Total - memory->bar1Used;
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode)
{
    ENTER(nvmlDeviceGetComputeMode, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu && call_require(&call, mode != NULL, NVML_ERROR_INVALID_ARGUMENT))
        *mode = instance == NONE ? gpu->compute_mode : NVML_COMPUTEMODE_DEFAULT;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode)
{
    ENTER(nvmlDeviceSetComputeMode, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    int known = mode == NVML_COMPUTEMODE_DEFAULT || mode == NVML_COMPUTEMODE_PROHIBITED ||
                mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;
    call.entry.value = (int32_t)mode;
    /* With MIG on, only its devices have a mode, and only the default one. */
    if (gpu && call_require(&call, known, NVML_ERROR_INVALID_ARGUMENT) && call_privileged(&call) &&
        call_require(&call, instance == NONE ? !gpu->mig_current : mode == NVML_COMPUTEMODE_DEFAULT,
                     NVML_ERROR_NOT_SUPPORTED) &&
        instance == NONE)
        gpu->compute_mode = (uint8_t)mode;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode)
{
    ENTER(nvmlDeviceSetPersistenceMode, device);
    struct gpu *gpu = call_gpu(&call, device);
    call.entry.value = (int32_t)mode;
    if (gpu && call_require(&call, mode <= 1, NVML_ERROR_INVALID_ARGUMENT) && call_privileged(&call))
        gpu->persistence_mode = (uint8_t)mode;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER(nvmlDeviceGetEccMode, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, current && pending, NVML_ERROR_INVALID_ARGUMENT)) {
        *current = gpu->ecc_current;
        *pending = gpu->ecc_pending;
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, unsigned int mode)
{
    ENTER(nvmlDeviceSetEccMode, device);
    struct gpu *gpu = call_gpu(&call, device);
    call.entry.value = (int32_t)mode;
    if (gpu && call_require(&call, mode <= 1, NVML_ERROR_INVALID_ARGUMENT) && call_privileged(&call))
        gpu->ecc_pending = (uint8_t)mode;
    return call_end(&call);
}
