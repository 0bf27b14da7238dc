/* nvidia-cuda-mps-control: the daemon (-d, -f) and the client that talks to it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "mps.h"

static volatile sig_atomic_t stop_requested;

static void request_stop(int signal_number)
{
    (void)signal_number;
    stop_requested = 1;
}

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static const char *environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static void control_address(const char *directory, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (snprintf(address->sun_path, sizeof(address->sun_path), "%s/control", directory) >= (int)sizeof(address->sun_path))
        die("%s: too long for a socket path", directory);
}

/* Listens in the pipe directory; what a killed daemon left there is replaced. */
static int listen_in(const struct mps_daemon *daemon)
{
    struct sockaddr_un address;
    char path[600];
    if ((mkdir(daemon->pipe_directory, 0755) != 0 && errno != EEXIST) ||
        (mkdir(daemon->log_directory, 0755) != 0 && errno != EEXIST))
        die("Cannot create %s or %s: %s", daemon->pipe_directory, daemon->log_directory, strerror(errno));
    snprintf(path, sizeof(path), "%s/control_lock", daemon->pipe_directory);
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0)
        die("%s: %s", path, strerror(errno));
    control_address(daemon->pipe_directory, &address);
    /* Without its socket the other one is on its way out, or just beginning, which the wait will show. */
    for (int attempt = 0; flock(lock, LOCK_EX | LOCK_NB) != 0; attempt++) {
        if (attempt == 200 || access(address.sun_path, F_OK) == 0)
            die("An instance of this daemon is already running");
        usleep(10000);
    }
    unlink(address.sun_path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(listener, 16) != 0)
        die("%s: %s", address.sun_path, strerror(errno));
    chmod(address.sun_path, 0666);
    return listener;
}

static void write_pid(const struct mps_daemon *daemon)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-control.pid", daemon->pipe_directory);
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, "%d", (int)getpid());
        fclose(file);
    }
}

/* One connection: a line with a command, answered and closed. */
static void serve(struct mps_daemon *daemon, int listener)
{
    char line[LINE_SIZE] = "";
    int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0)
        return;
    struct timeval patience = {.tv_sec = 5};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    FILE *stream = fdopen(connection, "r+");
    if (fgets(line, sizeof(line), stream)) {
        fseek(stream, 0, SEEK_CUR);
        daemon_answer(daemon, line, stream);
    }
    fclose(stream);
}

static int run_daemon(int foreground)
{
    static struct mps_daemon daemon = {.default_thread_percentage = 100.0};
    snprintf(daemon.pipe_directory, sizeof(daemon.pipe_directory), "%s",
             environment("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"));
    snprintf(daemon.log_directory, sizeof(daemon.log_directory), "%s",
             environment("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"));
    int listener = listen_in(&daemon);
    if (!foreground) {
        /* The socket is there before the parent returns, so a command right after the start finds it. */
        pid_t child = fork();
        if (child != 0)
            return child < 0;
        setsid();
        int nothing = open("/dev/null", O_RDWR);
        for (int descriptor = 0; descriptor < 3; descriptor++)
            dup2(nothing, descriptor);
        if (nothing > 2)
            close(nothing);
    }
    struct sigaction action = {.sa_handler = request_stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    write_pid(&daemon);
    daemon_log(&daemon, "Starting control daemon using socket %s/control", daemon.pipe_directory);
    while (!daemon.quitting && !stop_requested) {
        struct pollfd waiting = {.fd = listener, .events = POLLIN};
        if (poll(&waiting, 1, 1000) > 0)
            serve(&daemon, listener);
        daemon_reap(&daemon);
    }
    daemon_stop_servers(&daemon);
    daemon_log(&daemon, "Exit");
    char path[600];
    snprintf(path, sizeof(path), "%s/control", daemon.pipe_directory);
    unlink(path);
    snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-control.pid", daemon.pipe_directory);
    unlink(path);
    return 0;
}

/* Sends one command and prints the answer. */
static void send_command(const char *directory, const char *line)
{
    struct sockaddr_un address;
    char buffer[4096];
    control_address(directory, &address);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof(address)) != 0)
        die("Cannot find MPS control daemon process");
    if (write(connection, line, strlen(line)) < 0 || shutdown(connection, SHUT_WR) != 0)
        die("Cannot talk to the MPS control daemon: %s", strerror(errno));
    ssize_t length;
    while ((length = read(connection, buffer, sizeof(buffer))) > 0)
        fwrite(buffer, 1, (size_t)length, stdout);
    close(connection);
}

int main(int count, char **words)
{
    const char *directory = environment("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps");
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "-d") == 0 || strcmp(words[i], "-f") == 0)
            return run_daemon(words[i][1] == 'f');
        if (strcmp(words[i], "-v") == 0) {
            puts("CUDA MPS control of the simulated driver");
            return 0;
        }
        die("usage: nvidia-cuda-mps-control [-d|-f|-v] < commands");
    }
    char line[LINE_SIZE];
    while (fgets(line, sizeof(line), stdin))
        send_command(directory, line);
    return 0;
}
