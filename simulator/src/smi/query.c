/* What nvidia-smi shows: the list, the table, and queries in comma-separated form. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "smi.h"

/* Walks the MIG devices of a card. */
static void list_mig_devices(nvmlDevice_t device)
{
    unsigned int most = 0;
    nvmlDeviceGetMaxMigDeviceCount(device, &most);
    for (unsigned int i = 0; i < most; i++) {
        nvmlDevice_t mig;
        char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "", uuid[UUID_SIZE] = "";
        if (nvmlDeviceGetMigDeviceHandleByIndex(device, i, &mig) != NVML_SUCCESS)
            continue;
        nvmlDeviceGetName(mig, name, sizeof(name));
        nvmlDeviceGetUUID(mig, uuid, sizeof(uuid));
        const char *profile = strstr(name, "MIG ");
        printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile ? profile + 4 : name, i, uuid);
    }
}

int list_cards(void)
{
    struct card cards[MAX_GPUS];
    int count = cards_named(NULL, cards);
    for (int i = 0; i < count; i++) {
        printf("GPU %u: %s (UUID: %s)\n", cards[i].index, cards[i].name, cards[i].uuid);
        list_mig_devices(cards[i].device);
    }
    return 0;
}

static const char *compute_mode_name(unsigned int mode)
{
    if (mode == NVML_COMPUTEMODE_PROHIBITED)
        return "Prohibited";
    return mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS ? "Exclusive_Process" : "Default";
}

int show_table(void)
{
    struct card cards[MAX_GPUS];
    char driver[80] = "";
    int cuda = 0, count = cards_named(NULL, cards);
    nvmlSystemGetDriverVersion(driver, sizeof(driver));
    nvmlSystemGetCudaDriverVersion_v2(&cuda);
    printf("+-----------------------------------------------------------------------------------------+\n");
    printf("| NVIDIA-SMI %-20s Driver Version: %-16s CUDA Version: %2d.%-5d |\n", driver, driver, cuda / 1000,
           cuda / 10 % 100);
    printf("|-----------------------------------------+------------------------+----------------------|\n");
    for (int i = 0; i < count; i++) {
        nvmlMemory_v2_t memory = {.version = 2u << 24 | sizeof(memory)};
        unsigned int temperature = 0, mode = 0, current = 0, pending = 0;
        nvmlDeviceGetMemoryInfo_v2(cards[i].device, &memory);
        nvmlDeviceGetTemperature(cards[i].device, 0, &temperature);
        nvmlDeviceGetComputeMode(cards[i].device, &mode);
        nvmlReturn_t mig = nvmlDeviceGetMigMode(cards[i].device, &current, &pending);
        printf("| %3u  %-34s |   %-18s   | %20s |\n", cards[i].index, cards[i].name, cards[i].bus_id,
               compute_mode_name(mode));
        printf("| %3uC %-34s | %8lluMiB / %7lluMiB | %20s |\n", temperature, "", memory.used >> 20,
               memory.total >> 20, mig != NVML_SUCCESS ? "N/A" : current ? "Enabled" : "Disabled");
    }
    printf("+-----------------------------------------+------------------------+----------------------+\n");
    return 0;
}

int show_versions(void)
{
    char driver[80] = "", library[80] = "";
    int cuda = 0;
    nvmlSystemGetDriverVersion(driver, sizeof(driver));
    nvmlSystemGetNVMLVersion(library, sizeof(library));
    nvmlSystemGetCudaDriverVersion_v2(&cuda);
    printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %d.%d\n",
           driver, library, driver, cuda / 1000, cuda / 10 % 100);
    return 0;
}

enum field {
    FIELD_INDEX, FIELD_NAME, FIELD_UUID, FIELD_SERIAL, FIELD_BUS, FIELD_DEVICE_ID, FIELD_DRIVER, FIELD_COUNT,
    FIELD_TOTAL, FIELD_USED, FIELD_FREE, FIELD_RESERVED, FIELD_COMPUTE_MODE, FIELD_PERSISTENCE, FIELD_MIG_CURRENT,
    FIELD_MIG_PENDING, FIELD_ECC_CURRENT, FIELD_ECC_PENDING, FIELD_TEMPERATURE, FIELD_UTILIZATION,
    FIELD_MEMORY_UTILIZATION, FIELD_POWER, FIELD_POWER_LIMIT, FIELD_CAPABILITY, FIELD_VBIOS, FIELD_TIME, FIELD_DISPLAY,
    FIELD_PCI_DOMAIN, FIELD_PCI_BUS, FIELD_PCI_DEVICE, FIELD_PCI_SUBSYSTEM, FIELD_NOT_SIMULATED
};

struct query_field {
    const char *name;
    enum field field;
    const char *unit;
};

static const struct query_field fields[] = {
    {"index", FIELD_INDEX, NULL},
    {"name", FIELD_NAME, NULL},
    {"gpu_name", FIELD_NAME, NULL},
    {"uuid", FIELD_UUID, NULL},
    {"gpu_uuid", FIELD_UUID, NULL},
    {"serial", FIELD_SERIAL, NULL},
    {"gpu_serial", FIELD_SERIAL, NULL},
    {"pci.bus_id", FIELD_BUS, NULL},
    {"gpu_bus_id", FIELD_BUS, NULL},
    {"pci.device_id", FIELD_DEVICE_ID, NULL},
    {"driver_version", FIELD_DRIVER, NULL},
    {"count", FIELD_COUNT, NULL},
    {"memory.total", FIELD_TOTAL, "MiB"},
    {"memory.used", FIELD_USED, "MiB"},
    {"memory.free", FIELD_FREE, "MiB"},
    {"memory.reserved", FIELD_RESERVED, "MiB"},
    {"compute_mode", FIELD_COMPUTE_MODE, NULL},
    {"persistence_mode", FIELD_PERSISTENCE, NULL},
    {"mig.mode.current", FIELD_MIG_CURRENT, NULL},
    {"mig.mode.pending", FIELD_MIG_PENDING, NULL},
    {"ecc.mode.current", FIELD_ECC_CURRENT, NULL},
    {"ecc.mode.pending", FIELD_ECC_PENDING, NULL},
    {"temperature.gpu", FIELD_TEMPERATURE, NULL},
    {"utilization.gpu", FIELD_UTILIZATION, "%"},
    {"utilization.memory", FIELD_MEMORY_UTILIZATION, "%"},
    {"power.draw", FIELD_POWER, "W"},
    {"power.limit", FIELD_POWER_LIMIT, "W"},
    {"compute_cap", FIELD_CAPABILITY, NULL},
    {"vbios_version", FIELD_VBIOS, NULL},
    {"timestamp", FIELD_TIME, NULL},
    {"display_active", FIELD_DISPLAY, NULL},
    {"display_mode", FIELD_DISPLAY, NULL},
    {"pci.domain", FIELD_PCI_DOMAIN, NULL},
    {"pci.bus", FIELD_PCI_BUS, NULL},
    {"pci.device", FIELD_PCI_DEVICE, NULL},
    {"pci.sub_device_id", FIELD_PCI_SUBSYSTEM, NULL},
};

/* What the real tool knows beside these, by the beginnings of names: monitoring asks for all it can get. */
static const struct query_field not_simulated[] = {
    {"accounting.", FIELD_NOT_SIMULATED, NULL},
    {"addressing_mode", FIELD_NOT_SIMULATED, NULL},
    {"clocks.", FIELD_NOT_SIMULATED, "MHz"},
    {"clocks_event_reasons.", FIELD_NOT_SIMULATED, NULL},
    {"clocks_throttle_reasons.", FIELD_NOT_SIMULATED, NULL},
    {"display_attached", FIELD_NOT_SIMULATED, NULL},
    {"driver_model.", FIELD_NOT_SIMULATED, NULL},
    {"dramEncryption.", FIELD_NOT_SIMULATED, NULL},
    {"ecc.errors.", FIELD_NOT_SIMULATED, NULL},
    {"encoder.stats.", FIELD_NOT_SIMULATED, NULL},
    {"enforced.power.limit", FIELD_NOT_SIMULATED, "W"},
    {"fabric.", FIELD_NOT_SIMULATED, NULL},
    {"fan.speed", FIELD_NOT_SIMULATED, "%"},
    {"gom.", FIELD_NOT_SIMULATED, NULL},
    {"gpu_recovery_action", FIELD_NOT_SIMULATED, NULL},
    {"gsp.mode.", FIELD_NOT_SIMULATED, NULL},
    {"inforom.", FIELD_NOT_SIMULATED, NULL},
    {"module.power.", FIELD_NOT_SIMULATED, "W"},
    {"pcie.link.", FIELD_NOT_SIMULATED, NULL},
    {"platform.", FIELD_NOT_SIMULATED, NULL},
    {"power.", FIELD_NOT_SIMULATED, "W"},
    {"protected_memory.", FIELD_NOT_SIMULATED, "MiB"},
    {"pstate", FIELD_NOT_SIMULATED, NULL},
    {"remapped_rows.", FIELD_NOT_SIMULATED, NULL},
    {"retired_pages.", FIELD_NOT_SIMULATED, NULL},
    {"temperature.", FIELD_NOT_SIMULATED, NULL},
    {"utilization.", FIELD_NOT_SIMULATED, "%"},
    {"vgpu_", FIELD_NOT_SIMULATED, NULL},
};

static struct query_field find_field(const char *name)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        if (strcmp(fields[i].name, name) == 0)
            return fields[i];
    for (size_t i = 0; i < sizeof(not_simulated) / sizeof(*not_simulated); i++)
        if (strncmp(not_simulated[i].name, name, strlen(not_simulated[i].name)) == 0)
            return (struct query_field){name, FIELD_NOT_SIMULATED, not_simulated[i].unit};
    give_up(2, "Field \"%s\" is not a valid field to query.", name);
}

int list_fields(void)
{
    puts("List of valid properties to query for the switch \"--query-gpu=\":\n");
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        printf("\"%s\"\n\n", fields[i].name);
    return 0;
}

static void time_text(char *text, size_t size)
{
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    size_t length = strftime(text, size, "%Y/%m/%d %H:%M:%S", &local);
    snprintf(text + length, size - length, ".%03ld", now.tv_nsec / 1000000);
}

static nvmlReturn_t number_text(nvmlReturn_t result, unsigned long long number, char *text, size_t size)
{
    snprintf(text, size, "%llu", number);
    return result;
}

static nvmlReturn_t switch_text(nvmlReturn_t result, unsigned int on, char *text, size_t size)
{
    snprintf(text, size, "%s", on ? "Enabled" : "Disabled");
    return result;
}

/* One value; what the library cannot tell is shown as not available. */
static nvmlReturn_t field_text(const struct card *card, enum field field, char *text, size_t size)
{
    nvmlDevice_t device = card->device;
    nvmlMemory_v2_t memory = {.version = 2u << 24 | sizeof(memory)};
    nvmlUtilization_t rates = {0, 0};
    nvmlPciInfo_t pci = {.pciDeviceId = 0};
    unsigned int first = 0, second = 0;
    int major = 0, minor = 0;
    nvmlReturn_t result = NVML_SUCCESS;
    unsigned int length = (unsigned int)size;
    switch (field) {
    case FIELD_INDEX:
        result = nvmlDeviceGetIndex(device, &first);
        return number_text(result, first, text, size);
    case FIELD_NAME:
        return nvmlDeviceGetName(device, text, length);
    case FIELD_UUID:
        return nvmlDeviceGetUUID(device, text, length);
    case FIELD_SERIAL:
        return nvmlDeviceGetSerial(device, text, length);
    case FIELD_VBIOS:
        return nvmlDeviceGetVbiosVersion(device, text, length);
    case FIELD_DRIVER:
        return nvmlSystemGetDriverVersion(text, length);
    case FIELD_BUS:
        snprintf(text, size, "%s", card->bus_id);
        return NVML_SUCCESS;
    case FIELD_DEVICE_ID:
        result = nvmlDeviceGetPciInfo_v3(device, &pci);
        snprintf(text, size, "0x%08X", pci.pciDeviceId);
        return result;
    case FIELD_PCI_DOMAIN:
    case FIELD_PCI_BUS:
    case FIELD_PCI_DEVICE:
    case FIELD_PCI_SUBSYSTEM:
        result = nvmlDeviceGetPciInfo_v3(device, &pci);
        snprintf(text, size, field == FIELD_PCI_DOMAIN ? "0x%04X" : field == FIELD_PCI_SUBSYSTEM ? "0x%08X" : "0x%02X",
                 field == FIELD_PCI_DOMAIN   ? pci.domain
                 : field == FIELD_PCI_BUS    ? pci.bus
                 : field == FIELD_PCI_DEVICE ? pci.device
                                             : pci.pciSubSystemId);
        return result;
    case FIELD_TIME:
        time_text(text, size);
        return NVML_SUCCESS;
    case FIELD_DISPLAY:
        return switch_text(NVML_SUCCESS, 0, text, size);
    case FIELD_NOT_SIMULATED:
        return NVML_ERROR_NOT_SUPPORTED;
    case FIELD_COUNT:
        result = nvmlDeviceGetCount_v2(&first);
        return number_text(result, first, text, size);
    case FIELD_TOTAL:
    case FIELD_USED:
    case FIELD_FREE:
    case FIELD_RESERVED:
        result = nvmlDeviceGetMemoryInfo_v2(device, &memory);
        return number_text(result,
                           (field == FIELD_TOTAL  ? memory.total
                            : field == FIELD_USED ? memory.used
                            : field == FIELD_FREE ? memory.free
                                                  : memory.reserved) >> 20,
                           text, size);
    case FIELD_COMPUTE_MODE:
        result = nvmlDeviceGetComputeMode(device, &first);
        snprintf(text, size, "%s", compute_mode_name(first));
        return result;
    case FIELD_PERSISTENCE:
        result = nvmlDeviceGetPersistenceMode(device, &first);
        return switch_text(result, first, text, size);
    case FIELD_MIG_CURRENT:
    case FIELD_MIG_PENDING:
        result = nvmlDeviceGetMigMode(device, &first, &second);
        return switch_text(result, field == FIELD_MIG_CURRENT ? first : second, text, size);
    case FIELD_ECC_CURRENT:
    case FIELD_ECC_PENDING:
        result = nvmlDeviceGetEccMode(device, &first, &second);
        return switch_text(result, field == FIELD_ECC_CURRENT ? first : second, text, size);
    case FIELD_TEMPERATURE:
        result = nvmlDeviceGetTemperature(device, 0, &first);
        return number_text(result, first, text, size);
    case FIELD_UTILIZATION:
        result = nvmlDeviceGetUtilizationRates(device, &rates);
        return number_text(result, rates.gpu, text, size);
    case FIELD_MEMORY_UTILIZATION:
        result = nvmlDeviceGetUtilizationRates(device, &rates);
        return number_text(result, rates.memory, text, size);
    case FIELD_POWER:
    case FIELD_POWER_LIMIT:
        result = field == FIELD_POWER ? nvmlDeviceGetPowerUsage(device, &first)
                                      : nvmlDeviceGetPowerManagementLimit(device, &first);
        snprintf(text, size, "%u.%02u", first / 1000, first % 1000 / 10);
        return result;
    case FIELD_CAPABILITY:
        result = nvmlDeviceGetCudaComputeCapability(device, &major, &minor);
        snprintf(text, size, "%d.%d", major, minor);
        return result;
    }
    return NVML_ERROR_UNKNOWN;
}

static void print_value(const struct card *card, const struct query_field *field, int with_units)
{
    char text[160] = "";
    nvmlReturn_t result = field_text(card, field->field, text, sizeof(text));
    if (result == NVML_ERROR_GPU_IS_LOST)
        printf("[GPU is lost]");
    else if (result != NVML_SUCCESS)
        printf("[N/A]");
    else if (field->unit && with_units)
        printf("%s %s", text, field->unit);
    else
        printf("%s", text);
}

#define MAX_FIELDS 256

/* Whether a list of formats, "csv,noheader", has one. */
static int has_format(const char *format, const char *wanted)
{
    if (strncmp(format, "csv", 3) != 0)
        give_up(2, "Only --format=csv is understood.");
    return strstr(format, wanted) != NULL;
}

int query_gpu(const char *list, const char *format, const char *which)
{
    struct card cards[MAX_GPUS];
    static struct query_field chosen[MAX_FIELDS];
    static char copy[16384];
    char *state = NULL;
    int with_units = !has_format(format, "nounits"), wanted = 0;
    snprintf(copy, sizeof(copy), "%s", list);
    for (char *word = strtok_r(copy, ", ", &state); word && wanted < MAX_FIELDS; word = strtok_r(NULL, ", ", &state))
        chosen[wanted++] = find_field(word);
    for (int f = 0; f < wanted && !has_format(format, "noheader"); f++) {
        printf("%s%s", f ? ", " : "", chosen[f].name);
        if (chosen[f].unit && with_units)
            printf(" [%s]", chosen[f].unit);
        if (f == wanted - 1)
            putchar('\n');
    }
    int count = cards_named(which, cards);
    for (int i = 0; i < count; i++)
        for (int f = 0; f < wanted; f++) {
            fputs(f ? ", " : "", stdout);
            print_value(&cards[i], &chosen[f], with_units);
            fputs(f == wanted - 1 ? "\n" : "", stdout);
        }
    return 0;
}

/* What can be asked of a process: the words for it, and the one that heads its column. */
static const char *const application_fields[][3] = {
    {"pid", "pid", NULL},
    {"process_name", "process_name", NULL},
    {"name", "process_name", NULL},
    {"used_memory", "used_gpu_memory", "MiB"},
    {"used_gpu_memory", "used_gpu_memory", "MiB"},
    {"gpu_uuid", "gpu_uuid", NULL},
    {"gpu_name", "gpu_name", NULL},
    {"gpu_bus_id", "gpu_bus_id", NULL},
    {"gpu_serial", "gpu_serial", NULL},
    {"timestamp", "timestamp", NULL},
};

static void print_application_value(const struct card *card, const nvmlProcessInfo_v2_t *process, const char *field,
                                    int with_units)
{
    char text[160] = "[N/A]";
    if (strcmp(field, "pid") == 0)
        snprintf(text, sizeof(text), "%u", process->pid);
    else if (strcmp(field, "process_name") == 0) {
        if (nvmlSystemGetProcessName(process->pid, text, sizeof(text)) != NVML_SUCCESS)
            snprintf(text, sizeof(text), "[Not Found]");
    } else if (strcmp(field, "used_gpu_memory") == 0)
        snprintf(text, sizeof(text), "%llu%s", process->usedGpuMemory >> 20, with_units ? " MiB" : "");
    else if (strcmp(field, "timestamp") == 0)
        time_text(text, sizeof(text));
    else if (strcmp(field, "gpu_serial") == 0)
        nvmlDeviceGetSerial(card->device, text, sizeof(text));
    else
        snprintf(text, sizeof(text), "%s",
                 strcmp(field, "gpu_uuid") == 0   ? card->uuid
                 : strcmp(field, "gpu_name") == 0 ? card->name
                                                  : card->bus_id);
    fputs(text, stdout);
}

int query_compute_apps(const char *list, const char *format, const char *which)
{
    enum { KINDS = sizeof(application_fields) / sizeof(*application_fields), MOST = 32 };
    struct card cards[MAX_GPUS];
    static nvmlProcessInfo_v2_t processes[MAX_CLIENTS];
    int chosen[MOST], wanted = 0, with_units = !has_format(format, "nounits");
    char copy[1024], *state = NULL;
    snprintf(copy, sizeof(copy), "%s", list);
    for (char *word = strtok_r(copy, ", ", &state); word && wanted < MOST; word = strtok_r(NULL, ", ", &state)) {
        int kind = 0;
        while (kind < KINDS && strcmp(application_fields[kind][0], word) != 0)
            kind++;
        if (kind == KINDS)
            give_up(2, "Field \"%s\" is not a valid field to query.", word);
        chosen[wanted++] = kind;
    }
    for (int f = 0; f < wanted && !has_format(format, "noheader"); f++) {
        const char *unit = application_fields[chosen[f]][2];
        printf("%s%s", f ? ", " : "", application_fields[chosen[f]][1]);
        if (unit && with_units)
            printf(" [%s]", unit);
        if (f == wanted - 1)
            putchar('\n');
    }
    int count = cards_named(which, cards);
    for (int i = 0; i < count; i++) {
        unsigned int found = MAX_CLIENTS;
        if (nvmlDeviceGetComputeRunningProcesses_v3(cards[i].device, &found, processes) != NVML_SUCCESS)
            continue;
        for (unsigned int p = 0; p < found; p++)
            for (int f = 0; f < wanted; f++) {
                fputs(f ? ", " : "", stdout);
                print_application_value(&cards[i], &processes[p], application_fields[chosen[f]][1], with_units);
                fputs(f == wanted - 1 ? "\n" : "", stdout);
            }
    }
    return 0;
}
