/* The devices that a daemon may see, and how they are named. See mps.h. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "../state.h"
#include "mps.h"

int find_device(const struct state *state, const char *word, struct client *client)
{
    char *rest;
    unsigned long index = strtoul(word, &rest, 10);
    for (int slot = 0; (uint32_t)slot < state->gpu_count; slot++) {
        const struct gpu *gpu = &state->gpus[slot];
        client->gpu = (int8_t)slot;
        client->gpu_instance = client->compute_instance = NONE;
        if (gpu->present && !gpu->lost && (strcmp(gpu->uuid, word) == 0 || (*word && !*rest && index == (unsigned long)slot)))
            return 1;
        for (int i = 0; i < MAX_GPU_INSTANCES; i++)
            for (int c = 0; gpu->instances[i].live && c < MAX_COMPUTE_INSTANCES; c++)
                if (gpu->instances[i].compute[c].live && strcmp(gpu->instances[i].compute[c].uuid, word) == 0) {
                    client->gpu_instance = (int8_t)i;
                    client->compute_instance = (int8_t)c;
                    return 1;
                }
    }
    return 0;
}

int visible_devices(const struct state *state, struct client *devices)
{
    char list[2048], *rest = NULL;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    snprintf(list, sizeof(list), "%s", visible ? visible : "");
    for (uint32_t slot = 0; !visible && slot < state->gpu_count; slot++)
        snprintf(list + strlen(list), sizeof(list) - strlen(list), "%u,", slot);
    for (char *word = strtok_r(list, ",", &rest); word && count < MAX_DEVICES; word = strtok_r(NULL, ",", &rest))
        if (!find_device(state, word, &devices[count++]))
            return NONE;
    return count;
}

int device_place(const char *word)
{
    char directory[PATH_MAX], *rest;
    struct client devices[MAX_DEVICES], named;
    int found = NONE;
    state_directory(directory, sizeof(directory));
    struct state *state = state_map(directory);
    if (!state)
        return NONE;
    state_lock(state);
    int count = visible_devices(state, devices);
    unsigned long number = strtoul(word, &rest, 10);
    if (*word && !*rest)
        found = count > 0 && number < (unsigned long)count ? (int)number : NONE;
    else if (find_device(state, word, &named))
        for (int i = 0; i < count; i++)
            if (devices[i].gpu == named.gpu && devices[i].gpu_instance == named.gpu_instance &&
                devices[i].compute_instance == named.compute_instance)
                found = i;
    state_unlock(state);
    state_unmap(state);
    return found;
}
