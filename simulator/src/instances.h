/*
 * The rules of partitioning, on the state alone: no I/O, no library types.
 *
 * Every function expects the state's lock to be held and answers with a library return code, NVML_SUCCESS when it
 * changed something.
 */
#ifndef GPUSIM_INSTANCES_H
#define GPUSIM_INSTANCES_H

#include "abi.h"
#include "state.h"

/* Placement argument that leaves the choice to the driver. */
#define START_BY_DRIVER 0xffffffffu

static inline const struct gpu_model *gpu_model(const struct gpu *gpu)
{
    return &gpu_models[gpu->model];
}

static inline const struct gpu_profile *instance_profile(const struct gpu *gpu, const struct gpu_instance *instance)
{
    return &gpu_model(gpu)->profiles[instance->profile];
}

/* The id of the GPU instance that occupies `start`, `size`, by the card's own map of ids. */
int instance_id(const struct gpu *gpu, unsigned int start, unsigned int size);

/* How many further instances of a profile could be created now. */
unsigned int instance_capacity(const struct gpu *gpu, int profile);
unsigned int compute_capacity(const struct gpu *gpu, const struct gpu_instance *instance, int compute);

/* How many compute instances of a profile fit into an empty GPU instance. */
unsigned int compute_maximum(const struct gpu_profile *profile, int compute);

int instances_live(const struct gpu *gpu);
int compute_live(const struct gpu_instance *instance);

/* Whether a client holds the card, an instance of it, or a compute instance; NONE stands for any. */
int client_holds(const struct state *state, int gpu, int gpu_instance, int compute_instance);

nvmlReturn_t instance_create(struct state *state, int slot, int profile, unsigned int start, int *id);
nvmlReturn_t instance_destroy(struct state *state, int slot, int id);
nvmlReturn_t compute_create(struct state *state, int slot, int instance, int compute, unsigned int start, int *id);
nvmlReturn_t compute_destroy(struct state *state, int slot, int instance, int id);

/* Asks for a MIG mode. `activation` tells whether the card took it; the pending mode is set in any case. */
nvmlReturn_t mode_set(struct state *state, int slot, int mode, nvmlReturn_t *activation);

/* Removes every instance of a card, as a reset or a reboot does. */
void instances_clear(struct state *state, int slot);

/* The place of a compute instance in the card's list of MIG devices. */
int mig_index(const struct gpu *gpu, int instance, int compute);

#endif
