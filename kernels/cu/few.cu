// Attention of few rows (a decode step) over keys that lie anywhere: at most 16 rows of each KV
// head over bf16 keys, read in place through the table, once for all rows.
//
// Bound by memory: 4 bytes per key and element of the head, and nothing else counts. A block has
// one split of one KV head's keys. Each of its warps takes every WARPS-th tile of 16 keys for
// itself, STAGES tiles ahead; no warp waits for another before the end. Where splits begin
// depends on how many keys there are and on nothing else, and parts are summed in the order of
// the splits: neither where a key lies nor what else runs changes a bit.
#include "mma.cuh"

#include "attention.cuh"

constexpr u32 ROWS = 16;
constexpr u32 TILE = 16;
constexpr u32 NOWHERE = 0xffffffff; // no position, no cell

// A block's shared memory: Q [ROWS, D]; positions of tiles [WARPS, STAGES, TILE]; tiles of keys
// and of values [WARPS, STAGES, 2, TILE, D], afterwards the warps' sums [WARPS, ROWS, D] f32.
// few.rs knows how much that is. ANY: heads may have fewer elements than D, as if zeros were beside
// them.
template <int D_, int WARPS_, int STAGES_, bool ANY_ = false>
struct Plan {
    static constexpr bool ANY = ANY_;
    static constexpr u32 D = D_, WARPS = WARPS_, STAGES = STAGES_, THREADS = 32 * WARPS_;
    static constexpr u32 ROW_BYTES = 2 * D, TILE_BYTES = TILE * ROW_BYTES, CHUNKS = D / 8;
    static constexpr u32 POSITIONS_AT = ROWS * ROW_BYTES;
    static constexpr u32 TILES_AT = POSITIONS_AT + WARPS * STAGES * TILE * 4;
};

// Elements of a head.
template <typename P>
DEVICE u32 width_of(const FewAttention& p) {
    return P::ANY ? p.queries.head_dim : P::D;
}

// Where 16 bytes of a row of D elements lie: neighbours in one column fall into other banks.
template <typename P>
DEVICE u32 swizzled(u32 row, u32 chunk) {
    return row * P::ROW_BYTES + (chunk ^ (row & 7)) * 16;
}

// What a warp knows of its rows: a thread has rows lane / 4 and lane / 4 + 8.
template <typename P>
struct WarpState {
    f32 m[2], l[2];
    f32 o[P::D / 8][4];
    Sight sight[2];
    f32 slope[2];
};

// One split, as a warp goes through it.
template <typename P>
struct Walk {
    const FewAttention& p;
    const FewStretch& stretch;
    u32 g, first, last; // keys of the split
    char* tiles;        // the warp's own
    u32* positions;
};

// A lane's part of finding a tile's keys: lanes below TILE have a key each.
struct Found {
    u32 cell, position;
};
template <typename P>
DEVICE Found find(const Walk<P>& walk, u32 tile) {
    u32 j = walk.first + tile * TILE + lane_index();
    Found found = {NOWHERE, NOWHERE};
    if (lane_index() < TILE && j < walk.last) {
        const KeyArrays& keys = walk.stretch.keys;
        u64 at = (u64)walk.g * keys.keys + j;
        found = Found{keys.table ? keys.table[at] : j, keys.positions[at]};
    }
    return found;
}

// Begins to copy a tile. What no row sees is not read: zeros come in its place.
template <typename P>
DEVICE void begin(const Walk<P>& walk, Found found, u32 stage) {
    const QueryArray& queries = walk.p.queries;
    const KeyArrays& keys = walk.stretch.keys;
    bool seen = found.position >= sight_of(queries, 0).first &&
                found.position <= sight_of(queries, queries.tokens - 1).last;
    u32 cell = seen ? found.cell : NOWHERE;
    if (lane_index() < TILE) {
        walk.positions[stage * TILE + lane_index()] = found.position;
    }
    char* k_tile = walk.tiles + stage * 2 * P::TILE_BYTES;
    for (u32 i = 0; i < TILE * P::CHUNKS / 32; ++i) {
        u32 index = i * 32 + lane_index(), row = index / P::CHUNKS, chunk = index % P::CHUNKS;
        u32 from_cell = shuffle(cell, row), width = width_of<P>(walk.p);
        bool valid = from_cell != NOWHERE && (!P::ANY || chunk * 8 < width);
        u64 from_row = (u64)walk.g * keys.cells + (valid ? from_cell : 0);
        u64 from = from_row * (2 * width) + (P::ANY && !valid ? 0 : chunk * 16);
        char* to = k_tile + swizzled<P>(row, chunk);
        copy_async16(to, static_cast<const char*>(keys.k) + from, valid);
        copy_async16(to + P::TILE_BYTES, static_cast<const char*>(keys.v) + from, valid);
    }
}

// Logits of the rows and a tile's keys: z[half][0..2] of the thread's first row, [2..4] of its
// second, for keys 8 half + 2 (lane % 4) and the next.
template <typename P>
DEVICE void multiply_keys(f32 (&z)[2][4], const char* q, const char* k_tile, f32 scale) {
    u32 lane = lane_index(), in_eight = lane & 7, second = lane >> 3 & 1, upper = lane >> 4;
    for (u32 step = 0; step < P::D / 16; ++step) {
        u32 a[4], b[4];
        ldmatrix4(a, q + swizzled<P>(in_eight + 8 * second, step * 2 + upper));
        ldmatrix4(b, k_tile + swizzled<P>(in_eight + 8 * upper, step * 2 + second));
        mma_bf16(z[0], a, {b[0], b[1]});
        mma_bf16(z[1], a, {b[2], b[3]});
    }
    for (u32 i = 0; i < 8; ++i) {
        z[i / 4][i % 4] = mul(z[i / 4][i % 4], scale);
    }
}

// Hides what rows do not see, and leaves the logits behind where they are asked for.
template <typename P>
DEVICE void hide(f32 (&z)[2][4], const Walk<P>& walk, const WarpState<P>& state, u32 tile,
                 const u32* positions) {
    const QueryArray& queries = walk.p.queries;
    u32 rows = queries.heads / walk.stretch.keys.kv_heads * queries.tokens;
    for (u32 i = 0; i < 8; ++i) {
        u32 half = i / 4, which = i % 4 / 2;
        u32 key = 8 * half + 2 * (lane_index() & 3) + i % 2, row = lane_index() / 4 + 8 * which;
        f32& logit = z[half][i % 4];
        Sight sight = state.sight[which];
        u32 position = positions[key];
        f32 far = fallen(logit, state.slope[which], sight.last - position);
        logit = sees(sight, position) ? far : -infinity();
        u32 j = walk.first + tile * TILE + key;
        if (walk.stretch.logits && row < rows && j < walk.last) {
            u64 at = (u64)walk.g * rows + row;
            walk.stretch.logits[at * walk.stretch.keys.keys + j] = logit;
        }
    }
}

// Takes a tile's logits into m, l and o; z becomes what they weigh.
template <typename P>
DEVICE void soften(f32 (&z)[2][4], WarpState<P>& state) {
    f32 shrink[2];
    for (u32 which = 0; which < 2; ++which) {
        f32 *a = &z[0][2 * which], *b = &z[1][2 * which];
        f32 m = fmax(fmax(a[0], a[1]), fmax(b[0], b[1]));
        m = fmax(m, shuffle_xor(m, 1));
        m = fmax(state.m[which], fmax(m, shuffle_xor(m, 2)));
        f32 beside = m == -infinity() ? 0.0f : m;
        shrink[which] = exp_beside(state.m[which], beside);
        state.m[which] = m;
        for (u32 i = 0; i < 2; ++i) {
            a[i] = exp_beside(a[i], beside);
            b[i] = exp_beside(b[i], beside);
        }
        f32 sum = add(add(a[0], a[1]), add(b[0], b[1]));
        state.l[which] = fma(state.l[which], shrink[which], sum);
    }
    if (ballot(shrink[0] != 1.0f || shrink[1] != 1.0f) != 0) {
        for (u32 i = 0; i < P::D / 8; ++i) {
            for (u32 e = 0; e < 4; ++e) {
                state.o[i][e] = mul(state.o[i][e], shrink[e / 2]);
            }
        }
    }
}

template <typename P>
DEVICE void add_values(WarpState<P>& state, const f32 (&z)[2][4], const char* v_tile) {
    u32 lane = lane_index(), in_eight = lane & 7, second = lane >> 3 & 1, upper = lane >> 4;
    u32 a[4] = {narrow2(z[0][0], z[0][1]), narrow2(z[0][2], z[0][3]), narrow2(z[1][0], z[1][1]),
                narrow2(z[1][2], z[1][3])};
    for (u32 step = 0; step < P::D / 16; ++step) {
        u32 b[4];
        u32 at = swizzled<P>(in_eight + 8 * second, step * 2 + upper);
        ldmatrix4_transposed(b, v_tile + at);
        mma_bf16(state.o[step * 2], a, {b[0], b[1]});
        mma_bf16(state.o[step * 2 + 1], a, {b[2], b[3]});
    }
}

// The warp's tiles of the split.
template <typename P>
DEVICE void walk_tiles(const Walk<P>& walk, WarpState<P>& state, const char* q) {
    u32 warp = warp_index(), tiles = (walk.last - walk.first + TILE - 1) / TILE;
    u32 mine = tiles > warp ? (tiles - warp + P::WARPS - 1) / P::WARPS : 0;
    for (u32 i = 0; i < P::STAGES; ++i) {
        if (i < mine) {
            begin(walk, find(walk, warp + i * P::WARPS), i);
        }
        copy_commit();
    }
    Found next = find(walk, warp + P::STAGES * P::WARPS);
    for (u32 i = 0, stage = 0; i < mine; ++i, stage = stage + 1 < P::STAGES ? stage + 1 : 0) {
        copy_wait<P::STAGES - 1>();
        sync_warp();
        u32 tile = warp + i * P::WARPS;
        const char* k_tile = walk.tiles + stage * 2 * P::TILE_BYTES;
        f32 z[2][4] = {};
        multiply_keys<P>(z, q, k_tile, walk.p.queries.scale);
        hide(z, walk, state, tile, walk.positions + stage * TILE);
        soften(z, state);
        add_values(state, z, k_tile + P::TILE_BYTES);
        sync_warp();
        if (i + P::STAGES < mine) {
            begin(walk, next, stage);
            next = find(walk, tile + (P::STAGES + 1) * P::WARPS);
        }
        copy_commit();
    }
}

// The sums of all warps, in their order, to the split's part.
template <typename P>
DEVICE void leave(const FewAttention& p, WarpState<P>& state, u32 split, u32 g, u32 rows) {
    f32* ms = reinterpret_cast<f32*>(shared_memory()); // [WARPS, ROWS], where Q was
    f32* ls = ms + P::WARPS * ROWS;
    f32* os = reinterpret_cast<f32*>(shared_memory() + P::TILES_AT);
    sync_block(); // nobody reads Q or a tile any more
    for (u32 which = 0; which < 2; ++which) {
        f32 l = state.l[which];
        l = add(l, shuffle_xor(l, 1));
        l = add(l, shuffle_xor(l, 2));
        u32 row = warp_index() * ROWS + lane_index() / 4 + 8 * which;
        ms[row] = state.m[which];
        ls[row] = l;
        for (u32 i = 0; i < P::D / 8; ++i) {
            f32* to = os + row * P::D + i * 8 + 2 * (lane_index() & 3);
            to[0] = state.o[i][2 * which];
            to[1] = state.o[i][2 * which + 1];
        }
    }
    sync_block();
    u64 first_row = (u64)split * p.queries.heads * p.queries.tokens + (u64)g * rows;
    u32 width = width_of<P>(p);
    for (u32 i = thread_index(); i < rows * width; i += P::THREADS) {
        u32 row = i / width, element = i % width;
        f32 m = -infinity(), l = 0, o = 0;
        for (u32 warp = 0; warp < P::WARPS; ++warp) {
            m = fmax(m, ms[warp * ROWS + row]);
        }
        for (u32 warp = 0; warp < P::WARPS; ++warp) {
            u32 at = warp * ROWS + row;
            f32 share = m == -infinity() ? 0.0f : exp_beside(ms[at], m);
            l = fma(ls[at], share, l);
            o = fma(os[at * P::D + element], share, o);
        }
        p.parts.o[(first_row + row) * width + element] = o;
        if (element == 0) {
            p.parts.m[first_row + row] = m;
            p.parts.l[first_row + row] = l;
        }
    }
}

// Blocks: x splits of past, then of own keys; y KV heads.
template <typename P>
DEVICE void attend_few(const FewAttention& p) {
    const QueryArray& queries = p.queries;
    bool is_own = block_x() >= p.stretches[0].splits;
    const FewStretch& stretch = p.stretches[is_own];
    u32 split = block_x() - (is_own ? p.stretches[0].splits : 0), g = block_y();
    u32 rows = queries.heads / stretch.keys.kv_heads * queries.tokens;
    char* q = shared_memory();
    u32 width = width_of<P>(p);
    const u16* from = static_cast<const u16*>(queries.q) + (u64)g * rows * width;
    for (u32 i = thread_index(); i < ROWS * P::CHUNKS; i += P::THREADS) {
        u32 row = i / P::CHUNKS, chunk = i % P::CHUNKS;
        bool there = row < rows && chunk * 8 < width;
        Quad quad = there ? load16(from + (u64)row * width + chunk * 8) : Quad{};
        store16(q + swizzled<P>(row, chunk), quad);
    }
    sync_block();
    WarpState<P> state = {{-infinity(), -infinity()}, {}, {}, {}, {}};
    u32 first_head = queries.heads / stretch.keys.kv_heads * g;
    for (u32 which = 0; which < 2; ++which) {
        u32 row = lane_index() / 4 + 8 * which;
        if (row < rows) {
            state.sight[which] = sight_of(queries, row % queries.tokens);
            state.slope[which] = slope_of(queries, first_head + row / queries.tokens);
        } else {
            state.sight[which] = Sight{1, 0};
        }
    }
    u32 first = split * stretch.split_keys, left = stretch.keys.keys - first;
    u32 last = first + (left < stretch.split_keys ? left : stretch.split_keys);
    u32 ring = warp_index() * P::STAGES;
    Walk<P> walk = {p, stretch, g, first, last,
                    shared_memory() + P::TILES_AT + ring * 2 * P::TILE_BYTES,
                    reinterpret_cast<u32*>(shared_memory() + P::POSITIONS_AT) + ring * TILE};
    walk_tiles(walk, state, q);
    leave(p, state, block_x(), g, rows);
}

KERNEL(few_attention_64, FewAttention, 128, 1) { attend_few<Plan<64, 4, 3>>(p); }
KERNEL(few_attention_128, FewAttention, 128, 1) { attend_few<Plan<128, 4, 2>>(p); }
KERNEL(few_attention_256, FewAttention, 64, 1) { attend_few<Plan<256, 2, 2>>(p); }
KERNEL(few_attention_64_any, FewAttention, 128, 1) { attend_few<Plan<64, 4, 3, true>>(p); }
KERNEL(few_attention_128_any, FewAttention, 128, 1) { attend_few<Plan<128, 4, 2, true>>(p); }
KERNEL(few_attention_256_any, FewAttention, 64, 1) { attend_few<Plan<256, 2, 2, true>>(p); }
