// SPDX-License-Identifier: Apache-2.0
// The driver calls behind device memory, in a table so that tests can stand in for the driver.
#ifndef FL_MEM_DEVICE_H
#define FL_MEM_DEVICE_H

#include "mem/backing.h"

#include <stdint.h>

// Every call returns 0 or a CUresult; handles are the driver's.
struct device_driver {
    int (*reserve)(uint64_t *address, size_t bytes);
    int (*unreserve)(uint64_t address, size_t bytes);
    int (*create)(uint64_t *handle, size_t bytes); // physical memory of the current device
    int (*release)(uint64_t handle);
    int (*map)(uint64_t address, size_t bytes, uint64_t handle); // readable and writable
    int (*unmap)(uint64_t address, size_t bytes);
    int (*zero)(uint64_t address, size_t bytes); // in order with the work queued so far
    int (*finish)(void);                         // waits for all queued work
    const char *(*text)(int result);
};

// driver is kept by reference.
struct backing *backing_device(const struct device_driver *driver);

#endif
