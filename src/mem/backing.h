// SPDX-License-Identifier: Apache-2.0
// Where an arena's memory comes from: a range of addresses, made usable granule by granule.
#ifndef FL_MEM_BACKING_H
#define FL_MEM_BACKING_H

#include "base/error.h"

#include <stddef.h>

struct backing {
    // Reserves a range of addresses; *bytes is wished for and then what was had.
    int (*reserve)(struct backing *backing, size_t *bytes, void **base, struct fl_error *e);
    // Whole granules at a place of the range. -ENOMEM where the system or device has none left.
    int (*map)(struct backing *backing, void *at, size_t bytes, struct fl_error *e);
    // The same granules back, after all work that uses them; they were mapped by any calls of map.
    void (*unmap)(struct backing *backing, void *at, size_t bytes);
    int (*zero)(struct backing *backing, void *at, size_t bytes, struct fl_error *e);
    // What the memory checker is told, NULL without one: a place is handed out, or not in use.
    void (*opened)(void *at, size_t bytes);
    void (*closed)(void *at, size_t bytes);
    // Unmaps nothing: the arena has done so. Releases the range and frees backing.
    void (*destroy)(struct backing *backing, void *base, size_t bytes);
};

struct backing *backing_host(void);
struct backing *backing_dry(void); // arena_create_dry's

struct arena;
// An arena over backing, which it then owns, also where it fails.
int arena_create(struct backing *backing, unsigned long long cap_bytes, struct arena **out,
                 struct fl_error *e);

#endif
