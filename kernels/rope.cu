// SPDX-License-Identifier: Apache-2.0
// Head norm and rotary embedding: D / 16 neighbouring lanes take a head, each eight elements of its
// lower half and the eight that turn with them, and several heads of one token in a row, so that
// their loads are in flight together and the angles are read once.
#include "rope.h"
#include "rows.cuh"

#include <cuda_runtime.h>

#define THREADS        256
#define FORWARD_HEADS  4 // heads of a lane
#define BACKWARD_HEADS 2

struct head_halves {
    uint4 low, high;
};

// One double-precision angle a thread: the table is made once a step.
__global__ static void table_kernel(const int32_t *positions, int count, int half, double theta,
                                    float2 *table)
{
    int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    double cosine, sine;

    if (at >= count)
        return;
    sincos(positions[at / half] * pow(theta, -(double)(at % half) / half), &sine, &cosine);
    table[at] = make_float2((float)cosine, (float)sine);
}

int rope_table(const int32_t *positions, int tokens, int head_dim, double theta, float *table,
               void *stream)
{
    int half = head_dim / 2, count = tokens * half;

    if (count <= 0)
        return 0;
    table_kernel<<<(unsigned)(count + 127) / 128, 128, 0, (cudaStream_t)stream>>>(
        positions, count, half, theta, reinterpret_cast<float2 *>(table));
    return cudaGetLastError();
}

static __device__ __forceinline__ void floats_load(const float *from, float v[CHUNK])
{
    float4 low = __ldg(reinterpret_cast<const float4 *>(from));
    float4 high = __ldg(reinterpret_cast<const float4 *>(from) + 1);

    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

// Cosines and sines of a lane's eight angles.
static __device__ __forceinline__ void angles_load(const float *from, float cosine[CHUNK],
                                                   float sine[CHUNK])
{
#pragma unroll
    for (int i = 0; i < CHUNK / 2; i++) {
        float4 two = __ldg(reinterpret_cast<const float4 *>(from) + i);
        cosine[2 * i] = two.x, sine[2 * i] = two.y;
        cosine[2 * i + 1] = two.z, sine[2 * i + 1] = two.w;
    }
}

// The sum over the lanes of a head; all lanes of the warp call it.
template <int LANES> static __device__ __forceinline__ float head_sum(float x)
{
#pragma unroll
    for (int lane = LANES / 2; lane > 0; lane /= 2)
        x += __shfl_xor_sync(0xffffffff, x, lane);
    return x;
}

static __device__ __forceinline__ float squares(const float low[CHUNK], const float high[CHUNK])
{
    float sum = 0;

#pragma unroll
    for (int c = 0; c < CHUNK; c++)
        sum += low[c] * low[c] + high[c] * high[c];
    return sum;
}

// The gradient of the rotated head in low and high becomes that of x.
template <int DIM>
static __device__ __forceinline__ void
head_backward(const head_halves &x, const float *gain, float eps, const float cosine[CHUNK],
              const float sine[CHUNK], float low[CHUNK], float high[CHUNK])
{
    float x_low[CHUNK], x_high[CHUNK], g_low[CHUNK], g_high[CHUNK], dot = 0;

    chunk_unpack(x.low, x_low);
    chunk_unpack(x.high, x_high);
    floats_load(gain, g_low);
    floats_load(gain + DIM / 2, g_high);
    float sum = head_sum<DIM / 16>(squares(x_low, x_high));
    float inverse = 1 / sqrtf(sum / DIM + eps);
#pragma unroll
    for (int c = 0; c < CHUNK; c++) {
        float d_low = low[c], d_high = high[c];
        low[c] = (d_low * cosine[c] + d_high * sine[c]) * g_low[c];
        high[c] = (d_high * cosine[c] - d_low * sine[c]) * g_high[c];
        dot += low[c] * x_low[c] + high[c] * x_high[c];
    }
    float shrink = head_sum<DIM / 16>(dot) / DIM * inverse * inverse * inverse;
#pragma unroll
    for (int c = 0; c < CHUNK; c++) {
        low[c] = low[c] * inverse - x_low[c] * shrink;
        high[c] = high[c] * inverse - x_high[c] * shrink;
    }
}

template <int DIM>
static __device__ __forceinline__ void
head_forward(const head_halves &x, const float *gain, float eps, const float cosine[CHUNK],
             const float sine[CHUNK], float low[CHUNK], float high[CHUNK])
{
    float g_low[CHUNK], g_high[CHUNK];

    chunk_unpack(x.low, low);
    chunk_unpack(x.high, high);
    floats_load(gain, g_low);
    floats_load(gain + DIM / 2, g_high);
    float sum = head_sum<DIM / 16>(squares(low, high));
    float inverse = 1 / sqrtf(sum / DIM + eps);
#pragma unroll
    for (int c = 0; c < CHUNK; c++) {
        float l = low[c] * inverse * g_low[c], h = high[c] * inverse * g_high[c];
        low[c] = l * cosine[c] - h * sine[c];
        high[c] = h * cosine[c] + l * sine[c];
    }
}

// to: qk rows, or with BACKWARD dqkv rows. Lanes past the last token or head take the last one's
// values and store nothing.
template <int DIM, int HEADS, bool BACKWARD>
__global__ static void __launch_bounds__(THREADS)
    rope_kernel(const rope r, uint16_t *to, int groups)
{
    constexpr int LANES = DIM / 16;
    int index = (int)(blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES);
    int token = min(index / groups, r.tokens - 1), group = index % groups;
    int turned = r.heads + r.kv_heads, offset = (int)(threadIdx.x % LANES) * CHUNK;
    size_t row = (size_t)token * (turned + r.kv_heads) * DIM + offset;
    size_t to_row = (size_t)token * (turned + (BACKWARD ? r.kv_heads : 0)) * DIM + offset;
    head_halves x[HEADS], d[HEADS];
    float cosine[CHUNK], sine[CHUNK];

#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        int head = min(group + i * groups, turned - 1);
        const uint16_t *from = r.qkv + row + head * DIM;
        x[i].low = __ldg(reinterpret_cast<const uint4 *>(from));
        x[i].high = __ldg(reinterpret_cast<const uint4 *>(from + DIM / 2));
        if (BACKWARD) {
            from = to + to_row + head * DIM;
            d[i].low = *reinterpret_cast<const uint4 *>(from);
            d[i].high = *reinterpret_cast<const uint4 *>(from + DIM / 2);
        }
    }
    angles_load(r.table + (size_t)token * DIM + 2 * offset, cosine, sine);
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        int head = group + i * groups;
        const float *gain = (head < r.heads ? r.q_gain : r.k_gain) + offset;
        float low[CHUNK], high[CHUNK];
        if (BACKWARD) {
            chunk_unpack(d[i].low, low);
            chunk_unpack(d[i].high, high);
            head_backward<DIM>(x[i], gain, r.eps, cosine, sine, low, high);
        } else {
            head_forward<DIM>(x[i], gain, r.eps, cosine, sine, low, high);
        }
        if (index / groups >= r.tokens || head >= turned)
            continue;
        uint16_t *place = to + to_row + head * DIM;
        *reinterpret_cast<uint4 *>(place) = chunk_pack(low);
        *reinterpret_cast<uint4 *>(place + DIM / 2) = chunk_pack(high);
    }
}

template <int DIM, int HEADS, bool BACKWARD>
static int rope_launch(const rope *r, uint16_t *to, void *stream)
{
    int groups = (r->heads + r->kv_heads + HEADS - 1) / HEADS;
    unsigned units = (unsigned)r->tokens * (unsigned)groups, each = THREADS / (DIM / 16);

    rope_kernel<DIM, HEADS, BACKWARD>
        <<<(units + each - 1) / each, THREADS, 0, (cudaStream_t)stream>>>(*r, to, groups);
    return cudaGetLastError();
}

int rope_forward(const struct rope *rope, uint16_t *qk, void *stream)
{
    if (rope->tokens <= 0)
        return 0;
    if (rope->head_dim == 128)
        return rope_launch<128, FORWARD_HEADS, false>(rope, qk, stream);
    if (rope->head_dim == 64)
        return rope_launch<64, FORWARD_HEADS, false>(rope, qk, stream);
    return cudaErrorInvalidValue;
}

int rope_backward(const struct rope *rope, uint16_t *dqkv, void *stream)
{
    if (rope->tokens <= 0)
        return 0;
    if (rope->head_dim == 128)
        return rope_launch<128, BACKWARD_HEADS, true>(rope, dqkv, stream);
    if (rope->head_dim == 64)
        return rope_launch<64, BACKWARD_HEADS, true>(rope, dqkv, stream);
    return cudaErrorInvalidValue;
}
