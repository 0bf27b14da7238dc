/* See instances.h. */
#include "instances.h"

#include <string.h>

static unsigned int span(unsigned int start, unsigned int size)
{
    return ((1u << size) - 1u) << start;
}

static unsigned int occupied_units(const struct gpu *gpu)
{
    unsigned int mask = 0;
    for (int i = 0; i < MAX_GPU_INSTANCES; i++)
        if (gpu->instances[i].live)
            mask |= span(gpu->instances[i].start, gpu->instances[i].size);
    return mask;
}

static unsigned int occupied_slices(const struct gpu_instance *instance)
{
    unsigned int mask = 0;
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++)
        if (instance->compute[i].live)
            mask |= span(instance->compute[i].start, instance->compute[i].size);
    return mask;
}

static unsigned int live_of_profile(const struct gpu *gpu, int profile)
{
    unsigned int count = 0;
    for (int i = 0; i < MAX_GPU_INSTANCES; i++)
        count += gpu->instances[i].live && gpu->instances[i].profile == profile;
    return count;
}

int instances_live(const struct gpu *gpu)
{
    int count = 0;
    for (int i = 0; i < MAX_GPU_INSTANCES; i++)
        count += gpu->instances[i].live;
    return count;
}

int compute_live(const struct gpu_instance *instance)
{
    int count = 0;
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++)
        count += instance->compute[i].live;
    return count;
}

/* Spans nest like a binary tree: ids count its nodes from the root, level by level. */
int instance_id(const struct gpu *gpu, unsigned int start, unsigned int size)
{
    unsigned int parts = gpu_model(gpu)->memory_units / size;
    unsigned int position = start / size;
    if (gpu->gi_map == GI_MAP_HALF_SWAPPED && parts > 1)
        position = (position + parts / 2) % parts;
    return (int)(parts - 1 + position);
}

/* The whole card's profile owns every engine; each instance takes its share. */
static unsigned int engine_capacity(const struct gpu *gpu, const struct gpu_profile *wanted)
{
    const struct gpu_model *model = gpu_model(gpu);
    unsigned int capacity = wanted->max_instances;
    for (int engine = 0; engine < ENGINE_KINDS; engine++) {
        unsigned int total = 0, taken = 0;
        for (int i = 0; i < model->profile_count; i++)
            if (model->profiles[i].engines[engine] > total)
                total = model->profiles[i].engines[engine];
        for (int i = 0; i < MAX_GPU_INSTANCES; i++)
            if (gpu->instances[i].live)
                taken += instance_profile(gpu, &gpu->instances[i])->engines[engine];
        if (wanted->engines[engine] == 0)
            continue;
        unsigned int possible = taken >= total ? 0 : (total - taken) / wanted->engines[engine];
        if (possible < capacity)
            capacity = possible;
    }
    return capacity;
}

unsigned int instance_capacity(const struct gpu *gpu, int profile)
{
    const struct gpu_profile *wanted = &gpu_model(gpu)->profiles[profile];
    unsigned int live = live_of_profile(gpu, profile), occupied = occupied_units(gpu), free_places = 0;
    /* Placements of one profile never overlap each other, so free ones can simply be counted. */
    for (int i = 0; i < wanted->start_count; i++)
        free_places += !(occupied & span(wanted->starts[i], wanted->size));
    unsigned int by_count = live >= wanted->max_instances ? 0 : wanted->max_instances - live;
    unsigned int by_engines = engine_capacity(gpu, wanted);
    unsigned int capacity = free_places < by_count ? free_places : by_count;
    return capacity < by_engines ? capacity : by_engines;
}

unsigned int compute_maximum(const struct gpu_profile *profile, int compute)
{
    return profile->compute[compute].start_count;
}

unsigned int compute_capacity(const struct gpu *gpu, const struct gpu_instance *instance, int compute)
{
    const struct compute_profile *wanted = &instance_profile(gpu, instance)->compute[compute];
    unsigned int occupied = occupied_slices(instance), free_places = 0;
    for (int i = 0; i < wanted->start_count; i++)
        free_places += !(occupied & span(wanted->starts[i], wanted->slices));
    return free_places;
}

int client_holds(const struct state *state, int gpu, int gpu_instance, int compute_instance)
{
    for (int i = 0; i < MAX_CLIENTS; i++) {
        const struct client *client = &state->clients[i];
        if (client->live && client->gpu == gpu && (gpu_instance == NONE || client->gpu_instance == gpu_instance) &&
            (compute_instance == NONE || client->compute_instance == compute_instance))
            return 1;
    }
    return 0;
}

/*
 * The driver's own choice: the free placement that blocks the fewest placements which are still free, over all
 * profiles of the card; of equals the lowest.
 */
static int choose_start(const struct gpu *gpu, const struct gpu_profile *wanted, unsigned int *chosen)
{
    const struct gpu_model *model = gpu_model(gpu);
    unsigned int occupied = occupied_units(gpu), best = 0xffffffffu;
    for (int i = 0; i < wanted->start_count; i++) {
        unsigned int candidate = span(wanted->starts[i], wanted->size), blocked = 0;
        if (occupied & candidate)
            continue;
        for (int p = 0; p < model->profile_count; p++)
            for (int s = 0; s < model->profiles[p].start_count; s++) {
                unsigned int other = span(model->profiles[p].starts[s], model->profiles[p].size);
                blocked += !(other & occupied) && (other & candidate);
            }
        if (blocked < best) {
            best = blocked;
            *chosen = wanted->starts[i];
        }
    }
    return best != 0xffffffffu;
}

nvmlReturn_t instance_create(struct state *state, int slot, int profile, unsigned int start, int *id)
{
    struct gpu *gpu = &state->gpus[slot];
    const struct gpu_profile *wanted = &gpu_model(gpu)->profiles[profile];
    if (start != START_BY_DRIVER && !start_is_legal(wanted->starts, wanted->start_count, start))
        return NVML_ERROR_INVALID_ARGUMENT;
    state_reap_clients(state);
    /* The first instance is what really splits the card, and that needs the card to be idle. */
    if (!instances_live(gpu) && client_holds(state, slot, NONE, NONE))
        return NVML_ERROR_IN_USE;
    if (live_of_profile(gpu, profile) >= wanted->max_instances || engine_capacity(gpu, wanted) == 0)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    if (start == START_BY_DRIVER) {
        if (!choose_start(gpu, wanted, &start))
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
    } else if (occupied_units(gpu) & span(start, wanted->size)) {
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    *id = instance_id(gpu, start, wanted->size);
    struct gpu_instance *instance = &gpu->instances[*id];
    memset(instance, 0, sizeof(*instance));
    instance->profile = (uint8_t)profile;
    instance->start = (uint8_t)start;
    instance->size = wanted->size;
    instance->generation = state_generation(state);
    instance->live = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t instance_destroy(struct state *state, int slot, int id)
{
    struct gpu_instance *instance = &state->gpus[slot].instances[id];
    state_reap_clients(state);
    if (compute_live(instance) || client_holds(state, slot, id, NONE))
        return NVML_ERROR_IN_USE;
    instance->live = 0;
    return NVML_SUCCESS;
}

static int free_mig_index(const struct gpu *gpu)
{
    unsigned int taken = 0;
    for (int i = 0; i < MAX_GPU_INSTANCES; i++)
        for (int c = 0; gpu->instances[i].live && c < MAX_COMPUTE_INSTANCES; c++)
            if (gpu->instances[i].compute[c].live)
                taken |= 1u << gpu->instances[i].compute[c].mig_index;
    int index = 0;
    while (taken & (1u << index))
        index++;
    return index;
}

nvmlReturn_t compute_create(struct state *state, int slot, int instance_number, int compute, unsigned int start, int *id)
{
    struct gpu *gpu = &state->gpus[slot];
    struct gpu_instance *instance = &gpu->instances[instance_number];
    const struct compute_profile *wanted = &instance_profile(gpu, instance)->compute[compute];
    unsigned int occupied = occupied_slices(instance);
    if (start != START_BY_DRIVER && !start_is_legal(wanted->starts, wanted->start_count, start))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (start == START_BY_DRIVER) {
        int i = 0;
        while (i < wanted->start_count && (occupied & span(wanted->starts[i], wanted->slices)))
            i++;
        if (i == wanted->start_count)
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
        start = wanted->starts[i];
    } else if (occupied & span(start, wanted->slices)) {
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    for (*id = 0; instance->compute[*id].live;)
        ++*id;
    struct compute_instance *made = &instance->compute[*id];
    memset(made, 0, sizeof(*made));
    made->profile = (uint8_t)compute;
    made->start = (uint8_t)start;
    made->size = wanted->slices;
    made->mig_index = (uint8_t)free_mig_index(gpu);
    made->generation = state_generation(state);
    uint64_t words[6] = {state->seed, (uint64_t)slot, gpu->swaps, (uint64_t)instance_number, (uint64_t)*id, 0};
    if (gpu->uuid_mode == UUID_FRESH)
        words[5] = ++state->uuids;
    state_uuid(made->uuid, "MIG-", words, 6);
    made->live = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t compute_destroy(struct state *state, int slot, int instance, int id)
{
    state_reap_clients(state);
    if (client_holds(state, slot, instance, id))
        return NVML_ERROR_IN_USE;
    state->gpus[slot].instances[instance].compute[id].live = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t mode_set(struct state *state, int slot, int mode, nvmlReturn_t *activation)
{
    struct gpu *gpu = &state->gpus[slot];
    *activation = NVML_SUCCESS;
    if (mode == NVML_DEVICE_MIG_DISABLE && instances_live(gpu))
        return NVML_ERROR_IN_USE;
    state_reap_clients(state);
    gpu->mig_pending = (uint8_t)mode;
    if (gpu->mig_current == mode)
        return NVML_SUCCESS;
    if (gpu->activation == ACTIVATION_PENDING || client_holds(state, slot, NONE, NONE))
        *activation = NVML_ERROR_IN_USE;
    else if (gpu_model(gpu)->mode_change == MODE_CHANGE_BY_RESET &&
             (gpu->reset_unsupported || gpu->virtualization == NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH))
        *activation = NVML_ERROR_RESET_REQUIRED;
    else
        gpu->mig_current = (uint8_t)mode;
    return NVML_SUCCESS;
}

void instances_clear(struct state *state, int slot)
{
    for (int i = 0; i < MAX_GPU_INSTANCES; i++) {
        state->gpus[slot].instances[i].live = 0;
        for (int c = 0; c < MAX_COMPUTE_INSTANCES; c++)
            state->gpus[slot].instances[i].compute[c].live = 0;
    }
}

int mig_index(const struct gpu *gpu, int instance, int compute)
{
    if (gpu->index_mode == INDEX_STICKY)
        return gpu->instances[instance].compute[compute].mig_index;
    int index = 0;
    for (int i = 0; i <= instance; i++)
        for (int c = 0; gpu->instances[i].live && c < (i == instance ? compute : MAX_COMPUTE_INSTANCES); c++)
            index += gpu->instances[i].compute[c].live;
    return index;
}
