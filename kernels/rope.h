// SPDX-License-Identifier: Apache-2.0
// RMSNorm of every q and k head and rotary position embedding, in one pass.
//
// Element i of a head of D turns with element i + D/2 by the angle position * theta^(-2i / D). D is
// 64 or 128. qkv: stream rows [tokens, (heads + 2 kv_heads) D]: q heads, k heads, v heads; qk:
// stream rows [tokens, (heads + kv_heads) D]; q_gain, k_gain [D]. All pointers are the device's and
// begin on 16 bytes. The launchers return 0 or a cudaError_t; no tokens: nothing is queued.
#ifndef FL_KERNELS_ROPE_H
#define FL_KERNELS_ROPE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rope {
    const uint16_t *qkv;
    const float *q_gain, *k_gain;
    const float *table; // [tokens, D / 2, 2] cosines and sines
    int tokens, heads, kv_heads, head_dim;
    float eps;
};

int rope_table(const int32_t *positions, int tokens, int head_dim, double theta, float *table,
               void *stream);
int rope_forward(const struct rope *rope, uint16_t *qk, void *stream);
// dqkv: rows as qkv's, where the gradient of the rotated q and k becomes that of qkv.
int rope_backward(const struct rope *rope, uint16_t *dqkv, void *stream);

#ifdef __cplusplus
}
#endif

#endif
