/* See power.h. */
#include "power.h"

#include <stdio.h>

#include "instances.h"
#include "tree.h"

void power_identify(struct state *state, int slot)
{
    struct gpu *gpu = &state->gpus[slot];
    uint64_t words[3] = {state->seed, (uint64_t)slot, gpu->swaps};
    state_uuid(gpu->uuid, "GPU-", words, 3);
    uint64_t hash = 1469598103934665603ULL;
    for (const char *c = gpu->uuid; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211ULL;
    snprintf(gpu->serial, sizeof(gpu->serial), "16%011llu", (unsigned long long)(hash % 100000000000ULL));
    gpu->generation = state_generation(state);
}

void power_new_boot(struct state *state)
{
    uint64_t words[3] = {state->seed, 0x626f6f74, ++state->boots};
    state_uuid(state->boot_id, "", words, 3);
}

static void remove_instances(const char *directory, struct state *state, int slot)
{
    for (int i = 0; i < MAX_GPU_INSTANCES; i++) {
        for (int c = 0; c < MAX_COMPUTE_INSTANCES; c++)
            if (state->gpus[slot].instances[i].compute[c].live)
                tree_hide(directory, state, slot, i, c);
        if (state->gpus[slot].instances[i].live)
            tree_hide(directory, state, slot, i, NONE);
    }
    instances_clear(state, slot);
}

static void end_clients(struct state *state, int slot)
{
    for (int i = 0; i < MAX_CLIENTS; i++)
        if (state->clients[i].gpu == slot)
            state->clients[i].live = 0;
}

void power_reset(const char *directory, struct state *state, int slot)
{
    struct gpu *gpu = &state->gpus[slot];
    remove_instances(directory, state, slot);
    end_clients(state, slot);
    gpu->mig_current = gpu->mig_pending;
    gpu->ecc_current = gpu->ecc_pending;
    gpu->remap_pending = 0;
    gpu->lost = 0;
    if (gpu->recovery_action != RECOVERY_UNTOLD)
        gpu->recovery_action = NVML_GPU_RECOVERY_ACTION_NONE;
    gpu->resets++;
    gpu->generation = state_generation(state);
}

void power_reload(const char *directory, struct state *state)
{
    for (int slot = 0; (uint32_t)slot < state->gpu_count; slot++) {
        struct gpu *gpu = &state->gpus[slot];
        power_reset(directory, state, slot);
        if (gpu_model(gpu)->mode_change == MODE_CHANGE_AT_ONCE)
            gpu->mig_current = gpu->mig_pending = 0;
        gpu->compute_mode = NVML_COMPUTEMODE_DEFAULT;
        gpu->persistence_mode = 0;
        gpu->timeslice = 0;
        gpu->ecc_corrected = gpu->ecc_uncorrected = 0;
    }
}

void power_reboot(const char *directory, struct state *state)
{
    power_reload(directory, state);
    power_new_boot(state);
}

void power_swap(const char *directory, struct state *state, int slot)
{
    struct gpu *gpu = &state->gpus[slot];
    remove_instances(directory, state, slot);
    end_clients(state, slot);
    gpu->swaps++;
    gpu->lost = 0;
    gpu->mig_current = gpu->mig_pending = 0;
    gpu->compute_mode = NVML_COMPUTEMODE_DEFAULT;
    gpu->timeslice = 0;
    gpu->remapped_correctable = gpu->remapped_uncorrectable = gpu->remap_pending = gpu->remap_failed = 0;
    gpu->ecc_corrected = gpu->ecc_uncorrected = 0;
    power_identify(state, slot);
}
