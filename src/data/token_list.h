// SPDX-License-Identifier: Apache-2.0
// Token ids in a growing array.
#ifndef FL_DATA_TOKEN_LIST_H
#define FL_DATA_TOKEN_LIST_H

#include "base/memory.h"

#include <stddef.h>
#include <stdint.h>

// Starts as {0}; its owner frees ids.
struct token_list {
    int32_t *ids;
    size_t count, capacity;
};

// Room for more ids behind the last one, whose place is returned; the caller counts what it writes.
static inline int32_t *token_list_reserve(struct token_list *list, size_t more)
{
    if (!list->ids || list->capacity - list->count < more) {
        size_t twice = 2 * list->capacity, least = list->count + more;
        list->capacity = twice > least ? twice : least;
        list->ids = memory_resize(list->ids, list->capacity, sizeof *list->ids);
    }
    return list->ids + list->count;
}

#endif
