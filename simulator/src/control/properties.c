/*
 * Knobs by name. One table says where each lies in the state and how it is written, so that setting, dumping and the
 * documentation cannot drift apart.
 */
#include <stdlib.h>
#include <string.h>

#include "control.h"

const char *const client_kind_names[] = {"compute", "graphics", "mps", "monitor", NULL};
const char *const fault_mode_names[] = {"before", "after", "activation", "hang", NULL};

static const char *const activation_names[] = {"auto", "pending", NULL};
static const char *const gi_map_names[] = {"identity", "half-swapped", NULL};
static const char *const uuid_names[] = {"by-place", "fresh", NULL};
static const char *const index_names[] = {"dense", "sticky", NULL};
static const char *const privilege_names[] = {"auto", "allow", "deny", NULL};
static const char *const caps_names[] = {"live", "none", NULL};

enum kind { KIND_WORD, KIND_U8, KIND_U32, KIND_I32, KIND_U64, KIND_TEXT };

struct property {
    const char *name;
    enum kind kind;
    size_t offset, size; /* size: of a text, with its end. */
    const char *const *words;
};

#define NUMBER(kind, type, member) {#member, kind, offsetof(struct type, member), 0, NULL}
#define WORD(type, member, words) {#member, KIND_WORD, offsetof(struct type, member), 0, words}
#define TEXT(type, member) {#member, KIND_TEXT, offsetof(struct type, member), sizeof(((struct type *)0)->member), NULL}

static const struct property gpu_properties[] = {
    NUMBER(KIND_U8, gpu, present),
    NUMBER(KIND_U8, gpu, lost),
    TEXT(gpu, name),
    TEXT(gpu, uuid),
    TEXT(gpu, serial),
    TEXT(gpu, part_number),
    TEXT(gpu, vbios),
    NUMBER(KIND_U32, gpu, minor_number),
    NUMBER(KIND_U32, gpu, module_id),
    NUMBER(KIND_I32, gpu, numa_node),
    NUMBER(KIND_U32, gpu, pci_domain),
    NUMBER(KIND_U32, gpu, pci_bus),
    NUMBER(KIND_U32, gpu, pci_device),
    NUMBER(KIND_U32, gpu, pci_root_bus),
    NUMBER(KIND_U32, gpu, architecture),
    NUMBER(KIND_U32, gpu, compute_major),
    NUMBER(KIND_U32, gpu, compute_minor),
    NUMBER(KIND_U32, gpu, memory_mib),
    NUMBER(KIND_U32, gpu, reserved_mib),
    NUMBER(KIND_U8, gpu, mig_current),
    NUMBER(KIND_U8, gpu, mig_pending),
    WORD(gpu, activation, activation_names),
    WORD(gpu, gi_map, gi_map_names),
    WORD(gpu, uuid_mode, uuid_names),
    WORD(gpu, index_mode, index_names),
    NUMBER(KIND_U8, gpu, compute_mode),
    NUMBER(KIND_U8, gpu, persistence_mode),
    NUMBER(KIND_U8, gpu, ecc_current),
    NUMBER(KIND_U8, gpu, ecc_pending),
    NUMBER(KIND_U8, gpu, timeslice),
    NUMBER(KIND_U8, gpu, virtualization),
    NUMBER(KIND_U8, gpu, reset_unsupported),
    NUMBER(KIND_U32, gpu, temperature_celsius),
    NUMBER(KIND_U32, gpu, utilization_percent),
    NUMBER(KIND_U32, gpu, memory_utilization_percent),
    NUMBER(KIND_U32, gpu, power_milliwatts),
    NUMBER(KIND_U32, gpu, remapped_correctable),
    NUMBER(KIND_U32, gpu, remapped_uncorrectable),
    NUMBER(KIND_U32, gpu, remap_pending),
    NUMBER(KIND_U32, gpu, recovery_action),
    NUMBER(KIND_U32, gpu, remap_failed),
    NUMBER(KIND_U64, gpu, ecc_corrected),
    NUMBER(KIND_U64, gpu, ecc_uncorrected),
    NUMBER(KIND_U8, gpu, fabric_state),
    NUMBER(KIND_U32, gpu, fabric_clique),
    TEXT(gpu, fabric_cluster),
    NUMBER(KIND_U32, gpu, swaps),
    NUMBER(KIND_U32, gpu, resets),
};

static const struct property node_properties[] = {
    TEXT(state, driver_version),
    TEXT(state, nvml_version),
    NUMBER(KIND_U32, state, cuda_version),
    NUMBER(KIND_U8, state, driver_loaded),
    WORD(state, privilege, privilege_names),
    WORD(state, caps_nodes, caps_names),
    NUMBER(KIND_U8, state, prefix_names),
    NUMBER(KIND_U32, state, caps_major),
    NUMBER(KIND_U32, state, uvm_major),
    TEXT(state, boot_id),
    TEXT(state, host_boot_id),
    NUMBER(KIND_U32, state, boots),
};

#define COUNT(table) (sizeof(table) / sizeof(*(table)))

int parse_word(const char *text, const char *const *names, const char *what)
{
    char known[256] = "";
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], text) == 0)
            return i;
        snprintf(known + strlen(known), sizeof(known) - strlen(known), " %s", names[i]);
    }
    fail("%s: '%s' is not one of:%s", what, text, known);
}

static void assign(const struct property *property, void *base, const char *value)
{
    char *target = (char *)base + property->offset;
    switch (property->kind) {
    case KIND_WORD:
        *(uint8_t *)target = (uint8_t)parse_word(value, property->words, property->name);
        break;
    case KIND_U8:
        *(uint8_t *)target = (uint8_t)parse_number(value, 0, 255, property->name);
        break;
    case KIND_U32:
        *(uint32_t *)target = (uint32_t)parse_number(value, 0, 0xffffffffLL, property->name);
        break;
    case KIND_I32:
        *(int32_t *)target = (int32_t)parse_number(value, -1, 0x7fffffff, property->name);
        break;
    case KIND_U64:
        *(uint64_t *)target = (uint64_t)parse_number(value, 0, 0x7fffffffffffffffLL, property->name);
        break;
    case KIND_TEXT:
        if (strlen(value) >= property->size)
            fail("%s: at most %zu characters, not '%s'", property->name, property->size - 1, value);
        strcpy(target, value);
    }
}

static void set_property(const struct property *table, size_t count, void *base, const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    if (!equals)
        fail("'%s': expected NAME=VALUE", assignment);
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == (size_t)(equals - assignment) &&
            strncmp(table[i].name, assignment, (size_t)(equals - assignment)) == 0) {
            assign(&table[i], base, equals + 1);
            return;
        }
    fail("'%s': no such property; `gpusim dump` shows all of them", assignment);
}

void set_gpu_property(struct state *state, int slot, const char *assignment)
{
    set_property(gpu_properties, COUNT(gpu_properties), &state->gpus[slot], assignment);
}

void set_node_property(struct state *state, const char *assignment)
{
    set_property(node_properties, COUNT(node_properties), state, assignment);
}

void dump_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        if ((unsigned char)*text < 0x20)
            fprintf(out, "\\u%04x", (unsigned char)*text);
        else
            fputc(*text, out);
    }
    fputc('"', out);
}

static void dump_properties(FILE *out, const struct property *table, size_t count, const void *base)
{
    for (size_t i = 0; i < count; i++) {
        const char *source = (const char *)base + table[i].offset;
        fprintf(out, "\"%s\": ", table[i].name);
        switch (table[i].kind) {
        case KIND_WORD:
            dump_text(out, table[i].words[*(const uint8_t *)source]);
            break;
        case KIND_U8:
            fprintf(out, "%u", *(const uint8_t *)source);
            break;
        case KIND_U32:
            fprintf(out, "%u", *(const uint32_t *)source);
            break;
        case KIND_I32:
            fprintf(out, "%d", *(const int32_t *)source);
            break;
        case KIND_U64:
            fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)source);
            break;
        case KIND_TEXT:
            dump_text(out, source);
        }
        fputs(", ", out);
    }
}

void dump_gpu_properties(FILE *out, const struct gpu *gpu)
{
    dump_properties(out, gpu_properties, COUNT(gpu_properties), gpu);
}

void dump_node_properties(FILE *out, const struct state *state)
{
    dump_properties(out, node_properties, COUNT(node_properties), state);
}
