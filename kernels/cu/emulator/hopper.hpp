// The words of hopper.cuh. What is asynchronous on the chip happens here as late as it may: a box
// comes when everybody waits, a product is computed at the wait that covers it, and until then its
// sums are NaN. In some blocks, which the seed chooses, everything happens at once instead.
#pragma once

struct TensorMap;

struct alignas(8) Barrier {
    u64 state;
};

namespace emulator {

void barrier_start(Barrier* at, u32 arrivals);
void barrier_come(Barrier* at, u32 bytes);
void barrier_pass(Barrier* at, u32 phase);
void load_box(void* to, const TensorMap* map, Barrier* barrier, i32 x, i32 y, i32 z);
void store_box(const TensorMap* map, const void* from, i32 x, i32 y, i32 z);
void stores_close();
void stores_finish(u32 groups_under_way);
void fence_engine();

// A product of 64 rows by 2 `width` columns; a from `a_registers` or, where that is null, `a_tile`.
struct GroupProduct {
    f32* c;
    u32 width;
    const u32* a_registers;
    u64 a_tile;
    u64 b_tile;
    bool transposed;
    bool keep;
};
extern const Together PRODUCT_BEGIN, PRODUCTS_FENCE, PRODUCTS_CLOSE, PRODUCTS_FINISH;

} // namespace emulator

DEVICE void barrier_init(Barrier* at, u32 arrivals) { emulator::barrier_start(at, arrivals); }
DEVICE void barriers_ready() {}
DEVICE void barrier_arrive(Barrier* at) { emulator::barrier_come(at, 0); }
DEVICE void barrier_expect(Barrier* at, u32 bytes) { emulator::barrier_come(at, bytes); }
DEVICE void barrier_wait(Barrier* at, u32 phase) { emulator::barrier_pass(at, phase); }

DEVICE void tma_load3(void* to, const TensorMap* map, Barrier* barrier, i32 x, i32 y, i32 z) {
    emulator::load_box(to, map, barrier, x, y, z);
}
DEVICE void tma_store3(const TensorMap* map, const void* from, i32 x, i32 y, i32 z) {
    emulator::store_box(map, from, x, y, z);
}
DEVICE void tma_store_commit() { emulator::stores_close(); }
template <int N>
DEVICE void tma_store_wait() {
    emulator::stores_finish(N);
}
DEVICE void tma_prefetch(const TensorMap*) {}
DEVICE void fence_async() { emulator::fence_engine(); }

template <int N>
DEVICE void registers_up() {}
template <int N>
DEVICE void registers_down() {}

DEVICE void wgmma_fence() { emulator::together(emulator::PRODUCTS_FENCE, nullptr); }
DEVICE void wgmma_commit() { emulator::together(emulator::PRODUCTS_CLOSE, nullptr); }
template <int N>
DEVICE void wgmma_wait() {
    u32 groups = N;
    emulator::together(emulator::PRODUCTS_FINISH, &groups);
}
DEVICE u64 wgmma_descriptor(const void* tile, u32 leading_bytes) {
    return (u64)(shared_address(tile) >> 4) | (u64)(leading_bytes >> 4) << 16 |
           (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
DEVICE u64 wgmma_advance(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }
template <int W>
DEVICE void wgmma_hold(f32 (&)[W]) {}
template <bool TRANSPOSED, int W>
DEVICE void wgmma_ss(f32 (&c)[W], u64 a, u64 b, bool keep) {
    static_assert(W == 32 || W == 64 || W == 128, "64, 128 or 256 columns");
    emulator::GroupProduct mine{c, W, nullptr, a, b, TRANSPOSED, keep};
    emulator::together(emulator::PRODUCT_BEGIN, &mine);
}
template <bool TRANSPOSED, int W>
DEVICE void wgmma_rs(f32 (&c)[W], const u32 (&a)[4], u64 b, bool keep) {
    static_assert(W == 32 || W == 64 || W == 128, "64, 128 or 256 columns");
    emulator::GroupProduct mine{c, W, a, 0, b, TRANSPOSED, keep};
    emulator::together(emulator::PRODUCT_BEGIN, &mine);
}
