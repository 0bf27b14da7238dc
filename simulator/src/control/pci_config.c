/*
 * The configuration space of a card: the header, and the list of capabilities that tells a guest with a slice of a card
 * from a machine with a whole one. Numbers are little-endian; registers and capability ids are those of the PCI
 * specification.
 */
#include <stdlib.h>
#include <string.h>

#include "../abi.h"
#include "control.h"

enum {
    REGISTER_COMMAND = 0x04,
    REGISTER_STATUS = 0x06,
    REGISTER_REVISION = 0x08,
    REGISTER_FIRST_REGION = 0x10,
    REGISTER_SUBSYSTEM = 0x2c,
    REGISTER_CAPABILITIES = 0x34,
    PLACE_POWER = 0x60,
    PLACE_EXPRESS = 0x78,
    PLACE_VENDOR = 0xd0
};

#define CAPABILITY_POWER 0x01
#define CAPABILITY_VENDOR 0x09
#define CAPABILITY_EXPRESS 0x10
#define COMMAND_MEMORY_AND_MASTER 0x0006u
#define STATUS_HAS_CAPABILITIES 0x0010u
#define HOST_VERSION_SIZE 10

static void put(uint8_t *space, unsigned int place, unsigned int bytes, uint64_t value)
{
    for (unsigned int i = 0; i < bytes; i++)
        space[place + i] = (uint8_t)(value >> (8 * i));
}

/*
 * In a guest the vendor's own capability names the driver of the machine below: the letters VF, then one record of
 * number 0 with the driver's version and branch, each cut to ten characters. Guests have the host's version here.
 */
static void put_host_driver(uint8_t *space, const char *driver_version)
{
    char branch[HOST_VERSION_SIZE + 1];
    uint8_t *capability = space + PLACE_VENDOR, *record = capability + 5;
    const unsigned int record_size = 2 + 2 * HOST_VERSION_SIZE;
    capability[0] = CAPABILITY_VENDOR;
    capability[2] = (uint8_t)(5 + record_size);
    memcpy(capability + 3, "VF", 2);
    record[1] = (uint8_t)record_size;
    snprintf(branch, sizeof(branch), "r%u_00", (unsigned int)strtoul(driver_version, NULL, 10) % 100000);
    memcpy(record + 2, driver_version, strnlen(driver_version, HOST_VERSION_SIZE));
    memcpy(record + 2 + HOST_VERSION_SIZE, branch, strlen(branch));
}

void pci_config_fill(uint8_t space[PCI_CONFIG_SIZE], const struct gpu *gpu, uint64_t first_region,
                     const char *driver_version)
{
    int guest = gpu->virtualization == NVML_GPU_VIRTUALIZATION_MODE_VGPU;
    memset(space, 0, PCI_CONFIG_SIZE);
    put(space, 0, 2, CARD_VENDOR);
    put(space, 2, 2, gpu_models[gpu->model].pci_device_id);
    put(space, REGISTER_COMMAND, 2, COMMAND_MEMORY_AND_MASTER);
    put(space, REGISTER_STATUS, 2, STATUS_HAS_CAPABILITIES);
    put(space, REGISTER_REVISION, 4, CARD_CLASS << 8 | CARD_REVISION);
    put(space, REGISTER_FIRST_REGION, 4, first_region);
    put(space, REGISTER_SUBSYSTEM, 4, CARD_SUBSYSTEM << 16 | CARD_VENDOR);
    put(space, REGISTER_CAPABILITIES, 1, PLACE_POWER);
    put(space, PLACE_POWER, 4, CAPABILITY_POWER | PLACE_EXPRESS << 8 | 0x0003 << 16);
    put(space, PLACE_EXPRESS, 4, CAPABILITY_EXPRESS | (guest ? PLACE_VENDOR : 0) << 8 | 0x0002 << 16);
    if (guest)
        put_host_driver(space, driver_version);
}
