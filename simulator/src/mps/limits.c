/* Limits of pinned memory. See mps.h. */
#include <stdlib.h>
#include <string.h>

#include "mps.h"

int limit_is_valid(const char *value)
{
    char *rest;
    unsigned long long amount = strtoull(value, &rest, 10);
    int fits = strlen(value) < sizeof(((struct memory_limit *)0)->value);
    return fits && amount != 0 && *rest && strchr("gGmM", *rest) && !rest[1];
}

int limits_set(struct memory_limit limits[MAX_LIMITS], const char *device, const char *value)
{
    int place = 0;
    if (!*device || strlen(device) >= sizeof(limits->device) || !limit_is_valid(value))
        return 0;
    /* The one that is replaced, or else the oldest when there is no room, makes way: the order is that of setting. */
    while (place < MAX_LIMITS && *limits[place].device && strcmp(limits[place].device, device) != 0)
        place++;
    if (place == MAX_LIMITS)
        place = 0;
    int last = place;
    while (last + 1 < MAX_LIMITS && *limits[last].device && *limits[last + 1].device) {
        limits[last] = limits[last + 1];
        last++;
    }
    snprintf(limits[last].device, sizeof(limits[last].device), "%s", device);
    snprintf(limits[last].value, sizeof(limits[last].value), "%s", value);
    return 1;
}

const char *limits_get(const struct memory_limit limits[MAX_LIMITS], const char *device)
{
    for (int i = 0; i < MAX_LIMITS && *limits[i].device; i++)
        if (strcmp(limits[i].device, device) == 0)
            return limits[i].value;
    return "0G";
}

void limits_apply(const struct memory_limit limits[MAX_LIMITS], char by_place[MAX_DEVICES][24])
{
    for (int i = 0; i < MAX_LIMITS && *limits[i].device; i++) {
        int place = device_place(limits[i].device);
        if (place >= 0)
            memcpy(by_place[place], limits[i].value, sizeof(limits[i].value));
    }
}
