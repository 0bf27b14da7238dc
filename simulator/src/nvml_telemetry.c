/* Readings: temperature, power, utilisation, errors, links. Values come from the state and change only by command. */
#include <stdio.h>
#include <string.h>

#include "call.h"

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    ENTER(nvmlDeviceGetTemperature, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, sensor == 0 && celsius, NVML_ERROR_INVALID_ARGUMENT))
        *celsius = gpu->temperature_celsius;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER(nvmlDeviceGetPowerUsage, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, milliwatts != NULL, NVML_ERROR_INVALID_ARGUMENT))
        *milliwatts = gpu->power_milliwatts;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER(nvmlDeviceGetPowerManagementLimit, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, milliwatts != NULL, NVML_ERROR_INVALID_ARGUMENT))
        *milliwatts = gpu_model(gpu)->power_limit_watts * 1000;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER(nvmlDeviceGetEnforcedPowerLimit, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, milliwatts != NULL, NVML_ERROR_INVALID_ARGUMENT))
        *milliwatts = gpu_model(gpu)->power_limit_watts * 1000;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    ENTER(nvmlDeviceGetUtilizationRates, device);
    int instance, compute;
    struct gpu *gpu = call_device(&call, device, &instance, &compute);
    if (gpu && call_require(&call, rates != NULL, NVML_ERROR_INVALID_ARGUMENT) &&
        call_require(&call, instance == NONE && !gpu->mig_current, NVML_ERROR_NOT_SUPPORTED))
        *rates = (nvmlUtilization_t){gpu->utilization_percent, gpu->memory_utilization_percent};
    return call_end(&call);
}

static nvmlReturn_t clock_of(int symbol, nvmlDevice_t device, unsigned int type, unsigned int *megahertz)
{
    static const unsigned int clocks[] = {1980, 1980, 2619, 1545};
    struct call call;
    nvmlReturn_t entered = call_begin(&call, symbol, device);
    if (entered != NVML_SUCCESS)
        return entered;
    if (call_gpu(&call, device) &&
        call_require(&call, megahertz && type < sizeof(clocks) / sizeof(*clocks), NVML_ERROR_INVALID_ARGUMENT))
        *megahertz = clocks[type];
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *megahertz)
{
    return clock_of(SYMBOL_nvmlDeviceGetClockInfo, device, type, megahertz);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *megahertz)
{
    return clock_of(SYMBOL_nvmlDeviceGetMaxClockInfo, device, type, megahertz);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                                unsigned long long *count)
{
    ENTER(nvmlDeviceGetTotalEccErrors, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, count && type <= 1 && counter <= 1, NVML_ERROR_INVALID_ARGUMENT) &&
        call_require(&call, gpu->ecc_current, NVML_ERROR_NOT_SUPPORTED))
        *count = type == 0 ? gpu->ecc_corrected : gpu->ecc_uncorrected;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                              unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed)
{
    ENTER(nvmlDeviceGetRemappedRows, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, correctable && uncorrectable && pending && failed, NVML_ERROR_INVALID_ARGUMENT)) {
        *correctable = gpu->remapped_correctable;
        *uncorrectable = gpu->remapped_uncorrectable;
        *pending = gpu->remap_pending;
        *failed = gpu->remap_failed;
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    ENTER(nvmlDeviceGetRowRemapperHistogram, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, values != NULL, NVML_ERROR_INVALID_ARGUMENT)) {
        unsigned int touched = gpu->remapped_correctable + gpu->remapped_uncorrectable;
        *values = (nvmlRowRemapperHistogramValues_t){.max = 640 - touched, .high = touched};
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    ENTER(nvmlDeviceGetNvLinkState, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, active && link < 18, NVML_ERROR_INVALID_ARGUMENT))
        *active = !gpu->mig_current;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_v1_t *mode)
{
    ENTER(nvmlDeviceGetAddressingMode, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, mode != NULL, NVML_ERROR_INVALID_ARGUMENT) &&
        call_require(&call, mode->version == (1u << 24 | sizeof(*mode)), NVML_ERROR_ARGUMENT_VERSION_MISMATCH))
        mode->value = 0;
    return call_end(&call);
}

/* Turns "xxxxxxxx-xxxx-..." into 16 bytes; an empty text gives zeros. */
static void parse_cluster(const char *text, unsigned char *bytes)
{
    int digits = 0;
    memset(bytes, 0, NVML_GPU_FABRIC_UUID_LEN);
    for (; *text && digits < 2 * NVML_GPU_FABRIC_UUID_LEN; text++) {
        unsigned int value;
        char digit[2] = {*text, '\0'};
        if (*text != '-' && sscanf(digit, "%1x", &value) == 1) {
            bytes[digits / 2] = (unsigned char)(bytes[digits / 2] << 4 | value);
            digits++;
        }
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    ENTER(nvmlDeviceGetGpuFabricInfo, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (gpu && call_require(&call, info != NULL, NVML_ERROR_INVALID_ARGUMENT) &&
        call_require(&call, gpu->fabric_state != 0, NVML_ERROR_NOT_SUPPORTED)) {
        memset(info, 0, sizeof(*info));
        parse_cluster(gpu->fabric_cluster, info->clusterUuid);
        info->cliqueId = gpu->fabric_clique;
        info->state = gpu->fabric_state;
    }
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *info)
{
    ENTER(nvmlDeviceGetGpuFabricInfoV, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (!gpu || !call_require(&call, info != NULL, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    unsigned int version = info->version;
    int newer = version == (3u << 24 | sizeof(nvmlGpuFabricInfo_v3_t));
    if (!call_require(&call, newer || version == (2u << 24 | sizeof(nvmlGpuFabricInfo_v2_t)),
                      NVML_ERROR_ARGUMENT_VERSION_MISMATCH) ||
        !call_require(&call, gpu->fabric_state != 0, NVML_ERROR_NOT_SUPPORTED))
        return call_end(&call);
    /* The second version is the third without its last member. */
    parse_cluster(gpu->fabric_cluster, info->clusterUuid);
    info->status = NVML_SUCCESS;
    info->cliqueId = gpu->fabric_clique;
    info->state = gpu->fabric_state;
    info->healthMask = 0;
    if (newer)
        info->healthSummary = 1;
    return call_end(&call);
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER(nvmlDeviceGetFieldValues, device);
    struct gpu *gpu = call_gpu(&call, device);
    if (!gpu || !call_require(&call, values && count >= 0, NVML_ERROR_INVALID_ARGUMENT))
        return call_end(&call);
    for (int i = 0; i < count; i++) {
        /* Each field fails by itself; one is offered, and that only where the knob says so. */
        int told = values[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION && gpu->recovery_action != RECOVERY_UNTOLD;
        values[i].nvmlReturn = told ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].value.ullVal = told ? gpu->recovery_action : 0;
    }
    return call_end(&call);
}
