/* Initialisation, versions, errors, and finding cards. */
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

/* How a caller names a card, or for UUIDs also a MIG device. */
enum key { KEY_INDEX, KEY_UUID, KEY_SERIAL, KEY_BUS };

struct query {
    enum key key;
    unsigned int index;
    const char *text;
    unsigned int domain, bus, device;
};

struct found {
    int slot, instance, compute; /* NONE where there is none. */
};

/* Accepts 4- and 8-digit domains, either case, with or without the function number. */
static int parse_bus_id(struct query *query)
{
    unsigned int function = 0;
    if (sscanf(query->text, "%x:%x:%x.%x", &query->domain, &query->bus, &query->device, &function) >= 3)
        return function == 0;
    query->domain = 0;
    return sscanf(query->text, "%x:%x.%x", &query->bus, &query->device, &function) >= 2 && function == 0;
}

static int gpu_matches(const struct gpu *gpu, const struct query *query, unsigned int position)
{
    switch (query->key) {
    case KEY_INDEX:
        return position == query->index;
    case KEY_UUID:
        return strcmp(gpu->uuid, query->text) == 0;
    case KEY_SERIAL:
        return strcmp(gpu->serial, query->text) == 0;
    default:
        return gpu->pci_domain == query->domain && gpu->pci_bus == query->bus && gpu->pci_device == query->device;
    }
}

static void find_mig_device(const struct call *call, int slot, const char *uuid, struct found *found)
{
    for (int i = 0; i < MAX_GPU_INSTANCES; i++) {
        const struct gpu_instance *instance = &call->state->gpus[slot].instances[i];
        for (int c = 0; instance->live && c < MAX_COMPUTE_INSTANCES; c++)
            if (instance->compute[c].live && strcmp(instance->compute[c].uuid, uuid) == 0 &&
                visible_mig_device(call, slot, i, c))
                *found = (struct found){slot, i, c};
    }
}

/* Call with the lock held. */
static struct found find(const struct call *call, const struct query *query)
{
    struct found found = {NONE, NONE, NONE};
    unsigned int position = 0;
    for (int slot = 0; (uint32_t)slot < call->state->gpu_count && found.slot == NONE; slot++) {
        if (!call->state->gpus[slot].present || !visible_gpu(call, slot))
            continue;
        if (gpu_matches(&call->state->gpus[slot], query, position++))
            found.slot = slot;
        else if (query->key == KEY_UUID)
            find_mig_device(call, slot, query->text, &found);
    }
    return found;
}

/* Which card a query is about, before the call proper begins: faults and latencies may be meant for it alone. */
static int peek(const struct query *query)
{
    struct call call = {.state = session_acquire()};
    if (!call.state)
        return ANY;
    state_lock(call.state);
    struct found found = find(&call, query);
    state_unlock(call.state);
    session_release(call.state);
    return found.slot;
}

static nvmlReturn_t look_up(int symbol, struct query query, nvmlDevice_t *device)
{
    struct call call;
    int valid = device && (query.key == KEY_INDEX || query.text) && (query.key != KEY_BUS || parse_bus_id(&query));
    nvmlReturn_t entered = call_begin_at(&call, symbol, valid ? peek(&query) : ANY);
    if (entered != NVML_SUCCESS)
        return entered;
    if (!call_require(&call, valid, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    struct found found = find(&call, &query);
    call_require(&call, found.slot != NONE, query.key == KEY_INDEX ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_FOUND);
    /* A lost card is found, but answers nothing. */
    if (found.slot != NONE && call_require(&call, !call.state->gpus[found.slot].lost, NVML_ERROR_GPU_IS_LOST))
        *device = found.instance == NONE ? handle_of_gpu(&call, found.slot)
                                         : handle_of_mig_device(&call, found.slot, found.instance, found.compute);
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return look_up(SYMBOL_nvmlDeviceGetHandleByIndex, (struct query){.key = KEY_INDEX, .index = index}, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return look_up(SYMBOL_nvmlDeviceGetHandleByIndex_v2, (struct query){.key = KEY_INDEX, .index = index}, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return look_up(SYMBOL_nvmlDeviceGetHandleByUUID, (struct query){.key = KEY_UUID, .text = uuid}, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return look_up(SYMBOL_nvmlDeviceGetHandleBySerial, (struct query){.key = KEY_SERIAL, .text = serial}, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return look_up(SYMBOL_nvmlDeviceGetHandleByPciBusId, (struct query){.key = KEY_BUS, .text = bus_id}, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return look_up(SYMBOL_nvmlDeviceGetHandleByPciBusId_v2, (struct query){.key = KEY_BUS, .text = bus_id}, device);
}
