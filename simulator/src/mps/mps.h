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
#define LINE_SIZE 512

struct mps_client {
    pid_t pid; /* 0: free. */
    double thread_percentage;
};

struct mps_server {
    pid_t pid; /* 0: free. */
    uid_t uid;
    double thread_percentage;
    char memory_limits[MAX_DEVICES][24]; /* As given, e.g. "10G"; empty: none. */
    struct mps_client clients[MAX_SERVER_CLIENTS];
};

struct mps_daemon {
    char pipe_directory[512], log_directory[512];
    double default_thread_percentage;
    char default_memory_limits[MAX_DEVICES][24];
    int default_priority;
    struct mps_server servers[MAX_SERVERS];
    int quitting;
};

/* Answers one command line; everything that the real tool would print goes to `out`. */
void daemon_answer(struct mps_daemon *daemon, char *line, FILE *out);

/* Forgets servers and clients whose processes are gone. */
void daemon_reap(struct mps_daemon *daemon);
void daemon_stop_servers(struct mps_daemon *daemon);

__attribute__((format(printf, 2, 3))) void daemon_log(const struct mps_daemon *daemon, const char *format, ...);

#endif
