// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding of pretokens.
#include "data/bpe.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define SHORT_PRETOKEN 64 // bytes; up to here a scan for the lowest rank beats a heap
#define CACHE_BITS     16 // slots of one cache line each: 4 MiB
#define CACHE_TEXT     30
#define CACHE_IDS      8

#define NO_RULE    UINT64_MAX
#define EMPTY_PAIR UINT64_MAX

struct slot {
    uint64_t pair; // left << 32 | right
    uint64_t rule; // rank << 32 | id
};

struct bpe {
    int32_t bytes[256];
    struct slot *slots; // open addressing
    unsigned bits;      // 1 << bits slots
    size_t count;
};

// A pretoken and its tokens. Each text has one slot; a later one with the same hash replaces it.
struct cached {
    uint8_t text_bytes, count;
    char text[CACHE_TEXT];
    int32_t ids[CACHE_IDS];
};

// One token of a long pretoken, in a list without its dead neighbours.
struct node {
    int32_t id, previous, next; // -1: dead, none, none
};

struct candidate {
    uint64_t rule;
    int32_t place; // of the left node
};

struct bpe_state {
    struct cached *cache;
    struct node *nodes;
    struct candidate *heap;
    size_t node_capacity, heap_count;
};

static uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15;
    return x ^ (x >> 32);
}

static struct slot *slot_find(const struct bpe *b, uint64_t pair)
{
    size_t mask = ((size_t)1 << b->bits) - 1, i = mix(pair) & mask;

    while (b->slots[i].pair != pair && b->slots[i].pair != EMPTY_PAIR)
        i = (i + 1) & mask;
    return &b->slots[i];
}

static void slots_grow(struct bpe *b, unsigned bits)
{
    struct slot *old = b->slots;
    size_t old_count = old ? (size_t)1 << b->bits : 0;

    b->bits = bits;
    b->slots = memory_zeroed((size_t)1 << bits, sizeof *b->slots);
    memset(b->slots, 0xff, sizeof *b->slots << bits);
    for (size_t i = 0; i < old_count; i++)
        if (old[i].pair != EMPTY_PAIR)
            *slot_find(b, old[i].pair) = old[i];
    free(old);
}

struct bpe *bpe_create(const int32_t bytes[256], size_t rules)
{
    struct bpe *b = memory_zeroed(1, sizeof *b);
    unsigned bits = 6;

    memcpy(b->bytes, bytes, sizeof b->bytes);
    while ((size_t)1 << bits < 2 * rules)
        bits++;
    slots_grow(b, bits);
    return b;
}

void bpe_destroy(struct bpe *b)
{
    if (!b)
        return;
    free(b->slots);
    free(b);
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    struct slot *slot;

    if (2 * (b->count + 1) > (size_t)1 << b->bits)
        slots_grow(b, b->bits + 1);
    slot = slot_find(b, pair_key(left, right));
    b->count += slot->pair == EMPTY_PAIR;
    slot->pair = pair_key(left, right);
    slot->rule = (uint64_t)rank << 32 | (uint32_t)id;
}

static uint64_t rule_find(const struct bpe *b, int32_t left, int32_t right)
{
    return slot_find(b, pair_key(left, right))->rule; // an empty slot's is NO_RULE
}

struct bpe_state *bpe_state_create(void)
{
    struct bpe_state *state = memory_zeroed(1, sizeof *state);

    state->cache = memory_zeroed((size_t)1 << CACHE_BITS, sizeof *state->cache);
    return state;
}

void bpe_state_destroy(struct bpe_state *state)
{
    if (!state)
        return;
    free(state->cache);
    free(state->nodes);
    free(state->heap);
    free(state);
}

// rules[i] is the rule of ids[i] and ids[i + 1]. Returns how many ids are left.
static size_t merge_short(const struct bpe *b, int32_t *ids, size_t count)
{
    uint64_t rules[SHORT_PRETOKEN];

    for (size_t i = 0; i + 1 < count; i++)
        rules[i] = rule_find(b, ids[i], ids[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (rules[i] < rules[best])
                best = i;
        if (rules[best] == NO_RULE)
            break;
        ids[best] = (int32_t)(uint32_t)rules[best];
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
        memmove(rules + best, rules + best + 1, (count - best - 1) * sizeof *rules);
        if (best > 0)
            rules[best - 1] = rule_find(b, ids[best - 1], ids[best]);
        if (best + 1 < count)
            rules[best] = rule_find(b, ids[best], ids[best + 1]);
    }
    return count;
}

static int candidate_before(const struct candidate *x, const struct candidate *y)
{
    return x->rule != y->rule ? x->rule < y->rule : x->place < y->place;
}

static void heap_push(struct bpe_state *state, struct candidate c)
{
    size_t i = state->heap_count++;

    for (; i > 0 && candidate_before(&c, &state->heap[(i - 1) / 2]); i = (i - 1) / 2)
        state->heap[i] = state->heap[(i - 1) / 2];
    state->heap[i] = c;
}

static struct candidate heap_pop(struct bpe_state *state)
{
    struct candidate *heap = state->heap, top = heap[0], last = heap[--state->heap_count];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < state->heap_count) {
        if (child + 1 < state->heap_count && candidate_before(&heap[child + 1], &heap[child]))
            child++;
        if (!candidate_before(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

// Considers the pair whose left node is at place.
static void pair_push(const struct bpe *b, struct bpe_state *state, int32_t place)
{
    const struct node *left = &state->nodes[place];
    uint64_t rule;

    if (left->next < 0)
        return;
    rule = rule_find(b, left->id, state->nodes[left->next].id);
    if (rule != NO_RULE)
        heap_push(state, (struct candidate){.rule = rule, .place = place});
}

// A merge removes a node and offers at most two pairs, so the heap never holds more than 3 a node.
static size_t merge_long(const struct bpe *b, struct bpe_state *state, int32_t *ids, size_t count)
{
    struct node *nodes;
    size_t left = 0;

    if (state->node_capacity < count) {
        state->node_capacity = count;
        state->nodes = memory_resize(state->nodes, count, sizeof *state->nodes);
        state->heap = memory_resize(state->heap, 3 * count, sizeof *state->heap);
    }
    nodes = state->nodes;
    state->heap_count = 0;
    for (int32_t i = 0; i < (int32_t)count; i++)
        nodes[i] = (struct node){ids[i], i - 1, i + 1 < (int32_t)count ? i + 1 : -1};
    for (int32_t i = 0; i < (int32_t)count; i++)
        pair_push(b, state, i);
    while (state->heap_count) {
        struct candidate c = heap_pop(state);
        struct node *node = &nodes[c.place], *gone;

        if (node->id < 0 || node->next < 0)
            continue;
        gone = &nodes[node->next];
        if (rule_find(b, node->id, gone->id) != c.rule)
            continue; // one of the two has been merged since
        node->id = (int32_t)(uint32_t)c.rule;
        node->next = gone->next;
        gone->id = -1;
        if (node->next >= 0)
            nodes[node->next].previous = c.place;
        if (node->previous >= 0)
            pair_push(b, state, node->previous);
        pair_push(b, state, c.place);
    }
    for (int32_t i = 0; i >= 0; i = nodes[i].next)
        ids[left++] = nodes[i].id;
    return left;
}

static uint64_t text_hash(const char *text, size_t bytes)
{
    uint64_t h = bytes, part;

    for (; bytes >= 8; text += 8, bytes -= 8) {
        memcpy(&part, text, 8);
        h = mix(h ^ part);
    }
    part = 0;
    memcpy(&part, text, bytes);
    return mix(h ^ part);
}

void bpe_encode(const struct bpe *b, struct bpe_state *state, const char *text, size_t bytes,
                struct token_list *out)
{
    int32_t *ids = token_list_reserve(out, bytes);
    struct cached *cached = NULL;
    size_t count = bytes;

    if (bytes == 0)
        return;
    if (bytes <= CACHE_TEXT) {
        cached = &state->cache[text_hash(text, bytes) >> (64 - CACHE_BITS)];
        if (cached->text_bytes == bytes && memcmp(cached->text, text, bytes) == 0) {
            memcpy(ids, cached->ids, cached->count * sizeof *ids);
            out->count += cached->count;
            return;
        }
    }
    for (size_t i = 0; i < bytes; i++)
        ids[i] = b->bytes[(uint8_t)text[i]];
    count = bytes <= SHORT_PRETOKEN ? merge_short(b, ids, count) : merge_long(b, state, ids, count);
    out->count += count;
    if (cached && count <= CACHE_IDS) {
        cached->text_bytes = (uint8_t)bytes;
        cached->count = (uint8_t)count;
        memcpy(cached->text, text, bytes);
        memcpy(cached->ids, ids, count * sizeof *ids);
    }
}
