/*
 * The state of one simulated node: what a kernel driver would hold, in one file that every process maps.
 *
 * Theory: the file has a fixed layout and is mapped shared by the library in each process, by the fake tools and by
 * the control program. A robust process-shared mutex inside it orders all changes; when its owner dies the next one
 * takes over, and since a record counts only once its `live` flag is set, half-written records are never seen.
 * Nothing about the hardware is kept anywhere else, so instances, faults and clients survive any process.
 */
#ifndef GPUSIM_STATE_H
#define GPUSIM_STATE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "symbols.h"
#include "tables.h"

#define RECOVERY_UNTOLD 255
#define STATE_MAGIC 0x4d49535550470001ULL
#define STATE_LAYOUT 2 /* Raised whenever a structure below changes. */
#define STATE_FILE "state"
#define DEFAULT_DIRECTORY "/run/gpusim"
/* What the vendor's toolkit mounts into a container, writable: under this name it brings the state along. */
#define INJECTED_DIRECTORY "/run/nvidia-persistenced"
#define INJECTED_FILE "socket"

#define MAX_GPUS 16
#define MAX_GPU_INSTANCES 15 /* Ids 0 to 14: the whole card, halves, quarters, eighths. */
#define MAX_COMPUTE_INSTANCES 8
#define MAX_CLIENTS 256
#define MAX_FAULTS 64
#define MAX_LATENCIES 64
#define MAX_EVENTS 256
#define MAX_JOURNAL 512

#define UUID_SIZE 48
#define NONE (-1)
#define ANY (-1)

enum client_kind { CLIENT_COMPUTE, CLIENT_GRAPHICS, CLIENT_MPS, CLIENT_MONITOR };
enum gi_map { GI_MAP_IDENTITY, GI_MAP_HALF_SWAPPED };
enum uuid_mode { UUID_BY_PLACE, UUID_FRESH };
enum index_mode { INDEX_DENSE, INDEX_STICKY };
enum activation { ACTIVATION_AUTO, ACTIVATION_PENDING };
enum privilege { PRIVILEGE_AUTO, PRIVILEGE_ALLOW, PRIVILEGE_DENY };
enum caps_nodes { CAPS_NODES_LIVE, CAPS_NODES_NONE };

/*
 * What a fault does to the call that it hits: fail without effect, fail after the effect took place, report a failed
 * activation of a mode change, or only delay the call.
 */
enum fault_mode { FAULT_BEFORE, FAULT_AFTER, FAULT_ACTIVATION, FAULT_HANG };

/* Special values of fault.symbol and latency.symbol. */
enum { SYMBOL_ANY = -1, SYMBOL_WRITES = -2 };

struct compute_instance {
    uint8_t live, profile; /* Index into gpu_profile.compute. */
    uint8_t start, size;   /* In compute slices of the GPU instance. */
    uint8_t mig_index;     /* Place in the list of MIG devices, for INDEX_STICKY. */
    uint32_t generation;
    char uuid[UUID_SIZE];
};

struct gpu_instance {
    uint8_t live, profile; /* Index into gpu_model.profiles. */
    uint8_t start, size;   /* In memory units of the card. */
    uint32_t generation;
    struct compute_instance compute[MAX_COMPUTE_INSTANCES];
};

struct gpu {
    uint8_t present;  /* Zero once the card has been detached: it is not enumerated. */
    uint8_t lost;     /* Still enumerated, every call about it fails. */
    uint8_t model;    /* Index into gpu_models. */
    uint8_t mig_current, mig_pending;
    uint8_t activation, gi_map, uuid_mode, index_mode;
    uint8_t compute_mode, persistence_mode, ecc_current, ecc_pending;
    uint8_t timeslice; /* 0 default, 1 short, 2 medium, 3 long. */
    uint8_t virtualization, reset_unsupported;
    uint8_t fabric_state;
    uint32_t generation; /* Part of every handle of the card. */
    uint32_t swaps;      /* How often another card was put into this slot. */
    uint32_t resets;
    uint32_t pci_domain, pci_bus, pci_device, pci_root_bus;
    uint32_t minor_number, module_id;
    int32_t numa_node;
    uint32_t architecture, memory_mib, reserved_mib;
    uint32_t compute_major, compute_minor;
    uint32_t temperature_celsius, utilization_percent, memory_utilization_percent, power_milliwatts;
    uint32_t remapped_correctable, remapped_uncorrectable, remap_pending, remap_failed;
    uint32_t recovery_action; /* What the driver says has to be done; RECOVERY_UNTOLD: it does not know the question. */
    uint64_t ecc_corrected, ecc_uncorrected;
    uint32_t fabric_clique;
    char fabric_cluster[UUID_SIZE];
    char name[96], uuid[UUID_SIZE], serial[24], part_number[32], vbios[24];
    struct gpu_instance instances[MAX_GPU_INSTANCES];
};

struct client {
    uint8_t live, kind, while_alive; /* while_alive: forgotten once the process is gone. */
    int8_t gpu, gpu_instance, compute_instance; /* NONE: the whole card, the whole GPU instance. */
    uint32_t pid;
    uint64_t memory_bytes;
    char name[48];
};

struct fault {
    uint8_t live, mode, family; /* family: the symbol stands for all its versions. */
    int16_t symbol;             /* enum symbol, SYMBOL_ANY or SYMBOL_WRITES. */
    int16_t gpu;                /* Slot, or ANY. */
    uint32_t id, skip;          /* skip: calls to let pass first. */
    int32_t remaining;          /* Calls still to hit; negative means without end. */
    int32_t code;
    uint32_t hang_milliseconds;
    uint64_t hits;
};

struct latency {
    uint8_t live, family;
    int16_t symbol, gpu;
    uint32_t microseconds;
};

struct event {
    uint64_t sequence, type, data;
    int16_t gpu;
    uint32_t gpu_instance, compute_instance; /* 0xFFFFFFFF: the whole card. */
    char uuid[UUID_SIZE];
};

/* One call that writes, in the order in which the calls ended. */
struct journal_entry {
    uint64_t sequence;
    uint32_t pid;
    int16_t symbol, gpu;
    int32_t result, activation; /* result: what the caller was told. */
    int32_t effect;             /* What really happened; differs when a fault hid it. */
    int32_t gpu_instance, compute_instance, profile_id, start, size, value;
};

struct state {
    uint64_t magic;
    uint32_t layout, size;
    pthread_mutex_t lock;

    /* Facts about the node and its driver. */
    uint64_t seed;
    uint32_t gpu_count; /* Slots in use, ordered by PCI address. */
    uint8_t driver_loaded, privilege, caps_nodes, prefix_names;
    uint32_t cuda_version;
    uint32_t boots, caps_major, uvm_major;
    char driver_version[32], nvml_version[48], boot_id[UUID_SIZE];
    char host_boot_id[UUID_SIZE]; /* The machine's own boot in which this node was last seen by `gpusim init`. */

    /* What makes records distinct over time. */
    uint32_t generations, uuids, faults_made;

    struct gpu gpus[MAX_GPUS];
    struct client clients[MAX_CLIENTS];
    struct fault faults[MAX_FAULTS];
    uint32_t live_faults, live_latencies, global_latency_microseconds;
    struct latency latencies[MAX_LATENCIES];

    /* Events: a ring, and a word that waiters sleep on. */
    uint64_t event_sequence;
    uint32_t event_wakeup;
    struct event events[MAX_EVENTS];

    /* What was called. */
    uint64_t calls[SYMBOL_COUNT];
    uint64_t journal_sequence;
    struct journal_entry journal[MAX_JOURNAL];
};

/*
 * Finds the node's directory: $GPUSIM_DIR, else the one that this code lies in. Else nobody said where to look, which
 * answers 0: the fixed default, or what was injected into a container in its stead.
 */
int state_directory(char *buffer, size_t size);

/* The file that holds this code, in a buffer of PATH_MAX: the shared library, or the program it is compiled into. */
int place_of_code(char *resolved);

/* Maps the state of the node at `directory`, or returns NULL with errno set. */
struct state *state_map(const char *directory);
void state_unmap(struct state *state);

/* Writes the state file of a new node; header and lock are made here. Fails with EEXIST unless `replace`. */
struct state *state_create(const char *directory, const struct state *node, int replace);

void state_lock(struct state *state);
void state_unlock(struct state *state);

/* Returns a value that no other generation of any record had. Call with the lock held. */
uint32_t state_generation(struct state *state);

/* Writes an identifier derived from the given words, e.g. "GPU-6f7a...". Equal words give equal identifiers. */
void state_uuid(char *buffer, const char *prefix, const uint64_t *words, int count);

/* Forgets clients whose processes are gone, where they asked for it. Call with the lock held. */
void state_reap_clients(struct state *state);

/* Publishes an event to every event set of every process. Call with the lock held. */
void state_publish(struct state *state, int gpu, uint64_t type, uint64_t data, uint32_t gpu_instance,
                   uint32_t compute_instance);

#endif
