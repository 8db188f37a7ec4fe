// SPDX-License-Identifier: Apache-2.0
// Cross entropy of rows of logits, in place.
#ifndef FL_KERNELS_LOSS_H
#define FL_KERNELS_LOSS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CROSS_ENTROPY_VOCAB_MOST 393216 // what the shared memory of a cluster holds

// logits [rows, vocab]. loss_sum[0] += sum of -log softmax(logits)[target] over targets that are
// not -1, in double and in one order; losses: scratch [rows]. With gradient, logits become scale *
// (softmax - one-hot) rounded to bf16, 0 in masked rows. Queued on stream (a cudaStream_t); 0 or a
// cudaError_t.
int sm90_cross_entropy(float *logits, const int32_t *targets, int rows, int vocab, int gradient,
                       float scale, double *losses, double *loss_sum, void *stream);

#ifdef __cplusplus
}
#endif

#endif
