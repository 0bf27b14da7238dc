/* What the daemon answers to each command. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../state.h"
#include "mps.h"

/* Registers a server as a user of every device that the daemon may see; refuses devices that do not exist. */
static int occupy_devices(pid_t pid)
{
    char directory[PATH_MAX];
    struct client devices[MAX_DEVICES];
    state_directory(directory, sizeof(directory));
    struct state *state = state_map(directory);
    if (!state)
        return 0;
    state_lock(state);
    int count = visible_devices(state, devices);
    for (int i = 0, record = 0; i < count; i++) {
        while (record < MAX_CLIENTS && state->clients[record].live)
            record++;
        if (record == MAX_CLIENTS)
            break;
        state->clients[record] = (struct client){.live = 1, .kind = CLIENT_COMPUTE, .while_alive = 1,
                                                 .gpu = devices[i].gpu, .gpu_instance = devices[i].gpu_instance,
                                                 .compute_instance = devices[i].compute_instance,
                                                 .pid = (uint32_t)pid, .memory_bytes = 30ULL << 20,
                                                 .name = "nvidia-cuda-mps-server"};
    }
    state_unlock(state);
    state_unmap(state);
    return count >= 0;
}

static void release_devices(pid_t pid)
{
    char directory[PATH_MAX];
    state_directory(directory, sizeof(directory));
    struct state *state = state_map(directory);
    if (!state)
        return;
    state_lock(state);
    for (int i = 0; i < MAX_CLIENTS; i++)
        if (state->clients[i].live && state->clients[i].pid == (uint32_t)pid)
            state->clients[i].live = 0;
    state_unlock(state);
    state_unmap(state);
}

static struct mps_server *server_by_pid(struct mps_daemon *daemon, pid_t pid)
{
    for (int i = 0; pid > 0 && i < MAX_SERVERS; i++)
        if (daemon->servers[i].pid == pid)
            return &daemon->servers[i];
    return NULL;
}

static struct mps_server *server_of_user(struct mps_daemon *daemon, uid_t uid)
{
    for (int i = 0; i < MAX_SERVERS; i++)
        if (daemon->servers[i].pid && daemon->servers[i].uid == uid)
            return &daemon->servers[i];
    return NULL;
}

/* A server takes over the defaults of this moment; later changes of defaults do not reach it. */
static struct mps_server *start_server(struct mps_daemon *daemon, uid_t uid)
{
    struct mps_server *server = NULL;
    for (int i = 0; i < MAX_SERVERS && !server; i++)
        if (!daemon->servers[i].pid)
            server = &daemon->servers[i];
    if (!server)
        return NULL;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_NAME, "nvidia-cuda-mps");
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        signal(SIGTERM, SIG_DFL);
        for (int descriptor = 0; descriptor < 64; descriptor++)
            close(descriptor);
        while (getppid() == parent)
            pause();
        _exit(0);
    }
    if (pid < 0)
        return NULL;
    if (!occupy_devices(pid)) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        release_devices(pid);
        daemon_log(daemon, "Failed to start server: a device in CUDA_VISIBLE_DEVICES does not exist");
        return NULL;
    }
    memset(server, 0, sizeof(*server));
    server->pid = pid;
    server->uid = uid;
    server->thread_percentage = daemon->default_thread_percentage;
    limits_apply(daemon->default_memory_limits, server->memory_limits);
    daemon_log(daemon, "Starting new server %d for user %u", (int)pid, (unsigned)uid);
    return server;
}

static void forget_server(struct mps_daemon *daemon, struct mps_server *server, const char *why)
{
    daemon_log(daemon, "Server %d exited: %s", (int)server->pid, why);
    release_devices(server->pid);
    memset(server, 0, sizeof(*server));
}

void daemon_reap(struct mps_daemon *daemon)
{
    pid_t pid;
    int status;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        struct mps_server *server = server_by_pid(daemon, pid);
        /* All clients of a server end with it. */
        if (server)
            forget_server(daemon, server, WIFSIGNALED(status) ? "killed" : "ended");
    }
    for (int i = 0; i < MAX_SERVERS; i++)
        for (int c = 0; c < MAX_SERVER_CLIENTS; c++) {
            struct mps_client *client = &daemon->servers[i].clients[c];
            if (client->pid && kill(client->pid, 0) != 0 && errno == ESRCH)
                client->pid = 0;
        }
}

void daemon_stop_servers(struct mps_daemon *daemon)
{
    for (int i = 0; i < MAX_SERVERS; i++)
        if (daemon->servers[i].pid) {
            kill(daemon->servers[i].pid, SIGKILL);
            waitpid(daemon->servers[i].pid, NULL, 0);
            forget_server(daemon, &daemon->servers[i], "stopped");
        }
}

/* 48 contexts per device up to CUDA 13.0, 60 from 13.1; in a MIG device in proportion to its slices. */
static int client_limit(void)
{
    char directory[PATH_MAX];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int limit = 48;
    state_directory(directory, sizeof(directory));
    struct state *state = state_map(directory);
    if (!state)
        return limit;
    struct client device;
    if (state->cuda_version >= 13010)
        limit = 60;
    if (visible && find_device(state, visible, &device) && device.gpu_instance != NONE) {
        const struct gpu *gpu = &state->gpus[device.gpu];
        int slices = gpu->instances[device.gpu_instance].compute[device.compute_instance].size;
        limit = limit * slices / gpu_models[gpu->model].compute_slices;
    }
    state_unmap(state);
    return limit;
}

/* gpusim_client PID UID [PERCENTAGE]: what a program that opens a context would cause. */
static void connect_client(struct mps_daemon *daemon, char *words[], int count, FILE *out)
{
    pid_t pid = count > 1 ? (pid_t)strtol(words[1], NULL, 10) : 0;
    uid_t uid = count > 2 ? (uid_t)strtoul(words[2], NULL, 10) : 0;
    double wanted = count > 3 ? strtod(words[3], NULL) : 100;
    struct mps_server *server = server_of_user(daemon, uid);
    if (!server)
        server = start_server(daemon, uid);
    if (pid <= 0 || !server) {
        fputs("error: no server\n", out);
        return;
    }
    int used = 0;
    struct mps_client *place = NULL;
    for (int c = 0; c < MAX_SERVER_CLIENTS; c++) {
        used += server->clients[c].pid != 0;
        if (!server->clients[c].pid && !place)
            place = &server->clients[c];
    }
    if (used >= client_limit() || !place) {
        fputs("error: too many clients\n", out);
        return;
    }
    /* A client can only tighten what the server allows. */
    place->pid = pid;
    place->thread_percentage = wanted < server->thread_percentage ? wanted : server->thread_percentage;
    fprintf(out, "%d %.1f", (int)server->pid, place->thread_percentage);
    for (int d = 0; d < MAX_DEVICES; d++)
        if (*server->memory_limits[d])
            fprintf(out, " %d=%s", d, server->memory_limits[d]);
    fputc('\n', out);
}

static void list_servers(const struct mps_daemon *daemon, FILE *out)
{
    for (int i = 0; i < MAX_SERVERS; i++)
        if (daemon->servers[i].pid)
            fprintf(out, "%d\n", (int)daemon->servers[i].pid);
}

static void list_clients(const struct mps_server *server, FILE *out)
{
    for (int c = 0; c < MAX_SERVER_CLIENTS; c++)
        if (server->clients[c].pid)
            fprintf(out, "%d\n", (int)server->clients[c].pid);
}

static void list_everything(const struct mps_daemon *daemon, FILE *out)
{
    fputs("PID       ID    SERVER    DEVICE            NAMESPACE   COMMAND\n", out);
    for (int i = 0; i < MAX_SERVERS; i++)
        for (int c = 0; daemon->servers[i].pid && c < MAX_SERVER_CLIENTS; c++)
            if (daemon->servers[i].clients[c].pid)
                fprintf(out, "%-9d %-5d %-9d %-17s %-11s %s\n", (int)daemon->servers[i].clients[c].pid, c + 1,
                        (int)daemon->servers[i].pid, "-", "-", "workload");
}

static int valid_percentage(const char *text, double *value)
{
    char *rest;
    *value = strtod(text, &rest);
    return rest != text && !*rest && *value > 0 && *value <= 100;
}

static void answer_defaults(struct mps_daemon *daemon, char *words[], int count, FILE *out)
{
    double value;
    if (strcmp(words[0], "get_default_active_thread_percentage") == 0)
        fprintf(out, "%.1f\n", daemon->default_thread_percentage);
    else if (strcmp(words[0], "set_default_active_thread_percentage") == 0) {
        if (count == 2 && valid_percentage(words[1], &value)) {
            daemon->default_thread_percentage = value;
            fprintf(out, "%.1f\n", value);
        } else {
            fputs("Invalid active thread percentage\n", out);
        }
    } else if (strcmp(words[0], "set_default_device_pinned_mem_limit") == 0) {
        if (count != 3 || !limits_set(daemon->default_memory_limits, words[1], words[2]))
            fputs("Invalid pinned memory limit\n", out);
    } else if (strcmp(words[0], "get_default_device_pinned_mem_limit") == 0) {
        if (count == 2)
            fprintf(out, "%s\n", limits_get(daemon->default_memory_limits, words[1]));
    } else if (strcmp(words[0], "set_default_client_priority") == 0) {
        daemon->default_priority = count == 2 ? (int)strtol(words[1], NULL, 10) : 0;
    } else {
        fprintf(out, "Unrecognized command: %s\n", words[0]);
    }
}

/* Commands about one server, whose pid is the first argument. */
static int answer_server(struct mps_daemon *daemon, char *words[], int count, FILE *out)
{
    static const char *const names[] = {"get_server_status", "get_client_list", "shutdown_server", "terminate_client",
                                        "get_active_thread_percentage", "set_active_thread_percentage",
                                        "set_device_pinned_mem_limit", "get_device_pinned_mem_limit"};
    int which = 0;
    while (which < 8 && strcmp(names[which], words[0]) != 0)
        which++;
    if (which == 8)
        return 0;
    struct mps_server *server = server_by_pid(daemon, count > 1 ? (pid_t)strtol(words[1], NULL, 10) : 0);
    if (!server) {
        fprintf(out, "Server %s not found\n", count > 1 ? words[1] : "");
        return 1;
    }
    double value;
    int device = count > 2 ? device_place(words[2]) : NONE;
    switch (which) {
    case 0:
        fputs("ACTIVE\n", out);
        break;
    case 1:
        list_clients(server, out);
        break;
    case 2:
        kill(server->pid, SIGKILL);
        waitpid(server->pid, NULL, 0);
        forget_server(daemon, server, "shut down");
        break;
    case 3:
        for (int c = 0; count > 2 && c < MAX_SERVER_CLIENTS; c++)
            if (server->clients[c].pid == (pid_t)strtol(words[2], NULL, 10))
                server->clients[c].pid = 0;
        break;
    case 4:
        fprintf(out, "%.1f\n", server->thread_percentage);
        break;
    case 5:
        if (count == 3 && valid_percentage(words[2], &value))
            server->thread_percentage = value;
        else
            fputs("Invalid active thread percentage\n", out);
        break;
    case 6:
        if (count == 4 && device >= 0 && limit_is_valid(words[3]))
            snprintf(server->memory_limits[device], sizeof(server->memory_limits[device]), "%s", words[3]);
        else
            fputs("Invalid pinned memory limit\n", out);
        break;
    default:
        if (device >= 0)
            fprintf(out, "%s\n", server->memory_limits[device]);
    }
    return 1;
}

void daemon_answer(struct mps_daemon *daemon, char *line, FILE *out)
{
    char *words[8] = {NULL}, *rest = NULL;
    int count = 0;
    for (char *word = strtok_r(line, " \t\r\n", &rest); word && count < 8; word = strtok_r(NULL, " \t\r\n", &rest))
        words[count++] = word;
    if (count == 0)
        return;
    daemon_reap(daemon);
    daemon_log(daemon, "NEW UI: %s", words[0]);
    if (strcmp(words[0], "quit") == 0)
        daemon->quitting = 1;
    else if (strcmp(words[0], "get_server_list") == 0)
        list_servers(daemon, out);
    else if (strcmp(words[0], "start_server") == 0) {
        uid_t uid = count == 3 && strcmp(words[1], "-uid") == 0 ? (uid_t)strtoul(words[2], NULL, 10) : getuid();
        if (!server_of_user(daemon, uid) && !start_server(daemon, uid))
            fputs("Failed to start server\n", out);
    } else if (strcmp(words[0], "get_device_client_list") == 0) {
        for (int i = 0; i < MAX_SERVERS; i++)
            list_clients(&daemon->servers[i], out);
    } else if (strcmp(words[0], "ps") == 0) {
        list_everything(daemon, out);
    } else if (strcmp(words[0], "gpusim_client") == 0) {
        connect_client(daemon, words, count, out);
    } else if (!answer_server(daemon, words, count, out)) {
        answer_defaults(daemon, words, count, out);
    }
}
