/* gpusim: the control program of the simulated node. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
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
