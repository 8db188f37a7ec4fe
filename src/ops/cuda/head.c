// SPDX-License-Identifier: Apache-2.0
// The output head: products of bf16 rows with the vocabulary's matrix.
#include "ops/cuda/products.h"

#include <cublasLt.h>
#include <errno.h>

// A column-major operand.
struct operand {
    const void *data;
    cudaDataType_t type;
    int rows, cols, pitch;
};

static int blas_check(cublasStatus_t status, const char *call, struct fl_error *e)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    return error_set(e, -EIO, "output head: %s: %s", call, cublasLtGetStatusString(status));
}

static int layout_create(const struct operand *o, cublasLtMatrixLayout_t *layout,
                         struct fl_error *e)
{
    return blas_check(
        cublasLtMatrixLayoutCreate(layout, o->type, (uint64_t)o->rows, (uint64_t)o->cols, o->pitch),
        "cublasLtMatrixLayoutCreate", e);
}

// Bytes on which an operand's columns begin.
static uint32_t alignment(const struct operand *o)
{
    size_t pitch = (size_t)o->pitch * (o->type == CUDA_R_32F ? 4 : 2);
    uintptr_t bits = (uintptr_t)o->data | (uintptr_t)pitch | 256;

    return (uint32_t)(bits & -bits);
}

static int algorithm_find(struct cuda *cuda, cublasLtMatmulDesc_t desc,
                          const struct operand *const operands[3],
                          const cublasLtMatrixLayout_t layouts[3], cublasLtMatmulAlgo_t *algorithm,
                          struct fl_error *e)
{
    static const cublasLtMatmulPreferenceAttributes_t attributes[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    size_t workspace = CUDA_BLAS_BYTES;
    int found = 0, rc;

    rc = blas_check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate",
                    e);
    if (rc < 0)
        return rc;
    rc = blas_check(cublasLtMatmulPreferenceSetAttribute(preference,
                                                         CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                         &workspace, sizeof workspace),
                    "cublasLtMatmulPreferenceSetAttribute", e);
    for (int i = 0; i < 4 && rc == 0; i++) {
        uint32_t bytes = alignment(operands[i < 3 ? i : 2]);
        rc = blas_check(
            cublasLtMatmulPreferenceSetAttribute(preference, attributes[i], &bytes, sizeof bytes),
            "cublasLtMatmulPreferenceSetAttribute", e);
    }
    if (rc == 0)
        rc = blas_check(cublasLtMatmulAlgoGetHeuristic(cuda->blas, desc, layouts[0], layouts[1],
                                                       layouts[2], layouts[2], preference, 1,
                                                       &result, &found),
                        "cublasLtMatmulAlgoGetHeuristic", e);
    if (rc == 0 && found == 0)
        rc = error_set(e, -EIO, "output head: cuBLASLt has no product of this shape");
    if (rc == 0)
        *algorithm = result.algo;
    cublasLtMatmulPreferenceDestroy(preference);
    return rc;
}

// d = op(a) b, summed in fp32. workspace: scratch of CUDA_BLAS_BYTES.
static int product(struct cuda *cuda, bool a_transposed, const struct operand *a,
                   const struct operand *b, const struct operand *d, void *workspace,
                   struct fl_error *e)
{
    const struct operand *operands[3] = {a, b, d};
    cublasOperation_t op = a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatrixLayout_t layouts[3] = {0};
    cublasLtMatmulDesc_t desc = NULL;
    cublasLtMatmulAlgo_t algorithm;
    float one = 1, zero = 0;
    int rc = blas_check(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                        "cublasLtMatmulDescCreate", e);
    if (rc == 0)
        rc = blas_check(
            cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op),
            "cublasLtMatmulDescSetAttribute", e);
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = layout_create(operands[i], &layouts[i], e);
    if (rc == 0)
        rc = algorithm_find(cuda, desc, operands, layouts, &algorithm, e);
    if (rc == 0)
        rc = blas_check(cublasLtMatmul(cuda->blas, desc, &one, a->data, layouts[0], b->data,
                                       layouts[1], &zero, d->data, layouts[2], (void *)d->data,
                                       layouts[2], &algorithm, workspace, CUDA_BLAS_BYTES,
                                       cuda->stream),
                        "cublasLtMatmul", e);
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            cublasLtMatrixLayoutDestroy(layouts[i]);
    if (desc)
        cublasLtMatmulDescDestroy(desc);
    return rc;
}

int cuda_head_forward(struct ops *ops, const void *h, const uint16_t *head, int rows, real *logits,
                      struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct arena_mark mark = arena_mark(cuda->arena);
    int vocab = ops->model->vocab, hidden = ops->model->hidden, rc;
    void *push[CUDA_SCRATCHES];

    if (rows == 0)
        return 0;
    rc = cuda_push_all(cuda, cuda_head_forward_scratch(), push, e);
    if (rc == 0)
        rc = product(cuda, true, &(struct operand){head, CUDA_R_16BF, hidden, vocab, hidden},
                     &(struct operand){h, CUDA_R_16BF, hidden, rows, hidden},
                     &(struct operand){logits, CUDA_R_32F, vocab, rows, vocab}, push[0], e);
    arena_release(cuda->arena, mark);
    return rc;
}

int cuda_head_backward(struct ops *ops, const real *dlogits, const uint16_t *head, int rows,
                       void *dh, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct arena_mark mark = arena_mark(cuda->arena);
    int vocab = ops->model->vocab, hidden = ops->model->hidden, pitch = (vocab + 7) / 8 * 8, rc;
    void *push[CUDA_SCRATCHES]; // dlogits rounded, cuBLASLt's workspace

    if (rows == 0)
        return 0;
    if ((rc = cuda_push_all(cuda, cuda_head_backward_scratch(ops->model, rows), push, e)) < 0 ||
        (rc = CUDA_CHECK(lora_pack(
                             &(struct lora_pack){
                                 .from = dlogits,
                                 .groups = 1,
                                 .rows = rows,
                                 .cols = vocab,
                                 .rows_padded = rows,
                                 .cols_padded = pitch,
                                 .to = push[0],
                                 .to_cols = pitch,
                             },
                             cuda->stream),
                         e)) < 0)
        goto out;
    rc = product(cuda, false, &(struct operand){head, CUDA_R_16BF, hidden, vocab, hidden},
                 &(struct operand){push[0], CUDA_R_16BF, vocab, rows, pitch},
                 &(struct operand){dh, CUDA_R_16BF, hidden, rows, hidden}, push[1], e);
out:
    arena_release(cuda->arena, mark);
    return rc;
}
