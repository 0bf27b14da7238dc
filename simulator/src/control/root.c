#include "control.h"
void root_create(const char *directory, const struct state *state, int devices) { (void)directory; (void)state; (void)devices; }
void root_refresh(const char *directory, const struct state *state) { (void)directory; (void)state; }
