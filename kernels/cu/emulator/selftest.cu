// Kernels that test the emulator itself; no GPU runs them.
#include "../device.cuh"
#include "../mma.cuh"

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
