// SPDX-License-Identifier: Apache-2.0
// The grouped FP8 product against the exact product of the same quantised inputs; with --time, its
// rate on the two models' shapes.
#include "fp8_gemm.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static int passed, failed;

#define CUDA_CHECK(call)                                                                           \
    do {                                                                                           \
        cudaError_t rc_ = (cudaError_t)(call);                                                     \
        if (rc_ != cudaSuccess) {                                                                  \
            printf("Bail out! %s: %s\n", #call, cudaGetErrorString(rc_));                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static __device__ uint32_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return (uint32_t)x;
}

// Normally distributed e4m3 codes with a deviation of 60, as block-quantised tensors have.
__global__ static void fill_fp8(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        float u = (mix(seed + 2 * i) + 1.0f) * 0x1p-32f, v = mix(seed + 2 * i + 1) * 0x1p-32f;
        float x = 60.0f * sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
        p[i] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    }
}

__global__ static void fill_scale(float *p, size_t n, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] = exp2f(-8.0f + 6.0f * mix(seed + i) * 0x1p-32f);
}

static __device__ float decode(uint8_t x)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3)));
}

static __device__ float bf16(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

__global__ static void fill_bf16(uint16_t *p, size_t n, float size, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] =
            __bfloat16_as_ushort(__float2bfloat16(size * (2.0f * mix(seed + i) * 0x1p-32f - 1.0f)));
}

// Sums of squares of reference and difference, per row of d.
__global__ static void compare(struct fp8_gemm g, double *row_reference, double *row_difference)
{
    int row = blockIdx.x, group = 0, k_blocks = (g.k + 127) / 128, scale_rows = 0;
    __shared__ double sums[2][256];
    double reference = 0, difference = 0;

    while (row >= g.offsets[group + 1])
        group++;
    for (int p = 0; p < g.parts; p++)
        scale_rows += (g.part_rows[p] + 127) / 128;
    for (int n = threadIdx.x; n < g.n; n += blockDim.x) {
        int in_part = n, part = 0, scale_row = 0;
        double sum = 0;
        while (in_part >= g.part_rows[part]) {
            in_part -= g.part_rows[part];
            scale_row += (g.part_rows[part++] + 127) / 128;
        }
        scale_row += in_part / 128;
        for (int kb = 0; kb < k_blocks; kb++) {
            float inner = 0; // exact enough: 128 products of 8 bits
            double block = 0;
            for (int k = kb * 128; k < min(g.k, kb * 128 + 128); k++) {
                inner = decode(g.a[(size_t)row * g.a_pitch + k]) *
                        decode(g.b[((size_t)group * g.n + n) * g.k + k]);
                block += inner;
            }
            sum += block * g.a_scale[(size_t)kb * g.a_scale_stride + row] *
                   g.b_scale[((size_t)group * scale_rows + scale_row) * k_blocks + kb];
        }
        for (int j = 0; j < g.lora_rank; j++)
            sum += (double)g.lora_scale *
                   bf16(g.lora_s[(size_t)row * g.s_columns + part * g.s_part_stride + j]) *
                   bf16(g.lora_b[((size_t)group * g.n + n) * g.lora_rank + j]);
        double got = g.d_is_float
                         ? ((float *)g.d)[(size_t)row * g.n + n]
                         : (double)__bfloat162float(((__nv_bfloat16 *)g.d)[(size_t)row * g.n + n]);
        reference += sum * sum;
        difference += (got - sum) * (got - sum);
    }
    sums[0][threadIdx.x] = reference;
    sums[1][threadIdx.x] = difference;
    __syncthreads();
    if (threadIdx.x == 0) {
        reference = difference = 0;
        for (int i = 0; i < 256; i++) {
            reference += sums[0][i];
            difference += sums[1][i];
        }
        row_reference[row] = reference;
        row_difference[row] = difference;
    }
}

struct problem {
    struct fp8_gemm g;
    std::vector<int32_t> offsets;
    size_t d_bytes;
};

static problem problem_make(std::vector<int> counts, int spare, int n, int k, int parts,
                            bool as_float, int rank, bool shared_s)
{
    problem p;
    memset(&p.g, 0, sizeof p.g);
    p.offsets.push_back(0);
    for (int c : counts)
        p.offsets.push_back(p.offsets.back() + c);
    p.g.rows = p.offsets.back() + spare;
    p.g.n = n;
    p.g.k = k;
    p.g.groups = (int)counts.size();
    p.g.a_pitch = k + 16;
    p.g.lora_rank = rank;
    p.g.s_part_stride = shared_s ? 0 : rank;
    p.g.s_columns = shared_s ? rank : rank * parts;
    p.g.lora_scale = 1.7f;
    p.g.a_scale_stride = (p.g.rows + 3) / 4 * 4;
    p.g.parts = parts;
    p.g.d_is_float = as_float;
    int scale_rows = 0, k_blocks = (k + 127) / 128;
    for (int i = 0; i < parts; i++) {
        p.g.part_rows[i] = n / parts;
        scale_rows += (n / parts + 127) / 128;
    }
    size_t a = (size_t)p.g.rows * p.g.a_pitch, b = (size_t)p.g.groups * n * k;
    size_t as = (size_t)k_blocks * p.g.a_scale_stride,
           bs = (size_t)p.g.groups * scale_rows * k_blocks;
    p.d_bytes = (size_t)p.g.rows * n * (as_float ? 4 : 2);
    uint8_t *pa, *pb;
    float *pas, *pbs;
    int32_t *po;
    CUDA_CHECK(cudaMalloc(&pa, a));
    CUDA_CHECK(cudaMalloc(&pb, b));
    CUDA_CHECK(cudaMalloc(&pas, as * 4));
    CUDA_CHECK(cudaMalloc(&pbs, bs * 4));
    CUDA_CHECK(cudaMalloc(&po, p.offsets.size() * 4));
    CUDA_CHECK(cudaMalloc(&p.g.d, p.d_bytes));
    static uint64_t seed = 1;
    fill_fp8<<<1024, 256>>>(pa, a, seed += 1ull << 40);
    fill_fp8<<<1024, 256>>>(pb, b, seed += 1ull << 40);
    fill_scale<<<256, 256>>>(pas, as, seed += 1ull << 40);
    fill_scale<<<256, 256>>>(pbs, bs, seed += 1ull << 40);
    CUDA_CHECK(cudaMemcpy(po, p.offsets.data(), p.offsets.size() * 4, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemset(p.g.d, 0xff, p.d_bytes)); // NaN
    CUDA_CHECK(cudaDeviceSynchronize());
    if (rank) {
        size_t s = (size_t)p.g.rows * p.g.s_columns, lb = (size_t)p.g.groups * n * rank;
        uint16_t *ps, *plb;
        CUDA_CHECK(cudaMalloc(&ps, s * 2));
        CUDA_CHECK(cudaMalloc(&plb, lb * 2));
        // About the size of the base product, so that neither hides the other.
        fill_bf16<<<1024, 256>>>(ps, s, 30, seed += 1ull << 40);
        fill_bf16<<<1024, 256>>>(plb, lb, 60, seed += 1ull << 40);
        CUDA_CHECK(cudaDeviceSynchronize());
        p.g.lora_s = ps;
        p.g.lora_b = plb;
    }
    p.g.a = pa;
    p.g.b = pb;
    p.g.a_scale = pas;
    p.g.b_scale = pbs;
    p.g.offsets = po;
    return p;
}

static void problem_free(problem &p)
{
    cudaFree((void *)p.g.a);
    cudaFree((void *)p.g.b);
    cudaFree((void *)p.g.a_scale);
    cudaFree((void *)p.g.b_scale);
    cudaFree((void *)p.g.offsets);
    cudaFree((void *)p.g.lora_s);
    cudaFree((void *)p.g.lora_b);
    cudaFree(p.g.d);
}

static void check(const char *name, std::vector<int> counts, int spare, int n, int k, int parts,
                  bool as_float, int rank = 0, bool shared_s = true)
{
    problem p = problem_make(counts, spare, n, k, parts, as_float, rank, shared_s);
    int rows = p.offsets.back();
    double *reference, *difference, total_reference = 0, total_difference = 0, worst = 0;
    bool good = true;

    CUDA_CHECK(sm90_fp8_gemm(&p.g, NULL));
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMallocManaged(&reference, sizeof(double) * (rows + 1)));
    CUDA_CHECK(cudaMallocManaged(&difference, sizeof(double) * (rows + 1)));
    if (rows)
        compare<<<rows, 256>>>(p.g, reference, difference);
    CUDA_CHECK(cudaDeviceSynchronize());
    for (int r = 0; r < rows; r++) {
        total_reference += reference[r];
        total_difference += difference[r];
        worst = std::max(worst, std::isfinite(difference[r]) ? difference[r] / reference[r] : 1e9);
    }
    double error = rows ? sqrt(total_difference / total_reference) : 0;
    good = error <= (as_float ? 5e-4 : 3e-3) && sqrt(worst) <= (as_float ? 2e-3 : 6e-3);
    // Rows that belong to no group keep their poison.
    std::vector<uint8_t> tail((size_t)spare * n * (as_float ? 4 : 2));
    CUDA_CHECK(cudaMemcpy(tail.data(), (char *)p.g.d + p.d_bytes - tail.size(), tail.size(),
                          cudaMemcpyDeviceToHost));
    for (uint8_t t : tail)
        good = good && t == 0xff;
    (good ? passed : failed)++;
    printf("%s %d - %s n %d k %d rank %d %s: error %.2e, worst row %.2e\n", good ? "ok" : "not ok",
           passed + failed, name, n, k, rank, as_float ? "fp32" : "bf16", error, sqrt(worst));
    cudaFree(reference);
    cudaFree(difference);
    problem_free(p);
}

#define TIMED 80 // launches, of which the first quarter warms up

static void time_shape(const char *name, int groups, int rows, int n, int k, int rank = 0)
{
    std::vector<problem> sets;
    std::vector<float> times;
    cudaEvent_t start[TIMED], stop[TIMED];
    size_t bytes = (size_t)groups * n * k + (size_t)rows * (k + 2 * n);
    int count = (int)std::max<size_t>(2, 300000000 / bytes + 1); // rotate past the L2 cache

    for (int i = 0; i < count; i++)
        sets.push_back(
            problem_make(std::vector<int>(groups, rows / groups), 0, n, k, 1, false, rank, true));
    CUDA_CHECK(cudaDeviceSynchronize());
    // The host queues ahead, as in a step: its own time does not count.
    for (int i = 0; i < TIMED; i++) {
        CUDA_CHECK(cudaEventCreate(&start[i]));
        CUDA_CHECK(cudaEventCreate(&stop[i]));
        CUDA_CHECK(cudaEventRecord(start[i]));
        CUDA_CHECK(sm90_fp8_gemm(&sets[i % count].g, NULL));
        CUDA_CHECK(cudaEventRecord(stop[i]));
    }
    CUDA_CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < TIMED; i++) {
        float ms;
        CUDA_CHECK(cudaEventElapsedTime(&ms, start[i], stop[i]));
        if (i >= TIMED / 4)
            times.push_back(ms);
        CUDA_CHECK(cudaEventDestroy(start[i]));
        CUDA_CHECK(cudaEventDestroy(stop[i]));
    }
    std::sort(times.begin(), times.end());
    float ms = times[times.size() / 2];
    printf("# %-28s %4d groups %6d rows n %5d k %5d: %7.1f us %6.0f TFLOP/s\n", name, groups, rows,
           n, k, ms * 1e3, 2.0 * rows * n * k / ms * 1e-9);
    for (problem &p : sets)
        problem_free(p);
}

int main(int argc, char **argv)
{
    int devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("1..0 # SKIP no GPU on this machine\n");
        return 0;
    }
    for (int as_float = 0; as_float < 2; as_float++) {
        check("one group", {256}, 0, 256, 256, 1, as_float);
        check("ragged", {1, 0, 127, 128, 129, 300, 0, 5}, 7, 512, 384, 1, as_float);
        check("ragged tall", {1500, 0, 2047, 1, 900, 1700}, 100, 768, 2048, 1, as_float);
        check("one takes all", {0, 0, 4096, 0}, 3, 1536, 768, 2, as_float);
        check("odd column tiles", {200, 100}, 0, 384, 256, 1, as_float);
        check("odd column tiles, tall", {2000, 1100}, 0, 384, 256, 1, as_float);
        check("partial blocks, parts restart", {33, 64, 190}, 1, 384, 192, 2, as_float);
        check("partial blocks, three parts", {1033, 2064}, 1, 600, 208, 3, as_float);
        check("all empty", {0, 0, 0}, 10, 256, 256, 1, as_float);
        check("many groups", std::vector<int>(256, 9), 0, 256, 512, 1, as_float);
        for (int rank : {16, 48, 112, 128, 256}) {
            check("low rank", {200, 0, 1500, 3}, 5, 768, 512, 2, as_float, rank);
            check("low rank, own s a part", {200, 4000}, 0, 512 * 3, 256, 3, as_float, rank, false);
            check("own s, odd tiles", {200, 31}, 0, 384 * 2, 256, 2, as_float, rank, false);
        }
        check("long k", {300}, 0, 256, 12288, 1, as_float);
    }
    if (argc > 1 && !strcmp(argv[1], "--time")) {
        time_shape("dense qkv", 1, 4096, 5120, 2048);
        time_shape("dense proj", 1, 4096, 2048, 4096);
        time_shape("30B EP 8 gate_up", 16, 32768, 1536, 2048);
        time_shape("30B EP 8 gate_up, rank 16", 16, 32768, 1536, 2048, 16);
        time_shape("30B EP 8 gate_up, rank 128", 16, 32768, 1536, 2048, 128);
        time_shape("30B EP 8 down", 16, 32768, 2048, 768);
        time_shape("30B EP 8 dX of gate_up", 16, 32768, 2048, 1536);
        time_shape("30B EP 8 dX of down", 16, 32768, 768, 2048);
        time_shape("30B EP 1 gate_up", 128, 32768, 1536, 2048);
        time_shape("30B EP 1 down", 128, 32768, 2048, 768);
        time_shape("480B EP 8 gate_up", 20, 30720, 5120, 6144);
        time_shape("480B EP 8 down", 20, 30720, 6144, 2560);
    }
    printf("1..%d\n", passed + failed);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
