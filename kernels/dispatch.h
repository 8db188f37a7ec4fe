// SPDX-License-Identifier: Apache-2.0
// Where rows go: the plan of a dispatch, copies of rows by index, and the sum of a token's rows.
//
// S slots (tokens * top_k), E experts. All launchers: queued on stream (a cudaStream_t), 0 or a
// cudaError_t.
#ifndef FL_KERNELS_DISPATCH_H
#define FL_KERNELS_DISPATCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DISPATCH_EXPERTS_MOST 512
#define DISPATCH_PART         1024 // slots one block counts
#define DISPATCH_PARTS(slots) (((slots) + DISPATCH_PART - 1) / DISPATCH_PART)

struct dispatch_plan {
    const int32_t *ids;  // [S]
    const uint8_t *kept; // [S]
    int32_t *before;     // scratch [DISPATCH_PARTS(S), E]
    int32_t *first;      // scratch [E]
    int32_t *order;      // [S] slots that are kept, by expert, then by slot
    int32_t *position;   // [S] the inverse; -1 where not kept
    int64_t *counts;     // [E]
    int slots, experts;
};

// Counting sort; the same in every run.
int dispatch_plan(const struct dispatch_plan *plan, void *stream);

// Consecutive numbers: index[row + i] = arrival + i for i in [0, next segment's row - row).
struct dispatch_segment {
    int32_t row, arrival;
};
// segments [count + 1]: the last one ends the one before.
int dispatch_regroup(const struct dispatch_segment *segments, int count, int32_t *index,
                     void *stream);

// to[i] = from[index[i] / divide], zeros where index[i] < 0; rows of row_bytes.
int dispatch_gather(const void *from, const int32_t *index, int divide, int rows, size_t row_bytes,
                    void *to, void *stream);
// to[index[i]] = from[i].
int dispatch_scatter(const void *from, const int32_t *index, int rows, size_t row_bytes, void *to,
                     void *stream);

// out[t] = residual[t] + sum over k of weights[t, k] * rows[position[t, k]] in fp32 in the order of
// k, rounded once; bf16 rows of pitch elements, a multiple of 8. Products and sums round
// separately, as on the CPU. residual NULL: 0, else it may be out; weights NULL: 1; position < 0:
// no row.
int dispatch_combine(const uint16_t *rows, const int32_t *position, const float *weights,
                     const uint16_t *residual, int tokens, int top_k, int pitch, uint16_t *out,
                     void *stream);

#ifdef __cplusplus
}
#endif

#endif
