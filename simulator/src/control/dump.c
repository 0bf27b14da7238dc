/* The whole state as JSON, for tests and for people. */
#include <string.h>

#include "../instances.h"
#include "control.h"

static void dump_compute(FILE *out, const struct gpu *gpu, int instance, int id)
{
    const struct gpu_instance *parent = &gpu->instances[instance];
    const struct compute_instance *compute = &parent->compute[id];
    const struct compute_profile *profile = &instance_profile(gpu, parent)->compute[compute->profile];
    fprintf(out, "{\"id\": %d, \"profile_id\": %u, \"start\": %u, \"size\": %u, \"mig_index\": %d, \"uuid\": ", id,
            profile->id, compute->start, compute->size, mig_index(gpu, instance, id));
    dump_text(out, compute->uuid);
    fputc('}', out);
}

static void dump_instance(FILE *out, const struct gpu *gpu, int id)
{
    const struct gpu_instance *instance = &gpu->instances[id];
    const struct gpu_profile *profile = instance_profile(gpu, instance);
    const char *separator = "";
    fprintf(out, "{\"id\": %d, \"profile_id\": %u, \"profile\": ", id, profile->id);
    dump_text(out, profile->name);
    fprintf(out, ", \"start\": %u, \"size\": %u, \"compute_instances\": [", instance->start, instance->size);
    for (int c = 0; c < MAX_COMPUTE_INSTANCES; c++) {
        if (!instance->compute[c].live)
            continue;
        fputs(separator, out);
        dump_compute(out, gpu, id, c);
        separator = ", ";
    }
    fputs("]}", out);
}

static void dump_gpu(FILE *out, const struct gpu *gpu, int slot)
{
    const char *separator = "";
    fprintf(out, "\n  {\"slot\": %d, \"model\": ", slot);
    dump_text(out, gpu_model(gpu)->key);
    fprintf(out, ", \"pci_bus_id\": \"%08X:%02X:%02X.0\", ", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
    dump_gpu_properties(out, gpu);
    fputs("\"gpu_instances\": [", out);
    for (int i = 0; i < MAX_GPU_INSTANCES; i++) {
        if (!gpu->instances[i].live)
            continue;
        fputs(separator, out);
        dump_instance(out, gpu, i);
        separator = ", ";
    }
    fputs("]}", out);
}

static void dump_clients(FILE *out, const struct state *state)
{
    const char *separator = "";
    fputs(",\n \"clients\": [", out);
    for (int i = 0; i < MAX_CLIENTS; i++) {
        const struct client *client = &state->clients[i];
        if (!client->live)
            continue;
        fprintf(out, "%s{\"id\": %d, \"pid\": %u, \"gpu\": %d, \"gpu_instance\": %d, \"compute_instance\": %d, ", separator,
                i, client->pid, client->gpu, client->gpu_instance, client->compute_instance);
        fprintf(out, "\"kind\": \"%s\", \"memory_bytes\": %llu, \"while_alive\": %u, \"name\": ",
                client_kind_names[client->kind], (unsigned long long)client->memory_bytes, client->while_alive);
        dump_text(out, client->name);
        fputc('}', out);
        separator = ", ";
    }
    fputc(']', out);
}

static const char *symbol_text(int symbol)
{
    if (symbol == SYMBOL_ANY)
        return "*";
    return symbol == SYMBOL_WRITES ? "writes" : symbol_table[symbol].name;
}

static void dump_faults(FILE *out, const struct state *state)
{
    const char *separator = "";
    fputs(",\n \"faults\": [", out);
    for (int i = 0; i < MAX_FAULTS; i++) {
        const struct fault *fault = &state->faults[i];
        if (!fault->live)
            continue;
        fprintf(out, "%s{\"id\": %u, \"symbol\": \"%s\", \"all_versions\": %u, \"gpu\": %d, \"skip\": %u, ", separator,
                fault->id, symbol_text(fault->symbol), fault->family, fault->gpu, fault->skip);
        fprintf(out, "\"remaining\": %d, \"code\": %d, \"mode\": \"%s\", \"hang_milliseconds\": %u, \"hits\": %llu}",
                fault->remaining, fault->code, fault_mode_names[fault->mode], fault->hang_milliseconds,
                (unsigned long long)fault->hits);
        separator = ", ";
    }
    fputs("],\n \"latencies\": [", out);
    separator = "";
    for (int i = 0; i < MAX_LATENCIES; i++) {
        const struct latency *rule = &state->latencies[i];
        if (!rule->live)
            continue;
        fprintf(out, "%s{\"symbol\": \"%s\", \"all_versions\": %u, \"gpu\": %d, \"microseconds\": %u}", separator,
                symbol_text(rule->symbol), rule->family, rule->gpu, rule->microseconds);
        separator = ", ";
    }
    fprintf(out, "],\n \"global_latency_microseconds\": %u", state->global_latency_microseconds);
}

static void dump_calls(FILE *out, const struct state *state)
{
    const char *separator = "";
    uint64_t writes = 0;
    fputs(",\n \"calls\": {", out);
    for (int symbol = 0; symbol < SYMBOL_COUNT; symbol++) {
        if (!state->calls[symbol])
            continue;
        fprintf(out, "%s\"%s\": %llu", separator, symbol_table[symbol].name, (unsigned long long)state->calls[symbol]);
        writes += symbol_table[symbol].writes ? state->calls[symbol] : 0;
        separator = ", ";
    }
    fprintf(out, "},\n \"writes\": %llu,\n \"journal\": [", (unsigned long long)writes);
    separator = "";
    uint64_t first = state->journal_sequence >= MAX_JOURNAL ? state->journal_sequence - MAX_JOURNAL + 1 : 1;
    for (uint64_t sequence = first; sequence <= state->journal_sequence; sequence++) {
        const struct journal_entry *entry = &state->journal[sequence % MAX_JOURNAL];
        if (entry->sequence != sequence)
            continue;
        fprintf(out, "%s\n  {\"sequence\": %llu, \"pid\": %u, \"symbol\": \"%s\", \"gpu\": %d, \"result\": %d, \"effect\": %d, ",
                separator, (unsigned long long)sequence, entry->pid, symbol_table[entry->symbol].name, entry->gpu,
                entry->result, entry->effect);
        fprintf(out, "\"activation\": %d, \"gpu_instance\": %d, \"compute_instance\": %d, \"profile_id\": %d, ",
                entry->activation, entry->gpu_instance, entry->compute_instance, entry->profile_id);
        fprintf(out, "\"start\": %d, \"size\": %d, \"value\": %d}", entry->start, entry->size, entry->value);
        separator = ",";
    }
    fputc(']', out);
}

int command_dump(struct state *state, struct command_line *line)
{
    (void)line;
    static struct state copy; /* Taken under the lock, printed without it. */
    state_reap_clients(state);
    memcpy(&copy, state, sizeof(copy));
    fputs("{", stdout);
    dump_node_properties(stdout, &copy);
    fprintf(stdout, "\"seed\": %llu, \"event_sequence\": %llu,\n \"gpus\": [", (unsigned long long)copy.seed,
            (unsigned long long)copy.event_sequence);
    for (uint32_t slot = 0; slot < copy.gpu_count; slot++) {
        if (slot)
            fputc(',', stdout);
        dump_gpu(stdout, &copy.gpus[slot], (int)slot);
    }
    fputc(']', stdout);
    dump_clients(stdout, &copy);
    dump_faults(stdout, &copy);
    dump_calls(stdout, &copy);
    fputs("}\n", stdout);
    return 0;
}
