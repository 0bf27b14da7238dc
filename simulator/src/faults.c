/* See faults.h. */
#include "faults.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

static void sleep_microseconds(uint64_t microseconds)
{
    struct timespec left = {.tv_sec = (time_t)(microseconds / 1000000),
                            .tv_nsec = (long)(microseconds % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static int symbol_matches(int wanted, int family, int symbol)
{
    if (wanted == SYMBOL_ANY)
        return 1;
    if (wanted == SYMBOL_WRITES)
        return symbol_table[symbol].writes;
    return wanted == symbol || (family && symbol_table[wanted].family == symbol_table[symbol].family);
}

static uint64_t latency_of(const struct state *state, int symbol, int gpu)
{
    uint64_t total = state->global_latency_microseconds;
    for (int i = 0; state->live_latencies && i < MAX_LATENCIES; i++) {
        const struct latency *rule = &state->latencies[i];
        if (rule->live && symbol_matches(rule->symbol, rule->family, symbol) && (rule->gpu == ANY || rule->gpu == gpu))
            total += rule->microseconds;
    }
    return total;
}

/* Lets every matching fault count this call and returns the first one that is due. */
static struct fault fault_due(struct state *state, int symbol, int gpu)
{
    struct fault due = {.live = 0};
    state_lock(state);
    for (int i = 0; i < MAX_FAULTS; i++) {
        struct fault *fault = &state->faults[i];
        if (!fault->live || !symbol_matches(fault->symbol, fault->family, symbol) ||
            (fault->gpu != ANY && fault->gpu != gpu))
            continue;
        if (fault->skip > 0) {
            fault->skip--;
            continue;
        }
        if (fault->remaining == 0 || due.live)
            continue;
        due = *fault;
        fault->hits++;
        if (fault->remaining > 0)
            fault->remaining--;
    }
    state_unlock(state);
    return due;
}

struct fault fault_meet(struct state *state, int symbol, int gpu)
{
    struct fault due = {.live = 0};
    __atomic_add_fetch(&state->calls[symbol], 1, __ATOMIC_RELAXED);
    if (state->global_latency_microseconds || state->live_latencies) {
        uint64_t microseconds = latency_of(state, symbol, gpu);
        if (microseconds)
            sleep_microseconds(microseconds);
    }
    if (__atomic_load_n(&state->live_faults, __ATOMIC_RELAXED))
        due = fault_due(state, symbol, gpu);
    if (due.live && due.hang_milliseconds)
        sleep_microseconds((uint64_t)due.hang_milliseconds * 1000);
    return due;
}

void journal_write(struct state *state, struct journal_entry entry)
{
    entry.sequence = ++state->journal_sequence;
    entry.pid = (uint32_t)getpid();
    state->journal[entry.sequence % MAX_JOURNAL] = entry;
}
