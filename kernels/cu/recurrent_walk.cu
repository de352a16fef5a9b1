// States that walk through rows, token by token.
//
// Bound by multiply-adds where there are many tokens: four instructions an element and token of the
// delta rule, three of the scan, on states that never leave registers. A single token is bound by
// memory: 8 bytes an element.
#include "recurrent.cuh"

// A block has 32 columns of a head's state, a warp 8 of them, and a column's rows are with four
// lanes, in registers: lane l has rows 16 j + 4 l to 16 j + 4 l + 3 for every j. What a tile of
// tokens needs is copied to shared memory while the tile before it is walked through.

constexpr u32 COLUMNS = 32;
constexpr u32 WALKERS = 128;

// A token in shared memory: q and k, v of the block's columns, decay and step.
template <u32 ROWS>
constexpr u32 STRIDE = 2 * ROWS + COLUMNS + 4;

// Begins to copy `count` tokens from `token` on.
template <u32 ROWS>
DEVICE void begin_tile(const Recurrence& p, u64 token, u32 count, f32* to) {
    constexpr u32 CHUNKS = STRIDE<ROWS> / 4, KEYS_AT = ROWS / 4, VALUES_AT = ROWS / 2;
    constexpr u32 STEPS_AT = CHUNKS - 1;
    u32 head = block_y(), group = group_of(p, head), width = width_of(p);
    u32 values = 2 * p.groups * ROWS + head * p.padded_cols + block_x() * COLUMNS;
    for (u32 i = thread_index(); i < count * CHUNKS; i += WALKERS) {
        u32 t = i / CHUNKS, chunk = i % CHUNKS;
        const f32* from = p.convolved + (token + t) * width;
        if (chunk < KEYS_AT) {
            from += group * ROWS + chunk * 4;
        } else if (chunk < VALUES_AT) {
            from += (p.groups + group) * ROWS + (chunk - KEYS_AT) * 4;
        } else if (chunk < STEPS_AT) {
            from += values + (chunk - VALUES_AT) * 4;
        } else {
            from = p.steps + ((token + t) * p.heads + head) * 4;
        }
        copy_async16(to + t * STRIDE<ROWS> + chunk * 4, from, true);
    }
}

// Of what four lanes have each four sums of; the same on all of them.
DEVICE f32 total(const f32 (&sums)[4]) {
    f32 x = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
    x = add(x, shuffle_xor(x, 1));
    return add(x, shuffle_xor(x, 2));
}

// A lane's elements of a column, and of the key that it is read with next.
template <u32 ROWS>
struct Column {
    f32 state[ROWS / 4];
    f32 key[ROWS / 4];
};

// One token: `sums` are of what its query reads, `kept` of what `next`, the key after its own,
// reads. Every element is touched once for all of it.
template <u32 ROWS, bool IS_DELTA>
DEVICE void step(
    Column<ROWS>& column, const f32* token, const f32* next, f32 added, f32 (&sums)[4],
    f32 (&kept)[4]
) {
    f32 decay = token[2 * ROWS + COLUMNS];
    u32 first = 4 * (lane_index() & 3);
#pragma unroll
    for (u32 j = 0; j < ROWS / 16; j++) {
        Four q = load4(token + 16 * j + first), k = load4(next + ROWS + 16 * j + first);
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            f32& element = column.state[4 * j + e];
            f32& key = column.key[4 * j + e];
            element = fma(IS_DELTA ? key : k.x[e], added, mul(element, decay));
            sums[e] = fma(q.x[e], element, sums[e]);
            if (IS_DELTA) {
                kept[e] = fma(k.x[e], element, kept[e]);
                key = k.x[e];
            }
        }
    }
}

// `count` tokens; `local` is the column's place in the block, `to` where it is read to.
template <u32 ROWS, bool IS_DELTA>
DEVICE void walk_tile(
    const Recurrence& p, Column<ROWS>& column, const f32* tile, u32 count, f32* to
) {
    u32 lane = lane_index(), local = warp_index() * 8 + lane / 4, first = 4 * (lane & 3);
    f32 skip = IS_DELTA ? 0.0f : p.skip[block_y()], held = 0.0f;
    if (IS_DELTA) { // the same sums in the same order as `step` has for every other token
        f32 kept[4] = {};
#pragma unroll
        for (u32 j = 0; j < ROWS / 16; j++) {
            Four k = load4(tile + ROWS + 16 * j + first);
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                column.key[4 * j + e] = k.x[e];
                kept[e] = fma(k.x[e], column.state[4 * j + e], kept[e]);
            }
        }
        held = total(kept);
    }
    for (u32 t = 0; t < count; t++) {
        const f32* token = tile + t * STRIDE<ROWS>;
        const f32* next = IS_DELTA && t + 1 < count ? token + STRIDE<ROWS> : token;
        f32 decay = token[2 * ROWS + COLUMNS], step_size = token[2 * ROWS + COLUMNS + 1];
        f32 v = token[2 * ROWS + local], sums[4] = {}, kept[4] = {};
        f32 added = mul(IS_DELTA ? fma(-held, decay, v) : v, step_size);
        step<ROWS, IS_DELTA>(column, token, next, added, sums, kept);
        if (IS_DELTA) held = total(kept);
        f32 read = total(sums);
        if (!IS_DELTA) read = fma(skip, v, read);
        if (first == 0 && block_x() * COLUMNS + local < p.state_cols) {
            to[(u64)t * p.heads * p.state_cols] = read;
        }
    }
}

// Blocks: x COLUMNS columns, y heads, z sequences. Shared memory: two tiles, or the only one.
template <u32 ROWS, bool IS_DELTA>
DEVICE void walk(const Recurrence& p) {
    u32 lane = lane_index(), head = block_y();
    u32 at = block_x() * COLUMNS + warp_index() * 8 + lane / 4;
    u64 matrix = (u64)(p.taps - 1) * p.channels + (u64)head * p.state_rows * p.state_cols + at;
    Sequence of = sequence_of(p, block_z());
    Column<ROWS> column;
#pragma unroll
    for (u32 i = 0; i < ROWS / 4; i++) {
        u32 row = i / 4 * 16 + 4 * (lane & 3) + i % 4;
        bool is_there = of.before && at < p.state_cols && row < p.state_rows;
        column.state[i] = is_there ? of.before[matrix + (u64)row * p.state_cols] : 0.0f;
    }
    f32* tiles = (f32*)shared_memory();
    u64 first_token = (u64)block_z() * p.rows;
    u32 turn = 0;
    begin_tile<ROWS>(p, first_token, p.tile, tiles);
    copy_commit();
    for (u32 first = 0; first < p.rows; first += p.tile) {
        u32 left = p.rows - first, count = left < p.tile ? left : p.tile;
        if (left > p.tile) {
            u32 behind = left - p.tile < p.tile ? left - p.tile : p.tile;
            f32* to = tiles + (turn ^ 1) * p.tile * STRIDE<ROWS>;
            begin_tile<ROWS>(p, first_token + first + p.tile, behind, to);
        }
        copy_commit();
        copy_wait<1>();
        sync_block();
        f32* to = p.walked + ((first_token + first) * p.heads + head) * p.state_cols + at;
        walk_tile<ROWS, IS_DELTA>(p, column, tiles + turn * p.tile * STRIDE<ROWS>, count, to);
        sync_block(); // all have read what the next copies overwrite
        turn ^= 1;
    }
#pragma unroll
    for (u32 i = 0; i < ROWS / 4; i++) {
        u32 row = i / 4 * 16 + 4 * (lane & 3) + i % 4;
        if (at < p.state_cols && row < p.state_rows) {
            of.after[matrix + (u64)row * p.state_cols] = column.state[i];
        }
    }
}
KERNEL(recur_delta_32, Recurrence, 128, 4) { walk<32, true>(p); }
KERNEL(recur_delta_64, Recurrence, 128, 4) { walk<64, true>(p); }
KERNEL(recur_delta_96, Recurrence, 128, 4) { walk<96, true>(p); }
KERNEL(recur_delta_128, Recurrence, 128, 4) { walk<128, true>(p); }
KERNEL(recur_delta_256, Recurrence, 128, 2) { walk<256, true>(p); }
KERNEL(recur_scan_32, Recurrence, 128, 4) { walk<32, false>(p); }
KERNEL(recur_scan_64, Recurrence, 128, 4) { walk<64, false>(p); }
KERNEL(recur_scan_96, Recurrence, 128, 4) { walk<96, false>(p); }
KERNEL(recur_scan_128, Recurrence, 128, 4) { walk<128, false>(p); }
KERNEL(recur_scan_256, Recurrence, 128, 2) { walk<256, false>(p); }
