// Tiles of a matrix in shared memory, as the matrix instructions read them: rows of CHUNKS pieces
// of 16 bytes, so placed that eight rows' pieces of one column lie in different banks.
#pragma once
#include "gated.cuh"
#include "mma.cuh"

template <u32 CHUNKS>
DEVICE u32 chunk_at(u32 row, u32 chunk) {
    static_assert(CHUNKS == 4 || CHUNKS % 8 == 0, "64 bytes, or multiples of 128");
    return 16 * (row * CHUNKS + (chunk ^ (CHUNKS == 4 ? (row >> 1 & 3) : (row & 7))));
}

// A 16 x 2 chunks factor (mma's a) at `row` and `chunk` of a tile.
template <u32 CHUNKS>
DEVICE void load_a(u32 (&a)[4], const char* tile, u32 row, u32 chunk) {
    u32 lane = lane_index();
    ldmatrix4(a, tile + chunk_at<CHUNKS>(row + lane % 16, chunk + lane / 16));
}

// Two 8 x 2 chunks factors (mma's b): rows `row..row + 16`.
template <u32 CHUNKS>
DEVICE void load_b_twice(u32 (&first)[2], u32 (&second)[2], const char* tile, u32 row, u32 chunk) {
    u32 lane = lane_index(), b[4];
    ldmatrix4(b, tile + chunk_at<CHUNKS>(row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
    first[0] = b[0], first[1] = b[1], second[0] = b[2], second[1] = b[3];
}

// Two 8 x 2 chunks factors (mma's b), one after the other along the row.
template <u32 CHUNKS>
DEVICE void load_b_along(u32 (&first)[2], u32 (&second)[2], const char* tile, u32 row, u32 chunk) {
    u32 lane = lane_index(), b[4];
    ldmatrix4(b, tile + chunk_at<CHUNKS>(row + lane % 8, chunk + lane / 8));
    first[0] = b[0], first[1] = b[1], second[0] = b[2], second[1] = b[3];
}

// Rows of bytes in global memory, `stride` (a multiple of 16) apart.
struct Lines {
    const char* at;
    u32 rows;
    u32 stride;
};

// Begins to copy rows `first..first + ROWS` of x, CHUNKS chunks of each from byte `offset` on;
// zeros where x has none.
template <u32 ROWS, u32 CHUNKS, u32 THREADS>
DEVICE void copy_argument(char* to, Lines x, u32 first, u32 offset) {
    static_assert(ROWS * CHUNKS % THREADS == 0, "every thread copies as much");
#pragma unroll
    for (u32 i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        u32 item = i * THREADS + thread_index(), row = item / CHUNKS, chunk = item % CHUNKS;
        u32 at = offset + 16 * chunk;
        bool valid = first + row < x.rows && at < x.stride;
        const char* from = valid ? x.at + (u64)(first + row) * x.stride + at : x.at;
        copy_async16(to + chunk_at<CHUNKS>(row, chunk), from, valid);
    }
}

// Which output row `row` of a block's tile belongs to. Where GATED, a tile has eight outputs of
// gate and the same eight of up by turns, so that one thread gets the sums of both.
template <bool GATED>
DEVICE u32 output_of(u32 row) {
    return GATED ? row / 16 * 8 + row % 8 : row;
}

// The same for a weight, `[outputs, inputs]`, or `[2 outputs, inputs]` where GATED.
template <bool GATED, u32 ROWS, u32 CHUNKS, u32 THREADS>
DEVICE void copy_weight(char* to, Lines w, u32 first, u32 offset) {
    static_assert(ROWS * CHUNKS % THREADS == 0, "every thread copies as much");
#pragma unroll
    for (u32 i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        u32 item = i * THREADS + thread_index(), row = item / CHUNKS, chunk = item % CHUNKS;
        u32 at = offset + 16 * chunk, output = first + output_of<GATED>(row);
        bool valid = output < w.rows && at < w.stride;
        u32 source = GATED && row % 16 >= 8 ? output + w.rows : output;
        const char* from = valid ? w.at + (u64)source * w.stride + at : w.at;
        copy_async16(to + chunk_at<CHUNKS>(row, chunk), from, valid);
    }
}

// Two numbers that are written at once.
struct alignas(8) Pair {
    f32 x[2];
};

// Writes the sums of outputs `output` and `output + 1` with what is added to them; whether they
// are finite.
DEVICE bool put_sums(const LinearParams& p, u32 row, u32 output, f32 x, f32 y) {
    if (row >= p.rows || output >= p.outputs) return true;
    bool both = output + 1 < p.outputs;
    u64 at = (u64)row * p.y_stride + output;
    if (p.bias) x = add(x, p.bias[output]), y = both ? add(y, p.bias[output + 1]) : 0.0f;
    if (p.residual) x = add(x, p.residual[at]), y = both ? add(y, p.residual[at + 1]) : 0.0f;
    f32* to = (f32*)p.y + at;
    if (both && p.y_stride % 2 == 0) {
        *(Pair*)to = Pair{{x, y}};
    } else {
        to[0] = x;
        if (both) to[1] = y;
    }
    return finite(x) && finite(both ? y : 0.0f);
}

// Writes what the sums of gate and up make of outputs `output` and `output + 1`, and zeros beside
// the outputs; whether the sums are finite.
DEVICE bool put_gated(const LinearParams& p, u32 row, u32 output, f32 (&gate)[2], f32 (&up)[2]) {
    if (row >= p.rows || output >= p.y_stride) return true;
    Pair hidden;
    bool good = true;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        if (p.bias && output + i < p.outputs) {
            gate[i] = add(gate[i], p.bias[output + i]);
            up[i] = add(up[i], p.bias[p.outputs + output + i]);
        }
        good &= finite(gate[i]) && finite(up[i]);
        hidden.x[i] = gated(p.activation, gate[i], up[i]);
    }
    u64 at = (u64)row * p.y_stride + output;
    if (p.rounds) { // the stride is even then
        *(u32*)((u16*)p.y + at) = narrow2(hidden.x[0], hidden.x[1]);
    } else {
        ((f32*)p.y)[at] = hidden.x[0];
        if (output + 1 < p.y_stride) ((f32*)p.y)[at + 1] = hidden.x[1];
    }
    return good;
}

// What a thread has of one row: elements `half * 2` and the next of the products of 8 outputs
// each; the first begins at `output`.
template <bool GATED, u32 FRAGMENTS>
DEVICE bool put_row(const LinearParams& p, u32 row, u32 output, const f32 (&c)[FRAGMENTS][4],
                    u32 half) {
    bool good = true;
    u32 column = output + 2 * (lane_index() % 4);
    if constexpr (GATED) {
#pragma unroll
        for (u32 j = 0; j < FRAGMENTS; j += 2) {
            f32 gate[2] = {half ? c[j][2] : c[j][0], half ? c[j][3] : c[j][1]};
            f32 up[2] = {half ? c[j + 1][2] : c[j + 1][0], half ? c[j + 1][3] : c[j + 1][1]};
            good &= put_gated(p, row, column + 4 * j, gate, up);
        }
    } else {
#pragma unroll
        for (u32 j = 0; j < FRAGMENTS; j++) {
            f32 x = half ? c[j][2] : c[j][0], y = half ? c[j][3] : c[j][1];
            good &= put_sums(p, row, column + 8 * j, x, y);
        }
    }
    return good;
}

// What a thread has of a warp's tile, whose first row and output are given; a sum that is not finite
// is reported.
template <bool GATED, u32 TALL, u32 WIDE>
DEVICE void put_tile(const LinearParams& p, u32 row, u32 output, const f32 (&c)[TALL][WIDE][4]) {
    bool good = true;
#pragma unroll
    for (u32 i = 0; i < TALL; i++) {
        u32 at = row + 16 * i + lane_index() / 4;
        good &= put_row<GATED>(p, at, output, c[i], 0);
        good &= put_row<GATED>(p, at + 8, output, c[i], 1);
    }
    if (!good) *p.broken = p.code;
}

// The tile of a block: blocks that run together share rows of the weight, and up to 32 tiles of
// rows, which stay in the second-level cache.
struct TilePlace {
    u32 row;
    u32 column;
};
DEVICE TilePlace tile_place(u32 block, u32 row_tiles, u32 column_tiles) {
    const u32 TOGETHER = 32;
    u32 group = block / (TOGETHER * column_tiles), first = group * TOGETHER;
    u32 rows = row_tiles - first < TOGETHER ? row_tiles - first : TOGETHER;
    u32 rest = block - first * column_tiles;
    return TilePlace{first + rest % rows, rest / rows};
}
