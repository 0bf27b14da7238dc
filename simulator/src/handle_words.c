/*
 * Handles as programs hold them: 64-bit words that look like pointers and point nowhere.
 *
 * The upper 16 bits make an address that no process can have, so that following one by mistake fails at once, and
 * garbage collectors that meet one in a pointer variable know that it is not theirs. The rest says which card,
 * GPU instance and compute instance is meant, and the generation that it had: the same place with another
 * generation is something else.
 */
#include "call.h"

#define TAG 0x4753ULL

void *handle_encode(struct handle handle)
{
    uint64_t word = TAG << 48 | (uint64_t)handle.kind << 44 | (uint64_t)handle.gpu << 38 |
                    (uint64_t)handle.gpu_instance << 33 | (uint64_t)handle.compute_instance << 29 | handle.generation;
    return (void *)(uintptr_t)word;
}

int handle_decode(const void *value, struct handle *handle)
{
    uint64_t word = (uint64_t)(uintptr_t)value;
    if (word >> 48 != TAG)
        return 0;
    handle->kind = (enum handle_kind)(word >> 44 & 0xf);
    handle->gpu = (int)(word >> 38 & 0x3f);
    handle->gpu_instance = (int)(word >> 33 & 0x1f);
    handle->compute_instance = (int)(word >> 29 & 0xf);
    handle->generation = (uint32_t)(word & 0x1fffffff);
    return handle->gpu < MAX_GPUS && handle->gpu_instance < MAX_GPU_INSTANCES &&
           handle->compute_instance < MAX_COMPUTE_INSTANCES;
}
