/*
 * The control program: creates a node, turns its knobs and shows its state.
 *
 * Every command is a function of the mapped state and its arguments, and answers with an exit status. Errors are
 * printed to standard error and end the program.
 */
#ifndef GPUSIM_CONTROL_H
#define GPUSIM_CONTROL_H

#include <stdio.h>

#include "../state.h"

struct command_line {
    const char *directory;
    int count;
    char **words; /* What remains after the command and --dir. */
};

/* arguments.c: the words of the command line.
 *
 * Prints a message as printf does and exits with status 2. */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);

/* Removes "--name VALUE" from the words and returns the value, or NULL. */
const char *take_option(struct command_line *line, const char *name);
int take_flag(struct command_line *line, const char *name);

long long parse_number(const char *text, long long minimum, long long maximum, const char *what);

/* A slot by its number or by the card's UUID; "all" gives ANY. */
int parse_gpu(const struct state *state, const char *text);

/* A symbol by its name; sets `family` when the name stands for all versions. "*" and "writes" are understood. */
int parse_symbol(const char *text, uint8_t *family);

/* properties.c: the knobs of cards and of the node, by name. */
void set_gpu_property(struct state *state, int slot, const char *assignment);
void set_node_property(struct state *state, const char *assignment);
void dump_gpu_properties(FILE *out, const struct gpu *gpu);
void dump_node_properties(FILE *out, const struct state *state);
void dump_text(FILE *out, const char *text);
extern const char *const client_kind_names[];
extern const char *const fault_mode_names[];

/* Looks a word up in a NULL-terminated list; fails with the list in the message. */
int parse_word(const char *text, const char *const *names, const char *what);

/* dump.c */
int command_dump(struct state *state, struct command_line *line);

/* init.c */
int command_init(struct command_line *line);

/* commands.c */
int command_fault(struct state *state, struct command_line *line);
int command_latency(struct state *state, struct command_line *line);
int command_client(struct state *state, struct command_line *line);
int command_xid(struct state *state, struct command_line *line);
int command_set(struct state *state, struct command_line *line);
int command_card(struct state *state, struct command_line *line, const char *name);
int command_counters(struct state *state, struct command_line *line);

/* root.c: the driver root and the trees below it. */
void root_create(const char *directory, const struct state *state, int devices);
void root_refresh(const char *directory, const struct state *state);

/* Makes the state reachable from the driver root alone, and from containers that get cards from it. */
void root_link_state(const char *directory);

/* pci_config.c: the configuration space of a card, as an administrator reads it below /sys. */
#define PCI_CONFIG_SIZE 4096
void pci_config_fill(uint8_t space[PCI_CONFIG_SIZE], const struct gpu *gpu, uint64_t first_region,
                     const char *driver_version);

/* exec.c */
int command_exec(struct command_line *line);

#endif
