// SPDX-License-Identifier: Apache-2.0
// Inputs of the products on the GPU and on the CPU at once, from a fixed sequence of random
// numbers.
#ifndef FL_TESTS_GPU_PRODUCTS_FIXTURE_H
#define FL_TESTS_GPU_PRODUCTS_FIXTURE_H

#include "ops/cuda/products.h"

extern struct ops *cpu, *gpu;
extern struct arena *host_arena, *device_arena;

// Backends with arenas of their own.
void backends_create(const struct model *model);
void backends_destroy(void);

// Ends the program with the error of a call that failed.
void require(int rc, const struct fl_error *e);
void require_cuda(int rc);

uint64_t random_next(void);
// Normally distributed with a deviation of size.
float *floats_random(size_t count, float size);

// Device memory full of 0xff.
void *device_poisoned(size_t bytes);
void *device_copy(const void *host, size_t bytes);
// Waits for the device.
void *host_copy(const void *device, size_t bytes);

// The same rows for both backends: reals on the host, a row format on the device.
struct rows {
    int rows, cols;
    float *host;
    void *device;
};

struct rows stream_make(int rows, int cols, float size);
struct rows quantised_make(int rows, int cols, float size);
struct rows output_make(int rows, int cols, size_t device_row_bytes);
void rows_free(struct rows *r);
// The device's values; free() them.
float *rows_read(const struct rows *r, bool quantised);

struct weights {
    struct fp8_matrix host, device;
};

struct weights weights_make(int count, int parts, const int *part_rows, int cols);
void weights_free(struct weights *w);

// Adapters on parts of w; parts_used: a bit for each, 0: one on all rows.
struct adapters_pair {
    struct lora host, device;
    float *da[MATRIX_PARTS], *db[MATRIX_PARTS]; // as they began
    size_t a_count[MATRIX_PARTS], b_count[MATRIX_PARTS];
};

struct adapters_pair adapters_make(const struct fp8_matrix *w, int rank, double dropout,
                                   unsigned parts_used);
void adapters_free(struct adapters_pair *a);

uint64_t *keys_make(int rows, uint64_t **device);

// Prints the times at the shapes of a 30B model.
void products_time(void);

#endif
