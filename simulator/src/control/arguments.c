/* The words of a command line: options, numbers, cards and symbols by name, and the end on a bad one. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("gpusim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static int find_word(const struct command_line *line, const char *name)
{
    for (int i = 0; i < line->count; i++) {
        if (strcmp(line->words[i], name) == 0)
            return i;
        if (strcmp(line->words[i], "--") == 0)
            break;
    }
    return NONE;
}

static void drop_words(struct command_line *line, int position, int count)
{
    line->count -= count;
    memmove(&line->words[position], &line->words[position + count],
            sizeof(*line->words) * (size_t)(line->count - position));
    line->words[line->count] = NULL; /* What is left may become the words of a command. */
}

const char *take_option(struct command_line *line, const char *name)
{
    int position = find_word(line, name);
    if (position == NONE)
        return NULL;
    if (position + 1 >= line->count)
        fail("%s needs a value", name);
    const char *value = line->words[position + 1];
    drop_words(line, position, 2);
    return value;
}

int take_flag(struct command_line *line, const char *name)
{
    int position = find_word(line, name);
    if (position == NONE)
        return 0;
    drop_words(line, position, 1);
    return 1;
}

long long parse_number(const char *text, long long minimum, long long maximum, const char *what)
{
    char *rest;
    errno = 0;
    long long value = strtoll(text, &rest, 0);
    if (errno || rest == text || *rest || value < minimum || value > maximum)
        fail("%s: '%s' is not a number from %lld to %lld", what, text, minimum, maximum);
    return value;
}

int parse_gpu(const struct state *state, const char *text)
{
    if (strcmp(text, "all") == 0)
        return ANY;
    for (uint32_t slot = 0; slot < state->gpu_count; slot++)
        if (strcmp(state->gpus[slot].uuid, text) == 0)
            return (int)slot;
    return (int)parse_number(text, 0, (long long)state->gpu_count - 1, "GPU");
}

int parse_symbol(const char *text, uint8_t *family)
{
    *family = 0;
    if (strcmp(text, "*") == 0)
        return SYMBOL_ANY;
    if (strcmp(text, "writes") == 0)
        return SYMBOL_WRITES;
    for (int symbol = 0; symbol < SYMBOL_COUNT; symbol++)
        if (strcmp(symbol_table[symbol].name, text) == 0) {
            size_t length = strlen(text);
            *family = !(length > 3 && strncmp(text + length - 3, "_v", 2) == 0);
            return symbol;
        }
    /* Some functions have only versioned names; the bare one means all of them. */
    for (int symbol = 0; symbol < SYMBOL_COUNT; symbol++) {
        size_t length = strlen(text);
        if (strncmp(symbol_table[symbol].name, text, length) == 0 &&
            strncmp(symbol_table[symbol].name + length, "_v", 2) == 0) {
            *family = 1;
            return symbol;
        }
    }
    fail("'%s' is no function of the library", text);
}
