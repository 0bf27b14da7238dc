/*
 * The constant facts about each card model: what it is and how it can be partitioned.
 * The tables themselves are generated from data/gpus.json.
 */
#ifndef GPUSIM_TABLES_H
#define GPUSIM_TABLES_H

#include <stdint.h>

#define ENGINE_KINDS 5 /* copy, decoder, encoder, JPEG, OFA */
#define MAX_PROFILES 12
#define MAX_STARTS 8
#define MAX_COMPUTE_PROFILES 5

/* What every card says of itself on the PCI bus, beside its device id. */
#define CARD_VENDOR 0x10deu
#define CARD_SUBSYSTEM 0x16c1u
#define CARD_CLASS 0x030200u /* 3D controller */
#define CARD_REVISION 0xa1u

enum engine { ENGINE_COPY, ENGINE_DECODER, ENGINE_ENCODER, ENGINE_JPEG, ENGINE_OFA };

enum mode_change {
    MODE_CHANGE_UNSUPPORTED, /* The card cannot be partitioned. */
    MODE_CHANGE_BY_RESET,    /* A change needs a reset of the idle card and survives a reboot. */
    MODE_CHANGE_AT_ONCE      /* A change needs no reset and is lost when the driver unloads. */
};

/* Placements of a compute profile are counted in compute slices of its GPU instance. */
struct compute_profile {
    uint8_t id, enumeration, slices, start_count;
    uint8_t starts[MAX_STARTS];
    uint16_t multiprocessors;
};

/* Placements of a GPU instance profile are counted in memory units of the card. */
struct gpu_profile {
    const char *name;
    uint16_t id, multiprocessors;
    uint8_t enumeration, slices, max_instances, size, start_count, compute_count;
    uint8_t starts[MAX_STARTS];
    uint8_t engines[ENGINE_KINDS];
    uint32_t memory_mib;
    struct compute_profile compute[MAX_COMPUTE_PROFILES];
};

struct gpu_model {
    const char *key, *name;
    uint32_t architecture, memory_mib, pci_device_id, power_limit_watts;
    uint16_t multiprocessors;
    uint8_t compute_major, compute_minor;
    uint8_t mode_change; /* enum mode_change */
    uint8_t memory_units, compute_slices, profile_count;
    struct gpu_profile profiles[MAX_PROFILES];
};

extern const struct gpu_model gpu_models[];
extern const int gpu_model_count;

/* Returns the index of the model named `key`, or -1. */
int model_find(const char *key);

/* Return the index of a profile of `model`, or -1. */
int profile_by_id(const struct gpu_model *model, unsigned int id);
int profile_by_enumeration(const struct gpu_model *model, unsigned int enumeration);
int compute_by_id(const struct gpu_profile *profile, unsigned int id);
int compute_by_enumeration(const struct gpu_profile *profile, unsigned int enumeration);

/* Tells whether `start` is one of the `count` legal `starts`. */
int start_is_legal(const uint8_t *starts, int count, unsigned int start);

#endif
