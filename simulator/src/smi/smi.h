/*
 * The fake nvidia-smi: a client of the management library; only what that does not offer (time slices, resets) goes
 * to the state directly, as the real tool's private calls do.
 */
#ifndef GPUSIM_SMI_H
#define GPUSIM_SMI_H

#include <stdio.h>

#include "../abi.h"
#include "../state.h"

/* The functions of the library that the tool uses. */
const char *nvmlErrorString(nvmlReturn_t result);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlSystemGetDriverVersion(char *, unsigned int);
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *);
nvmlReturn_t nvmlSystemGetProcessName(unsigned int, char *, unsigned int);
nvmlReturn_t nvmlSystemGetNVMLVersion(char *, unsigned int);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t, char *, unsigned int);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char *, unsigned int);
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t, char *, unsigned int);
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t, char *, unsigned int);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t, nvmlPciInfo_t *);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t *);
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t, unsigned int);
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t, unsigned int);
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t, unsigned int *, unsigned int *);
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t, unsigned int *, unsigned int *);
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t, unsigned int, nvmlReturn_t *);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t, unsigned int, unsigned int *);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t, nvmlUtilization_t *);
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t, int *, int *);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *);
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t, unsigned int, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t, unsigned int, nvmlGpuInstanceProfileInfo_v2_t *);
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t, unsigned int, nvmlGpuInstancePlacement_t *, unsigned int *);
nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t, unsigned int, unsigned int *);
nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t, unsigned int, nvmlGpuInstance_t *);
nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t, unsigned int, const nvmlGpuInstancePlacement_t *, nvmlGpuInstance_t *);
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t, unsigned int, nvmlGpuInstance_t *, unsigned int *);
nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t, nvmlGpuInstanceInfo_t *);
nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t);
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t, unsigned int, unsigned int, nvmlComputeInstanceProfileInfo_v2_t *);
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t, unsigned int, unsigned int *);
nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t, unsigned int, nvmlComputeInstance_t *, unsigned int *);
nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t, unsigned int, nvmlComputeInstance_t *);
nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t, nvmlComputeInstanceInfo_t *);
nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t);

/* Initialises the library, or prints why not and exits as the real tool does. */
void library_open(void);

/* Prints a message to standard output, where the real tool prints its errors, and exits. */
__attribute__((noreturn, format(printf, 2, 3))) void give_up(int status, const char *format, ...);

/* The cards that "-i LIST" names, or all of them. */
struct card {
    unsigned int index;
    nvmlDevice_t device; /* A MIG device where a MIG UUID was given. */
    char bus_id[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE], name[NVML_DEVICE_NAME_V2_BUFFER_SIZE], uuid[UUID_SIZE];
    int is_mig;
};
int cards_named(const char *list, struct card cards[MAX_GPUS]);

/* Returns the value of "--name=VALUE", "--name VALUE" or NULL; a flag without value gives "". */
const char *option(int count, char **words, const char *name, const char *alias);

int list_cards(void);
int list_fields(void);
int show_table(void);
int show_versions(void);
int query_gpu(const char *fields, const char *format, const char *which);
int query_compute_apps(const char *fields, const char *format, const char *which);
int run_mig(int count, char **words);
int run_compute_policy(int count, char **words);
int set_modes(int count, char **words, const char *which);
int reset_cards(const char *which);

#endif
