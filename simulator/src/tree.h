/*
 * The files of a driver that come and go with instances: capability files below <node>/root/proc and capability
 * device nodes below <node>/root/dev. A node without such a tree is fine: then nothing is written.
 */
#ifndef GPUSIM_TREE_H
#define GPUSIM_TREE_H

#include "state.h"

/* The minor number of an instance's capability device; `compute` is NONE for the GPU instance itself. */
unsigned int capability_minor(unsigned int gpu_minor, int instance, int compute);

void tree_show(const char *directory, const struct state *state, int slot, int instance, int compute);
void tree_hide(const char *directory, const struct state *state, int slot, int instance, int compute);

#endif
