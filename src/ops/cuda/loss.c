// SPDX-License-Identifier: Apache-2.0
// Cross entropy on the device.
#include "loss.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/training.h"

#include <errno.h>

int cuda_cross_entropy(struct ops *ops, real *logits, const int32_t *targets, int rows,
                       bool gradient, double scale, double *loss_sum, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    int vocab = ops->model->vocab, rc;
    struct arena_mark mark = arena_mark(cuda->arena);
    void *push[CUDA_SCRATCHES];

    if (vocab > CROSS_ENTROPY_VOCAB_MOST)
        return error_set(e, -EINVAL,
                         "cross entropy: a vocabulary of %d: the GPU's has room for %d words; set "
                         "backend: cpu",
                         vocab, CROSS_ENTROPY_VOCAB_MOST);
    rc = cuda_push_all(cuda, cuda_cross_entropy_scratch(rows), push, e);
    if (rc == 0)
        rc = CUDA_CHECK(sm90_cross_entropy(logits, targets, rows, vocab, gradient, (float)scale,
                                           push[0], loss_sum, cuda->stream),
                        e);
    arena_release(cuda->arena, mark);
    return rc;
}
