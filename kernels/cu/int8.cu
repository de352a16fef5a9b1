// Linear maps of eight-bit integers in groups of 128 inputs. Integers are summed exactly inside a
// group; then sum' = fma(f32(group), x scale * w scale, sum), groups ascending: the processor's
// bits (kernels/src/cpu/gemm/int8).
#include "tiles.cuh"

constexpr u32 GROUP = 128;

// 1.5 * 2^23, whose bits plus an integer of size below 2^22 are the bits of that number plus the
// integer: sums begin with it, and become f32 by a subtraction. A group's are at most 128 * 127^2.
constexpr u32 BIASED = 0x4b400000;
DEVICE f32 unbiased(i32 sum) { return add(from_bits((u32)sum), -12582912.0f); }

// Begins to copy the scales that a tile's rows have in `group`, four by each of the first threads.
template <u32 ROWS>
DEVICE void copy_x_scales(char* to, const LinearParams& p, u32 first, u32 group) {
    u32 row = thread_index() * 4;
    if (row >= ROWS) return;
    bool valid = first + row < p.x_scale_stride;
    u64 at = (u64)group * p.x_scale_stride + first + row;
    copy_async16(to + 4 * row, p.x_scales + (valid ? at : 0), valid);
}
template <bool GATED, u32 ROWS>
DEVICE void copy_w_scales(char* to, const LinearParams& p, u32 first, u32 group) {
    u32 row = thread_index() * 4;
    if (row >= ROWS) return;
    u32 output = first + output_of<GATED>(row);
    bool valid = output < (GATED ? p.outputs : p.w_scale_stride);
    u64 at = (u64)group * p.w_scale_stride + output;
    if (GATED && row % 16 >= 8) at += p.outputs; // a multiple of 4 where gate and up are multiplied
    copy_async16(to + 4 * row, p.w_scales + (valid ? at : 0), valid);
}

// Adds a group's sums of integers, [16 FRAGMENTS, 8 WIDE], to c.
template <u32 FRAGMENTS, u32 WIDE>
DEVICE void add_group(f32 (&c)[FRAGMENTS][WIDE][4], const i32 (&sums)[FRAGMENTS][WIDE][4],
                      const f32* x_scales, const f32* w_scales) {
    u32 row = lane_index() / 4, column = lane_index() % 4 * 2;
#pragma unroll
    for (u32 i = 0; i < FRAGMENTS; i++) {
#pragma unroll
        for (u32 j = 0; j < WIDE; j++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                f32 x_scale = x_scales[16 * i + row + k / 2 * 8];
                f32 scale = mul(x_scale, w_scales[8 * j + column + k % 2]);
                c[i][j][k] = fma(unbiased(sums[i][j][k]), scale, c[i][j][k]);
            }
        }
    }
}

template <u32 FRAGMENTS, u32 WIDE>
DEVICE void begin_group(i32 (&sums)[FRAGMENTS][WIDE][4]) {
#pragma unroll
    for (u32 i = 0; i < FRAGMENTS; i++) {
#pragma unroll
        for (u32 j = 0; j < WIDE; j++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) sums[i][j][k] = (i32)BIASED;
        }
    }
}

// Many rows: 128 rows by 128 outputs a block, 64 by 32 a warp, a group a step.
template <bool GATED>
DEVICE void many_int8(const LinearParams& p) {
    const u32 TILE = 128, CHUNKS = 8, STAGES = 3, THREADS = 256, BYTES = TILE * CHUNKS * 16;
    const u32 STAGE = 2 * BYTES + 2 * TILE * 4;
    u32 outputs = GATED ? TILE / 2 : TILE;
    u32 row_tiles = (p.rows + TILE - 1) / TILE, column_tiles = (p.outputs + outputs - 1) / outputs;
    TilePlace tile = tile_place(block_x(), row_tiles, column_tiles);
    u32 row = tile.row * TILE, output = tile.column * outputs;
    char* memory = shared_memory();
    Lines x = {(const char*)p.x, p.rows, p.x_stride}, w = {(const char*)p.w, p.outputs, p.w_stride};
    u32 steps = (p.inputs + GROUP - 1) / GROUP;
    auto copy = [&](u32 step) {
        if (step < steps) {
            char* to = memory + step % STAGES * STAGE;
            copy_argument<TILE, CHUNKS, THREADS>(to, x, row, step * GROUP);
            copy_weight<GATED, TILE, CHUNKS, THREADS>(to + BYTES, w, output, step * GROUP);
            copy_x_scales<TILE>(to + 2 * BYTES, p, row, step);
            copy_w_scales<GATED, TILE>(to + 2 * BYTES + TILE * 4, p, output, step);
        }
        copy_commit();
    };
    for (u32 step = 0; step < STAGES - 1; step++) copy(step);

    u32 warp_row = warp_index() / 4 * 64, warp_column = warp_index() % 4 * 32;
    bool idle = row + warp_row >= p.rows;
    f32 c[4][4][4] = {};
    for (u32 step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        sync_block();
        copy(step + STAGES - 1);
        if (idle) continue;
        const char* tiles = memory + step % STAGES * STAGE;
        i32 sums[4][4][4];
        begin_group(sums);
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk += 2) {
            u32 a[4][4], b[4][2];
#pragma unroll
            for (u32 i = 0; i < 4; i++) load_a<CHUNKS>(a[i], tiles, warp_row + 16 * i, chunk);
#pragma unroll
            for (u32 j = 0; j < 4; j += 2) {
                load_b_twice<CHUNKS>(b[j], b[j + 1], tiles + BYTES, warp_column + 8 * j, chunk);
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) mma_int8(sums[i][j], a[i], b[j]);
            }
        }
        const f32* scales = (const f32*)(tiles + 2 * BYTES);
        add_group(c, sums, scales + warp_row, scales + TILE + warp_column);
    }
    copy_wait<0>();
    put_tile<GATED>(p, row + warp_row, output + (GATED ? warp_column / 2 : warp_column), c);
}
KERNEL(linear_int8, LinearParams, 256, 1) { many_int8<false>(p); }
KERNEL(gate_up_int8, LinearParams, 256, 1) { many_int8<true>(p); }

// Few rows, up to 16 FRAGMENTS: the weight streams by, 8 outputs a warp (or 8 of gate and of up),
// two groups a step.
template <bool GATED, u32 FRAGMENTS, u32 STAGES>
DEVICE void few_int8(const LinearParams& p) {
    const u32 ROWS = 16 * FRAGMENTS, PARTS = GATED ? 2 : 1, THREADS = 128, CHUNKS = 16;
    const u32 X_BYTES = ROWS * CHUNKS * 16, W_BYTES = 32 * PARTS * CHUNKS * 16;
    const u32 X_SCALES = ROWS * 4, W_SCALES = 32 * PARTS * 4;
    const u32 STAGE = X_BYTES + W_BYTES + 2 * (X_SCALES + W_SCALES);
    u32 output = block_x() * 32;
    char* memory = shared_memory();
    Lines x = {(const char*)p.x, p.rows, p.x_stride}, w = {(const char*)p.w, p.outputs, p.w_stride};
    u32 groups = (p.inputs + GROUP - 1) / GROUP, steps = (groups + 1) / 2;
    auto copy = [&](u32 step) {
        if (step < steps) {
            char* to = memory + step % STAGES * STAGE;
            copy_weight<GATED, 32 * PARTS, CHUNKS, THREADS>(to, w, output, step * 2 * GROUP);
            copy_argument<ROWS, CHUNKS, THREADS>(to + W_BYTES, x, 0, step * 2 * GROUP);
            to += W_BYTES + X_BYTES;
            for (u32 group = step * 2; group < step * 2 + 2 && group < groups; group++) {
                copy_x_scales<ROWS>(to, p, 0, group);
                copy_w_scales<GATED, 32 * PARTS>(to + X_SCALES, p, output, group);
                to += X_SCALES + W_SCALES;
            }
        }
        copy_commit();
    };
    for (u32 step = 0; step < STAGES - 1; step++) copy(step);

    u32 warp_row = warp_index() * 8 * PARTS;
    f32 c[FRAGMENTS][PARTS][4] = {};
    for (u32 step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        sync_block();
        copy(step + STAGES - 1);
        const char* tiles = memory + step % STAGES * STAGE;
        const f32* scales = (const f32*)(tiles + W_BYTES + X_BYTES);
#pragma unroll
        for (u32 group = 0; group < 2; group++) {
            if (step * 2 + group >= groups) break;
            i32 sums[FRAGMENTS][PARTS][4];
            begin_group(sums);
#pragma unroll
            for (u32 chunk = 8 * group; chunk < 8 * group + 8; chunk += 4) {
                u32 b[2][PARTS][2];
#pragma unroll
                for (u32 j = 0; j < PARTS; j++) {
                    load_b_along<CHUNKS>(b[0][j], b[1][j], tiles, warp_row + 8 * j, chunk);
                }
#pragma unroll
                for (u32 k = 0; k < 2; k++) {
#pragma unroll
                    for (u32 i = 0; i < FRAGMENTS; i++) {
                        u32 a[4];
                        load_a<CHUNKS>(a, tiles + W_BYTES, 16 * i, chunk + 2 * k);
#pragma unroll
                        for (u32 j = 0; j < PARTS; j++) mma_int8(sums[i][j], a, b[k][j]);
                    }
                }
            }
            const f32* group_scales = scales + group * (X_SCALES + W_SCALES) / 4;
            add_group(c, sums, group_scales, group_scales + X_SCALES / 4 + warp_row);
        }
    }
    copy_wait<0>();
    put_tile<GATED>(p, 0, output + warp_index() * 8, c);
}
KERNEL(linear_int8_16, LinearParams, 128, 2) { few_int8<false, 1, 6>(p); }
KERNEL(linear_int8_64, LinearParams, 128, 2) { few_int8<false, 4, 4>(p); }
KERNEL(gate_up_int8_16, LinearParams, 128, 2) { few_int8<true, 1, 4>(p); }
KERNEL(gate_up_int8_64, LinearParams, 128, 2) { few_int8<true, 4, 3>(p); }
