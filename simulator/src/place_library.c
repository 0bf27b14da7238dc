/* Where this code was loaded from: the shared library's own file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

#include "state.h"

int place_of_code(char *resolved)
{
    Dl_info info;
    return dladdr((void *)place_of_code, &info) && info.dli_fname && realpath(info.dli_fname, resolved);
}
