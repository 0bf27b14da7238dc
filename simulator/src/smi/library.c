/* Loading the management library, and naming cards. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "smi.h"

void give_up(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
    exit(status);
}

static int holds_library(const char *directory)
{
    DIR *folder = opendir(directory);
    struct dirent *entry;
    int found = 0;
    while (folder && !found && (entry = readdir(folder)))
        found = strncmp(entry->d_name, "libnvidia-ml.so.", 16) == 0;
    if (folder)
        closedir(folder);
    return found;
}

/*
 * The library is compiled in, so that the tool runs where there is no dynamic loader. Where the real tool would not
 * find its library, this one refuses all the same: what a container lacks must show.
 */
static int library_installed(void)
{
    static const char *const places[] = {"/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/lib/x86_64-linux-gnu",
                                         "/usr/lib/aarch64-linux-gnu", "/usr/local/lib64", "/usr/local/lib",
                                         "/usr/local/nvidia/lib64"};
    char list[4096], beside[4200], *rest = NULL;
    const char *path = getenv("LD_LIBRARY_PATH");
    snprintf(list, sizeof(list), "%s", path ? path : "");
    for (char *word = strtok_r(list, ":", &rest); word; word = strtok_r(NULL, ":", &rest))
        if (holds_library(word))
            return 1;
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++)
        if (holds_library(places[i]))
            return 1;
    ssize_t length = readlink("/proc/self/exe", list, sizeof(list) - 1);
    list[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(list, '/');
    if (!slash)
        return 0;
    *slash = '\0';
    snprintf(beside, sizeof(beside), "%s/../lib64", list);
    return holds_library(beside) || holds_library(list);
}

void library_open(void)
{
    if (!library_installed())
        give_up(12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.");
    nvmlReturn_t result = nvmlInit_v2();
    if (result == NVML_ERROR_DRIVER_NOT_LOADED)
        give_up(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.");
    if (result != NVML_SUCCESS)
        give_up(result > 255 ? 255 : (int)result, "Failed to initialize NVML: %s", nvmlErrorString(result));
}

const char *option(int count, char **words, const char *name, const char *alias)
{
    for (int i = 0; i < count; i++) {
        size_t length = strlen(name);
        if (strncmp(words[i], name, length) == 0 && words[i][length] == '=')
            return words[i] + length + 1;
        if (strcmp(words[i], name) == 0 || (alias && strcmp(words[i], alias) == 0))
            return i + 1 < count && (words[i + 1][0] != '-' || isdigit((unsigned char)words[i + 1][1])) ? words[i + 1] : "";
    }
    return NULL;
}

static void describe(struct card *card)
{
    unsigned int is_mig = 0;
    nvmlPciInfo_t pci;
    nvmlDevice_t parent = card->device;
    nvmlDeviceIsMigDeviceHandle(card->device, &is_mig);
    card->is_mig = (int)is_mig;
    if (is_mig)
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle(card->device, &parent);
    nvmlDeviceGetIndex(parent, &card->index);
    nvmlDeviceGetName(card->device, card->name, sizeof(card->name));
    nvmlDeviceGetUUID(card->device, card->uuid, sizeof(card->uuid));
    if (nvmlDeviceGetPciInfo_v3(parent, &pci) == NVML_SUCCESS)
        memcpy(card->bus_id, pci.busId, sizeof(card->bus_id));
}

static nvmlReturn_t card_named(const char *text, nvmlDevice_t *device)
{
    char *rest;
    unsigned long index = strtoul(text, &rest, 10);
    if (*text && !*rest)
        return nvmlDeviceGetHandleByIndex_v2((unsigned int)index, device);
    if (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)
        return nvmlDeviceGetHandleByUUID(text, device);
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

int cards_named(const char *list, struct card cards[MAX_GPUS])
{
    unsigned int total = 0;
    int found = 0;
    memset(cards, 0, sizeof(*cards) * MAX_GPUS);
    if (!list) {
        nvmlDeviceGetCount_v2(&total);
        for (unsigned int i = 0; i < total && i < MAX_GPUS; i++) {
            nvmlReturn_t result = nvmlDeviceGetHandleByIndex_v2(i, &cards[found].device);
            if (result == NVML_SUCCESS)
                describe(&cards[found++]);
            else
                printf("Unable to determine the device handle for GPU%u: %s\n", i, nvmlErrorString(result));
        }
        return found;
    }
    char copy[1024], *state = NULL;
    snprintf(copy, sizeof(copy), "%s", list);
    for (char *word = strtok_r(copy, ",", &state); word && found < MAX_GPUS; word = strtok_r(NULL, ",", &state)) {
        nvmlReturn_t result = card_named(word, &cards[found].device);
        if (result == NVML_ERROR_GPU_IS_LOST)
            give_up(15, "Unable to determine the device handle for GPU %s: %s", word, nvmlErrorString(result));
        if (result != NVML_SUCCESS)
            give_up(6, "No devices were found: '%s'", word);
        describe(&cards[found++]);
    }
    return found;
}
