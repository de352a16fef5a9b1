// What attention90.cu and masses90.cu have in common: tiles of rows and keys in shared memory, and
// who does which part of the work.
//
// A tile is [D / 64] boxes side by side, each of `rows` rows of 64 elements with the 128-byte
// swizzle, as the copy engine writes and wgmma reads it.
#pragma once
#include "hopper.cuh"

#include "attention.cuh"

namespace tiles90 {

// Of what there is a pair.
constexpr u32 OWN = 0, PAST = 1;

DEVICE u32 tiles_of(u32 size, u32 tile) { return (size + tile - 1) / tile; }

// What this block of the grid does in a round, of items of which the longest come first. Every
// other round runs backwards: who has the longest item in one has the shortest in the next.
DEVICE u32 item_of(u32 round) {
    u32 blocks = grid_x();
    return round * blocks + (round & 1 ? blocks - 1 - block_x() : block_x());
}

// A place in a ring of stages, and the phase of its barriers.
struct Place {
    u32 stage, phase;
};
DEVICE Place place_of(u32 count, u32 stages) { return Place{count % stages, count / stages & 1}; }

// A warp is done with what a barrier guards.
DEVICE void release(Barrier* barrier) {
    if (lane_index() == 0) {
        barrier_arrive(barrier);
    }
}

// Begins to copy a tile; `barrier` expects its bytes.
template <u32 D, u32 ROWS>
DEVICE void load_tile(char* to, const TensorMap* map, Barrier* barrier, u32 row, u32 head) {
    for (u32 box = 0; box < D / 64; ++box) {
        tma_load3(to + box * ROWS * 128, map, barrier, box * 64, row, head);
    }
}

// Begins s = Q K': 64 queries, of which this is the descriptor, times a tile of KEYS keys. `keep`
// is false; where that is not known to the compiler, it cannot begin before s has been used, with
// registers for both.
template <u32 D, u32 KEYS>
DEVICE void multiply_across(f32 (&s)[KEYS / 2], u64 queries, const char* keys,
                            bool keep = false) {
    u64 across = wgmma_descriptor(keys, 0);
#pragma unroll
    for (u32 step = 0; step < D / 16; ++step) {
        u32 box = step / 4, within = step % 4 * 32;
        wgmma_ss<false>(s, wgmma_advance(queries, box * 64 * 128 + within),
                        wgmma_advance(across, box * KEYS * 128 + within), step > 0 || keep);
    }
    wgmma_commit();
}

// Which of the 64 rows a thread has, of two; and its columns of them, each with the next.
DEVICE u32 row_of_thread(u32 which) {
    return warp_index() % 4 * 16 + lane_index() / 4 + 8 * which;
}
DEVICE u32 column_of_thread(u32 i) { return 8 * i + 2 * (lane_index() % 4); }

// Hides the keys from `limit` on, one limit for each of a thread's rows; s begins at `key`.
template <int W>
DEVICE void hide(f32 (&s)[W], u32 key, u32 limit0, u32 limit1) {
#pragma unroll
    for (int i = 0; i < W / 4; ++i) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            u32 at = key + column_of_thread(i) + k;
            s[4 * i + k] = at < limit0 ? s[4 * i + k] : -infinity();
            s[4 * i + 2 + k] = at < limit1 ? s[4 * i + 2 + k] : -infinity();
        }
    }
}

// Hides the keys before `first`, likewise.
template <int W>
DEVICE void hide_before(f32 (&s)[W], u32 key, u32 first0, u32 first1) {
#pragma unroll
    for (int i = 0; i < W / 4; ++i) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            u32 at = key + column_of_thread(i) + k;
            s[4 * i + k] = at < first0 ? -infinity() : s[4 * i + k];
            s[4 * i + 2 + k] = at < first1 ? -infinity() : s[4 * i + 2 + k];
        }
    }
}

// The first key of a part that row t sees; a row behind the last is as it is.
template <class P>
DEVICE u32 first_of(const P& p, u32 part, u32 kv_head, u32 t) {
    const u32* first = p.first[part];
    u32 row = t < p.tokens ? t : p.tokens - 1;
    return first ? first[(u64)kv_head * p.tokens + row] : 0;
}

// Hides the keys of a tile from `key` on that a thread's two rows do not see yet.
template <class P, int W>
DEVICE void hide_unseen(const P& p, u32 part, u32 kv_head, u32 first_row, u32 key, f32 (&s)[W]) {
    u32 row = first_row + row_of_thread(0);
    u32 first0 = first_of(p, part, kv_head, row), first1 = first_of(p, part, kv_head, row + 8);
    if (key < first0 || key < first1) {
        hide_before(s, key, first0, first1);
    }
}

} // namespace tiles90
