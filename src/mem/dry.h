// SPDX-License-Identifier: Apache-2.0
// Addresses of a dry run: handed out by an arena as ever, with nothing behind them.
#ifndef FL_MEM_DRY_H
#define FL_MEM_DRY_H

#include <stdbool.h>
#include <stdint.h>

// Where the range begins and how long it is, bytes: no processor's user addresses reach so far, so
// that a touch faults, and no plan is too large for it.
#define DRY_BASE  (UINT64_C(1) << 60)
#define DRY_BYTES (UINT64_C(1) << 61)

static inline bool dry_address(const void *at)
{
    return (uintptr_t)at >= DRY_BASE && (uintptr_t)at - DRY_BASE < DRY_BYTES;
}

#endif
