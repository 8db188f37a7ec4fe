// SPDX-License-Identifier: Apache-2.0
// As much of cuBLASLt as src/ops/cuda calls: every product has an algorithm, none is computed.
#ifndef FL_TESTS_CUDA_STUB_CUBLASLT_H
#define FL_TESTS_CUDA_STUB_CUBLASLT_H

#include "cuda_runtime_api.h"

typedef int cublasStatus_t;
typedef enum { CUDA_R_32F, CUDA_R_16BF } cudaDataType_t;
typedef cudaDataType_t cudaDataType;
typedef enum { CUBLAS_OP_N, CUBLAS_OP_T } cublasOperation_t;
typedef enum { CUBLAS_COMPUTE_32F } cublasComputeType_t;
typedef enum { CUBLASLT_MATMUL_DESC_TRANSA } cublasLtMatmulDescAttributes_t;
typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
} cublasLtMatmulPreferenceAttributes_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef void *cublasLtMatmulDesc_t, *cublasLtMatrixLayout_t, *cublasLtMatmulPreference_t;
typedef struct {
    int number;
} cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
} cublasLtMatmulHeuristicResult_t;
enum { CUBLAS_STATUS_SUCCESS = 0 };

static inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

static inline const char *cublasLtGetStatusString(cublasStatus_t status)
{
    (void)status;
    return "error";
}

static inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout,
                                                        cudaDataType type, uint64_t rows,
                                                        uint64_t cols, int64_t pitch)
{
    (void)type, (void)rows, (void)cols, (void)pitch;
    *layout = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    (void)layout;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    (void)preference;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t attribute,
                                     const void *value, size_t bytes)
{
    (void)preference, (void)attribute, (void)value, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc,
                                                      cublasComputeType_t compute,
                                                      cudaDataType scale)
{
    (void)compute, (void)scale;
    *desc = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    (void)desc;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                               const void *value, size_t bytes)
{
    (void)desc, (void)attribute, (void)value, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t preference, int asked,
                               cublasLtMatmulHeuristicResult_t *result, int *found)
{
    (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)asked;
    memset(result, 0, sizeof *result);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t
cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
               cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
               const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
               cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm,
               void *workspace, size_t bytes, cudaStream_t stream)
{
    (void)handle, (void)desc, (void)alpha, (void)a, (void)a_layout, (void)b, (void)b_layout;
    (void)beta, (void)c, (void)c_layout, (void)d, (void)d_layout, (void)algorithm;
    (void)workspace, (void)bytes, (void)stream;
    return CUBLAS_STATUS_SUCCESS;
}

#endif
