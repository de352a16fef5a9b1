// Kernels that test the emulator itself; no GPU runs them.
#include "../device.cuh"
#include "../hopper.cuh"

struct Pair {
    const u32* from;
    u32* to;
};

// Registers of every lane as they come: a 4, b 2, c 4 words; c 4 words out.
KERNEL(selftest_mma_bf16, Pair, 32, 1) {
    u32 a[4], b[2];
    f32 c[4];
    const u32* mine = p.from + 10 * lane_index();
    for (int i = 0; i < 4; i++) a[i] = mine[i];
    for (int i = 0; i < 2; i++) b[i] = mine[4 + i];
    for (int i = 0; i < 4; i++) c[i] = from_bits(mine[6 + i]);
    mma_bf16(c, a, b);
    for (int i = 0; i < 4; i++) p.to[4 * lane_index() + i] = bits_of(c[i]);
}

KERNEL(selftest_mma_int8, Pair, 32, 1) {
    u32 a[4], b[2];
    i32 c[4];
    const u32* mine = p.from + 10 * lane_index();
    for (int i = 0; i < 4; i++) a[i] = mine[i];
    for (int i = 0; i < 2; i++) b[i] = mine[4 + i];
    for (int i = 0; i < 4; i++) c[i] = (i32)mine[6 + i];
    mma_int8(c, a, b);
    for (int i = 0; i < 4; i++) p.to[4 * lane_index() + i] = (u32)c[i];
}

// Four matrices of 8 x 8, 128 words; 4 words a lane of ldmatrix4, then 4 of the transposed.
KERNEL(selftest_ldmatrix, Pair, 32, 1) {
    u32* shared = (u32*)shared_memory();
    for (u32 i = lane_index(); i < 128; i += 32) shared[i] = p.from[i];
    sync_warp();
    u32 x[4];
    ldmatrix4(x, shared + 4 * lane_index());
    for (int i = 0; i < 4; i++) p.to[8 * lane_index() + i] = x[i];
    ldmatrix4_transposed(x, shared + 4 * lane_index());
    for (int i = 0; i < 4; i++) p.to[8 * lane_index() + 4 + i] = x[i];
}

// One word a lane; 5 a lane: xor 5, of lane 7, up by 3, votes for odd words, votes that are set.
KERNEL(selftest_shuffles, Pair, 32, 1) {
    u32 x = p.from[lane_index()];
    u32* to = p.to + 5 * lane_index();
    to[0] = shuffle_xor(x, 5);
    to[1] = bits_of(shuffle(from_bits(x), 7));
    to[2] = (u32)shuffle_up((u64)x, 3);
    to[3] = ballot(x & 1);
    to[4] = bits_set(to[3]);
}

// Warp 0 hands words to warp 1 through shared memory, eight times, by two barriers.
KERNEL(selftest_named, Pair, 64, 1) {
    u32* shared = (u32*)shared_memory();
    for (u32 round = 0; round < 8; round++) {
        u32 at = 32 * round + lane_index();
        if (warp_index() == 0) {
            if (round > 0) sync_named(2, 64);
            shared[lane_index()] = p.from[at];
            arrive_named(1, 64);
        } else {
            sync_named(1, 64);
            p.to[at] = shared[31 - lane_index()];
            if (round < 7) arrive_named(2, 64);
        }
    }
}

// Two groups of 16 bytes a thread: what is there before the first has come, after, and at last.
KERNEL(selftest_copies, Pair, 32, 1) {
    u32* shared = (u32*)shared_memory() + 8 * lane_index();
    u32* to = p.to + 6 * lane_index();
    copy_async16(shared, p.from + 8 * lane_index(), true);
    copy_commit();
    copy_async16(shared + 4, p.from + 8 * lane_index() + 4, lane_index() % 2 == 0);
    copy_commit();
    to[0] = shared[0];
    to[1] = shared[4];
    copy_wait<1>();
    to[2] = shared[0];
    to[3] = shared[4];
    copy_wait<0>();
    to[4] = shared[0];
    to[5] = shared[7];
}

// A sum over a block whose odd threads end early.
KERNEL(selftest_early_end, Pair, 128, 1) {
    u32* shared = (u32*)shared_memory();
    shared[thread_index()] = p.from[thread_index()];
    if (thread_index() % 2 == 1) return;
    sync_block();
    u32 sum = 0;
    for (u32 i = 0; i < threads_of_block(); i++) sum += shared[i];
    atomic_add(p.to + block_x() + block_y() * grid_x(), sum);
}

KERNEL(selftest_deadlock, Pair, 64, 1) {
    if (warp_index() == 0) {
        sync_named(3, 64);
    } else if (lane_index() < 8) {
        sync_warp();
    }
}

KERNEL(selftest_parted_warp, Pair, 32, 1) {
    if (lane_index() < 8) {
        sync_warp();
    } else {
        ballot(true);
    }
}

// What shared memory holds before anybody wrote to it.
KERNEL(selftest_poison, Pair, 1, 1) {
    p.to[0] = *(u32*)shared_memory();
    *(u32*)shared_memory() = 0;
}

// Touches word from[0] of: 0 shared memory, 1 `to`, 2 nothing; or 3 divides by it.
KERNEL(selftest_touch, Pair, 1, 1) {
    i32 word = (i32)p.from[0];
    u32* shared = (u32*)shared_memory();
    switch (p.from[1]) {
    case 0: shared[word] = 1; break;
    case 1: p.to[word] = 1; break;
    case 2: *(u32*)(u64)(u32)word = 1; break;
    case 3: p.to[0] = 7 / p.from[0]; break;
    }
}

struct Boxes {
    TensorMap from;
    TensorMap stored;
    u32* to;
    i32 x, y, z;
};

// A box of 64 x 4 x 2 into shared memory, which `to` gets as it lies, and from there elsewhere.
KERNEL(selftest_box, Boxes, 64, 1) {
    Barrier* barrier = (Barrier*)(shared_memory() + 1024);
    if (thread_index() == 0) {
        barrier_init(barrier, 1);
        barriers_ready();
    }
    sync_block();
    if (thread_index() == 0) {
        barrier_expect(barrier, 1024);
        tma_load3(shared_memory(), &p.from, barrier, p.x, p.y, p.z);
    }
    barrier_wait(barrier, 0);
    for (u32 i = thread_index(); i < 256; i += 64) p.to[i] = ((u32*)shared_memory())[i];
    if (thread_index() == 0) {
        tma_store3(&p.stored, shared_memory(), p.x, p.y, p.z);
        tma_store_commit();
        tma_store_wait<0>();
    }
}

struct Products {
    TensorMap a; // [64, 64]
    TensorMap b; // [128, 64], or [64, 128]
    f32* c;      // [64, 128]
    u32* early;  // an element of c before the wait
    u32 forget;  // what is left out: 1 the block's fence_async, 2 wgmma_fence, 3 the wait
};

DEVICE u16 a_element(const char* tile, u32 row, u32 k) {
    u32 at = row * 128 + k * 2;
    return *(const u16*)(tile + (at ^ (row & 7) << 4));
}

template <bool TRANSPOSED, bool REGISTERS>
DEVICE void multiply(const Products& p) {
    char *a = shared_memory(), *b = a + 8192;
    Barrier* barrier = (Barrier*)(b + 16384);
    if (thread_index() == 0) {
        barrier_init(barrier, 1);
        barriers_ready();
    }
    sync_block();
    if (thread_index() == 0) {
        barrier_expect(barrier, 24576);
        tma_load3(a, &p.a, barrier, 0, 0, 0);
        tma_load3(b, &p.b, barrier, 0, 0, 0);
        tma_load3(b + 8192, &p.b, barrier, TRANSPOSED ? 64 : 0, TRANSPOSED ? 0 : 64, 0);
    }
    if (p.forget != 3) barrier_wait(barrier, 0);
    sync_block();
    // Ordinary stores: a is what it was, times minus one.
    for (u32 i = thread_index(); i < 2048; i += 128) ((u32*)a)[i] ^= 0x80008000;
    if (p.forget != 1) fence_async();
    sync_block();
    f32 c[64];
    for (int i = 0; i < 64; i++) c[i] = 1.0f;
    if (p.forget != 2) wgmma_fence();
    u64 at = wgmma_descriptor(a, 0), bt = wgmma_descriptor(b, 8192);
    for (u32 step = 0; step < 4; step++) {
        u64 b_step = wgmma_advance(bt, step * (TRANSPOSED ? 2048 : 32));
        if (REGISTERS) {
            u32 x[4];
            for (u32 r = 0; r < 4; r++) {
                u32 row = warp_index() * 16 + lane_index() / 4 + r % 2 * 8;
                u32 k = step * 16 + r / 2 * 8 + lane_index() % 4 * 2;
                x[r] = a_element(a, row, k) | (u32)a_element(a, row, k + 1) << 16;
            }
            wgmma_rs<TRANSPOSED>(c, x, b_step, true);
        } else {
            wgmma_ss<TRANSPOSED>(c, wgmma_advance(at, step * 32), b_step, step > 0);
        }
    }
    wgmma_commit();
    if (thread_index() == 0) p.early[0] = bits_of(c[0]);
    wgmma_wait<0>();
    for (u32 i = 0; i < 64; i++) {
        u32 row = warp_index() * 16 + lane_index() / 4 + i / 2 % 2 * 8;
        p.c[row * 128 + i / 4 * 8 + lane_index() % 4 * 2 + i % 2] = c[i];
    }
}
KERNEL(selftest_products, Products, 128, 1) { multiply<false, false>(p); }
KERNEL(selftest_products_across, Products, 128, 1) { multiply<true, false>(p); }
KERNEL(selftest_products_registers, Products, 128, 1) { multiply<false, true>(p); }
KERNEL(selftest_products_registers_across, Products, 128, 1) { multiply<true, true>(p); }

// Waits for a phase that nobody makes end.
KERNEL(selftest_barrier_alone, Pair, 32, 1) {
    Barrier* barrier = (Barrier*)shared_memory();
    if (lane_index() == 0) barrier_init(barrier, 2);
    sync_block();
    if (lane_index() == 0) barrier_expect(barrier, 16);
    barrier_wait(barrier, 0);
}

// Four rounds of words from thread 0 to all, through two stages.
KERNEL(selftest_stages, Pair, 96, 1) {
    u32* words = (u32*)shared_memory();
    Barrier* full = (Barrier*)(shared_memory() + 1024);
    Barrier* free = full + 2;
    if (thread_index() == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(full + i, 1);
            barrier_init(free + i, 64);
        }
        barriers_ready();
    }
    sync_block();
    for (u32 round = 0; round < 8; round++) {
        u32 stage = round % 2, phase = round / 2 % 2;
        if (thread_index() == 0) {
            barrier_wait(free + stage, phase ^ 1);
            words[stage] = p.from[round];
            barrier_arrive(full + stage);
        } else if (warp_index() > 0) {
            barrier_wait(full + stage, phase);
            p.to[round * 64 + thread_index() - 32] = words[stage];
            barrier_arrive(free + stage);
        }
    }
}
