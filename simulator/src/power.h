/* What ends the life of instances from outside: resets, reboots, driver reloads and replaced cards. */
#ifndef GPUSIM_POWER_H
#define GPUSIM_POWER_H

#include "state.h"

/*
 * Each expects the lock to be held. `directory` has the driver root whose capability files follow along.
 *
 * A reset applies pending modes and removes instances. A reload of the driver does so for every card, loses what the
 * driver only remembers (modes of newer cards, compute modes, time slices) and ends every client; a reboot is that with
 * a new boot id. A swap puts another card into the slot.
 */
void power_reset(const char *directory, struct state *state, int slot);
void power_reload(const char *directory, struct state *state);
void power_reboot(const char *directory, struct state *state);
void power_swap(const char *directory, struct state *state, int slot);

/* Gives the card in a slot its identifiers: functions of the node's seed, the slot and how often it was swapped. */
void power_identify(struct state *state, int slot);
void power_new_boot(struct state *state);

#endif
