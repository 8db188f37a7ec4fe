// SPDX-License-Identifier: Apache-2.0
// Rows of the embedding table.
#ifndef FL_KERNELS_EMBED_H
#define FL_KERNELS_EMBED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Stream rows x [tokens, hidden] = table[ids]; table [vocab, hidden] bf16, hidden a multiple of 8.
// All pointers are the device's. Returns 0 or a cudaError_t; no tokens: nothing is queued.
int embed_rows(const uint16_t *table, const int32_t *ids, int tokens, int hidden, uint16_t *x,
               void *stream);

#ifdef __cplusplus
}
#endif

#endif
