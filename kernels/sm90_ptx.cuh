// SPDX-License-Identifier: Apache-2.0
// Hopper instructions that CUDA C++ has no names for: barriers of the asynchronous proxy, bulk
// tensor copies, warpgroup matrix products. Names follow the PTX ISA; nothing here decides
// anything.
#ifndef FL_KERNELS_SM90_PTX_CUH
#define FL_KERNELS_SM90_PTX_CUH

#include <cuda.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void mbarrier_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}

// Makes initialised barriers visible to the copy engine and to the cluster.
static __device__ __forceinline__ void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives at the same barrier of another block of the cluster.
static __device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                 "}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

// A warp whose lanes have all come to a warp barrier arrives once, by one lane. racecheck does not
// follow that; for it, builds with FL_EVERY_LANE_ARRIVES let every lane arrive for itself.
#ifdef FL_EVERY_LANE_ARRIVES
#define WARP_ARRIVALS 32
#else
#define WARP_ARRIVALS 1
#endif

// The warp arrives at a barrier of every block of the cluster, its own alone where it is 1.
template <int CLUSTER = 1> static __device__ __forceinline__ void warp_arrive(uint32_t bar)
{
    int lane = threadIdx.x % 32;

    __syncwarp();
    if (CLUSTER == 1) {
        if (WARP_ARRIVALS == 32 || lane == 0)
            mbarrier_arrive(bar);
    } else if (WARP_ARRIVALS == 32) {
        for (int i = 0; i < CLUSTER; i++)
            mbarrier_arrive_cluster(bar, i);
    } else if (lane < CLUSTER) {
        mbarrier_arrive_cluster(bar, lane);
    }
}

static __device__ __forceinline__ void mbarrier_arrive_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra finished;\n"
                 "bra again;\n"
                 "finished:\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void tensor_map_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Box at (x, y) of a two-dimensional tensor into shared memory, counted by bar.
static __device__ __forceinline__ void tensor_load(uint32_t to, const CUtensorMap *map, int x,
                                                   int y, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y)
                 : "memory");
}

// The same into the same place of every block of the cluster whose bit is set in mask.
static __device__ __forceinline__ void tensor_load_multicast(uint32_t to, const CUtensorMap *map,
                                                             int x, int y, uint32_t bar,
                                                             uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "h"(mask)
                 : "memory");
}

// bytes of plain memory, both ends and the size aligned to 16, counted by bar.
static __device__ __forceinline__ void bulk_load(uint32_t to, const void *from, uint32_t bytes,
                                                 uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

// Box at (x, y) of a two-dimensional tensor from shared memory; belongs to the thread's bulk group.
// What the box covers beyond the tensor is not written.
static __device__ __forceinline__ void tensor_store(const CUtensorMap *map, int x, int y,
                                                    uint32_t from)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(from), "r"(x), "r"(y)
        : "memory");
}

static __device__ __forceinline__ void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// The thread's bulk groups but the last PENDING have read their shared memory.
template <int PENDING> static __device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Makes this thread's writes to shared memory visible to the copy engine.
static __device__ __forceinline__ void async_proxy_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

static __device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

template <int N> static __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

static __device__ __forceinline__ float shared_load(uint32_t address)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
    return x;
}

static __device__ __forceinline__ uint4 shared_load_16(uint32_t address)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

static __device__ __forceinline__ void shared_store_8(uint32_t address, float a, float b)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}

// Low half of the descriptor of a K-major tile whose rows are 128 bytes, swizzled by 128 bytes, 8
// rows a group; adding bytes / 16 moves it. The high half is the same for all such tiles. The value
// is broadcast so that the compiler keeps it, and what is added to it, in uniform registers.
static __device__ __forceinline__ uint32_t wgmma_descriptor(uint32_t tile)
{
    return __shfl_sync(0xffffffff, (tile & 0x3ffff) >> 4 | 1 << 16, 0);
}

static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving accumulator reads and writes across the asynchronous product.
static __device__ __forceinline__ void accumulator_fence(float &x)
{
    asm volatile("" : "+f"(x)::"memory");
}

// d[64x128] = (accumulate ? d : 0) + A[64x32] B[128x32]^T, e4m3, both from shared memory.
static __device__ __forceinline__ void wgmma_m64n128k32_e4m3(float (&d)[64], uint32_t a, uint32_t b,
                                                             bool accumulate)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .b64 da, db;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "mov.b64 da, {%64, 0x40000040};\n"
                 "mov.b64 db, {%65, 0x40000040};\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "da, db, p, 1, 1;\n"
                 "}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
                   "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
                   "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
                   "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a), "r"(b), "r"((int)accumulate));
}

// d[64x128] = (accumulate ? d : 0) + A[64x16] B[128x16]^T, bf16, both from shared memory.
static __device__ __forceinline__ void wgmma_m64n128k16_bf16(float (&d)[64], uint32_t a, uint32_t b,
                                                             bool accumulate)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .b64 da, db;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "mov.b64 da, {%64, 0x40000040};\n"
                 "mov.b64 db, {%65, 0x40000040};\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "da, db, p, 1, 1, 0, 0;\n"
                 "}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
                   "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
                   "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
                   "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a), "r"(b), "r"((int)accumulate));
}

// Four 8x8 matrices of 16-bit values from registers to shared memory; lane i gives row i's address.
static __device__ __forceinline__ void stmatrix_x4(uint32_t address, uint32_t a, uint32_t b,
                                                   uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// One thread of the warp, the same each time.
static __device__ __forceinline__ bool elect_one()
{
    uint32_t chosen;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(chosen));
    return chosen;
}

#endif
