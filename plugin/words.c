// SPDX-License-Identifier: Apache-2.0
// The command line of the client this plugin was loaded into.
#include "words.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_LIMIT ((size_t)4 << 20) // bytes; Linux's own limit is lower by default

int words_read(struct words *words, struct fl_error *e)
{
    size_t used = 0, room = 1 << 12;
    char *bytes = NULL;
    ssize_t got = 1;
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return error_set(e, -errno, "/proc/self/cmdline: %s", strerror(errno));
    while (got > 0 && used < WORDS_LIMIT) {
        if (!bytes || used == room) {
            char *more = realloc(bytes, room *= 2);
            if (!more)
                break;
            bytes = more;
        }
        got = read(fd, bytes + used, room - used);
        used += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    if (got != 0 || !used) {
        free(bytes);
        return error_set(e, -EIO, "/proc/self/cmdline: cannot read it as a whole");
    }
    return words_split(bytes, used, words, e);
}

int words_split(char *bytes, size_t size, struct words *words, struct fl_error *e)
{
    int count = 0;

    *words = (struct words){.bytes = bytes};
    if (!size || bytes[size - 1]) {
        words_free(words);
        return error_set(e, -EINVAL, "command line: does not end");
    }
    for (size_t i = 0; i < size; i++)
        count += !bytes[i];
    words->argv = calloc((size_t)count + 1, sizeof *words->argv);
    if (!words->argv) {
        words_free(words);
        return error_set(e, -ENOMEM, "command line: no memory");
    }
    for (char *word = bytes; words->argc < count; word += strlen(word) + 1)
        words->argv[words->argc++] = word;
    return 0;
}

void words_free(struct words *words)
{
    free(words->argv);
    free(words->bytes);
    *words = (struct words){0};
}

static int bounded_end(const struct words *words, int end)
{
    return end < words->argc ? end : words->argc;
}

// Whether word is --name, --name=VALUE, or an abbreviation of at least shortest characters.
static int names_option(const char *word, const char *name, size_t shortest)
{
    size_t length;

    if (word[0] != '-' || word[1] != '-')
        return 0;
    length = strcspn(word + 2, "=");
    return length >= shortest && length <= strlen(name) && !strncmp(word + 2, name, length);
}

const char *words_option(const struct words *words, int end, const char *name)
{
    for (int i = 1; i < bounded_end(words, end); i++) {
        if (!strcmp(words->argv[i], "--"))
            break;
        if (names_option(words->argv[i], name, 2))
            return words->argv[i];
    }
    return NULL;
}

static int number(const char *text)
{
    char *rest;
    long value = text && isdigit((unsigned char)*text) ? strtol(text, &rest, 10) : 0;

    return value > 0 && value <= 1 << 24 && !*rest ? (int)value : 0;
}

// What the word at i carries as the option --name or -letter; NULL: it is another.
static const char *value_at(const struct words *words, int i, const char *name, size_t shortest,
                            char letter)
{
    const char *word = words->argv[i];

    if (letter && word[0] == '-' && word[1] == letter)
        return word[2] ? word + 2 : words->argv[i + 1];
    if (names_option(word, name, shortest))
        return strchr(word, '=') ? strchr(word, '=') + 1 : words->argv[i + 1];
    return NULL;
}

const char *words_value(const struct words *words, int end, const char *name, size_t shortest,
                        char letter)
{
    const char *last = NULL;

    for (int i = 1; i < bounded_end(words, end) && strcmp(words->argv[i], "--"); i++) {
        const char *value = value_at(words, i, name, shortest, letter);
        last = value ? value : last;
    }
    return last;
}

int words_tasks(const struct words *words, int end)
{
    int tasks = 0;

    for (int i = 1; i < bounded_end(words, end) && strcmp(words->argv[i], "--"); i++) {
        int n = number(value_at(words, i, "ntasks", strlen("ntasks"), 'n'));
        tasks = n ? n : tasks;
    }
    return tasks;
}
