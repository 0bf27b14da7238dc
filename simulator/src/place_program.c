/* Where this code was loaded from: the running program. */
#include <stdlib.h>

#include "state.h"

int place_of_code(char *resolved)
{
    return realpath("/proc/self/exe", resolved) != NULL;
}
