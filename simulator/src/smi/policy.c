/* Modes, time slices and resets. The last two go to the driver's state directly, as the real tool's do. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "../faults.h"
#include "../instances.h"
#include "../power.h"
#include "smi.h"

static struct state *state_open(char *directory, size_t size)
{
    state_directory(directory, size);
    struct state *state = state_map(directory);
    if (!state)
        give_up(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.");
    return state;
}

static int slot_of_uuid(const struct state *state, const char *uuid)
{
    for (uint32_t slot = 0; slot < state->gpu_count; slot++)
        if (strcmp(state->gpus[slot].uuid, uuid) == 0)
            return (int)slot;
    return NONE;
}

/*
 * Carries out one action that no library call offers, with the checks, faults and journal that calls have. `action`
 * runs with the lock held.
 */
static nvmlReturn_t act(int symbol, const char *uuid, int value,
                        nvmlReturn_t (*action)(struct state *, int slot, int value, const char *directory))
{
    char directory[PATH_MAX];
    struct state *state = state_open(directory, sizeof(directory));
    int slot = slot_of_uuid(state, uuid);
    struct fault fault = fault_meet(state, symbol, slot);
    nvmlReturn_t result = NVML_SUCCESS;
    struct journal_entry entry = {.symbol = (int16_t)symbol, .gpu = (int16_t)slot, .value = value};
    entry.gpu_instance = entry.compute_instance = entry.profile_id = entry.start = entry.size = NONE;
    state_lock(state);
    if (fault.live && fault.mode == FAULT_BEFORE)
        result = (nvmlReturn_t)fault.code;
    else if (slot == NONE)
        result = NVML_ERROR_NOT_FOUND;
    else if (state->privilege == PRIVILEGE_DENY || (state->privilege == PRIVILEGE_AUTO && geteuid() != 0))
        result = NVML_ERROR_NO_PERMISSION;
    else
        result = action(state, slot, value, directory);
    entry.effect = (int32_t)result;
    if (fault.live && fault.mode == FAULT_AFTER)
        result = (nvmlReturn_t)fault.code;
    entry.result = (int32_t)result;
    journal_write(state, entry);
    state_unlock(state);
    state_unmap(state);
    return result;
}

/* Time slices exist from Turing on, and for whole cards. */
static nvmlReturn_t set_timeslice(struct state *state, int slot, int value, const char *directory)
{
    (void)directory;
    struct gpu *gpu = &state->gpus[slot];
    if (gpu->lost)
        return NVML_ERROR_GPU_IS_LOST;
    if (gpu->architecture < 6 || gpu->mig_current)
        return NVML_ERROR_NOT_SUPPORTED;
    gpu->timeslice = (uint8_t)value;
    return NVML_SUCCESS;
}

static nvmlReturn_t reset_card(struct state *state, int slot, int value, const char *directory)
{
    (void)value;
    struct gpu *gpu = &state->gpus[slot];
    if (gpu->reset_unsupported || gpu->virtualization == NVML_GPU_VIRTUALIZATION_MODE_VGPU)
        return NVML_ERROR_NOT_SUPPORTED;
    state_reap_clients(state);
    if (client_holds(state, slot, NONE, NONE))
        return NVML_ERROR_IN_USE;
    power_reset(directory, state, slot);
    return NVML_SUCCESS;
}

int run_compute_policy(int count, char **words)
{
    static const char *const names[] = {"default", "short", "medium", "long"};
    struct card cards[MAX_GPUS];
    const char *value = option(count, words, "--set-timeslice", NULL);
    char *rest = "";
    int number = value ? (int)strtol(value, &rest, 10) : 0;
    if (!value && !option(count, words, "--list", "-l"))
        give_up(2, "compute-policy needs --list or --set-timeslice N");
    for (int i = 0; value && i < 4; i++)
        if (strcasecmp(value, names[i]) == 0) {
            number = i;
            rest = "";
        }
    if (value && (!*value || *rest || number < 0 || number > 3))
        give_up(2, "Invalid timeslice '%s': 0 (default), 1 (short), 2 (medium), 3 (long)", value);
    int found = cards_named(option(count, words, "-i", "--id"), cards);
    for (int i = 0; i < found; i++) {
        if (!value) {
            char directory[PATH_MAX];
            struct state *state = state_open(directory, sizeof(directory));
            int slot = slot_of_uuid(state, cards[i].uuid);
            printf("GPU %s: timeslice %s\n", cards[i].bus_id, slot == NONE ? "N/A" : names[state->gpus[slot].timeslice]);
            state_unmap(state);
            continue;
        }
        nvmlReturn_t result = cards[i].is_mig ? NVML_ERROR_NOT_SUPPORTED
                                              : act(SYMBOL_gpusim_setTimeslice, cards[i].uuid, number, set_timeslice);
        if (result != NVML_SUCCESS)
            give_up(result > 255 ? 255 : (int)result, "Unable to set the timeslice for GPU %s: %s", cards[i].bus_id,
                    nvmlErrorString(result));
        printf("Successfully set the timeslice for GPU %s to %s.\n", cards[i].bus_id, names[number]);
    }
    return 0;
}

int reset_cards(const char *which)
{
    struct card cards[MAX_GPUS];
    int found;
    if (which && *which) {
        /* A lost card has no handle, and a reset is what may bring it back: name it by its bus. */
        char directory[PATH_MAX], copy[1024], *rest = NULL;
        struct state *state = state_open(directory, sizeof(directory));
        memset(cards, 0, sizeof(cards));
        found = 0;
        snprintf(copy, sizeof(copy), "%s", which);
        for (char *word = strtok_r(copy, ",", &rest); word && found < MAX_GPUS; word = strtok_r(NULL, ",", &rest)) {
            int before = found;
            for (uint32_t slot = 0; slot < state->gpu_count; slot++) {
                char bus_id[32], number[16];
                const struct gpu *gpu = &state->gpus[slot];
                snprintf(bus_id, sizeof(bus_id), "%08x:%02x:%02x.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
                snprintf(number, sizeof(number), "%u", slot);
                if (strcasecmp(word, bus_id) == 0 || strcasecmp(word, bus_id + 4) == 0 || strcmp(word, gpu->uuid) == 0 ||
                    strcmp(word, number) == 0) {
                    snprintf(cards[found].bus_id, sizeof(cards[found].bus_id), "%s", bus_id);
                    snprintf(cards[found].uuid, sizeof(cards[found].uuid), "%s", gpu->uuid);
                    found++;
                    break;
                }
            }
            if (found == before)
                give_up(6, "No devices were found: '%s'", word);
        }
        state_unmap(state);
    } else {
        found = cards_named(NULL, cards);
    }
    for (int i = 0; i < found; i++) {
        nvmlReturn_t result = act(SYMBOL_gpusim_resetGpu, cards[i].uuid, 1, reset_card);
        if (result != NVML_SUCCESS)
            give_up(result > 255 ? 255 : (int)result, "GPU Reset couldn't run for GPU %s: %s", cards[i].bus_id,
                    nvmlErrorString(result));
        printf("GPU %s was successfully reset.\n", cards[i].bus_id);
    }
    puts("All done.");
    return 0;
}

static unsigned int parse_compute_mode(const char *text)
{
    if (strcasecmp(text, "DEFAULT") == 0 || strcmp(text, "0") == 0)
        return NVML_COMPUTEMODE_DEFAULT;
    if (strcasecmp(text, "PROHIBITED") == 0 || strcmp(text, "2") == 0)
        return NVML_COMPUTEMODE_PROHIBITED;
    if (strcasecmp(text, "EXCLUSIVE_PROCESS") == 0 || strcmp(text, "3") == 0)
        return NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;
    give_up(2, "Invalid compute mode '%s': DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS", text);
}

int set_modes(int count, char **words, const char *which)
{
    struct card cards[MAX_GPUS];
    const char *compute = option(count, words, "--compute-mode", "-c"), *mig = option(count, words, "--multi-instance-gpu", "-mig");
    const char *persistence = option(count, words, "--persistence-mode", "-pm");
    unsigned int mode = compute ? parse_compute_mode(compute) : 0;
    int found = cards_named(which, cards);
    for (int i = 0; i < found; i++) {
        nvmlReturn_t result, activation = NVML_SUCCESS;
        const char *what = "compute mode";
        if (compute)
            result = nvmlDeviceSetComputeMode(cards[i].device, mode);
        else if (persistence) {
            what = "persistence mode";
            result = nvmlDeviceSetPersistenceMode(cards[i].device, strtoul(persistence, NULL, 10) != 0);
        } else {
            what = "MIG mode";
            result = nvmlDeviceSetMigMode(cards[i].device, strtoul(mig, NULL, 10) != 0, &activation);
        }
        if (result != NVML_SUCCESS)
            give_up(result > 255 ? 255 : (int)result, "Unable to set %s for GPU %s: %s", what, cards[i].bus_id,
                    nvmlErrorString(result));
        if (activation != NVML_SUCCESS)
            printf("Warning: %s is in pending state for GPU %s: %s\n", what, cards[i].bus_id,
                   nvmlErrorString(activation));
        else
            printf("Set %s for GPU %s.\n", what, cards[i].bus_id);
    }
    puts("All done.");
    return 0;
}
