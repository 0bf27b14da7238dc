#include "control.h"
int command_exec(struct command_line *line) { (void)line; fail("not yet"); }
