// SPDX-License-Identifier: Apache-2.0
// Descriptions of matrices for the bulk tensor copy engine.
#ifndef FL_KERNELS_SM90_TENSOR_MAP_CUH
#define FL_KERNELS_SM90_TENSOR_MAP_CUH

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

// A row-major matrix copied in boxes of box_rows x 128 bytes, swizzled by 128 bytes. base and
// pitch_bytes are multiples of 16; rows and columns beyond the matrix arrive as zeros. Returns 0 or
// a cudaError_t.
static inline int tensor_map_encode(CUtensorMap *map, CUtensorMapDataType type,
                                    uint32_t element_bytes, const void *base, uint64_t rows,
                                    uint64_t columns, uint64_t pitch_bytes, uint32_t box_rows)
{
    static PFN_cuTensorMapEncodeTiled_v12000 encode;
    cuuint64_t dims[2] = {columns, rows}, strides[1] = {pitch_bytes};
    cuuint32_t box[2] = {128 / element_bytes, box_rows}, steps[2] = {1, 1};

    if (!encode) {
        cudaDriverEntryPointQueryResult found;
        void *entry = NULL;
        cudaError_t rc = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                          cudaEnableDefault, &found);
        if (rc != cudaSuccess || found != cudaDriverEntryPointSuccess)
            return rc != cudaSuccess ? rc : cudaErrorSymbolNotFound;
        encode = (PFN_cuTensorMapEncodeTiled_v12000)entry;
    }
    return encode(map, type, 2, (void *)base, dims, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? 0
               : cudaErrorInvalidValue;
}

static inline int tensor_map_bf16(CUtensorMap *map, const void *base, uint64_t rows,
                                  uint64_t columns, uint64_t pitch_bytes, uint32_t box_rows)
{
    return tensor_map_encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, base, rows, columns,
                             pitch_bytes, box_rows);
}

static inline int tensor_map_bytes(CUtensorMap *map, const void *base, uint64_t rows,
                                   uint64_t columns, uint64_t pitch_bytes, uint32_t box_rows)
{
    return tensor_map_encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, base, rows, columns,
                             pitch_bytes, box_rows);
}

#endif
