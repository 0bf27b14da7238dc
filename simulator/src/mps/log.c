/* The log of the control daemon, in the words of the real one. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "mps.h"

void daemon_log(const struct mps_daemon *daemon, const char *format, ...)
{
    char path[600], stamp[32];
    time_t now = time(NULL);
    struct tm parts;
    va_list arguments;
    snprintf(path, sizeof(path), "%s/control.log", daemon->log_directory);
    FILE *file = fopen(path, "a");
    if (!file)
        return;
    strftime(stamp, sizeof(stamp), "%F %T", gmtime_r(&now, &parts));
    fprintf(file, "[%s Control %6d] ", stamp, (int)getpid());
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fputc('\n', file);
    fclose(file);
}
