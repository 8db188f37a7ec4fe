// SPDX-License-Identifier: Apache-2.0
// The strings of a vocabulary and their ids.
#include "data/vocab.h"

#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SHIFTED_BYTES 68 // bytes that Latin-1 does not print

struct span {
    size_t start;
    uint32_t bytes;
    uint32_t used;
};

struct vocab {
    char *text; // all strings, one after another
    size_t text_bytes, text_capacity;
    struct span *spans; // [capacity] by id
    int32_t size, capacity;
    int32_t *slots; // [slot_count] id, or -1; open addressing
    size_t slot_count, count;
};

static uint64_t text_hash(const char *text, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325; // FNV-1a
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ (uint8_t)text[i]) * 0x100000001b3;
    return h ^ (h >> 32);
}

static size_t slot_find(const struct vocab *v, const char *text, size_t bytes)
{
    size_t i = text_hash(text, bytes) & (v->slot_count - 1);

    for (; v->slots[i] >= 0; i = (i + 1) & (v->slot_count - 1)) {
        const struct span *s = &v->spans[v->slots[i]];
        if (s->bytes == bytes && memcmp(v->text + s->start, text, bytes) == 0)
            break;
    }
    return i;
}

static void slots_grow(struct vocab *v, size_t slot_count)
{
    v->slot_count = slot_count;
    v->slots = memory_resize(v->slots, slot_count, sizeof *v->slots);
    memset(v->slots, 0xff, slot_count * sizeof *v->slots);
    for (int32_t id = 0; id < v->size; id++)
        if (v->spans[id].used) {
            const struct span *s = &v->spans[id];
            v->slots[slot_find(v, v->text + s->start, s->bytes)] = id;
        }
}

struct vocab *vocab_create(size_t expected_tokens)
{
    struct vocab *v = memory_zeroed(1, sizeof *v);
    size_t slot_count = 64;

    while (slot_count < 2 * expected_tokens)
        slot_count *= 2;
    slots_grow(v, slot_count);
    return v;
}

void vocab_destroy(struct vocab *v)
{
    if (!v)
        return;
    free(v->text);
    free(v->spans);
    free(v->slots);
    free(v);
}

static void spans_grow(struct vocab *v, int32_t id)
{
    int32_t capacity = v->capacity ? v->capacity : 1024;

    while (capacity <= id)
        capacity *= 2;
    if (capacity != v->capacity)
        v->spans = memory_resize(v->spans, (size_t)capacity, sizeof *v->spans);
    memset(v->spans + v->capacity, 0, (size_t)(capacity - v->capacity) * sizeof *v->spans);
    v->capacity = capacity;
}

int vocab_add(struct vocab *v, const char *text, size_t bytes, int64_t id)
{
    size_t slot;

    if (id < 0 || id >= VOCAB_ID_LIMIT || bytes > UINT32_MAX)
        return -ERANGE;
    spans_grow(v, (int32_t)id);
    if (v->spans[id].used)
        return -EEXIST;
    if (2 * (v->count + 1) > v->slot_count)
        slots_grow(v, 2 * v->slot_count);
    slot = slot_find(v, text, bytes);
    if (v->slots[slot] >= 0)
        return -EEXIST;
    if (v->text_capacity - v->text_bytes < bytes) {
        v->text_capacity = 2 * v->text_capacity + bytes;
        v->text = memory_resize(v->text, v->text_capacity, 1);
    }
    if (bytes)
        memcpy(v->text + v->text_bytes, text, bytes);
    v->spans[id] = (struct span){.start = v->text_bytes, .bytes = (uint32_t)bytes, .used = 1};
    v->text_bytes += bytes;
    v->slots[slot] = (int32_t)id;
    v->count++;
    if (id >= v->size)
        v->size = (int32_t)id + 1;
    return 0;
}

int32_t vocab_find(const struct vocab *v, const char *text, size_t bytes)
{
    return v->slots[slot_find(v, text, bytes)];
}

const char *vocab_text(const struct vocab *v, int64_t id, size_t *bytes)
{
    if (id < 0 || id >= v->size || !v->spans[id].used)
        return NULL;
    *bytes = v->spans[id].bytes;
    return v->text + v->spans[id].start;
}

int32_t vocab_size(const struct vocab *v)
{
    return v->size;
}

// The bytes that are not their own character lie in three runs: 0..32, 127..160 and 173.
static int byte_code(uint8_t byte)
{
    if (byte <= 32)
        return 0x100 + byte;
    if (byte >= 127 && byte <= 160)
        return 0x100 + 33 + (byte - 127);
    return byte == 173 ? 0x100 + SHIFTED_BYTES - 1 : byte;
}

size_t byte_character(uint8_t byte, char utf8[2])
{
    int code = byte_code(byte);

    if (code < 0x80) {
        utf8[0] = (char)code;
        return 1;
    }
    utf8[0] = (char)(0xc0 | code >> 6);
    utf8[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

static int code_byte(int code)
{
    int shifted = code - 0x100;

    if (shifted >= SHIFTED_BYTES)
        return -1;
    if (shifted == SHIFTED_BYTES - 1)
        return 173;
    if (shifted >= 0)
        return shifted <= 32 ? shifted : shifted - 33 + 127;
    return byte_code((uint8_t)code) == code ? code : -1;
}

ptrdiff_t byte_string(const char *text, size_t bytes, uint8_t *out)
{
    ptrdiff_t count = 0;

    for (size_t i = 0; i < bytes; i++) {
        int code = (uint8_t)text[i];
        if (code >= 0x80) {
            if (code >= 0xc8 || code < 0xc0 || i + 1 == bytes)
                return -1;
            code = (code & 0x1f) << 6 | ((uint8_t)text[++i] & 0x3f);
        }
        code = code_byte(code);
        if (code < 0)
            return -1;
        out[count++] = (uint8_t)code;
    }
    return count;
}
