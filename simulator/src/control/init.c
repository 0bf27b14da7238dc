/* Creates a node. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../power.h"
#include "control.h"

/* Bus numbers of a common eight-card board, then more of the same; ascending, as the enumeration is. */
static const uint8_t buses[MAX_GPUS] = {0x1a, 0x3b, 0x4c, 0x5d, 0x9b, 0xab, 0xbb, 0xcb,
                                        0xcd, 0xd0, 0xd4, 0xd8, 0xdc, 0xe0, 0xe4, 0xe8};

static uint64_t seed_of(const char *text)
{
    uint64_t hash = 1469598103934665603ULL;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211ULL;
    return hash & 0x7fffffffffffffffULL;
}

static void fill_gpu(struct state *state, int slot, const char *key)
{
    struct gpu *gpu = &state->gpus[slot];
    int number = model_find(key);
    if (number < 0)
        fail("'%s' is no model; `gpusim models` lists them", key);
    const struct gpu_model *model = &gpu_models[number];
    uint32_t swaps = gpu->swaps;
    memset(gpu, 0, sizeof(*gpu));
    gpu->present = 1;
    gpu->model = (uint8_t)number;
    gpu->swaps = swaps;
    gpu->pci_bus = buses[slot];
    gpu->pci_root_bus = buses[slot] & 0xf0u;
    gpu->minor_number = (uint32_t)slot;
    gpu->module_id = (uint32_t)slot + 1;
    gpu->numa_node = slot * 2 / (int)(state->gpu_count > 1 ? state->gpu_count : 2);
    gpu->architecture = model->architecture;
    gpu->compute_major = model->compute_major;
    gpu->compute_minor = model->compute_minor;
    gpu->memory_mib = model->memory_mib;
    gpu->reserved_mib = model->memory_mib / 128;
    gpu->ecc_current = gpu->ecc_pending = 1;
    gpu->recovery_action = RECOVERY_UNTOLD;
    gpu->temperature_celsius = 31 + (uint32_t)slot;
    gpu->power_milliwatts = model->power_limit_watts * 100;
    snprintf(gpu->name, sizeof(gpu->name), "%s", model->name);
    snprintf(gpu->part_number, sizeof(gpu->part_number), "692-2G%03d-0200-000", 500 + number);
    snprintf(gpu->vbios, sizeof(gpu->vbios), "96.00.%02X.00.01", 0x60 + number);
    power_identify(state, slot);
}

static uint32_t parse_cuda(const char *text)
{
    char *rest;
    long major = strtol(text, &rest, 10), minor = *rest == '.' ? strtol(rest + 1, &rest, 10) : 0;
    if (*rest || major < 8 || major > 99 || minor < 0 || minor > 9)
        fail("--cuda: '%s' is not a version such as 12.4", text);
    return (uint32_t)(major * 1000 + minor * 10);
}

static void fill_node(struct state *state, struct command_line *line)
{
    const char *model = take_option(line, "--model"), *count = take_option(line, "--gpus");
    const char *version = take_option(line, "--driver-version"), *cuda = take_option(line, "--cuda");
    const char *seed = take_option(line, "--node-seed");
    state->seed = seed_of(seed ? seed : line->directory);
    state->gpu_count = count ? (uint32_t)parse_number(count, 0, MAX_GPUS, "--gpus") : 1;
    state->driver_loaded = 1;
    state->prefix_names = 1;
    state->cuda_version = parse_cuda(cuda ? cuda : "13.0");
    state->caps_major = 234;
    state->uvm_major = 235;
    snprintf(state->driver_version, sizeof(state->driver_version), "%s", version ? version : "580.65.06");
    snprintf(state->nvml_version, sizeof(state->nvml_version), "%u.%s", state->cuda_version / 1000,
             state->driver_version);
    power_new_boot(state);
    for (uint32_t slot = 0; slot < state->gpu_count; slot++)
        fill_gpu(state, (int)slot, model ? model : "h100-80gb");
}

/* The remaining words: "--gpu N NAME=VALUE...", repeated, and "NAME=VALUE" for the node in front of the first. */
static void apply_properties(struct state *state, struct command_line *line)
{
    int slot = NONE;
    for (int i = 0; i < line->count; i++) {
        const char *word = line->words[i];
        if (strcmp(word, "--gpu") == 0 && i + 1 < line->count)
            slot = (int)parse_number(line->words[++i], 0, (long long)state->gpu_count - 1, "--gpu");
        else if (slot == NONE)
            set_node_property(state, word);
        else if (strncmp(word, "model=", 6) == 0)
            fill_gpu(state, slot, word + 6);
        else
            set_gpu_property(state, slot, word);
    }
}

/* The enumeration follows the bus; a node whose slots do not is not a node that a driver could show. */
static void check_order(const struct state *state)
{
    for (uint32_t slot = 1; slot < state->gpu_count; slot++) {
        const struct gpu *before = &state->gpus[slot - 1], *gpu = &state->gpus[slot];
        if (before->pci_domain > gpu->pci_domain ||
            (before->pci_domain == gpu->pci_domain &&
             before->pci_bus * 32 + before->pci_device >= gpu->pci_bus * 32 + gpu->pci_device))
            fail("GPU %u: PCI addresses must ascend with the GPU numbers", slot);
        for (uint32_t other = 0; other < slot; other++)
            if (state->gpus[other].minor_number == gpu->minor_number)
                fail("GPU %u: minor number %u is taken by GPU %u", slot, gpu->minor_number, other);
    }
}

static void read_host_boot_id(char *text, size_t size)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    *text = '\0';
    if (!file)
        return;
    if (fgets(text, (int)size, file))
        text[strcspn(text, "\n")] = '\0';
    fclose(file);
}

/*
 * Leaves a node that is there as it is, except that a reboot of the machine reboots it. Answers 0 where there is none,
 * or one that another build wrote and this one cannot read.
 */
static int keep_node(const char *directory)
{
    char boot_id[UUID_SIZE];
    struct state *state = state_map(directory);
    if (!state)
        return 0;
    read_host_boot_id(boot_id, sizeof(boot_id));
    state_lock(state);
    if (strcmp(boot_id, state->host_boot_id) != 0) {
        power_reboot(directory, state);
        memcpy(state->host_boot_id, boot_id, sizeof(boot_id));
        root_refresh(directory, state);
    }
    state_unlock(state);
    state_unmap(state);
    root_link_state(directory);
    return 1;
}

int command_init(struct command_line *line)
{
    int force = take_flag(line, "--force"), keep = take_flag(line, "--keep");
    int bare = take_flag(line, "--state-only"), devices = !take_flag(line, "--no-devices");
    static struct state node;
    fill_node(&node, line);
    apply_properties(&node, line);
    check_order(&node);
    read_host_boot_id(node.host_boot_id, sizeof(node.host_boot_id));
    if (keep && keep_node(line->directory))
        return 0;
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/" STATE_FILE, line->directory);
    if (!force && !keep && access(path, F_OK) == 0)
        fail("%s: there is a node already; --force replaces it, --keep leaves it", line->directory);
    if (mkdir(line->directory, 0755) != 0 && errno != EEXIST)
        fail("%s: %s", line->directory, strerror(errno));
    /* The state comes last: where it is, the node is complete. */
    if (!bare)
        root_create(line->directory, &node, devices);
    struct state *state = state_create(line->directory, &node, force || keep);
    if (!state)
        fail("%s: %s", line->directory, strerror(errno));
    root_link_state(line->directory);
    return 0;
}
