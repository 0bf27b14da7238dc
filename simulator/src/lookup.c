/* Searches in the constant tables. All tables are tiny, so every search is linear. */
#include "tables.h"

#include <string.h>

int model_find(const char *key)
{
    for (int i = 0; i < gpu_model_count; i++)
        if (strcmp(gpu_models[i].key, key) == 0)
            return i;
    return -1;
}

int profile_by_id(const struct gpu_model *model, unsigned int id)
{
    for (int i = 0; i < model->profile_count; i++)
        if (model->profiles[i].id == id)
            return i;
    return -1;
}

int profile_by_enumeration(const struct gpu_model *model, unsigned int enumeration)
{
    for (int i = 0; i < model->profile_count; i++)
        if (model->profiles[i].enumeration == enumeration)
            return i;
    return -1;
}

int compute_by_id(const struct gpu_profile *profile, unsigned int id)
{
    for (int i = 0; i < profile->compute_count; i++)
        if (profile->compute[i].id == id)
            return i;
    return -1;
}

int compute_by_enumeration(const struct gpu_profile *profile, unsigned int enumeration)
{
    for (int i = 0; i < profile->compute_count; i++)
        if (profile->compute[i].enumeration == enumeration)
            return i;
    return -1;
}

int start_is_legal(const uint8_t *starts, int count, unsigned int start)
{
    for (int i = 0; i < count; i++)
        if (starts[i] == start)
            return 1;
    return 0;
}
