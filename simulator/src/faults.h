/* Which calls are delayed or made to fail, for the library and for the tools beside it. */
#ifndef GPUSIM_FAULTS_H
#define GPUSIM_FAULTS_H

#include "state.h"

/* Counts a call, sleeps for its latency and hang, and returns the fault that hits it; `live` is 0 for none. */
struct fault fault_meet(struct state *state, int symbol, int gpu);

/* Writes one line of the journal; sequence and pid are filled in. Call with the lock held. */
void journal_write(struct state *state, struct journal_entry entry);

#endif
