// Prefill attention with the matrix instructions of sm_80. A block has a tile of rows of one head
// and walks over tiles of keys, own ones first, then past ones, with a running softmax. Tiles that
// none of its rows sees are left out.
//
// K and V have one tile each in shared memory, of which one is under way while the other is
// multiplied. Logits are kept as dot products; the scale is folded into exp2's argument.
//
// Between tiles a row is what a state in memory would bring: m in natural units, l one sum, o not
// divided. So own keys to a state, and past keys from it, give the bits of both in one go.
#include "device.cuh"

#include "attention.cuh"
#include "tiles80.cuh"

// What a warp knows of its 16 M rows. A lane has parts of rows lane / 4 and lane / 4 + 8 of each
// sixteen: columns 8 n + 2 (lane % 4) and the next.
template <int D, int M>
struct Running {
    f32 m[M][2]; // the largest logit
    f32 l[M][2];
    f32 o[M][D / 8][4];
};

// The keys of one tile.
struct KeyTile {
    bool own;
    u32 first;
};

template <bool ANY, int D, int M>
DEVICE void start(Running<D, M>& rows, const Attention80& p, u32 head, u32 first_row) {
    const u32 lane = lane_index();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = first_row + 16 * m + 8 * half + lane / 4, width = width_of<ANY, D>(p);
            const u64 at = (u64)head * p.tokens + row;
            const bool known = p.from.m && row < p.tokens;
            rows.m[m][half] = known ? p.from.m[at] : -infinity();
            rows.l[m][half] = known ? p.from.l[at] : 0.0f;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    rows.o[m][n][2 * half + i] = known && 8 * n < width
                        ? p.from.o[at * width + 8 * n + lane % 4 * 2 + i] : 0.0f;
        }
}

template <int D, int M, int KEYS>
DEVICE void dot_products(f32 (&s)[M][KEYS / 8][4], u16* q_tile, u16* k_tile) {
    const u32 lane = lane_anew();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) load_a<D>(a[m], q_tile, 16 * m, step, lane);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            const TwoB b = load_b<D>(k_tile, 16 * n, step, lane);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_bf16(s[m][2 * n], a[m], b.low);
                mma_bf16(s[m][2 * n + 1], a[m], b.high);
            }
        }
    }
}

// The first key of a part that a row sees, by row; null where that is the first of all. Rows
// behind the last are as it is.
DEVICE const u32* firsts_of(const Attention80& p, bool own, u32 kv_head) {
    const u32* first = own ? p.first[OWN] : p.first[PAST];
    return first ? first + (u64)kv_head * p.tokens : first;
}
DEVICE u32 first_of(const u32* firsts, const Attention80& p, u32 row) {
    return firsts ? firsts[least(row, p.tokens - 1)] : 0;
}

// Forgets the keys of the tile that a row does not see; `first_row` is the warp's.
template <int M, int KEYS>
DEVICE void mask(f32 (&s)[M][KEYS / 8][4], KeyTile tile, u32 first_row, u32 past_keys) {
    const u32 lane = lane_anew();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 row = first_row + 16 * m + i / 2 * 8 + lane / 4;
            const u32 end = tile.own ? row + 1 : past_keys;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                if (tile.first + 8 * n + lane % 4 * 2 + i % 2 >= end) s[m][n][i] = -infinity();
        }
}

// Forgets those that are before a row's first; so a row may have seen nothing so far.
template <int M, int KEYS>
DEVICE void mask_before(f32 (&s)[M][KEYS / 8][4], const Attention80& p, const u32* firsts,
                        KeyTile tile, u32 first_row) {
    const u32 lane = lane_anew();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 first = first_of(firsts, p, first_row + 16 * m + 8 * half + lane / 4);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (tile.first + 8 * n + lane % 4 * 2 + i < first)
                        s[m][n][2 * half + i] = -infinity();
        }
}

// Dot products become probabilities relative to the new maximum, and what is known follows it.
template <int D, int M, int KEYS>
DEVICE void softmax(Running<D, M>& rows, f32 (&s)[M][KEYS / 8][4], f32 scale) {
    const f32 scale2 = mul(scale, LOG2E);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            f32 top = -infinity();
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                top = fmax(top, fmax(s[m][n][2 * half], s[m][n][2 * half + 1]));
            top = fmax(rows.m[m][half], mul(largest_of_four(top), scale));
            // Of a row that has seen nothing, any number serves.
            const f32 base = top == -infinity() ? 0.0f : top;
            const f32 fade = exp2_fast(mul(add(rows.m[m][half], -base), LOG2E));
            const f32 base2 = mul(base, -LOG2E);
            f32 sum = 0.0f;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[m][n][i] = exp2_fast(fma(s[m][n][i], scale2, base2));
                    sum = add(sum, s[m][n][i]);
                }
            rows.m[m][half] = top;
            rows.l[m][half] = fma(rows.l[m][half], fade, sum_of_four(sum));
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    rows.o[m][n][i] = mul(rows.o[m][n][i], fade);
        }
}

// o += P V. What the products of Q and K leave in registers is what mma takes as its a.
template <int D, int M, int KEYS>
DEVICE void weighted_values(Running<D, M>& rows, const f32 (&s)[M][KEYS / 8][4], u16* v_tile) {
    const u32 lane = lane_anew();
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        u32 a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const f32* pair = &s[m][2 * step + i / 2][i % 2 * 2];
                a[m][i] = narrow2(pair[0], pair[1]);
            }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            const TwoB b = load_b_across<D>(v_tile, 16 * step, n, lane);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_bf16(rows.o[m][2 * n], a[m], b.low);
                mma_bf16(rows.o[m][2 * n + 1], a[m], b.high);
            }
        }
    }
}

template <int D, int M>
DEVICE void report_broken(const Running<D, M>& rows, const Attention80& p) {
    f32 check = 0.0f; // NaN once anything is infinite or NaN
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            check = fma(rows.l[m][i / 2], 0.0f, check);
#pragma unroll
            for (int n = 0; n < D / 8; n++) check = fma(rows.o[m][n][i], 0.0f, check);
        }
    if (!finite(check)) *p.broken = BROKEN_ATTEND;
}

// o / l as bf16, and the log-sum-exp. Rows are gathered in `stage`, the warp's own part of the
// tile of queries, which nobody needs any more, so that they leave in whole chunks.
template <bool ANY, int D, int M>
DEVICE void store_output(const Running<D, M>& rows, const Attention80& p, u32 head, u32 first_row,
                         u16* stage) {
    const u32 lane = lane_index(), width = width_of<ANY, D>(p);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = 16 * m + 8 * half + lane / 4;
            const f32 l = rows.l[m][half];
            const f32 share = l > 0.0f ? div(1.0f, l) : 0.0f;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                const f32* pair = &rows.o[m][n][2 * half];
                u32* to = reinterpret_cast<u32*>(chunk_of<D>(stage, row, n)) + lane % 4;
                *to = narrow2(mul(pair[0], share), mul(pair[1], share));
            }
            if (lane % 4 == 0 && first_row + row < p.tokens)
                p.lse[(u64)head * p.tokens + first_row + row] =
                    l > 0.0f ? fma(log2_fast(l), LN_2, rows.m[m][half]) : -infinity();
        }
    sync_warp();
    constexpr u32 CHUNKS = D / 8;
#pragma unroll
    for (u32 i = 0; i < 16 * M * CHUNKS / 32; i++) {
        const u32 row = (32 * i + lane) / CHUNKS, chunk = (32 * i + lane) % CHUNKS;
        const u64 to = ((u64)(first_row + row) * p.heads + head) * width + chunk * 8;
        if (first_row + row < p.tokens && chunk * 8 < width)
            store16(p.output + to, load16(chunk_of<D>(stage, row, chunk)));
    }
}

template <bool ANY, int D, int M>
DEVICE void store_state(const Running<D, M>& rows, const Attention80& p, u32 head, u32 first_row) {
    const u32 lane = ANY ? lane_anew() : lane_index();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = first_row + 16 * m + 8 * half + lane / 4, width = width_of<ANY, D>(p);
            const u64 at = (u64)head * p.tokens + row;
            if (row >= p.tokens) continue;
            if (lane % 4 == 0) p.to.m[at] = rows.m[m][half], p.to.l[at] = rows.l[m][half];
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                if (8 * n >= width) break;
#pragma unroll
                for (int i = 0; i < 2; i++)
                    p.to.o[at * width + 8 * n + lane % 4 * 2 + i] = rows.o[m][n][2 * half + i];
            }
        }
}

// What the warps of a block share.
template <int D, int WARPS, int M, int KEYS>
struct Block {
    u16 *q_tile, *k_tile, *v_tile;
    u32 kv_head, own_tiles, tiles;
    u32 left_out; // tiles of the present part before those that any row sees
};

// Own keys that the block's rows see come first, in ascending order, then the past ones.
template <bool ANY, int D, int WARPS, int M, int KEYS>
DEVICE KeyTile keys_of(const Block<D, WARPS, M, KEYS>& block, u32 tile) {
    const bool own = tile < block.own_tiles;
    const u32 at = own ? tile : tile - block.own_tiles;
    return {own, (ANY ? at + block.left_out : at) * KEYS};
}

// The first tile of which a row sees a key.
template <bool ANY, int KEYS>
DEVICE u32 begin_of(const Attention80& p, bool own, u32 kv_head, u32 row) {
    if (!ANY) return 0;
    const u32 first = first_of(firsts_of(p, own, kv_head), p, row);
    const u32 keys = own ? p.own.keys : p.past.keys;
    return first < keys ? first / KEYS : ceil_div(keys, KEYS);
}

// Begins to copy keys, or values, of a tile; nothing behind the last.
template <bool ANY, int D, int WARPS, int M, int KEYS>
DEVICE void copy_keys(const Attention80& p, const Block<D, WARPS, M, KEYS>& block, u32 tile,
                      bool values) {
    if (tile >= block.tiles) return;
    const KeyTile keys = keys_of<ANY>(block, tile);
    const Stretch80& stretch = keys.own ? p.own : p.past;
    const u32 width = width_of<ANY, D>(p);
    const u16* from = (values ? stretch.v : stretch.k) + (u64)block.kv_head * stretch.cells * width;
    copy_tile<D, KEYS, WARPS * 32>(values ? block.v_tile : block.k_tile, from, keys.first,
                                   stretch.keys, width);
    copy_commit();
}

// The first row of this block of the grid: the last rows, which see most, come first.
template <int WARPS, int M>
DEVICE u32 grid_row() {
    return (grid_y() - 1 - block_y()) * (WARPS * M * 16);
}

// Takes in all keys. A warp without a row (WORKS false) only copies what the others need.
template <bool WORKS, bool ANY, int D, int WARPS, int M, int KEYS>
DEVICE void walk(Running<D, M>& rows, const Attention80& p, Block<D, WARPS, M, KEYS>& block,
                 u32 first_row) {
    u16* q_tile = block.q_tile + warp_index() * M * 16 * D;
    for (u32 tile = 0; tile < block.tiles; tile++) {
        copy_wait<0>();
        sync_block(); // K is there, and nobody needs the V before this one any more
        copy_keys<ANY>(p, block, tile, true);
        f32 s[M][KEYS / 8][4];
        if constexpr (WORKS) {
            dot_products<D, M, KEYS>(s, q_tile, block.k_tile);
            const KeyTile keys = keys_of<ANY>(block, tile);
            if (keys.first + KEYS > (keys.own ? first_row + 1 : p.past.keys))
                mask<M, KEYS>(s, keys, first_row, p.past.keys);
            if constexpr (ANY) {
                const u32* firsts = firsts_of(p, keys.own, block.kv_head);
                if (keys.first < first_of(firsts, p, first_row + 16 * M - 1))
                    mask_before<M, KEYS>(s, p, firsts, keys, first_row);
            }
        }
        copy_wait<0>();
        sync_block(); // V is there, and nobody needs this K any more
        if (ANY && tile + 1 == block.own_tiles)
            block.left_out = begin_of<ANY, KEYS>(p, false, block.kv_head, grid_row<WARPS, M>());
        copy_keys<ANY>(p, block, tile + 1, false);
        if constexpr (WORKS) {
            softmax<D, M, KEYS>(rows, s, p.scale);
            weighted_values<D, M, KEYS>(rows, s, block.v_tile);
        }
    }
}

// A grid of heads by tiles of rows; heads that share keys run side by side.
template <bool ANY, int D, int WARPS, int M, int KEYS>
DEVICE void attend(const Attention80& p) {
    constexpr u32 ROWS = WARPS * M * 16;
    u16* q_tile = reinterpret_cast<u16*>(shared_memory());
    const u32 head = block_x(), block_row = grid_row<WARPS, M>();
    const u32 first_row = block_row + warp_index() * M * 16;
    const u32 kv_head = head / p.group, width = width_of<ANY, D>(p);
    const u32 own_begin = begin_of<ANY, KEYS>(p, true, kv_head, block_row);
    const u32 past_begin = begin_of<ANY, KEYS>(p, false, kv_head, block_row);
    const u32 own_tiles = ceil_div(least(block_row + ROWS, p.own.keys), KEYS) - own_begin;
    const u32 tiles = own_tiles + ceil_div(p.past.keys, KEYS) - past_begin;
    Block<D, WARPS, M, KEYS> block = {
        q_tile,    q_tile + ROWS * D, q_tile + (ROWS + KEYS) * D, kv_head,
        own_tiles, tiles,             own_tiles > 0 ? own_begin : past_begin};

    copy_tile<D, ROWS, WARPS * 32>(q_tile, p.q + (u64)head * p.tokens * width, block_row, p.tokens,
                                   width);
    copy_commit();
    copy_keys<ANY>(p, block, 0, false);
    Running<D, M> rows;
    start<ANY, D, M>(rows, p, head, first_row);
    if (first_row >= p.tokens) {
        walk<false, ANY>(rows, p, block, first_row);
        copy_wait<0>();
        sync_block();
        return;
    }
    walk<true, ANY>(rows, p, block, first_row);
    copy_wait<0>();
    sync_block(); // the queries are there, even where there was no key
    report_broken<D, M>(rows, p);
    if (p.output) {
        store_output<ANY, D, M>(rows, p, head, first_row, q_tile + warp_index() * M * 16 * D);
    } else {
        store_state<ANY, D, M>(rows, p, head, first_row);
    }
}

KERNEL(attention80_64, Attention80, 128, 2) { attend<false, 64, 4, 2, 64>(p); }
KERNEL(attention80_128, Attention80, 128, 2) { attend<false, 128, 4, 2, 64>(p); }
KERNEL(attention80_256, Attention80, 256, 1) { attend<false, 256, 8, 1, 64>(p); }
KERNEL(attention80_64_any, Attention80, 128, 2) { attend<true, 64, 4, 2, 64>(p); }
KERNEL(attention80_128_any, Attention80, 128, 2) { attend<true, 128, 4, 2, 64>(p); }
KERNEL(attention80_256_any, Attention80, 256, 1) { attend<true, 256, 8, 1, 64>(p); }
