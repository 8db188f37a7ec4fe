// SPDX-License-Identifier: Apache-2.0
// What the router's products are made of: fp32 as sums of bf16, the warp's matrix product, copies
// into shared memory that need not be whole.
#ifndef FL_KERNELS_ROUTER_MMA_CUH
#define FL_KERNELS_ROUTER_MMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// bytes (0 to 16) from global memory, zeros after them.
static __device__ __forceinline__ void copy_16(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void copy_4(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int Pending> static __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Four floats of row at column, zeros from column end on and without a row.
static __device__ __forceinline__ void copy_floats(uint32_t to, const float *row, int column,
                                                   int end, bool aligned)
{
    int count = row ? min(max(end - column, 0), 4) : 0;

    if (aligned) {
        copy_16(to, count ? row + column : row, count * 4);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        copy_4(to + 4 * i, i < count ? row + column + i : row, i < count ? 4 : 0);
}

// Two floats as a sum of Parts pairs of bf16, the greatest first; three parts hold fp32 exactly.
template <int Parts>
static __device__ __forceinline__ void split(float x, float y, uint32_t (&parts)[Parts])
{
#pragma unroll
    for (int i = 0; i < Parts; i++) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
        parts[i] = *reinterpret_cast<uint32_t *>(&pair);
        x -= __uint_as_float(parts[i] << 16);
        y -= __uint_as_float(parts[i] & 0xffff0000);
    }
}

// A 16 x 16 tile of bf16 as the first operand of mma.
static __device__ __forceinline__ void load_a(uint32_t (&a)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address)
                 : "memory");
}

// c [16, 8] += a [16, 16] b [16, 8].
static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
