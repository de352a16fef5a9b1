// Linear maps, [rows, inputs] x [outputs, inputs]^T: sums of products in f32, each one chain over
// ascending inputs, whatever the tile, so that a row's bits do not depend on the rows beside it.
#include "tiles.cuh"

// Many rows: 128 rows by 128 outputs a block, 64 by 64 a warp.
template <bool GATED>
DEVICE void many_bf16(const LinearParams& p) {
    const u32 TILE = 128, CHUNKS = 4, STAGES = 4, THREADS = 128, BYTES = TILE * CHUNKS * 16;
    u32 outputs = GATED ? TILE / 2 : TILE;
    u32 row_tiles = (p.rows + TILE - 1) / TILE, column_tiles = (p.outputs + outputs - 1) / outputs;
    TilePlace tile = tile_place(block_x(), row_tiles, column_tiles);
    u32 row = tile.row * TILE, output = tile.column * outputs;
    char* memory = shared_memory();
    Lines x = {(const char*)p.x, p.rows, 2 * p.x_stride};
    Lines w = {(const char*)p.w, p.outputs, 2 * p.w_stride};
    u32 steps = (p.inputs + 31) / 32;
    auto copy = [&](u32 step) {
        if (step < steps) {
            char* to = memory + step % STAGES * 2 * BYTES;
            copy_argument<TILE, CHUNKS, THREADS>(to, x, row, step * CHUNKS * 16);
            copy_weight<GATED, TILE, CHUNKS, THREADS>(to + BYTES, w, output, step * CHUNKS * 16);
        }
        copy_commit();
    };
    for (u32 step = 0; step < STAGES - 1; step++) copy(step);

    u32 warp_row = warp_index() / 2 * 64, warp_column = warp_index() % 2 * 64;
    bool idle = row + warp_row >= p.rows;
    f32 c[4][8][4] = {};
    for (u32 step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        sync_block();
        copy(step + STAGES - 1);
        if (idle) continue;
        const char* tiles = memory + step % STAGES * 2 * BYTES;
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk += 2) {
            u32 a[4][4], b[8][2];
#pragma unroll
            for (u32 i = 0; i < 4; i++) load_a<CHUNKS>(a[i], tiles, warp_row + 16 * i, chunk);
#pragma unroll
            for (u32 j = 0; j < 8; j += 2) {
                load_b_twice<CHUNKS>(b[j], b[j + 1], tiles + BYTES, warp_column + 8 * j, chunk);
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
#pragma unroll
                for (u32 j = 0; j < 8; j++) mma_bf16(c[i][j], a[i], b[j]);
            }
        }
    }
    copy_wait<0>();
    put_tile<GATED>(p, row + warp_row, output + (GATED ? warp_column / 2 : warp_column), c);
}
KERNEL(linear_bf16, LinearParams, 128, 2) { many_bf16<false>(p); }
KERNEL(gate_up_bf16, LinearParams, 128, 2) { many_bf16<true>(p); }

// Few rows, up to 16 FRAGMENTS: the weight streams by, 8 outputs a warp (or 8 of gate and of up).
template <bool GATED, u32 FRAGMENTS, u32 STAGES>
DEVICE void few_bf16(const LinearParams& p) {
    const u32 ROWS = 16 * FRAGMENTS, PARTS = GATED ? 2 : 1, THREADS = 128, CHUNKS = 16;
    const u32 X_BYTES = ROWS * CHUNKS * 16, W_BYTES = 32 * PARTS * CHUNKS * 16;
    u32 output = block_x() * 32;
    char* memory = shared_memory();
    Lines x = {(const char*)p.x, p.rows, 2 * p.x_stride};
    Lines w = {(const char*)p.w, p.outputs, 2 * p.w_stride};
    u32 steps = (p.inputs + 127) / 128;
    auto copy = [&](u32 step) {
        if (step < steps) {
            char* to = memory + step % STAGES * (X_BYTES + W_BYTES);
            copy_weight<GATED, 32 * PARTS, CHUNKS, THREADS>(to, w, output, step * CHUNKS * 16);
            copy_argument<ROWS, CHUNKS, THREADS>(to + W_BYTES, x, 0, step * CHUNKS * 16);
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
        const char* tiles = memory + step % STAGES * (X_BYTES + W_BYTES);
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk += 4) {
            u32 b[2][PARTS][2];
#pragma unroll
            for (u32 j = 0; j < PARTS; j++) {
                load_b_along<CHUNKS>(b[0][j], b[1][j], tiles, warp_row + 8 * j, chunk);
            }
#pragma unroll
            for (u32 k = 0; k < 2; k++) {
                if (step * 128 + (chunk + 2 * k) * 8 >= p.inputs) break;
#pragma unroll
                for (u32 i = 0; i < FRAGMENTS; i++) {
                    u32 a[4];
                    load_a<CHUNKS>(a, tiles + W_BYTES, 16 * i, chunk + 2 * k);
#pragma unroll
                    for (u32 j = 0; j < PARTS; j++) mma_bf16(c[i][j], a, b[k][j]);
                }
            }
        }
    }
    copy_wait<0>();
    put_tile<GATED>(p, 0, output + warp_index() * 8, c);
}
KERNEL(linear_bf16_16, LinearParams, 128, 2) { few_bf16<false, 1, 6>(p); }
KERNEL(linear_bf16_64, LinearParams, 128, 2) { few_bf16<false, 4, 4>(p); }
KERNEL(gate_up_bf16_16, LinearParams, 128, 2) { few_bf16<true, 1, 4>(p); }
KERNEL(gate_up_bf16_64, LinearParams, 128, 2) { few_bf16<true, 4, 3>(p); }

// Four neighbouring inputs of row `row`; zeros where there are none.
struct Four {
    f32 x[4];
};
DEVICE Four four_inputs(const f32* at, u32 rows, u32 inputs, u32 row, u32 first) {
    Four four = {};
    if (row >= rows) return four;
    at += (u64)row * inputs;
    if (inputs % 4 == 0 && first < inputs) {
        Quad quad = load16(at + first);
#pragma unroll
        for (u32 i = 0; i < 4; i++) four.x[i] = from_bits(quad.x[i]);
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) four.x[i] = first + i < inputs ? at[first + i] : 0.0f;
    }
    return four;
}

// f32 weights: 16 TALL rows by 64 outputs a block, TALL by 4 a thread.
template <u32 TALL>
DEVICE void linear_f32_tile(const LinearParams& p) {
    const u32 ROWS = 16 * TALL, OUTPUTS = 64, INPUTS = 16, X_LINE = ROWS + 4, W_LINE = OUTPUTS + 4;
    f32 *x_tile = (f32*)shared_memory(), *w_tile = x_tile + INPUTS * X_LINE;
    u32 row_tiles = (p.rows + ROWS - 1) / ROWS, columns = (p.outputs + OUTPUTS - 1) / OUTPUTS;
    TilePlace tile = tile_place(block_x(), row_tiles, columns);
    u32 row = tile.row * ROWS, output = tile.column * OUTPUTS;
    u32 line = thread_index() / 4, input = thread_index() % 4 * 4;
    u32 tall = thread_index() / 16 * TALL, wide = thread_index() % 16 * 4;
    const f32 *x = (const f32*)p.x, *w = (const f32*)p.w;
    f32 c[TALL][4] = {};
    for (u32 first = 0; first < p.inputs; first += INPUTS) {
        u32 at = first + input;
        Four x_part = {}, w_part = four_inputs(w, p.outputs, p.inputs, output + line, at);
        if (line < ROWS) x_part = four_inputs(x, p.rows, p.inputs, row + line, at);
        sync_block();
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (line < ROWS) x_tile[(input + i) * X_LINE + line] = x_part.x[i];
            w_tile[(input + i) * W_LINE + line] = w_part.x[i];
        }
        sync_block();
#pragma unroll
        for (u32 k = 0; k < INPUTS; k++) {
#pragma unroll
            for (u32 i = 0; i < TALL; i++) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    f32 a = x_tile[k * X_LINE + tall + i], b = w_tile[k * W_LINE + wide + j];
                    c[i][j] = fma(a, b, c[i][j]);
                }
            }
        }
    }
    bool good = true;
#pragma unroll
    for (u32 i = 0; i < TALL; i++) {
        good &= put_sums(p, row + tall + i, output + wide, c[i][0], c[i][1]);
        good &= put_sums(p, row + tall + i, output + wide + 2, c[i][2], c[i][3]);
    }
    if (!good) *p.broken = p.code;
}
KERNEL(linear_f32, LinearParams, 256, 2) { linear_f32_tile<4>(p); }
KERNEL(linear_f32_16, LinearParams, 256, 2) { linear_f32_tile<1>(p); }
