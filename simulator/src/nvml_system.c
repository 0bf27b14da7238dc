/* Initialisation, versions, errors, and finding cards. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "call.h"

static nvmlReturn_t initialise(int symbol)
{
    struct call call;
    int reason = 0;
    if (!session_open(&reason))
        return reason == EACCES || reason == EPERM ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    nvmlReturn_t result = call_begin(&call, symbol, NULL);
    if (result == NVML_SUCCESS) {
        call_require(&call, call.state->driver_loaded, NVML_ERROR_DRIVER_NOT_LOADED);
        result = call_end(&call);
    }
    if (result != NVML_SUCCESS)
        session_close();
    return result;
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    return initialise(SYMBOL_nvmlInit);
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return initialise(SYMBOL_nvmlInit_v2);
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return initialise(SYMBOL_nvmlInitWithFlags);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    ENTER(nvmlShutdown, NULL);
    nvmlReturn_t result = call_end(&call);
    if (result != NVML_SUCCESS)
        return result;
    int closed = session_close();
    if (closed == 2)
        event_sets_forget();
    return closed ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

static const struct {
    nvmlReturn_t code;
    const char *text;
} error_texts[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
    {NVML_ERROR_OPERATING_SYSTEM, "Blocked by the operating system"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {NVML_ERROR_IN_USE, "In use by another client"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "ECC is not supported with vGPU"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
    {NVML_ERROR_FREQ_NOT_SUPPORTED, "Frequency not supported"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
    {NVML_ERROR_DEPRECATED, "Deprecated"},
    {NVML_ERROR_NOT_READY, "Not Ready"},
    {NVML_ERROR_GPU_NOT_FOUND, "No GPUs were found"},
    {NVML_ERROR_INVALID_STATE, "Invalid state"},
    {NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, "Reset type not supported"},
};

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    for (size_t i = 0; i < sizeof(error_texts) / sizeof(*error_texts); i++)
        if (error_texts[i].code == result)
            return error_texts[i].text;
    return "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER(nvmlSystemGetDriverVersion, NULL);
    call_copy(&call, version, length, call.state->driver_version);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    ENTER(nvmlSystemGetNVMLVersion, NULL);
    call_copy(&call, version, length, call.state->nvml_version);
    return call_end(&call);
}

static nvmlReturn_t cuda_version(int symbol, int *version)
{
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, NULL);
    if (entered != NVML_SUCCESS)
        return entered;
    if (call_require(&call, version != NULL, NVML_ERROR_INVALID_ARGUMENT))
        *version = (int)call.state->cuda_version;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return cuda_version(SYMBOL_nvmlSystemGetCudaDriverVersion, version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda_version(SYMBOL_nvmlSystemGetCudaDriverVersion_v2, version);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    ENTER(nvmlSystemGetProcessName, NULL);
    char text[256] = "", path[64];
    for (int i = 0; i < MAX_CLIENTS; i++)
        if (call.state->clients[i].live && call.state->clients[i].pid == pid)
            snprintf(text, sizeof(text), "%s", call.state->clients[i].name);
    snprintf(path, sizeof(path), "/proc/%u/comm", pid);
    FILE *file = *text ? NULL : fopen(path, "r");
    if (file) {
        if (fgets(text, sizeof(text), file))
            text[strcspn(text, "\n")] = '\0';
        fclose(file);
    }
    if (call_require(&call, *text != '\0', NVML_ERROR_NOT_FOUND))
        call_copy(&call, name, length, text);
    return call_end(&call);
}

static unsigned int count_visible(const struct call *call)
{
    unsigned int count = 0;
    for (uint32_t slot = 0; slot < call->state->gpu_count; slot++)
        count += call->state->gpus[slot].present && visible_gpu(call, (int)slot);
    return count;
}

static nvmlReturn_t device_count(int symbol, unsigned int *count)
{
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, NULL);
    if (entered != NVML_SUCCESS)
        return entered;
    if (call_require(&call, count != NULL, NVML_ERROR_INVALID_ARGUMENT))
        *count = count_visible(&call);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return device_count(SYMBOL_nvmlDeviceGetCount, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    return device_count(SYMBOL_nvmlDeviceGetCount_v2, count);
}

/* Hands out a card once it was found; a lost one is found, but answers nothing. */
static void give_gpu(struct call *call, int slot, nvmlDevice_t *device)
{
    call->entry.gpu = (int16_t)slot;
    if (call_require(call, !call->state->gpus[slot].lost, NVML_ERROR_GPU_IS_LOST))
        *device = handle_of_gpu(call, slot);
}

static nvmlReturn_t by_index(int symbol, unsigned int index, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, NULL);
    if (entered != NVML_SUCCESS)
        return entered;
    int found = NONE;
    for (uint32_t slot = 0, position = 0; slot < call.state->gpu_count && found == NONE; slot++)
        if (call.state->gpus[slot].present && visible_gpu(&call, (int)slot) && position++ == index)
            found = (int)slot;
    if (call_require(&call, device != NULL && found != NONE, NVML_ERROR_INVALID_ARGUMENT))
        give_gpu(&call, found, device);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return by_index(SYMBOL_nvmlDeviceGetHandleByIndex, index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return by_index(SYMBOL_nvmlDeviceGetHandleByIndex_v2, index, device);
}

/* Looks for a live MIG device by its UUID. */
static int find_mig_device(const struct call *call, const char *uuid, int *slot, int *instance, int *compute)
{
    for (*slot = 0; (uint32_t)*slot < call->state->gpu_count; ++*slot)
        for (*instance = 0; *instance < MAX_GPU_INSTANCES; ++*instance) {
            const struct gpu_instance *candidate = &call->state->gpus[*slot].instances[*instance];
            for (*compute = 0; candidate->live && *compute < MAX_COMPUTE_INSTANCES; ++*compute)
                if (candidate->compute[*compute].live && strcmp(candidate->compute[*compute].uuid, uuid) == 0)
                    return 1;
        }
    return 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER(nvmlDeviceGetHandleByUUID, NULL);
    int slot, instance = NONE, compute = NONE;
    if (!call_require(&call, uuid != NULL && device != NULL, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    for (slot = 0; (uint32_t)slot < call.state->gpu_count; slot++)
        if (call.state->gpus[slot].present && visible_gpu(&call, slot) &&
            strcmp(call.state->gpus[slot].uuid, uuid) == 0) {
            give_gpu(&call, slot, device);
            return call_end(&call);
        }
    int found = find_mig_device(&call, uuid, &slot, &instance, &compute) && call.state->gpus[slot].present &&
                visible_mig_device(&call, slot, instance, compute);
    if (call_require(&call, found, NVML_ERROR_NOT_FOUND) &&
        call_require(&call, !call.state->gpus[slot].lost, NVML_ERROR_GPU_IS_LOST))
        *device = handle_of_mig_device(&call, slot, instance, compute);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    ENTER(nvmlDeviceGetHandleBySerial, NULL);
    int found = NONE;
    call_require(&call, serial != NULL && device != NULL, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t slot = 0; call.result == NVML_SUCCESS && slot < call.state->gpu_count; slot++)
        if (call.state->gpus[slot].present && visible_gpu(&call, (int)slot) &&
            strcmp(call.state->gpus[slot].serial, serial) == 0)
            found = (int)slot;
    if (call_require(&call, found != NONE, NVML_ERROR_NOT_FOUND))
        give_gpu(&call, found, device);
    return call_end(&call);
}

/* Accepts 4- and 8-digit domains, either case, with or without the function number. */
static int parse_bus_id(const char *text, unsigned int *domain, unsigned int *bus, unsigned int *device)
{
    unsigned int function = 0;
    *domain = 0;
    if (sscanf(text, "%x:%x:%x.%x", domain, bus, device, &function) >= 3)
        return function == 0;
    *domain = 0;
    return sscanf(text, "%x:%x.%x", bus, device, &function) >= 2 && function == 0;
}

static nvmlReturn_t by_bus_id(int symbol, const char *text, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, NULL);
    if (entered != NVML_SUCCESS)
        return entered;
    unsigned int domain, bus, number;
    int found = NONE;
    int valid = text && device && parse_bus_id(text, &domain, &bus, &number);
    call_require(&call, valid, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t slot = 0; valid && slot < call.state->gpu_count; slot++) {
        const struct gpu *gpu = &call.state->gpus[slot];
        if (gpu->present && visible_gpu(&call, (int)slot) && gpu->pci_domain == domain && gpu->pci_bus == bus &&
            gpu->pci_device == number)
            found = (int)slot;
    }
    if (call_require(&call, found != NONE, NVML_ERROR_NOT_FOUND))
        give_gpu(&call, found, device);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *device)
{
    return by_bus_id(SYMBOL_nvmlDeviceGetHandleByPciBusId, text, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device)
{
    return by_bus_id(SYMBOL_nvmlDeviceGetHandleByPciBusId_v2, text, device);
}
