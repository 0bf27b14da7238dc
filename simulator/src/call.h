/*
 * What surrounds every library call: the session of this process, counters, latency and faults; and the handles.
 *
 * A function body looks like this:
 *
 *     ENTER(nvmlDeviceGetName, device);
 *     struct gpu *gpu = call_gpu(&call, device);
 *     if (gpu) ... call.result = ...
 *     return call_end(&call);
 *
 * ENTER returns from the function when a fault, or a missing session, decides the call. After it the state is locked
 * until call_end. Sleeping (latency, hangs) happens without the lock: a slow card delays nobody but its caller.
 */
#ifndef GPUSIM_CALL_H
#define GPUSIM_CALL_H

#include "abi.h"
#include "instances.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

struct call {
    struct state *state;
    int symbol;
    nvmlReturn_t result;     /* What the function answers; NVML_SUCCESS until something says otherwise. */
    nvmlReturn_t override;   /* A fault of mode "after": answered instead, once the effect took place. */
    nvmlReturn_t activation; /* A fault of mode "activation": what nvmlDeviceSetMigMode reports. */
    struct journal_entry entry; /* What a write leaves in the journal. */
};

#define ENTER(name, handle)                                                            \
    struct call call;                                                                  \
    nvmlReturn_t entered = call_begin(&call, SYMBOL_##name, (const void *)(handle));   \
    if (entered != NVML_SUCCESS)                                                       \
    return entered

nvmlReturn_t call_begin(struct call *call, int symbol, const void *handle);

/* For functions that name a card in another way than by handle; `gpu` is its slot, or ANY. */
nvmlReturn_t call_begin_at(struct call *call, int symbol, int gpu);
nvmlReturn_t call_end(struct call *call);

/* The whole of a function that this library does not offer. */
nvmlReturn_t call_unimplemented(int symbol);

/* Records the first error of a call; returns 0 when `condition` does not hold. */
int call_require(struct call *call, int condition, nvmlReturn_t otherwise);

/* Requires the right to change cards. */
int call_privileged(struct call *call);

/* Handles carry where they point and the generation that they point to, never an address. */
enum handle_kind { HANDLE_GPU = 1, HANDLE_GPU_INSTANCE, HANDLE_COMPUTE_INSTANCE, HANDLE_MIG_DEVICE };

struct handle {
    enum handle_kind kind;
    int gpu, gpu_instance, compute_instance;
    uint32_t generation;
};

void *handle_encode(struct handle handle);
int handle_decode(const void *value, struct handle *handle);

nvmlDevice_t handle_of_gpu(const struct call *call, int slot);
nvmlGpuInstance_t handle_of_instance(const struct call *call, int slot, int instance);
nvmlComputeInstance_t handle_of_compute(const struct call *call, int slot, int instance, int compute);
nvmlDevice_t handle_of_mig_device(const struct call *call, int slot, int instance, int compute);

/*
 * Resolve a handle; on failure they set call.result and return NULL. A stale handle is an invalid argument, a lost
 * card is reported as such.
 */
struct gpu *call_gpu(struct call *call, nvmlDevice_t device);
struct gpu *call_instance(struct call *call, nvmlGpuInstance_t handle, int *slot, int *instance);
struct gpu *call_compute(struct call *call, nvmlComputeInstance_t handle, int *slot, int *instance, int *compute);

/* Either a card (instance and compute become NONE) or a MIG device. */
struct gpu *call_device(struct call *call, nvmlDevice_t device, int *instance, int *compute);

int slot_of(const struct call *call, const struct gpu *gpu);

/* Whether this process may see a card or a MIG device: in a container only what was injected exists. */
int visible_gpu(const struct call *call, int slot);
int visible_mig_device(const struct call *call, int slot, int instance, int compute);

/* The index of a MIG device among those that this process sees: a container counts only its own. */
int seen_mig_index(const struct call *call, int slot, int instance, int compute);

/* Copies a string into a caller's buffer. */
void call_copy(struct call *call, char *buffer, unsigned int length, const char *text);

/*
 * The session of this process. Opening fails with the errno of mapping the state in `reason`; closing answers 0 when
 * nothing was open and 2 when it ended the session. Every acquired state is released once. The directory of a session
 * has the driver root below it.
 */
int session_open(int *reason);
int session_close(void);
struct state *session_acquire(void);
void session_release(struct state *state);
const char *session_directory(const struct state *state);
int session_sees_everything(const struct state *state);

/* Event sets end with the session. */
void event_sets_forget(void);

#endif
