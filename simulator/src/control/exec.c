/*
 * Runs a command that finds the node's files where programs look for them: below /proc and /sys.
 *
 * Those places are read by absolute path, by programs that make raw system calls, so only a mount namespace can change
 * them. Everything happens in a namespace of the command's own; the host sees nothing of it, and the mounts are gone
 * with the last process. What the kernel itself shows stays visible: /proc is only amended, and /sys/devices gets the
 * cards' PCI roots beside its own entries, /sys/bus/pci/drivers their driver.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"

static void bind(const char *source, const char *target)
{
    if (mount(source, target, NULL, MS_BIND | MS_REC, NULL) != 0)
        fail("cannot put %s over %s: %s", source, target, strerror(errno));
}

/* Binds DIR/root/PATH over /PATH, where the kernel has such a place. */
static int bind_from_root(const char *directory, const char *path)
{
    char source[PATH_MAX], target[PATH_MAX];
    snprintf(source, sizeof(source), "%s/root/%s", directory, path);
    snprintf(target, sizeof(target), "/%s", path);
    if (access(target, F_OK) != 0 || access(source, F_OK) != 0)
        return 0;
    bind(source, target);
    return 1;
}

static void bind_entries(const char *source, const char *target)
{
    DIR *folder = opendir(source);
    struct dirent *entry;
    if (!folder)
        fail("%s: %s", source, strerror(errno));
    while ((entry = readdir(folder))) {
        char from[PATH_MAX], to[PATH_MAX];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(from, sizeof(from), "%s/%s", source, entry->d_name);
        snprintf(to, sizeof(to), "%s/%s", target, entry->d_name);
        /* A root that the host has as well keeps the host's devices; the cards' buses are not there. */
        if (mkdir(to, 0755) == 0)
            bind(from, to);
    }
    closedir(folder);
}

/* Replaces a kernel folder by a folder of its own entries and those of the node. */
static void merge(const char *directory, const char *path)
{
    char kept[PATH_MAX], target[PATH_MAX], added[PATH_MAX];
    snprintf(kept, sizeof(kept), "%s/host", directory);
    snprintf(target, sizeof(target), "/%s", path);
    snprintf(added, sizeof(added), "%s/root/%s", directory, path);
    if (mkdir(kept, 0755) != 0 && errno != EEXIST)
        fail("%s: %s", kept, strerror(errno));
    bind(target, kept);
    if (mount("gpusim", target, "tmpfs", 0, "mode=0755") != 0)
        fail("%s: %s", target, strerror(errno));
    bind_entries(added, target);
    bind_entries(kept, target);
    umount2(kept, MNT_DETACH);
}

/*
 * A kernel without loadable modules has no /proc/modules and nobody can create it: then /proc becomes a folder of
 * links into the real one. Entries of other processes are not among them, hence only on demand.
 */
static void rebuild_proc(const char *directory)
{
    char kept[PATH_MAX], link[PATH_MAX], path[PATH_MAX];
    static const char *const own[] = {"devices", "modules", "driver", NULL};
    snprintf(kept, sizeof(kept), "%s/host-proc", directory);
    if (mkdir(kept, 0755) != 0 && errno != EEXIST)
        fail("%s: %s", kept, strerror(errno));
    bind("/proc", kept);
    if (mount("gpusim", "/proc", "tmpfs", 0, "mode=0755") != 0)
        fail("/proc: %s", strerror(errno));
    DIR *folder = opendir(kept);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (entry->d_name[0] == '.' || (entry->d_name[0] >= '0' && entry->d_name[0] <= '9'))
            continue;
        snprintf(link, sizeof(link), "%s/%s", kept, entry->d_name);
        snprintf(path, sizeof(path), "/proc/%s", entry->d_name);
        if (strcmp(entry->d_name, "devices") != 0 && strcmp(entry->d_name, "driver") != 0 && symlink(link, path) != 0)
            fail("%s: %s", path, strerror(errno));
    }
    if (folder)
        closedir(folder);
    for (int i = 0; own[i]; i++) {
        snprintf(link, sizeof(link), "%s/root/proc/%s", directory, own[i]);
        snprintf(path, sizeof(path), "/proc/%s", own[i]);
        if (symlink(link, path) != 0)
            fail("%s: %s", path, strerror(errno));
    }
}

static void prepend(const char *name, const char *directory, const char *suffix)
{
    char value[PATH_MAX * 2];
    const char *before = getenv(name);
    snprintf(value, sizeof(value), "%s/%s%s%s", directory, suffix, before && *before ? ":" : "",
             before && *before ? before : "");
    setenv(name, value, 1);
}

int command_exec(struct command_line *line)
{
    char directory[PATH_MAX];
    int with_modules = take_flag(line, "--modules");
    if (line->count && strcmp(line->words[0], "--") == 0) {
        line->count--;
        line->words++;
    }
    if (line->count == 0)
        fail("exec needs a command after --");
    if (!realpath(line->directory, directory))
        fail("%s: %s", line->directory, strerror(errno));
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        fail("cannot make a mount namespace: %s; run as root", strerror(errno));
    bind_from_root(directory, "proc/sys/kernel/random/boot_id");
    if (with_modules && access("/proc/modules", F_OK) != 0) {
        rebuild_proc(directory);
    } else {
        bind_from_root(directory, "proc/driver");
        bind_from_root(directory, "proc/devices");
        bind_from_root(directory, "proc/modules");
    }
    merge(directory, "sys/devices");
    if (access("/sys/bus/pci/drivers", F_OK) == 0)
        merge(directory, "sys/bus/pci/drivers");
    if (!bind_from_root(directory, "sys/bus/pci/devices"))
        fail("/sys/bus/pci/devices does not exist: this kernel has no PCI");
    setenv("GPUSIM_DIR", directory, 1);
    prepend("LD_LIBRARY_PATH", directory, "root/usr/lib64");
    prepend("PATH", directory, "root/usr/bin");
    execvp(line->words[0], line->words);
    fail("%s: %s", line->words[0], strerror(errno));
}
