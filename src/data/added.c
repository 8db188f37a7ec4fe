// SPDX-License-Identifier: Apache-2.0
// Added tokens found in text, leftmost and longest.
#include "data/added.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    char *text;
    size_t bytes;
    int32_t id;
};

struct added {
    struct entry *entries; // by first byte, then longest first
    size_t count;
    size_t first[257]; // entries that start with byte b are first[b] .. first[b + 1] - 1
};

struct added *added_create(void)
{
    return memory_zeroed(1, sizeof(struct added));
}

void added_destroy(struct added *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->count; i++)
        free(a->entries[i].text);
    free(a->entries);
    free(a);
}

void added_insert(struct added *a, const char *text, size_t bytes, int32_t id)
{
    uint8_t byte = (uint8_t)text[0];
    size_t place = a->first[byte];
    struct entry *entry;

    while (place < a->first[byte + 1] && a->entries[place].bytes >= bytes) {
        entry = &a->entries[place++];
        if (entry->bytes == bytes && memcmp(entry->text, text, bytes) == 0) {
            entry->id = id;
            return;
        }
    }
    a->entries = memory_resize(a->entries, a->count + 1, sizeof *a->entries);
    entry = a->entries + place;
    memmove(entry + 1, entry, (a->count - place) * sizeof *entry);
    *entry = (struct entry){.text = memory_zeroed(bytes, 1), .bytes = bytes, .id = id};
    memcpy(entry->text, text, bytes);
    a->count++;
    for (size_t b = (size_t)byte + 1; b <= 256; b++)
        a->first[b]++;
}

size_t added_count(const struct added *a)
{
    return a->count;
}

bool added_next(const struct added *a, const char *text, size_t bytes, size_t from, size_t *start,
                size_t *end, int32_t *id)
{
    if (a->count == 0)
        return false;
    for (size_t i = from; i < bytes; i++) {
        uint8_t byte = (uint8_t)text[i];
        for (size_t k = a->first[byte]; k < a->first[byte + 1]; k++) {
            const struct entry *entry = &a->entries[k];
            if (entry->bytes > bytes - i || memcmp(entry->text, text + i, entry->bytes) != 0)
                continue;
            *start = i;
            *end = i + entry->bytes;
            *id = entry->id;
            return true;
        }
    }
    return false;
}
