// What sm_90a adds: the copy engine, its barriers, and matrix products of a warpgroup.
#pragma once
#include "mma.cuh"

#ifndef AQUEDUCT_EMULATED

// A barrier in shared memory that counts arrivals and bytes. `phase` alternates 0, 1, 0, ...
struct alignas(8) Barrier {
    u64 state;
};
// By one thread, before anybody else uses it; then `barriers_ready` and a block barrier.
DEVICE void barrier_init(Barrier* at, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(at)),
                 "r"(arrivals) : "memory");
}
DEVICE void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEVICE void barrier_arrive(Barrier* at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(at)) : "memory");
}
// Arrives, and lets the phase wait for `bytes` of copies besides.
DEVICE void barrier_expect(Barrier* at, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(at)), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(Barrier* at, u32 phase) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra ready;\n"
                 "bra again;\n"
                 "ready:\n"
                 "}" ::"r"(shared_address(at)), "r"(phase) : "memory");
}

// One box of a tensor map into shared memory, counted by `barrier`; coordinates fastest first.
DEVICE void tma_load3(void* to, const TensorMap* map, Barrier* barrier, i32 x, i32 y, i32 z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)), "l"(map),
                 "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z) : "memory");
}
DEVICE void tma_store3(const TensorMap* map, const void* from, i32 x, i32 y, i32 z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::
                     "l"(map), "r"(shared_address(from)), "r"(x), "r"(y), "r"(z) : "memory");
}
DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until the shared memory of all but N groups of stores may be written again.
template <int N>
DEVICE void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
DEVICE void tma_prefetch(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Between ordinary writes to shared memory and their use by wgmma or the copy engine.
DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int N>
DEVICE void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
DEVICE void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Products of a warpgroup: 4 warps, of which the first has an index divisible by 4.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// A tile of bf16 in shared memory with the 128-byte swizzle: rows of 64 elements, groups of eight
// rows 1024 bytes apart. `leading_bytes` is from one block of 64 columns to the next where the
// tile is read across (transposed); else it is not read.
DEVICE u64 wgmma_descriptor(const void* tile, u32 leading_bytes) {
    u64 descriptor = (u64)((shared_address(tile) & 0x3ffff) >> 4);
    descriptor |= (u64)((leading_bytes & 0x3ffff) >> 4) << 16;
    descriptor |= (u64)(1024 >> 4) << 32;
    return descriptor | (u64)1 << 62;
}
// wgmma_ss<N>: c[64, N] (+)= a b with a from shared memory; wgmma_rs<N>: with a from registers
// (the layout of mma_bf16's a, 16 rows a warp). b is [N, 16] (K-major), or [16, N] where TRANSPOSED.
// Without `keep`, what c held is forgotten.
#include "hopper_wgmma.cuh"
#endif
