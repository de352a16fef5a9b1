// Tiles of bf16 in shared memory as ldmatrix reads them: for attention80.cu and masses80.cu.
#pragma once
#include "mma.cuh"

constexpr f32 LN_2 = 0.69314718055994530942f;

DEVICE u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }
DEVICE u32 least(u32 a, u32 b) { return a < b ? a : b; }

// One 16-byte chunk of a tile of rows of D elements. Where a chunk lies in its row turns with the
// row, so that a chunk of eight rows, which is what ldmatrix reads at once, and eight chunks of a
// row, which is what a copy writes at once, are in all 32 banks.
template <int D>
DEVICE u16* chunk_of(u16* tile, u32 row, u32 chunk) {
    return tile + row * D + ((chunk ^ (row & 7)) << 3);
}

// Begins to copy rows `first..first + ROWS` of `from`, which has `count` of `width` elements;
// zeros behind its last and beside them.
template <int D, int ROWS, int THREADS>
DEVICE void copy_tile(u16* tile, const u16* from, u32 first, u32 count, u32 width) {
    constexpr u32 CHUNKS = D / 8;
    static_assert(ROWS * CHUNKS % THREADS == 0, "every thread copies as many chunks");
    const u32 thread = opaque(thread_index());
#pragma unroll
    for (u32 i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        const u32 row = (i * THREADS + thread) / CHUNKS, chunk = thread % CHUNKS;
        static_assert(THREADS % CHUNKS == 0, "a thread has one column of chunks");
        const u32 source = least(first + row, count - 1);
        const bool within = chunk * 8 < width;
        copy_async16(chunk_of<D>(tile, row, chunk),
                     from + (u64)source * width + (within ? chunk * 8 : 0),
                     within && first + row < count);
    }
}

// Of a pair in the parameters.
constexpr u32 OWN = 0, PAST = 1;

// Elements of a head. Kernels of ANY shape take narrower heads than D, as if zeros were beside
// them, and rows that see keys from some on only; the others have nothing of it in their loops.
template <bool ANY, int D, class P>
DEVICE u32 width_of(const P& p) {
    return ANY ? opaque(p.head_dim) : D;
}

// Addresses follow from the lane. Computed anew in each tile, they do not stay in registers over
// the whole loop, where accumulators need them.
DEVICE u32 lane_anew() { return opaque(lane_index()); }

// Rows `row..row + 16` and columns `16 step..` of a tile as mma's a.
template <int D>
DEVICE void load_a(u32 (&a)[4], u16* tile, u32 row, u32 step, u32 lane) {
    ldmatrix4(a, chunk_of<D>(tile, row + (lane & 15), 2 * step + (lane >> 4)));
}

// mma's b of two products side by side.
struct TwoB {
    u32 low[2], high[2];
};
// The same rows and columns: the tile's rows are b's columns.
template <int D>
DEVICE TwoB load_b(u16* tile, u32 row, u32 step, u32 lane) {
    u32 b[4];
    const u32 within = (lane & 7) + (lane >> 4) * 8;
    ldmatrix4(b, chunk_of<D>(tile, row + within, 2 * step + ((lane >> 3) & 1)));
    return {{b[0], b[1]}, {b[2], b[3]}};
}
// The same rows and columns: the tile's rows are b's rows.
template <int D>
DEVICE TwoB load_b_across(u16* tile, u32 row, u32 step, u32 lane) {
    u32 b[4];
    ldmatrix4_transposed(b, chunk_of<D>(tile, row + (lane & 15), 2 * step + (lane >> 4)));
    return {{b[0], b[1]}, {b[2], b[3]}};
}

// Over the four lanes that share a row of mma's c.
DEVICE f32 sum_of_four(f32 x) {
    x = add(x, shuffle_xor(x, 1));
    return add(x, shuffle_xor(x, 2));
}
DEVICE f32 largest_of_four(f32 x) {
    x = fmax(x, shuffle_xor(x, 1));
    return fmax(x, shuffle_xor(x, 2));
}
