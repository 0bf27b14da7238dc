/* The commands that turn knobs and make things happen. Each runs with the state locked. */
#include <stdlib.h>
#include <string.h>

#include "../abi.h"
#include "../instances.h"
#include "../power.h"
#include "control.h"

static const char *next_word(struct command_line *line, const char *what)
{
    if (line->count == 0)
        fail("expected %s", what);
    line->count--;
    return *line->words++;
}

static void expect_end(const struct command_line *line)
{
    if (line->count)
        fail("unexpected '%s'", line->words[0]);
}

static long long option_number(struct command_line *line, const char *name, long long otherwise, long long minimum,
                               long long maximum)
{
    const char *text = take_option(line, name);
    return text ? parse_number(text, minimum, maximum, name) : otherwise;
}

static int option_gpu(const struct state *state, struct command_line *line)
{
    const char *text = take_option(line, "--gpu");
    return text ? parse_gpu(state, text) : ANY;
}

static int fault_add(struct state *state, struct command_line *line)
{
    struct fault fault = {.live = 1, .gpu = (int16_t)option_gpu(state, line)};
    const char *mode = take_option(line, "--mode");
    const char *symbol = take_option(line, "--symbol");
    fault.symbol = (int16_t)parse_symbol(symbol ? symbol : "*", &fault.family);
    fault.mode = (uint8_t)(mode ? parse_word(mode, fault_mode_names, "--mode") : FAULT_BEFORE);
    fault.skip = (uint32_t)option_number(line, "--skip", 0, 0, 1 << 30);
    fault.remaining = (int32_t)option_number(line, "--count", 1, -1, 1 << 30);
    fault.code = (int32_t)option_number(line, "--code", NVML_ERROR_UNKNOWN, 0, 999);
    fault.hang_milliseconds = (uint32_t)option_number(line, "--hang-ms", 0, 0, 1 << 30);
    expect_end(line);
    if (fault.mode == FAULT_BEFORE && fault.code == 0)
        fail("--code 0 with --mode before would do nothing; use --mode hang to delay only");
    for (int i = 0; i < MAX_FAULTS; i++)
        if (!state->faults[i].live) {
            fault.id = ++state->faults_made;
            state->faults[i] = fault;
            state->live_faults++;
            printf("%u\n", fault.id);
            return 0;
        }
    fail("no room for more than %d faults; clear some", MAX_FAULTS);
}

static int fault_clear(struct state *state, struct command_line *line)
{
    long long id = line->count ? parse_number(next_word(line, "an id"), 1, 0xffffffffLL, "id") : 0;
    expect_end(line);
    for (int i = 0; i < MAX_FAULTS; i++)
        if (state->faults[i].live && (id == 0 || state->faults[i].id == id)) {
            state->faults[i].live = 0;
            state->live_faults--;
        }
    return 0;
}

int command_fault(struct state *state, struct command_line *line)
{
    const char *action = next_word(line, "add, clear or list");
    if (strcmp(action, "add") == 0)
        return fault_add(state, line);
    if (strcmp(action, "clear") == 0)
        return fault_clear(state, line);
    if (strcmp(action, "list") != 0)
        fail("'%s': expected add, clear or list", action);
    for (int i = 0; i < MAX_FAULTS; i++) {
        const struct fault *fault = &state->faults[i];
        if (fault->live)
            printf("%u symbol=%d gpu=%d skip=%u remaining=%d code=%d mode=%s hits=%llu\n", fault->id, fault->symbol,
                   fault->gpu, fault->skip, fault->remaining, fault->code, fault_mode_names[fault->mode],
                   (unsigned long long)fault->hits);
    }
    return 0;
}

int command_latency(struct state *state, struct command_line *line)
{
    struct latency rule = {.live = 1, .gpu = (int16_t)option_gpu(state, line)};
    const char *symbol = take_option(line, "--symbol");
    if (take_flag(line, "--clear")) {
        expect_end(line);
        memset(state->latencies, 0, sizeof(state->latencies));
        state->live_latencies = state->global_latency_microseconds = 0;
        return 0;
    }
    rule.microseconds = (uint32_t)parse_number(next_word(line, "microseconds"), 0, 0x7fffffff, "microseconds");
    rule.symbol = (int16_t)parse_symbol(symbol ? symbol : "*", &rule.family);
    expect_end(line);
    if (rule.symbol == SYMBOL_ANY && rule.gpu == ANY) {
        state->global_latency_microseconds = rule.microseconds;
        return 0;
    }
    int chosen = NONE;
    for (int i = MAX_LATENCIES - 1; i >= 0; i--) {
        const struct latency *other = &state->latencies[i];
        if (!other->live && (chosen == NONE || !state->latencies[chosen].live))
            chosen = i;
        if (other->live && other->symbol == rule.symbol && other->family == rule.family && other->gpu == rule.gpu)
            chosen = i;
    }
    if (chosen == NONE)
        fail("no room for more than %d latencies; use --clear", MAX_LATENCIES);
    state->live_latencies += !state->latencies[chosen].live;
    state->latencies[chosen] = rule;
    return 0;
}

static int client_add(struct state *state, struct command_line *line)
{
    struct client client = {.live = 1, .gpu = (int8_t)option_gpu(state, line)};
    const char *kind = take_option(line, "--kind"), *name = take_option(line, "--name");
    if (client.gpu == ANY)
        fail("client add needs --gpu");
    client.kind = (uint8_t)(kind ? parse_word(kind, client_kind_names, "--kind") : CLIENT_COMPUTE);
    client.gpu_instance = (int8_t)option_number(line, "--gi", NONE, NONE, MAX_GPU_INSTANCES - 1);
    client.compute_instance = (int8_t)option_number(line, "--ci", NONE, NONE, MAX_COMPUTE_INSTANCES - 1);
    client.pid = (uint32_t)option_number(line, "--pid", 0, 1, 0x7fffffff);
    client.memory_bytes = (uint64_t)option_number(line, "--memory-mib", 0, 0, 1 << 24) << 20;
    client.while_alive = (uint8_t)take_flag(line, "--while-alive");
    expect_end(line);
    if (client.pid == 0)
        fail("client add needs --pid");
    snprintf(client.name, sizeof(client.name), "%s", name ? name : "workload");
    state_reap_clients(state);
    for (int i = 0; i < MAX_CLIENTS; i++)
        if (!state->clients[i].live) {
            state->clients[i] = client;
            printf("%d\n", i);
            return 0;
        }
    fail("no room for more than %d clients", MAX_CLIENTS);
}

static int client_remove(struct state *state, struct command_line *line)
{
    long long pid = option_number(line, "--pid", 0, 1, 0x7fffffff);
    int gpu = option_gpu(state, line), all = take_flag(line, "--all"), removed = 0;
    expect_end(line);
    if (!pid && gpu == ANY && !all)
        fail("client remove needs --pid, --gpu or --all");
    for (int i = 0; i < MAX_CLIENTS; i++) {
        struct client *client = &state->clients[i];
        if (client->live && (!pid || client->pid == pid) && (gpu == ANY || client->gpu == gpu)) {
            client->live = 0;
            removed++;
        }
    }
    return removed || all ? 0 : 1;
}

int command_client(struct state *state, struct command_line *line)
{
    const char *action = next_word(line, "add or remove");
    if (strcmp(action, "add") == 0)
        return client_add(state, line);
    if (strcmp(action, "remove") == 0)
        return client_remove(state, line);
    fail("'%s': expected add or remove", action);
}

int command_xid(struct state *state, struct command_line *line)
{
    long long instance = option_number(line, "--gi", 0xffffffffLL, 0, 0xffffffffLL);
    long long compute = option_number(line, "--ci", 0xffffffffLL, 0, 0xffffffffLL);
    long long type = option_number(line, "--type", nvmlEventTypeXidCriticalError, 1, 1 << 20);
    int slot = parse_gpu(state, next_word(line, "a GPU"));
    long long code = parse_number(next_word(line, "an XID"), 0, 0x7fffffff, "XID");
    expect_end(line);
    if (slot == ANY)
        fail("an XID comes from one GPU");
    state_publish(state, slot, (uint64_t)type, (uint64_t)code, (uint32_t)instance, (uint32_t)compute);
    return 0;
}

int command_set(struct state *state, struct command_line *line)
{
    const char *gpu = take_option(line, "--gpu");
    if (line->count == 0)
        fail("set needs at least one NAME=VALUE");
    for (; line->count; line->count--, line->words++) {
        if (!gpu) {
            set_node_property(state, *line->words);
            continue;
        }
        int slot = parse_gpu(state, gpu);
        for (uint32_t i = 0; i < state->gpu_count; i++)
            if (slot == ANY || (int)i == slot)
                set_gpu_property(state, (int)i, *line->words);
    }
    root_refresh(line->directory, state);
    return 0;
}

/* reboot, reload, reset, swap, lose, recover, detach, attach: what happens to cards as a whole. */
int command_card(struct state *state, struct command_line *line, const char *name)
{
    int quiet = take_flag(line, "--quiet"), force = take_flag(line, "--force");
    if (strcmp(name, "reboot") == 0 || strcmp(name, "reload") == 0) {
        expect_end(line);
        (strcmp(name, "reboot") == 0 ? power_reboot : power_reload)(line->directory, state);
        root_refresh(line->directory, state);
        return 0;
    }
    int slot = parse_gpu(state, next_word(line, "a GPU"));
    expect_end(line);
    if (slot == ANY)
        fail("%s: name one GPU", name);
    struct gpu *gpu = &state->gpus[slot];
    if (strcmp(name, "reset") == 0) {
        state_reap_clients(state);
        if (!force && client_holds(state, slot, NONE, NONE))
            fail("GPU %d is in use by another client; --force ends the clients", slot);
        power_reset(line->directory, state, slot);
    } else if (strcmp(name, "swap") == 0) {
        power_swap(line->directory, state, slot);
    } else if (strcmp(name, "lose") == 0) {
        gpu->lost = 1;
        /* The driver's last word about a card that fell off the bus. */
        if (!quiet)
            state_publish(state, slot, nvmlEventTypeXidCriticalError, 79, 0xffffffffu, 0xffffffffu);
    } else if (strcmp(name, "recover") == 0) {
        gpu->lost = 0;
    } else {
        gpu->present = strcmp(name, "attach") == 0;
    }
    root_refresh(line->directory, state);
    return 0;
}

int command_counters(struct state *state, struct command_line *line)
{
    const char *action = next_word(line, "reset");
    expect_end(line);
    if (strcmp(action, "reset") != 0)
        fail("'%s': expected reset", action);
    memset(state->calls, 0, sizeof(state->calls));
    state->journal_sequence = 0;
    memset(state->journal, 0, sizeof(state->journal));
    return 0;
}
