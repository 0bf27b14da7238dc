/* nvidia-smi mig: listing, creating and destroying instances. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "smi.h"

#define GI_VERSION (2u << 24 | sizeof(nvmlGpuInstanceProfileInfo_v2_t))
#define CI_VERSION (2u << 24 | sizeof(nvmlComputeInstanceProfileInfo_v2_t))

/* A visitor of GPU instances stops the walk by answering anything but success. */
typedef nvmlReturn_t (*visitor)(const struct card *, nvmlGpuInstance_t, const nvmlGpuInstanceProfileInfo_v2_t *, void *);

static int status_of(nvmlReturn_t result)
{
    return result > 255 ? 255 : (int)result;
}

static nvmlReturn_t visit_instances(const struct card *card, visitor visit, void *context)
{
    nvmlReturn_t result = NVML_SUCCESS;
    for (unsigned int e = 0; e < NVML_GPU_INSTANCE_PROFILE_COUNT && result == NVML_SUCCESS; e++) {
        nvmlGpuInstanceProfileInfo_v2_t profile = {.version = GI_VERSION};
        nvmlGpuInstance_t instances[MAX_GPU_INSTANCES];
        unsigned int count = 0;
        if (nvmlDeviceGetGpuInstanceProfileInfoV(card->device, e, &profile) != NVML_SUCCESS)
            continue;
        result = nvmlDeviceGetGpuInstances(card->device, profile.id, instances, &count);
        for (unsigned int i = 0; i < count && result == NVML_SUCCESS; i++)
            result = visit(card, instances[i], &profile, context);
    }
    return result;
}

/* Whether a comma-separated list of numbers has `number`; no list has all. */
static int listed(const char *list, unsigned int number)
{
    char copy[256], *state = NULL;
    if (!list || !*list)
        return 1;
    snprintf(copy, sizeof(copy), "%s", list);
    for (char *word = strtok_r(copy, ",", &state); word; word = strtok_r(NULL, ",", &state))
        if (strtoul(word, NULL, 10) == number)
            return 1;
    return 0;
}

static int list_profiles(const struct card *cards, int count)
{
    puts("| GPU   Name                 ID    Instances   Memory     P2P    SM    DEC   ENC  |");
    puts("|                                  Free/Total   GiB              CE    JPEG  OFA  |");
    for (int i = 0; i < count; i++)
        for (unsigned int e = 0; e < NVML_GPU_INSTANCE_PROFILE_COUNT; e++) {
            nvmlGpuInstanceProfileInfo_v2_t profile = {.version = GI_VERSION};
            unsigned int capacity = 0;
            if (nvmlDeviceGetGpuInstanceProfileInfoV(cards[i].device, e, &profile) != NVML_SUCCESS)
                continue;
            nvmlDeviceGetGpuInstanceRemainingCapacity(cards[i].device, profile.id, &capacity);
            printf("| %3u  %-20s  %2u     %u/%-2u      %7.2f      No    %3u   %3u   %3u  |\n", cards[i].index, profile.name,
                   profile.id, capacity, profile.instanceCount, (double)profile.memorySizeMB / 1024,
                   profile.multiprocessorCount, profile.decoderCount, profile.encoderCount);
            printf("| %62u   %3u   %3u  |\n", profile.copyEngineCount, profile.jpegCount, profile.ofaCount);
        }
    return 0;
}

static int list_placements(const struct card *cards, int count)
{
    for (int i = 0; i < count; i++)
        for (unsigned int e = 0; e < NVML_GPU_INSTANCE_PROFILE_COUNT; e++) {
            nvmlGpuInstanceProfileInfo_v2_t profile = {.version = GI_VERSION};
            nvmlGpuInstancePlacement_t places[16];
            unsigned int found = 0;
            if (nvmlDeviceGetGpuInstanceProfileInfoV(cards[i].device, e, &profile) != NVML_SUCCESS ||
                nvmlDeviceGetGpuInstancePossiblePlacements_v2(cards[i].device, profile.id, places, &found) !=
                    NVML_SUCCESS)
                continue;
            printf("GPU  %u Profile ID %2u Placement%s: {", cards[i].index, profile.id, found > 1 ? "s" : "");
            for (unsigned int p = 0; p < found; p++)
                printf("%s%u", p ? "," : "", places[p].start);
            printf("}:%u\n", found ? places[0].size : 0);
        }
    return 0;
}

static nvmlReturn_t print_instance(const struct card *card, nvmlGpuInstance_t instance,
                                   const nvmlGpuInstanceProfileInfo_v2_t *profile, void *context)
{
    nvmlGpuInstanceInfo_t info;
    nvmlReturn_t result = nvmlGpuInstanceGetInfo(instance, &info);
    if (result == NVML_SUCCESS) {
        ++*(int *)context;
        printf("| %3u  %-20s %4u     %4u       %4u:%-4u |\n", card->index, profile->name, profile->id, info.id,
               info.placement.start, info.placement.size);
    }
    return result;
}

struct compute_walk {
    const char *instances, *computes; /* Lists of ids, or NULL. */
    int destroy, seen;
};

static nvmlReturn_t walk_computes(const struct card *card, nvmlGpuInstance_t instance,
                                  const nvmlGpuInstanceProfileInfo_v2_t *parent, void *context)
{
    (void)parent;
    struct compute_walk *walk = context;
    nvmlGpuInstanceInfo_t info;
    nvmlReturn_t result = nvmlGpuInstanceGetInfo(instance, &info);
    if (result != NVML_SUCCESS || !listed(walk->instances, info.id))
        return result;
    for (unsigned int e = 0; e < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; e++) {
        nvmlComputeInstanceProfileInfo_v2_t profile = {.version = CI_VERSION};
        nvmlComputeInstance_t computes[MAX_COMPUTE_INSTANCES];
        unsigned int count = 0;
        if (nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, e, 0, &profile) != NVML_SUCCESS ||
            nvmlGpuInstanceGetComputeInstances(instance, profile.id, computes, &count) != NVML_SUCCESS)
            continue;
        for (unsigned int c = 0; c < count; c++) {
            nvmlComputeInstanceInfo_t compute;
            if (nvmlComputeInstanceGetInfo_v2(computes[c], &compute) != NVML_SUCCESS ||
                !listed(walk->computes, compute.id))
                continue;
            walk->seen++;
            if (!walk->destroy) {
                printf("| %3u  %4u       %-20s %4u     %4u       %4u:%-4u |\n", card->index, info.id, profile.name,
                       profile.id, compute.id, compute.placement.start, compute.placement.size);
                continue;
            }
            result = nvmlComputeInstanceDestroy(computes[c]);
            if (result != NVML_SUCCESS)
                give_up(status_of(result),
                        "Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\n"
                        "Failed to destroy compute instances: %s",
                        compute.id, card->index, info.id, nvmlErrorString(result), nvmlErrorString(result));
            printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", compute.id,
                   card->index, info.id);
        }
    }
    return NVML_SUCCESS;
}

struct instance_walk {
    const char *instances;
    int seen;
};

static nvmlReturn_t destroy_instance(const struct card *card, nvmlGpuInstance_t instance,
                                     const nvmlGpuInstanceProfileInfo_v2_t *profile, void *context)
{
    (void)profile;
    struct instance_walk *walk = context;
    nvmlGpuInstanceInfo_t info;
    nvmlReturn_t result = nvmlGpuInstanceGetInfo(instance, &info);
    if (result != NVML_SUCCESS || !listed(walk->instances, info.id))
        return result;
    walk->seen++;
    result = nvmlGpuInstanceDestroy(instance);
    if (result != NVML_SUCCESS)
        give_up(status_of(result),
                "Unable to destroy GPU instance ID %2u from GPU %2u: %s\nFailed to destroy GPU instances: %s", info.id,
                card->index, nvmlErrorString(result), nvmlErrorString(result));
    printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", info.id, card->index);
    return NVML_SUCCESS;
}

/* Two profiles may fill an instance: the one with more multiprocessors, of equals the newer, is the default. */
static int is_larger(const nvmlComputeInstanceProfileInfo_v2_t *profile, const nvmlComputeInstanceProfileInfo_v2_t *other)
{
    return profile->sliceCount != other->sliceCount ? profile->sliceCount > other->sliceCount
                                                    : profile->multiprocessorCount >= other->multiprocessorCount;
}

/* The profile with this id, or without `id` the default. */
static nvmlComputeInstanceProfileInfo_v2_t compute_profile(nvmlGpuInstance_t instance, const char *id)
{
    nvmlComputeInstanceProfileInfo_v2_t profile = {.version = CI_VERSION}, found = profile;
    for (unsigned int e = 0; e < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; e++)
        if (nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, e, 0, &profile) == NVML_SUCCESS &&
            (id && *id ? profile.id == strtoul(id, NULL, 10) : is_larger(&profile, &found)))
            found = profile;
    return found;
}

static nvmlReturn_t list_compute_profiles(const struct card *card, nvmlGpuInstance_t instance,
                                          const nvmlGpuInstanceProfileInfo_v2_t *parent, void *context)
{
    (void)parent;
    struct instance_walk *walk = context;
    nvmlGpuInstanceInfo_t info;
    nvmlReturn_t result = nvmlGpuInstanceGetInfo(instance, &info);
    if (result != NVML_SUCCESS || !listed(walk->instances, info.id))
        return result;
    if (walk->seen++ == 0) {
        puts("| Compute instance profiles:                                                           |");
        puts("| GPU     GPU       Name             Profile  Instances   Exclusive       Shared       |");
        puts("|       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  |");
        puts("|         ID                                                          CE    JPEG       |");
    }
    unsigned int usual = compute_profile(instance, NULL).id;
    for (unsigned int e = 0; e < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; e++) {
        nvmlComputeInstanceProfileInfo_v2_t profile = {.version = CI_VERSION};
        unsigned int capacity = 0;
        if (nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, e, 0, &profile) != NVML_SUCCESS)
            continue;
        nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, profile.id, &capacity);
        printf("| %3u     %2u       %-18s %2u%c     %u/%-2u         %3u       %2u    %2u    %2u   |\n", card->index, info.id,
               profile.name, profile.id, profile.id == usual ? '*' : ' ', capacity, profile.instanceCount,
               profile.multiprocessorCount, profile.sharedDecoderCount, profile.sharedEncoderCount,
               profile.sharedOfaCount);
        printf("| %70u    %2u         |\n", profile.sharedCopyEngineCount, profile.sharedJpegCount);
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t create_compute(const struct card *card, nvmlGpuInstance_t instance, const char *list)
{
    nvmlGpuInstanceInfo_t info;
    nvmlComputeInstanceProfileInfo_v2_t largest = compute_profile(instance, list);
    nvmlReturn_t result = nvmlGpuInstanceGetInfo(instance, &info);
    nvmlComputeInstance_t created;
    nvmlComputeInstanceInfo_t made;
    if (result == NVML_SUCCESS)
        result = nvmlGpuInstanceCreateComputeInstance(instance, list && *list ? (unsigned int)strtoul(list, NULL, 10)
                                                                                 : largest.id,
                                                           &created);
    if (result == NVML_SUCCESS)
        result = nvmlComputeInstanceGetInfo_v2(created, &made);
    if (result != NVML_SUCCESS)
        give_up(status_of(result),
                "Unable to create a compute instance on GPU %2u GPU instance ID %2u: %s\n"
                "Failed to create compute instances: %s",
                card->index, info.id, nvmlErrorString(result), nvmlErrorString(result));
    printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n",
           made.id, card->index, info.id, largest.name, made.profileId);
    return NVML_SUCCESS;
}

/* "19", "1g.10gb", "MIG 1g.10gb", each optionally with ":START". */
static nvmlReturn_t parse_profile(const struct card *card, const char *word, nvmlGpuInstanceProfileInfo_v2_t *profile,
                                  nvmlGpuInstancePlacement_t *placement, int *placed)
{
    char name[128];
    snprintf(name, sizeof(name), "%s", word);
    char *colon = strchr(name, ':'), *rest;
    *placed = colon != NULL;
    if (colon)
        *colon = '\0';
    unsigned long id = strtoul(name, &rest, 10);
    int numeric = *name && !*rest;
    for (unsigned int e = 0; e < NVML_GPU_INSTANCE_PROFILE_COUNT; e++) {
        profile->version = GI_VERSION;
        if (nvmlDeviceGetGpuInstanceProfileInfoV(card->device, e, profile) != NVML_SUCCESS)
            continue;
        const char *bare = strncmp(profile->name, "MIG ", 4) == 0 ? profile->name + 4 : profile->name;
        if (numeric ? profile->id != id : strcmp(bare, strncmp(name, "MIG ", 4) == 0 ? name + 4 : name) != 0)
            continue;
        nvmlGpuInstancePlacement_t places[16];
        unsigned int count = 0;
        nvmlDeviceGetGpuInstancePossiblePlacements_v2(card->device, profile->id, places, &count);
        *placement = (nvmlGpuInstancePlacement_t){colon ? (unsigned int)strtoul(colon + 1, NULL, 10) : 0,
                                                  count ? places[0].size : 0};
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

static int create_instances(const struct card *card, const char *list, int with_compute)
{
    char copy[512], *state = NULL;
    snprintf(copy, sizeof(copy), "%s", list);
    for (char *word = strtok_r(copy, ",", &state); word; word = strtok_r(NULL, ",", &state)) {
        nvmlGpuInstanceProfileInfo_v2_t profile;
        nvmlGpuInstancePlacement_t placement;
        nvmlGpuInstanceInfo_t info;
        nvmlGpuInstance_t instance;
        int placed;
        nvmlReturn_t result = parse_profile(card, word, &profile, &placement, &placed);
        if (result == NVML_SUCCESS)
            result = placed ? nvmlDeviceCreateGpuInstanceWithPlacement(card->device, profile.id, &placement, &instance)
                            : nvmlDeviceCreateGpuInstance(card->device, profile.id, &instance);
        if (result == NVML_SUCCESS)
            result = nvmlGpuInstanceGetInfo(instance, &info);
        if (result != NVML_SUCCESS)
            give_up(status_of(result),
                    "Unable to create a GPU instance on GPU %2u using profile %s: %s\nFailed to create GPU instances: %s",
                    card->index, word, nvmlErrorString(result), nvmlErrorString(result));
        printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", info.id, card->index,
               profile.name, profile.id);
        if (with_compute)
            create_compute(card, instance, NULL);
    }
    return 0;
}

struct creation {
    const char *instances, *profiles;
    int seen;
};

static nvmlReturn_t create_in_listed(const struct card *card, nvmlGpuInstance_t instance,
                                     const nvmlGpuInstanceProfileInfo_v2_t *profile, void *context)
{
    (void)profile;
    struct creation *creation = context;
    nvmlGpuInstanceInfo_t info;
    nvmlReturn_t result = nvmlGpuInstanceGetInfo(instance, &info);
    if (result != NVML_SUCCESS || !listed(creation->instances, info.id))
        return result;
    creation->seen++;
    return create_compute(card, instance, creation->profiles);
}

static int report(nvmlReturn_t result, int seen, const char *what)
{
    if (result != NVML_SUCCESS)
        give_up(status_of(result), "Failed to walk %s: %s", what, nvmlErrorString(result));
    if (seen == 0)
        give_up(6, "No %s found: Not Found", what);
    return 0;
}

int run_mig(int count, char **words)
{
    struct card cards[MAX_GPUS];
    const char *which = option(count, words, "-i", "--id"), *instances = option(count, words, "-gi", NULL);
    const char *computes = option(count, words, "-ci", NULL);
    const char *create = option(count, words, "-cgi", "--create-gpu-instance");
    const char *create_ci = option(count, words, "-cci", "--create-compute-instance");
    int found = cards_named(which, cards), seen = 0;
    nvmlReturn_t result = NVML_SUCCESS;
    if (option(count, words, "-lgip", "--list-gpu-instance-profiles"))
        return list_profiles(cards, found);
    if (option(count, words, "-lgipp", "--list-gpu-instance-possible-placements"))
        return list_placements(cards, found);
    struct compute_walk walk = {instances, computes, option(count, words, "-dci", "--destroy-compute-instance") != NULL, 0};
    struct instance_walk removal = {instances, 0};
    struct creation creation = {instances, create_ci, 0};
    for (int i = 0; i < found && result == NVML_SUCCESS; i++) {
        if (option(count, words, "-lcip", "--list-compute-instance-profiles")) {
            result = visit_instances(&cards[i], list_compute_profiles, &removal);
            seen = removal.seen;
        } else if (option(count, words, "-lgi", "--list-gpu-instances")) {
            result = visit_instances(&cards[i], print_instance, &seen);
        } else if (option(count, words, "-lci", "--list-compute-instances") || walk.destroy) {
            result = visit_instances(&cards[i], walk_computes, &walk);
            seen = walk.seen;
        } else if (create) {
            create_instances(&cards[i], create, option(count, words, "-C", "--default-compute-instance") != NULL);
            seen++;
        } else if (create_ci) {
            result = visit_instances(&cards[i], create_in_listed, &creation);
            seen = creation.seen;
        } else if (option(count, words, "-dgi", "--destroy-gpu-instance")) {
            result = visit_instances(&cards[i], destroy_instance, &removal);
            seen = removal.seen;
        } else {
            give_up(2, "Invalid combination of input arguments. Known: -lgip -lgipp -lgi -lcip -lci -cgi -cci -dgi -dci");
        }
    }
    /* Cards with MIG off have no instances; that is no reason to fail on the others. */
    if (result == NVML_ERROR_NOT_SUPPORTED)
        result = NVML_SUCCESS;
    return report(result, seen, "MIG instances");
}
