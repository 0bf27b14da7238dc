/*
 * The fake MPS control daemon.
 *
 * Theory: one daemon per pipe directory. It listens on a socket there, and holds a lock file so that a second one
 * notices it even among stale files. Servers are real child processes, one per user, that only wait: they can be
 * killed, have a pid and count as clients of the cards that the daemon may see. What clients would do is played
 * through the control socket (`gpusim_client`), since there is nothing to compute with.
 */
#ifndef GPUSIM_MPS_H
#define GPUSIM_MPS_H

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#define MAX_SERVERS 8
#define MAX_SERVER_CLIENTS 60
#define MAX_DEVICES 16
#define MAX_LIMITS 32
#define LINE_SIZE 512

struct client;
struct state;

/* A limit of pinned memory, for a device as it was named: by UUID or by its place among the visible ones. */
struct memory_limit {
    char device[64]; /* Empty: none here, nor behind it. */
    char value[24];  /* As given, e.g. "10G". */
};

struct mps_client {
    pid_t pid; /* 0: free. */
    double thread_percentage;
};

struct mps_server {
    pid_t pid; /* 0: free. */
    uid_t uid;
    double thread_percentage;
    char memory_limits[MAX_DEVICES][24]; /* By place among the visible devices; empty: none. */
    struct mps_client clients[MAX_SERVER_CLIENTS];
};

struct mps_daemon {
    char pipe_directory[512], log_directory[512];
    double default_thread_percentage;
    struct memory_limit default_memory_limits[MAX_LIMITS]; /* In the order in which they were set. */
    int default_priority;
    struct mps_server servers[MAX_SERVERS];
    int quitting;
};

/* Answers one command line; everything that the real tool would print goes to `out`. */
void daemon_answer(struct mps_daemon *daemon, char *line, FILE *out);

/* Forgets servers and clients whose processes are gone. */
void daemon_reap(struct mps_daemon *daemon);
void daemon_stop_servers(struct mps_daemon *daemon);

/* devices.c. Finds the card or instance that one word of CUDA_VISIBLE_DEVICES names. */
int find_device(const struct state *state, const char *word, struct client *client);

/* Lists what the daemon may see, at most MAX_DEVICES, and returns how many; negative when one of them does not exist. */
int visible_devices(const struct state *state, struct client *devices);

/* The place among the visible devices of one that is named by UUID or place; negative when there is none. */
int device_place(const char *word);

/* limits.c. A limit is a number above zero with G or M, in either case. */
int limit_is_valid(const char *value);

/* Remembers a limit; the device is stored as given, existing or not. Answers 0 when it cannot be one. */
int limits_set(struct memory_limit limits[MAX_LIMITS], const char *device, const char *value);
const char *limits_get(const struct memory_limit limits[MAX_LIMITS], const char *device);

/* What holds for each visible device: of several limits for one the last, and none for a device that is not there. */
void limits_apply(const struct memory_limit limits[MAX_LIMITS], char by_place[MAX_DEVICES][24]);

__attribute__((format(printf, 2, 3))) void daemon_log(const struct mps_daemon *daemon, const char *format, ...);

#endif
