/*
 * The driver root of a node, as the programs around a driver read it: libraries and tools in usr, device nodes in dev,
 * and below proc and sys what the kernel would show. `gpusim exec` puts the latter where programs look for them.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "../tree.h"
#include "control.h"

#define NVIDIA_MAJOR 195
#define MAX_MINORS 32

/* Formats a path below the driver root; the result lives until the eighth next call. */
__attribute__((format(printf, 2, 3))) static const char *path_of(const char *directory, const char *format, ...)
{
    static char paths[8][PATH_MAX];
    static int turn;
    char *path = paths[turn++ % 8];
    va_list arguments;
    int length = snprintf(path, PATH_MAX, "%s/root/", directory);
    va_start(arguments, format);
    vsnprintf(path + length, (size_t)(PATH_MAX - length), format, arguments);
    va_end(arguments);
    return path;
}

/* Makes a folder and all above it. */
static void make_folder(const char *path)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof(copy), "%s", path);
    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(copy, 0755);
        *slash = '/';
    }
    if (mkdir(copy, 0755) != 0 && errno != EEXIST)
        fail("%s: %s", copy, strerror(errno));
}

__attribute__((format(printf, 2, 3))) static void write_file(const char *path, const char *format, ...)
{
    va_list arguments;
    FILE *file = fopen(path, "w");
    if (!file)
        fail("%s: %s", path, strerror(errno));
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    if (fclose(file) != 0)
        fail("%s: %s", path, strerror(errno));
}

static void write_bytes(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        fail("%s: %s", path, strerror(errno));
    size_t written = fwrite(bytes, 1, size, file);
    if (fclose(file) != 0 || written != size)
        fail("%s: %s", path, strerror(errno));
}

static void make_link(const char *target, const char *path)
{
    unlink(path);
    if (symlink(target, path) != 0)
        fail("%s: %s", path, strerror(errno));
}

/* Copies one of the programs that were built beside this one; a program that was not built is left out. */
static void copy_program(const char *name, const char *target)
{
    char source[PATH_MAX], buffer[65536];
    ssize_t length = readlink("/proc/self/exe", source, sizeof(source) - 1);
    if (length < 0)
        fail("/proc/self/exe: %s", strerror(errno));
    source[length] = '\0';
    snprintf(strrchr(source, '/') + 1, (size_t)(source + sizeof(source) - strrchr(source, '/') - 1), "%s", name);
    FILE *in = fopen(source, "rb");
    if (!in)
        fail("%s: %s; it belongs beside gpusim", source, strerror(errno));
    unlink(target);
    FILE *out = fopen(target, "wb");
    if (!out)
        fail("%s: %s", target, strerror(errno));
    size_t count;
    while ((count = fread(buffer, 1, sizeof(buffer), in)) > 0)
        if (fwrite(buffer, 1, count, out) != count)
            fail("%s: %s", target, strerror(errno));
    fclose(in);
    if (fclose(out) != 0 || chmod(target, 0755) != 0)
        fail("%s: %s", target, strerror(errno));
}

static void create_usr(const char *directory, const struct state *state)
{
    static const char *const libraries[] = {"libnvidia-ml", "libcuda"};
    make_folder(path_of(directory, "usr/lib64"));
    make_folder(path_of(directory, "usr/bin"));
    for (int i = 0; i < 2; i++) {
        char built[64], versioned[64];
        snprintf(built, sizeof(built), "%s.so.1", libraries[i]);
        snprintf(versioned, sizeof(versioned), "%s.so.%s", libraries[i], state->driver_version);
        copy_program(built, path_of(directory, "usr/lib64/%s", versioned));
        /* Links are relative: whoever resolves them may stand outside the root. */
        make_link(versioned, path_of(directory, "usr/lib64/%s.so.1", libraries[i]));
        make_link(built, path_of(directory, "usr/lib64/%s.so", libraries[i]));
    }
    copy_program("nvidia-smi", path_of(directory, "usr/bin/nvidia-smi"));
    copy_program("nvidia-cuda-mps-control", path_of(directory, "usr/bin/nvidia-cuda-mps-control"));
}

static void make_node(const char *path, unsigned int major_number, unsigned int minor_number, mode_t mode)
{
    struct stat status;
    if (lstat(path, &status) == 0 && S_ISCHR(status.st_mode) && status.st_rdev == makedev(major_number, minor_number))
        return;
    unlink(path);
    if (mknod(path, S_IFCHR | mode, makedev(major_number, minor_number)) != 0)
        fail("%s: %s; creating device nodes needs CAP_MKNOD outside a user namespace: run as root, "
             "or use --no-devices and do without them",
             path, strerror(errno));
    chmod(path, mode);
}

static void create_devices(const char *directory, const struct state *state)
{
    make_folder(path_of(directory, "dev/nvidia-caps"));
    make_node(path_of(directory, "dev/nvidiactl"), NVIDIA_MAJOR, 255, 0666);
    make_node(path_of(directory, "dev/nvidia-modeset"), NVIDIA_MAJOR, 254, 0666);
    make_node(path_of(directory, "dev/nvidia-uvm"), state->uvm_major, 0, 0666);
    make_node(path_of(directory, "dev/nvidia-uvm-tools"), state->uvm_major, 1, 0666);
    make_node(path_of(directory, "dev/nvidia-caps/nvidia-cap1"), state->caps_major, 1, 0400);
    make_node(path_of(directory, "dev/nvidia-caps/nvidia-cap2"), state->caps_major, 2, 0444);
}

/* Nodes of cards follow the minor numbers; a detached card keeps its node, as nothing removes it. */
static void refresh_devices(const char *directory, const struct state *state)
{
    if (access(path_of(directory, "dev/nvidiactl"), F_OK) != 0)
        return;
    for (unsigned int number = 0; number < MAX_MINORS; number++) {
        int wanted = 0;
        for (uint32_t slot = 0; slot < state->gpu_count; slot++)
            wanted |= state->gpus[slot].minor_number == number;
        if (wanted)
            make_node(path_of(directory, "dev/nvidia%u", number), NVIDIA_MAJOR, number, 0666);
        else
            unlink(path_of(directory, "dev/nvidia%u", number));
    }
}

static void create_proc(const char *directory, const struct state *state)
{
    make_folder(path_of(directory, "proc/driver/nvidia/capabilities/mig"));
    make_folder(path_of(directory, "proc/driver/nvidia-caps"));
    make_folder(path_of(directory, "proc/sys/kernel/random"));
    write_file(path_of(directory, "proc/driver/nvidia/capabilities/mig/config"),
               "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n");
    write_file(path_of(directory, "proc/driver/nvidia/capabilities/mig/monitor"),
               "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
    write_file(path_of(directory, "proc/driver/nvidia/params"),
               "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n");
    write_file(path_of(directory, "proc/devices"),
               "Character devices:\n  1 mem\n  5 /dev/tty\n136 pts\n%u nvidia\n%u nvidia-caps\n%u nvidia-uvm\n\n"
               "Block devices:\n  7 loop\n259 blkext\n",
               NVIDIA_MAJOR, state->caps_major, state->uvm_major);
    write_file(path_of(directory, "proc/modules"),
               "nvidia_uvm 3481600 0 - Live 0x0000000000000000 (POE)\n"
               "nvidia 56717312 1 nvidia_uvm, Live 0x0000000000000000 (POE)\n");
    /* The table lists every instance that could exist, whether or not it or its card does. */
    FILE *file = fopen(path_of(directory, "proc/driver/nvidia-caps/mig-minors"), "w");
    if (!file)
        fail("%s: mig-minors: %s", directory, strerror(errno));
    fputs("config 1\nmonitor 2\n", file);
    for (unsigned int number = 0; number < MAX_MINORS; number++)
        for (int instance = 0; instance < MAX_GPU_INSTANCES; instance++) {
            fprintf(file, "gpu%u/gi%d/access %u\n", number, instance, capability_minor(number, instance, NONE));
            for (int compute = 0; compute < MAX_COMPUTE_INSTANCES; compute++)
                fprintf(file, "gpu%u/gi%d/ci%d/access %u\n", number, instance, compute,
                        capability_minor(number, instance, compute));
        }
    fclose(file);
}

/* Removes every entry of a folder for which `wanted` says no, with what is in it. */
static void prune(const char *path, int (*wanted)(const struct state *, const char *), const struct state *state)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    char child[PATH_MAX];
    while (folder && (entry = readdir(folder))) {
        if (entry->d_name[0] == '.' || (wanted && wanted(state, entry->d_name)))
            continue;
        snprintf(child, sizeof(child), "%s/%s", path, entry->d_name);
        struct stat status;
        if (lstat(child, &status) == 0 && S_ISDIR(status.st_mode)) {
            prune(child, NULL, state);
            rmdir(child);
        } else {
            unlink(child);
        }
    }
    if (folder)
        closedir(folder);
}

static int capability_wanted(const struct state *state, const char *name)
{
    if (strncmp(name, "gpu", 3) != 0)
        return 1; /* The folder "mig" with the node-wide capabilities. */
    for (uint32_t slot = 0; slot < state->gpu_count; slot++)
        if (state->gpus[slot].present && state->gpus[slot].minor_number == (uint32_t)strtoul(name + 3, NULL, 10))
            return 1;
    return 0;
}

static void refresh_capabilities(const char *directory, const struct state *state)
{
    prune(path_of(directory, "proc/driver/nvidia/capabilities"), capability_wanted, state);
    for (int slot = 0; (uint32_t)slot < state->gpu_count; slot++) {
        const struct gpu *gpu = &state->gpus[slot];
        if (!gpu->present)
            continue;
        make_folder(path_of(directory, "proc/driver/nvidia/capabilities/gpu%u/mig", gpu->minor_number));
        for (int i = 0; i < MAX_GPU_INSTANCES; i++) {
            if (gpu->instances[i].live)
                tree_show(directory, state, slot, i, NONE);
            for (int c = 0; gpu->instances[i].live && c < MAX_COMPUTE_INSTANCES; c++)
                if (gpu->instances[i].compute[c].live)
                    tree_show(directory, state, slot, i, c);
        }
    }
}

static void pci_name(const struct gpu *gpu, char *text, size_t size)
{
    snprintf(text, size, "%04x:%02x:%02x.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
}

static unsigned int interrupt_of(uint32_t slot)
{
    return 64 + slot;
}

static int pci_wanted(const struct state *state, const char *name)
{
    char text[32];
    for (uint32_t slot = 0; slot < state->gpu_count; slot++) {
        pci_name(&state->gpus[slot], text, sizeof(text));
        if (state->gpus[slot].present && strcmp(text, name) == 0)
            return 1;
    }
    return 0;
}

/* The folder of one card below /sys/devices. */
static void create_card_folder(const char *folder, const struct gpu *gpu, uint32_t slot, const char *driver_version)
{
    unsigned long long region = 0x80000000ULL + slot * 0x1000000ULL;
    char path[PATH_MAX + 32];
    uint8_t space[PCI_CONFIG_SIZE];
    struct {
        const char *name;
        char text[256];
    } files[] = {{"resource", ""}, {"device", ""}, {"numa_node", ""}, {"vendor", ""}, {"class", ""},
                 {"subsystem_vendor", ""}, {"subsystem_device", ""}, {"revision", ""}, {"irq", ""}, {"enable", "1\n"}};
    snprintf(files[0].text, sizeof(files[0].text),
             "0x%016llx 0x%016llx 0x0000000000040200\n0x0000000000000000 0x0000000000000000 0x0000000000000000\n",
             region, region + 0xffffffULL);
    snprintf(files[1].text, sizeof(files[1].text), "0x%04x\n", gpu_models[gpu->model].pci_device_id);
    snprintf(files[2].text, sizeof(files[2].text), "%d\n", gpu->numa_node);
    snprintf(files[3].text, sizeof(files[3].text), "0x%04x\n", CARD_VENDOR);
    snprintf(files[4].text, sizeof(files[4].text), "0x%06x\n", CARD_CLASS);
    snprintf(files[5].text, sizeof(files[5].text), "0x%04x\n", CARD_VENDOR);
    snprintf(files[6].text, sizeof(files[6].text), "0x%04x\n", CARD_SUBSYSTEM);
    snprintf(files[7].text, sizeof(files[7].text), "0x%02x\n", CARD_REVISION);
    snprintf(files[8].text, sizeof(files[8].text), "%u\n", interrupt_of(slot));
    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, files[i].name);
        write_file(path, "%s", files[i].text);
    }
    pci_config_fill(space, gpu, region, driver_version);
    snprintf(path, sizeof(path), "%s/config", folder);
    write_bytes(path, space, sizeof(space));
    snprintf(path, sizeof(path), "%s/driver", folder);
    make_link("../../../bus/pci/drivers/nvidia", path);
}

static void refresh_pci(const char *directory, const struct state *state)
{
    prune(path_of(directory, "sys/bus/pci/devices"), pci_wanted, state);
    prune(path_of(directory, "sys/bus/pci/drivers/nvidia"), pci_wanted, state);
    make_folder(path_of(directory, "sys/bus/pci/drivers/nvidia"));
    for (uint32_t slot = 0; slot < state->gpu_count; slot++) {
        const struct gpu *gpu = &state->gpus[slot];
        char name[32], folder[PATH_MAX], target[PATH_MAX], link[PATH_MAX + 16];
        pci_name(gpu, name, sizeof(name));
        snprintf(target, sizeof(target), "devices/pci%04x:%02x/%s", gpu->pci_domain, gpu->pci_root_bus, name);
        snprintf(folder, sizeof(folder), "%s", path_of(directory, "sys/%s", target));
        if (!gpu->present) {
            prune(folder, NULL, state);
            rmdir(folder);
            continue;
        }
        make_folder(folder);
        create_card_folder(folder, gpu, slot, state->driver_version);
        snprintf(link, sizeof(link), "../../../%s", target);
        make_link(link, path_of(directory, "sys/bus/pci/devices/%s", name));
        snprintf(link, sizeof(link), "../../../../%s", target);
        make_link(link, path_of(directory, "sys/bus/pci/drivers/nvidia/%s", name));
    }
}

/* What the driver tells of each card: shell scripts take minor numbers and UUIDs from here. */
static void refresh_information(const char *directory, const struct state *state)
{
    prune(path_of(directory, "proc/driver/nvidia/gpus"), pci_wanted, state);
    for (uint32_t slot = 0; slot < state->gpu_count; slot++) {
        const struct gpu *gpu = &state->gpus[slot];
        char name[32];
        if (!gpu->present)
            continue;
        pci_name(gpu, name, sizeof(name));
        make_folder(path_of(directory, "proc/driver/nvidia/gpus/%s", name));
        write_file(path_of(directory, "proc/driver/nvidia/gpus/%s/information", name),
                   "Model: \t\t %s\nIRQ:   \t\t %u\nGPU UUID: \t %s\nVideo BIOS: \t %s\nBus Type: \t PCIe\n"
                   "DMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\nBus Location: \t %s\nDevice Minor: \t %u\n"
                   "GPU Firmware: \t %s\nGPU Excluded:\t No\n",
                   gpu->name, interrupt_of(slot), gpu->uuid, gpu->vbios, name, gpu->minor_number,
                   state->driver_version);
    }
}

/* Another driver version means other file names. */
static void rename_libraries(const char *directory, const struct state *state)
{
    static const char *const libraries[] = {"libnvidia-ml", "libcuda"};
    for (int i = 0; i < 2; i++) {
        char before[PATH_MAX], after[128];
        const char *link = path_of(directory, "usr/lib64/%s.so.1", libraries[i]);
        ssize_t length = readlink(link, before, sizeof(before) - 1);
        before[length > 0 ? length : 0] = '\0';
        snprintf(after, sizeof(after), "%s.so.%s", libraries[i], state->driver_version);
        if (length <= 0 || strcmp(before, after) == 0)
            continue;
        if (rename(path_of(directory, "usr/lib64/%s", before), path_of(directory, "usr/lib64/%s", after)) != 0)
            fail("%s: %s", after, strerror(errno));
        make_link(after, link);
    }
}

void root_refresh(const char *directory, const struct state *state)
{
    if (access(path_of(directory, "proc/driver"), F_OK) != 0)
        return;
    rename_libraries(directory, state);
    write_file(path_of(directory, "proc/sys/kernel/random/boot_id"), "%s\n", state->boot_id);
    write_file(path_of(directory, "proc/driver/nvidia/version"),
               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build\n", state->driver_version);
    refresh_devices(directory, state);
    refresh_capabilities(directory, state);
    refresh_pci(directory, state);
    refresh_information(directory, state);
}

void root_create(const char *directory, const struct state *state, int devices)
{
    /* What a node that was replaced has left. */
    prune(path_of(directory, "proc/driver/nvidia/capabilities"), NULL, state);
    prune(path_of(directory, "dev"), NULL, state);
    prune(path_of(directory, "usr/lib64"), NULL, state);
    create_usr(directory, state);
    make_folder(path_of(directory, "dev"));
    make_folder(path_of(directory, "sys/bus/pci/devices"));
    make_folder(path_of(directory, "proc/driver/nvidia/gpus"));
    if (devices)
        create_devices(directory, state);
    create_proc(directory, state);
    root_refresh(directory, state);
}

/* Gives the state a second name, unless it has it: others may look it up at any moment. */
static void name_state(const char *state, const char *name)
{
    struct stat original, named;
    if (stat(state, &original) == 0 && stat(name, &named) == 0 && original.st_ino == named.st_ino)
        return;
    unlink(name);
    if (link(state, name) != 0)
        fprintf(stderr, "gpusim: warning: %s: %s\n", name, strerror(errno));
}

/*
 * The state is one file, so further names for it are enough. The first, with the link back beside it, makes a folder of
 * the driver root look like the node's own. The second is a file that the vendor's toolkit mounts into every container
 * that it brings a card into: nothing listens there, as nobody ever calls that daemon. Where the file system has no hard
 * links, whoever brings driver root or cards elsewhere must bring the node's folder as well.
 */
void root_link_state(const char *directory)
{
    char state[PATH_MAX];
    if (access(path_of(directory, "proc/driver"), F_OK) != 0)
        return;
    snprintf(state, sizeof(state), "%s/" STATE_FILE, directory);
    make_folder(path_of(directory, "run/gpusim"));
    make_folder(path_of(directory, "%s", INJECTED_DIRECTORY + 1));
    make_link("../..", path_of(directory, "run/gpusim/root"));
    name_state(state, path_of(directory, "run/gpusim/" STATE_FILE));
    name_state(state, path_of(directory, "%s/" INJECTED_FILE, INJECTED_DIRECTORY + 1));
}
