/* gpusim: the control program of the simulated node. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

static const char usage[] =
    "usage: gpusim COMMAND [--dir DIR] ...\n"
    "  init [--gpus N] [--model KEY] [--driver-version V] [--cuda V] [--node-seed TEXT] [--force|--keep]\n"
    "       [--state-only] [--no-devices] [NAME=VALUE...] [--gpu N NAME=VALUE...]...\n"
    "  dump                              the whole state as JSON\n"
    "  models                            the keys of the card models\n"
    "  set [--gpu N|all] NAME=VALUE...   change properties of the node or of cards\n"
    "  fault add [--symbol S] [--gpu N] [--skip N] [--count N] [--code N] [--mode before|after|activation|hang]\n"
    "       [--hang-ms N]; fault clear [ID]; fault list\n"
    "  latency [--symbol S] [--gpu N] MICROSECONDS; latency --clear\n"
    "  client add --gpu N --pid P [--gi I] [--ci I] [--kind compute|graphics|mps|monitor] [--memory-mib N]\n"
    "       [--name TEXT] [--while-alive]; client remove [--pid P] [--gpu N] [--all]\n"
    "  xid GPU CODE [--gi I] [--ci I] [--type MASK]\n"
    "  lose|recover|detach|attach|swap|reset GPU [--quiet] [--force]; reboot; reload\n"
    "  counters reset\n"
    "  exec -- COMMAND...                run a command that sees the node's files at their absolute places\n";

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("gpusim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static int find_word(const struct command_line *line, const char *name)
{
    for (int i = 0; i < line->count; i++) {
        if (strcmp(line->words[i], name) == 0)
            return i;
        if (strcmp(line->words[i], "--") == 0)
            break;
    }
    return NONE;
}

static void drop_words(struct command_line *line, int position, int count)
{
    line->count -= count;
    memmove(&line->words[position], &line->words[position + count],
            sizeof(*line->words) * (size_t)(line->count - position));
}

const char *take_option(struct command_line *line, const char *name)
{
    int position = find_word(line, name);
    if (position == NONE)
        return NULL;
    if (position + 1 >= line->count)
        fail("%s needs a value", name);
    const char *value = line->words[position + 1];
    drop_words(line, position, 2);
    return value;
}

int take_flag(struct command_line *line, const char *name)
{
    int position = find_word(line, name);
    if (position == NONE)
        return 0;
    drop_words(line, position, 1);
    return 1;
}

long long parse_number(const char *text, long long minimum, long long maximum, const char *what)
{
    char *rest;
    errno = 0;
    long long value = strtoll(text, &rest, 0);
    if (errno || rest == text || *rest || value < minimum || value > maximum)
        fail("%s: '%s' is not a number from %lld to %lld", what, text, minimum, maximum);
    return value;
}

int parse_gpu(const struct state *state, const char *text)
{
    if (strcmp(text, "all") == 0)
        return ANY;
    for (uint32_t slot = 0; slot < state->gpu_count; slot++)
        if (strcmp(state->gpus[slot].uuid, text) == 0)
            return (int)slot;
    return (int)parse_number(text, 0, (long long)state->gpu_count - 1, "GPU");
}

int parse_symbol(const char *text, uint8_t *family)
{
    *family = 0;
    if (strcmp(text, "*") == 0)
        return SYMBOL_ANY;
    if (strcmp(text, "writes") == 0)
        return SYMBOL_WRITES;
    for (int symbol = 0; symbol < SYMBOL_COUNT; symbol++)
        if (strcmp(symbol_table[symbol].name, text) == 0) {
            size_t length = strlen(text);
            *family = !(length > 3 && strncmp(text + length - 3, "_v", 2) == 0);
            return symbol;
        }
    /* Some functions have only versioned names; the bare one means all of them. */
    for (int symbol = 0; symbol < SYMBOL_COUNT; symbol++) {
        size_t length = strlen(text);
        if (strncmp(symbol_table[symbol].name, text, length) == 0 &&
            strncmp(symbol_table[symbol].name + length, "_v", 2) == 0) {
            *family = 1;
            return symbol;
        }
    }
    fail("'%s' is no function of the library", text);
}

static int run_locked(const char *command, struct command_line *line)
{
    static const struct {
        const char *name;
        int (*run)(struct state *, struct command_line *);
    } commands[] = {
        {"dump", command_dump}, {"fault", command_fault}, {"latency", command_latency}, {"client", command_client},
        {"xid", command_xid},   {"set", command_set},     {"counters", command_counters},
    };
    static const char *const cards[] = {"reboot", "reload", "reset", "swap", "lose", "recover", "detach", "attach"};
    struct state *state = state_map(line->directory);
    if (!state)
        fail("%s: %s", line->directory, errno == ENOENT ? "no node here; run gpusim init" : strerror(errno));
    state_lock(state);
    /* An error ends the process; the robust lock then passes on. */
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
        if (strcmp(commands[i].name, command) == 0) {
            int status = commands[i].run(state, line);
            state_unlock(state);
            return status;
        }
    for (size_t i = 0; i < sizeof(cards) / sizeof(*cards); i++)
        if (strcmp(cards[i], command) == 0) {
            int status = command_card(state, line, command);
            state_unlock(state);
            return status;
        }
    fail("'%s' is no command\n%s", command, usage);
}

int main(int count, char **words)
{
    static char directory[PATH_MAX];
    if (count < 2 || strcmp(words[1], "--help") == 0 || strcmp(words[1], "help") == 0) {
        fputs(usage, count < 2 ? stderr : stdout);
        return count < 2 ? 2 : 0;
    }
    struct command_line line = {directory, count - 2, words + 2};
    const char *given = take_option(&line, "--dir");
    if (given)
        snprintf(directory, sizeof(directory), "%s", given);
    else
        state_directory(directory, sizeof(directory));
    if (strcmp(words[1], "models") == 0) {
        for (int i = 0; i < gpu_model_count; i++)
            printf("%s\t%s\n", gpu_models[i].key, gpu_models[i].name);
        return 0;
    }
    if (strcmp(words[1], "init") == 0)
        return command_init(&line);
    if (strcmp(words[1], "exec") == 0)
        return command_exec(&line);
    return run_locked(words[1], &line);
}
