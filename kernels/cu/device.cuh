// What every kernel is written with; included first by every .cu, and nothing else is.
//
// The same source is compiled three times: to cubins by NVRTC, ahead of time; to PTX by NVRTC on a
// machine whose chip has no cubin; and by the host's C++ compiler for the emulator
// (AQUEDUCT_EMULATED), under which the tests run every kernel without a GPU. So kernels use the
// words of this file, mma.cuh and hopper.cuh, and never a PTX instruction or a CUDA header itself.
#pragma once

#ifdef AQUEDUCT_EMULATED
#include "emulator/emulator.hpp"
#else

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

// A kernel of THREADS threads a block, at least MIN_BLOCKS of which fit a multiprocessor. It has
// one argument, `p`, of the plain struct PARAMS.
#define KERNEL(NAME, PARAMS, THREADS, MIN_BLOCKS)                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)                              \
        NAME(const __grid_constant__ PARAMS p)

#define DEVICE static __device__ __forceinline__

DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 lane_index() { return threadIdx.x & 31; }
DEVICE u32 warp_index() { return threadIdx.x >> 5; }
DEVICE u32 block_x() { return blockIdx.x; }
DEVICE u32 block_y() { return blockIdx.y; }
DEVICE u32 block_z() { return blockIdx.z; }
DEVICE u32 grid_x() { return gridDim.x; }
DEVICE u32 grid_y() { return gridDim.y; }
DEVICE u32 threads_of_block() { return blockDim.x; }

// The block's dynamic shared memory, aligned to 1024 bytes.
DEVICE char* shared_memory() {
    extern __shared__ __align__(1024) char memory[];
    return memory;
}

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
// Waits until THREADS threads (whole warps) have come to barrier ID, 1 to 15.
DEVICE void sync_named(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Comes to barrier ID without waiting.
DEVICE void arrive_named(u32 id, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Of all 32 lanes.
template <typename T>
DEVICE T shuffle_xor(T x, u32 mask) {
    return __shfl_xor_sync(0xffffffffu, x, mask);
}
template <typename T>
DEVICE T shuffle(T x, u32 lane) {
    return __shfl_sync(0xffffffffu, x, lane);
}
template <typename T>
DEVICE T shuffle_up(T x, u32 by) {
    return __shfl_up_sync(0xffffffffu, x, by);
}
DEVICE u32 ballot(bool yes) { return __ballot_sync(0xffffffffu, yes); }
DEVICE u32 bits_set(u32 x) { return __popc(x); }

// Integers alone: sums of floats depend on the order in which threads come.
DEVICE u32 atomic_add(u32* at, u32 x) { return atomicAdd(at, x); }
DEVICE void atomic_or(u32* at, u32 x) { atomicOr(at, x); }

DEVICE f32 fma(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
DEVICE f32 mul(f32 a, f32 b) { return __fmul_rn(a, b); } // never fused with an addition
DEVICE f32 add(f32 a, f32 b) { return __fadd_rn(a, b); }
DEVICE f32 div(f32 a, f32 b) { return __fdiv_rn(a, b); }
DEVICE f32 root(f32 x) { return __fsqrt_rn(x); }
DEVICE f32 fmax(f32 a, f32 b) { return fmaxf(a, b); }
DEVICE f32 exp2_fast(f32 x) { // ex2.approx: 2 ulp
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE f32 log2_fast(f32 x) {
    f32 y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE f32 exp_exact(f32 x) { return expf(x); }
DEVICE f32 log_exact(f32 x) { return logf(x); }
DEVICE f64 exp_wide(f64 x) { return exp(x); }
DEVICE f64 log1p_wide(f64 x) { return log1p(x); } // log(1 + x)
DEVICE bool finite(f32 x) { return isfinite(x); }
DEVICE f32 infinity() { return __int_as_float(0x7f800000); }
DEVICE u32 bits_of(f32 x) { return __float_as_uint(x); }
DEVICE f32 from_bits(u32 x) { return __uint_as_float(x); }
DEVICE i32 nearest(f32 x) { return __float2int_rn(x); } // ties to even

// bf16 as its bits.
DEVICE f32 widen(u16 x) { return __uint_as_float((u32)x << 16); }
// Two f32 rounded to nearest even; `low` is the element that comes first in memory.
DEVICE u32 narrow2(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
DEVICE u16 narrow(f32 x) { return (u16)narrow2(x, 0.0f); }

// 16 bytes at an address that is a multiple of 16.
struct alignas(16) Quad {
    u32 x[4];
};
DEVICE Quad load16(const void* from) {
    uint4 q = *reinterpret_cast<const uint4*>(from);
    return Quad{{q.x, q.y, q.z, q.w}};
}
DEVICE void store16(void* to, Quad q) {
    *reinterpret_cast<uint4*>(to) = make_uint4(q.x[0], q.x[1], q.x[2], q.x[3]);
}
#endif

// x / sqrt(squares). Not a number where squares are beyond f32: x / infinity would make zeros of
// the row, which nobody could tell from good ones.
DEVICE f32 over_root(f32 x, f32 squares) {
    return finite(squares) ? div(x, root(squares)) : squares - squares;
}

// `x`, of which the compiler no longer knows where it comes from: what follows from it is computed
// here and not before the loop, where it would fill registers.
DEVICE u32 opaque(u32 x) {
#ifndef AQUEDUCT_EMULATED
    asm volatile("" : "+r"(x));
#endif
    return x;
}

#include "params.cuh"
