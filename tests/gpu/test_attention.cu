// SPDX-License-Identifier: Apache-2.0
// Attention of the CUDA backend against an fp64 reference of the same inputs and against the CPU's;
// with --time, its rate at 32/4 heads of 128.
extern "C" {
#include "ops/cuda/flash.h"
#include "ops/cuda/cuda.h"
}

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define GUARD 4096 // poisoned bytes beyond every output

static int passed, failed;
static struct arena *device_arena;

#define CHECK_CUDA(call)                                                                           \
    do {                                                                                           \
        cudaError_t rc_ = (cudaError_t)(call);                                                     \
        if (rc_ != cudaSuccess) {                                                                  \
            printf("Bail out! %s: %s\n", #call, cudaGetErrorString(rc_));                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK(call)                                                                                \
    do {                                                                                           \
        struct fl_error e_ = {};                                                                   \
        if ((call) < 0) {                                                                          \
            printf("Bail out! %s: %s\n", #call, e_.text);                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void report(bool ok, const std::string &name)
{
    printf("%s %d - %s\n", ok ? "ok" : "not ok", passed + failed + 1, name.c_str());
    fflush(stdout);
    (ok ? passed : failed)++;
}

static __device__ uint32_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return (uint32_t)x;
}

__global__ static void fill_normal(__nv_bfloat16 *p, size_t n, float size, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        float u = (mix(seed + 2 * i) + 1.0f) * 0x1p-32f, v = mix(seed + 2 * i + 1) * 0x1p-32f;
        p[i] = __float2bfloat16(size * sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v));
    }
}

// The device's side of one problem.
struct problem {
    struct model model;
    std::vector<int32_t> starts;
    int tokens, samples;
    __nv_bfloat16 *qk, *qkv, *out, *dout, *dqkv;
    float *lse;
    size_t qk_count, qkv_count, out_count, lse_count;
};

static void *allocate(size_t bytes)
{
    void *p;
    CHECK_CUDA(cudaMalloc(&p, bytes + GUARD));
    CHECK_CUDA(cudaMemset(p, 0xff, bytes + GUARD));
    return p;
}

static problem problem_make(int heads, int kv_heads, int dim, const std::vector<int> &lengths)
{
    static uint64_t seed;
    problem p = {};
    p.model.heads = heads;
    p.model.kv_heads = kv_heads;
    p.model.head_dim = dim;
    p.starts.push_back(0);
    for (int length : lengths)
        p.starts.push_back(p.starts.back() + length);
    p.samples = (int)lengths.size();
    p.tokens = p.starts.back();
    p.qk_count = (size_t)p.tokens * (heads + kv_heads) * dim;
    p.qkv_count = (size_t)p.tokens * (heads + 2 * kv_heads) * dim;
    p.out_count = (size_t)p.tokens * heads * dim;
    p.lse_count = (size_t)p.tokens * heads;
    p.qk = (__nv_bfloat16 *)allocate(p.qk_count * 2);
    p.qkv = (__nv_bfloat16 *)allocate(p.qkv_count * 2);
    p.out = (__nv_bfloat16 *)allocate(p.out_count * 2);
    p.dout = (__nv_bfloat16 *)allocate(p.out_count * 2);
    p.dqkv = (__nv_bfloat16 *)allocate(p.qkv_count * 2);
    p.lse = (float *)allocate(p.lse_count * 4);
    fill_normal<<<512, 256>>>(p.qk, p.qk_count, 1.3f, seed += 1000000007);
    fill_normal<<<512, 256>>>(p.qkv, p.qkv_count, 1, seed += 1000000007);
    fill_normal<<<512, 256>>>(p.dout, p.out_count, 1, seed += 1000000007);
    CHECK_CUDA(cudaDeviceSynchronize());
    return p;
}

static void problem_free(problem &p)
{
    for (void *x : {(void *)p.qk, (void *)p.qkv, (void *)p.out, (void *)p.dout, (void *)p.dqkv,
                    (void *)p.lse})
        CHECK_CUDA(cudaFree(x));
}

static void run_forward(struct ops *ops, const problem &p)
{
    CHECK(cuda_attention_forward(ops, p.qk, p.qkv, p.starts.data(), p.samples, p.out, p.lse, &e_));
}

static void run_backward(struct ops *ops, const problem &p)
{
    CHECK(cuda_attention_backward(ops, p.qk, p.qkv, p.out, p.lse, p.dout, p.starts.data(),
                                  p.samples, p.dqkv, &e_));
}

template <typename T> static std::vector<T> download(const T *from, size_t count)
{
    std::vector<T> to(count);
    CHECK_CUDA(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
}

static bool guard_intact(const void *p, size_t bytes)
{
    std::vector<uint8_t> guard = download((const uint8_t *)p + bytes, GUARD);
    return std::all_of(guard.begin(), guard.end(), [](uint8_t x) { return x == 0xff; });
}

static __device__ double block_sum(double x)
{
    __shared__ double sums[256];
    sums[threadIdx.x] = x;
    __syncthreads();
    for (int half = 128; half; half /= 2) {
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    double total = sums[0];
    __syncthreads();
    return total;
}

static __device__ double dot(const __nv_bfloat16 *a, const __nv_bfloat16 *b, int dim)
{
    double sum = 0;
    for (int i = 0; i < dim; i++)
        sum += (double)__bfloat162float(a[i]) * (double)__bfloat162float(b[i]);
    return sum;
}

// One query of one head: out, lse, D and dq. p: a row of scratch for each block in flight.
__global__ static void reference_queries(problem p, const int *first, double *scratch, double *out,
                                         double *lse, double *dots, double *dq)
{
    int heads = p.model.heads, kv = p.model.kv_heads, dim = p.model.head_dim, head = blockIdx.y,
        group = head / (heads / kv);
    size_t wide = (size_t)(heads + kv) * dim, wider = wide + (size_t)kv * dim;
    double scale = 1 / sqrt((double)dim);
    double *row = scratch + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * p.tokens;
    for (int t = blockIdx.x; t < p.tokens; t += gridDim.x) {
        const __nv_bfloat16 *q = p.qk + t * wide + head * dim;
        const __nv_bfloat16 *g = p.dout + ((size_t)t * heads + head) * dim;
        int from = first[t];
        double sum = 0;
        for (int j = from + threadIdx.x; j <= t; j += 256) {
            row[j] = exp(scale * dot(q, p.qk + j * wide + (heads + group) * dim, dim));
            sum += row[j];
        }
        sum = block_sum(sum);
        double d = 0;
        for (int j = from + threadIdx.x; j <= t; j += 256)
            d += row[j] / sum * dot(g, p.qkv + j * wider + (heads + kv + group) * dim, dim);
        d = block_sum(d);
        if (threadIdx.x < dim) {
            double o = 0;
            for (int j = from; j <= t; j++)
                o += row[j] * (double)__bfloat162float(
                                  p.qkv[j * wider + (heads + kv + group) * dim + threadIdx.x]);
            out[((size_t)t * heads + head) * dim + threadIdx.x] = o / sum;
        }
        __syncthreads();
        for (int j = from + threadIdx.x; j <= t; j += 256)
            row[j] *=
                (dot(g, p.qkv + j * wider + (heads + kv + group) * dim, dim) - d) / sum * scale;
        __syncthreads();
        if (threadIdx.x < dim) {
            double x = 0;
            for (int j = from; j <= t; j++)
                x += row[j] *
                     (double)__bfloat162float(p.qk[j * wide + (heads + group) * dim + threadIdx.x]);
            dq[((size_t)t * heads + head) * dim + threadIdx.x] = x;
        }
        if (threadIdx.x == 0) {
            lse[(size_t)head * p.tokens + t] = log(sum);
            dots[(size_t)head * p.tokens + t] = d;
        }
        __syncthreads();
    }
}

// One key of one kv head: dk and dv.
__global__ static void reference_keys(problem p, const int *last, double *scratch,
                                      const double *lse, const double *dots, double *dk, double *dv)
{
    int heads = p.model.heads, kv = p.model.kv_heads, dim = p.model.head_dim, group = blockIdx.y;
    size_t wide = (size_t)(heads + kv) * dim, wider = wide + (size_t)kv * dim;
    double scale = 1 / sqrt((double)dim);
    double *row = scratch + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * p.tokens * 2;
    for (int t = blockIdx.x; t < p.tokens; t += gridDim.x) {
        const __nv_bfloat16 *k = p.qk + t * wide + (heads + group) * dim;
        const __nv_bfloat16 *v = p.qkv + t * wider + (heads + kv + group) * dim;
        double sum_k = 0, sum_v = 0;
        for (int h = group * (heads / kv); h < (group + 1) * (heads / kv); h++) {
            for (int i = t + threadIdx.x; i < last[t]; i += 256) {
                double x = exp(scale * dot(k, p.qk + i * wide + h * dim, dim) -
                               lse[(size_t)h * p.tokens + i]);
                double d = dot(v, p.dout + ((size_t)i * heads + h) * dim, dim);
                row[i * 2] = x;
                row[i * 2 + 1] = x * (d - dots[(size_t)h * p.tokens + i]) * scale;
            }
            __syncthreads();
            if (threadIdx.x < dim)
                for (int i = t; i < last[t]; i++) {
                    sum_v += row[i * 2] * (double)__bfloat162float(
                                              p.dout[((size_t)i * heads + h) * dim + threadIdx.x]);
                    sum_k += row[i * 2 + 1] *
                             (double)__bfloat162float(p.qk[i * wide + h * dim + threadIdx.x]);
                }
            __syncthreads();
        }
        if (threadIdx.x < dim) {
            dk[((size_t)t * kv + group) * dim + threadIdx.x] = sum_k;
            dv[((size_t)t * kv + group) * dim + threadIdx.x] = sum_v;
        }
    }
}

// Relative Frobenius error, and that of the worst row, whose size counts as the mean row's where it
// is smaller: the gradient of a sample's first score is zero but for rounding.
struct deviation {
    double all, worst;
};

// got: rows of pitch values, of which cols from first on are compared with want.
template <typename Got>
static deviation compare(const Got *got, size_t pitch, size_t first, const double *want,
                         size_t rows, size_t cols)
{
    std::vector<double> sizes(rows), errors(rows);
    double reference = 0, difference = 0, worst = 0;
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            double x = want[r * cols + c], d = (double)(float)got[r * pitch + first + c] - x;
            sizes[r] += x * x;
            errors[r] += d * d;
        }
        reference += sizes[r];
        difference += errors[r];
    }
    for (size_t r = 0; r < rows; r++) {
        double error = errors[r] / std::max(sizes[r], reference / (double)rows);
        worst = error > worst || std::isnan(error) ? error : worst;
    }
    return {sqrt(difference / reference), sqrt(worst)};
}

static void judge(const std::string &name, deviation d, double all, double worst)
{
    char text[120];
    snprintf(text, sizeof text, ": %.2e, worst row %.2e", d.all, d.worst);
    report(d.all <= all && d.worst <= worst, name + text);
}

static std::string describe(const problem &p, const char *shape)
{
    return std::to_string(p.model.heads) + "/" + std::to_string(p.model.kv_heads) + " heads x " +
           std::to_string(p.model.head_dim) + ", " + shape;
}

// One output's parts, head by head, against the reference.
static void judge_all(const problem &p, const std::string &name, const double *out,
                      const double *lse, const double *dq, const double *dk, const double *dv)
{
    size_t heads = p.model.heads, kv = p.model.kv_heads, dim = p.model.head_dim, n = p.tokens,
           wide = (heads + 2 * kv) * dim;
    std::vector<__nv_bfloat16> o = download(p.out, p.out_count), d = download(p.dqkv, p.qkv_count);
    std::vector<float> l = download(p.lse, p.lse_count);
    double largest = 0;
    judge(name + ", out", compare(o.data(), heads * dim, 0, out, n, heads * dim), 3e-3, 1e-2);
    for (size_t i = 0; i < p.lse_count; i++) {
        double x = fabs(l[i] - lse[i]);
        largest = x > largest || std::isnan(x) ? x : largest;
    }
    report(largest <= 2e-5, name + ", lse: " + std::to_string(largest));
    judge(name + ", dq", compare(d.data(), wide, 0, dq, n, heads * dim), 5e-3, 2e-2);
    judge(name + ", dk", compare(d.data(), wide, heads * dim, dk, n, kv * dim), 5e-3, 2e-2);
    judge(name + ", dv", compare(d.data(), wide, (heads + kv) * dim, dv, n, kv * dim), 5e-3, 2e-2);
    report(guard_intact(p.out, p.out_count * 2) && guard_intact(p.dqkv, p.qkv_count * 2) &&
               guard_intact(p.lse, p.lse_count * 4),
           name + ", nothing written beyond the rows");
}

static void test_reference(const char *shape, int heads, int kv_heads, int dim,
                           const std::vector<int> &lengths)
{
    problem p = problem_make(heads, kv_heads, dim, lengths);
    struct ops *ops;
    int blocks = std::min(p.tokens, 1024);
    size_t q_count = p.out_count, k_count = (size_t)p.tokens * kv_heads * dim;
    std::vector<int> bounds(2 * p.tokens);
    int *bounds_device;
    double *scratch, *out, *lse, *dots, *dq, *dk, *dv;
    std::string name = describe(p, shape);

    CHECK(ops_cuda_create(&p.model, device_arena, &ops, &e_));
    for (int s = 0; s < p.samples; s++)
        for (int t = p.starts[s]; t < p.starts[s + 1]; t++) {
            bounds[t] = p.starts[s];
            bounds[p.tokens + t] = p.starts[s + 1];
        }
    bounds_device = (int *)allocate(bounds.size() * 4);
    CHECK_CUDA(cudaMemcpy(bounds_device, bounds.data(), bounds.size() * 4, cudaMemcpyHostToDevice));
    scratch = (double *)allocate((size_t)blocks * std::max(heads, 2 * kv_heads) * p.tokens * 8);
    out = (double *)allocate(q_count * 8);
    dq = (double *)allocate(q_count * 8);
    dk = (double *)allocate(k_count * 8);
    dv = (double *)allocate(k_count * 8);
    lse = (double *)allocate(p.lse_count * 8);
    dots = (double *)allocate(p.lse_count * 8);
    reference_queries<<<dim3(blocks, heads), 256>>>(p, bounds_device, scratch, out, lse, dots, dq);
    reference_keys<<<dim3(blocks, kv_heads), 256>>>(p, bounds_device + p.tokens, scratch, lse, dots,
                                                    dk, dv);
    CHECK_CUDA(cudaDeviceSynchronize());
    run_forward(ops, p);
    run_backward(ops, p);
    CHECK_CUDA(cudaStreamSynchronize(cuda_of(ops)->stream));
    judge_all(p, name, download(out, q_count).data(), download(lse, p.lse_count).data(),
              download(dq, q_count).data(), download(dk, k_count).data(),
              download(dv, k_count).data());

    auto bits = download((uint16_t *)p.dqkv, p.qkv_count);
    auto out_bits = download((uint16_t *)p.out, p.out_count);
    run_forward(ops, p);
    run_backward(ops, p);
    CHECK_CUDA(cudaStreamSynchronize(cuda_of(ops)->stream));
    report(bits == download((uint16_t *)p.dqkv, p.qkv_count) &&
               out_bits == download((uint16_t *)p.out, p.out_count),
           name + ", the same bits again");
    for (void *x : {(void *)bounds_device, (void *)scratch, (void *)out, (void *)dq, (void *)dk,
                    (void *)dv, (void *)lse, (void *)dots})
        CHECK_CUDA(cudaFree(x));
    ops_destroy(ops);
    problem_free(p);
}

static std::vector<real> to_reals(const __nv_bfloat16 *from, size_t count)
{
    std::vector<__nv_bfloat16> x = download(from, count);
    std::vector<real> y(count);
    for (size_t i = 0; i < count; i++)
        y[i] = __bfloat162float(x[i]);
    return y;
}

static void test_cpu(const char *shape, int heads, int kv_heads, int dim,
                     const std::vector<int> &lengths)
{
    problem p = problem_make(heads, kv_heads, dim, lengths);
    struct ops *ops, *cpu;
    struct arena *arena;
    std::string name = describe(p, shape) + ", CPU's";

    CHECK(ops_cuda_create(&p.model, device_arena, &ops, &e_));
    CHECK(arena_create_host(0, &arena, &e_));
    CHECK(ops_cpu_create(&p.model, NUMERICS_FP8, arena, &cpu, &e_));
    run_forward(ops, p);
    run_backward(ops, p);
    CHECK_CUDA(cudaStreamSynchronize(cuda_of(ops)->stream));
    std::vector<real> qk = to_reals(p.qk, p.qk_count), qkv = to_reals(p.qkv, p.qkv_count),
                      dout = to_reals(p.dout, p.out_count), out(p.out_count), lse(p.lse_count),
                      dqkv(p.qkv_count);
    CHECK(cpu->attention_forward(cpu, qk.data(), qkv.data(), p.starts.data(), p.samples, out.data(),
                                 lse.data(), &e_));
    CHECK(cpu->attention_backward(cpu, qk.data(), qkv.data(), out.data(), lse.data(), dout.data(),
                                  p.starts.data(), p.samples, dqkv.data(), &e_));
    size_t q = (size_t)heads * dim, k = (size_t)kv_heads * dim, wide = q + 2 * k;
    std::vector<double> o(out.begin(), out.end()), l(lse.begin(), lse.end()), dq, dk, dv;
    for (size_t t = 0; t < (size_t)p.tokens; t++) {
        auto row = dqkv.begin() + t * wide;
        dq.insert(dq.end(), row, row + q);
        dk.insert(dk.end(), row + q, row + q + k);
        dv.insert(dv.end(), row + q + k, row + wide);
    }
    judge_all(p, name, o.data(), l.data(), dq.data(), dk.data(), dv.data());
    ops_destroy(cpu);
    arena_destroy(arena);
    ops_destroy(ops);
    problem_free(p);
}

static void test_empty()
{
    problem p = problem_make(4, 2, 128, {});
    problem q = problem_make(4, 2, 128, {0, 0, 0});
    struct ops *ops;

    CHECK(ops_cuda_create(&p.model, device_arena, &ops, &e_));
    for (const problem &x : {p, q}) {
        run_forward(ops, x);
        run_backward(ops, x);
    }
    CHECK_CUDA(cudaStreamSynchronize(cuda_of(ops)->stream));
    report(guard_intact(p.out, 0) && guard_intact(q.dqkv, 0), "no rows: nothing written");
    ops_destroy(ops);
    problem_free(p);
    problem_free(q);
}

static void time_shape(const char *shape, int heads, int kv_heads, int dim,
                       const std::vector<int> &lengths)
{
    std::vector<problem> sets;
    struct ops *ops;
    double flops = 0;
    const int runs = 12;
    cudaEvent_t from, to;

    for (int i = 0; i < 3; i++)
        sets.push_back(problem_make(heads, kv_heads, dim, lengths));
    CHECK(ops_cuda_create(&sets[0].model, device_arena, &ops, &e_));
    for (int length : lengths)
        flops += 2.0 * length * length * dim * heads;
    CHECK_CUDA(cudaEventCreate(&from));
    CHECK_CUDA(cudaEventCreate(&to));
    for (int backward = 0; backward < 2; backward++) {
        float ms = 0;
        for (int i = -3; i < runs; i++) {
            const problem &p = sets[(i + 3) % 3];
            if (i == 0)
                CHECK_CUDA(cudaEventRecord(from, cuda_of(ops)->stream));
            if (backward)
                run_backward(ops, p);
            else
                run_forward(ops, p);
        }
        CHECK_CUDA(cudaEventRecord(to, cuda_of(ops)->stream));
        CHECK_CUDA(cudaEventSynchronize(to));
        CHECK_CUDA(cudaEventElapsedTime(&ms, from, to));
        printf("# %s, %s: %.1f us, %.0f TFLOP/s\n", describe(sets[0], shape).c_str(),
               backward ? "backward" : "forward", ms * 1e3 / runs,
               flops * (backward ? 2.5 : 1) * runs / ms * 1e-9);
        fflush(stdout);
    }
    ops_destroy(ops);
    for (problem &p : sets)
        problem_free(p);
}

int main(int argc, char **argv)
{
    bool small = argc > 1 && !strcmp(argv[1], "--small"); // for memory checkers
    int devices;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("1..0 # SKIP no GPU\n");
        return 0;
    }
    CHECK(arena_create_device(0, &device_arena, &e_));
    if (argc > 1 && !strcmp(argv[1], "--time")) {
        time_shape("2 x 2048", 32, 4, 128, {2048, 2048});
        time_shape("1 x 16384", 32, 4, 128, {16384});
        time_shape("1 x 16384", 32, 4, 64, {16384});
        arena_destroy(device_arena);
        return 0;
    }
    test_empty();
    for (int dim : {128, 64}) {
        test_reference("ragged", 4, 2, dim, {1, 0, 63, 64, 65, 2, 127, 128, 129, 3, 200});
        test_cpu("ragged", 8, 2, dim, {1, 5, 64, 0, 131, 257});
        if (small)
            continue;
        test_reference("ungrouped", 3, 3, dim, {300, 1, 77});
        test_reference("wide group", 32, 4, dim, {640, 37});
        test_reference("odd group", 6, 2, dim, {515, 1000, 1});
        test_reference("2 x 2048", 8, 1, dim, {2048, 2048});
        test_reference("many short", 4, 1, dim, std::vector<int>(700, 3));
    }
    if (!small)
        test_reference("1 x 16384", 2, 1, 128, {16384});
    arena_destroy(device_arena);
    printf("1..%d\n%d passed, %d failed, 0 skipped\n", passed + failed, passed, failed);
    return failed != 0;
}
