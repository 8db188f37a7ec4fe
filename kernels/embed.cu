// SPDX-License-Identifier: Apache-2.0
// Rows of the embedding table, 16 bytes an access.
#include "embed.h"
#include "rows.cuh"

#include <cuda_runtime.h>

#define THREADS 256
#define EACH    4 // accesses of a thread

__global__ static void __launch_bounds__(THREADS)
    embed_kernel(const uint4 *table, const int32_t *ids, unsigned items, unsigned chunks, uint4 *x)
{
    unsigned item = blockIdx.x * (THREADS * EACH) + threadIdx.x;
    uint4 value[EACH];

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        unsigned at = item + i * THREADS, token = at / chunks;
        if (at < items)
            value[i] = __ldg(table + (size_t)ids[token] * chunks + (at - token * chunks));
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (item + i * THREADS < items)
            x[item + i * THREADS] = value[i];
}

int embed_rows(const uint16_t *table, const int32_t *ids, int tokens, int hidden, uint16_t *x,
               void *stream)
{
    unsigned chunks = (unsigned)hidden / CHUNK, items = (unsigned)tokens * chunks;

    if (tokens <= 0 || hidden <= 0)
        return 0;
    if (hidden % CHUNK)
        return cudaErrorInvalidValue;
    embed_kernel<<<(items + THREADS * EACH - 1) / (THREADS * EACH), THREADS, 0,
                   (cudaStream_t)stream>>>(reinterpret_cast<const uint4 *>(table), ids, items,
                                           chunks, reinterpret_cast<uint4 *>(x));
    return cudaGetLastError();
}
