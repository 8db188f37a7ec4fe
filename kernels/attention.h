// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention confined to each sample, of bf16 rows, and its gradient.
#ifndef FL_KERNELS_ATTENTION_H
#define FL_KERNELS_ATTENTION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTENTION_TILE     128 // rows of one tile
#define ATTENTION_STAT_PAD 128 // rows of stats read beyond the last

// Up to ATTENTION_TILE rows of one sample, from row on; row - first is a multiple of it.
struct attention_tile {
    int32_t row, first, end; // of all tokens; the sample is [first, end)
    int32_t stat;            // row of stats that belongs to token row; a multiple of 4
};

// All pointers are the device's. Rows are packed bf16: qk [tokens, (heads + kv_heads) D] as
// [q | k], qkv [tokens, (heads + 2 kv_heads) D] as [q | k | v]. Rows of other samples count as
// finite: they are multiplied by zero.
struct attention {
    const void *qk, *qkv;
    int tokens, heads, kv_heads, head_dim; // head_dim D: 64 or 128
    int tiles;
    const struct attention_tile *by_keys;    // those with most rows of the sample before them first
    const struct attention_tile *by_queries; // those with most rows after them first
};

// Copies count tiles from host memory, which may be reused at once.
int attention_tiles_store(const struct attention_tile *host, int count,
                          struct attention_tile *device, void *stream);

// out[t, h] = softmax(q[t, h] k^T / sqrt(D)) v over the sample's rows up to t, [tokens, heads D]
// bf16; lse [heads, tokens] fp32: natural logarithms of the softmax denominators.
int sm90_attention_forward(const struct attention *attention, void *out, float *lse, void *stream);

// dqkv as qkv: gradients of q, k and v in full. stats: scratch of [heads, stat_stride] pairs of
// fp32, 16-byte aligned; stat_stride is even and ATTENTION_STAT_PAD above the greatest stat row
// used.
// No atomics: the same inputs give the same bits.
int sm90_attention_backward(const struct attention *attention, const void *out, const float *lse,
                            const void *dout, float *stats, int stat_stride, void *dqkv,
                            void *stream);

#ifdef __cplusplus
}
#endif

#endif
