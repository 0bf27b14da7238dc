/* The processes on a card: the clients that the control program or a simulated workload registered. */
#include "call.h"

/*
 * Lists the clients of one kind. The three versions of each function differ in the record: the first has no
 * instances. A buffer that is too small gets nothing but the number that would be needed.
 */
static nvmlReturn_t list_processes(int symbol, enum client_kind kind, nvmlDevice_t device, unsigned int *count,
                                   nvmlProcessInfo_v1_t *plain, nvmlProcessInfo_v2_t *detailed)
{
    struct call call;
    int instance, compute;
    nvmlReturn_t entered = call_begin(&call, symbol, device);
    if (entered != NVML_SUCCESS)
        return entered;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (!gpu || !call_require(&call, count != NULL, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    unsigned int room = plain || detailed ? *count : 0, found = 0;
    state_reap_clients(call.state);
    for (int i = 0; i < MAX_CLIENTS; i++) {
        const struct client *client = &call.state->clients[i];
        if (!client->live || client->kind != kind || client->gpu != slot_of(&call, gpu) ||
            (instance != NONE && (client->gpu_instance != instance || client->compute_instance != compute)))
            continue;
        if (found < room && plain)
            plain[found] = (nvmlProcessInfo_v1_t){client->pid, client->memory_bytes};
        if (found < room && detailed)
            detailed[found] = (nvmlProcessInfo_v2_t){client->pid, client->memory_bytes,
                                                     (unsigned int)client->gpu_instance,
                                                     (unsigned int)client->compute_instance};
        found++;
    }
    *count = found;
    call_require(&call, found <= room, NVML_ERROR_INSUFFICIENT_SIZE);
    return call_end(&call);
}

#define PROCESS_LISTS(name, kind)                                                                                   \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *processes)             \
    {                                                                                                               \
        return list_processes(SYMBOL_##name, kind, device, count, processes, NULL);                                 \
    }                                                                                                               \
    EXPORT nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes)        \
    {                                                                                                               \
        return list_processes(SYMBOL_##name##_v2, kind, device, count, NULL, processes);                            \
    }                                                                                                               \
    EXPORT nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes)        \
    {                                                                                                               \
        return list_processes(SYMBOL_##name##_v3, kind, device, count, NULL, processes);                            \
    }

PROCESS_LISTS(nvmlDeviceGetComputeRunningProcesses, CLIENT_COMPUTE)
PROCESS_LISTS(nvmlDeviceGetGraphicsRunningProcesses, CLIENT_GRAPHICS)
PROCESS_LISTS(nvmlDeviceGetMPSComputeRunningProcesses, CLIENT_MPS)
