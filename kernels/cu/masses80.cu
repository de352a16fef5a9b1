// Exact column masses with the matrix instructions of sm_80: a block has a tile of one KV head's
// keys in registers and lets the rows of all heads of the group pass by it.
//
// A lane adds up what rows spend on its keys: within a tile of rows, tiles within a head, heads
// in ascending order; four lanes have parts of one key, which meet at the end. So every column
// has one writer, and its terms one order.
#include "device.cuh"

#include "attention.cuh"
#include "tiles80.cuh"

constexpr int ROWS = 64; // of a tile of queries
constexpr int PART = 32; // of them at once

// A number for each of a lane's keys: lane / 4 and lane / 4 + 8 of each sixteen.
template <int M>
struct PerKey {
    f32 of[M][2];
};
template <int M>
DEVICE void clear(PerKey<M>& x) {
#pragma unroll
    for (int m = 0; m < M; m++) x.of[m][0] = x.of[m][1] = 0.0f;
}
template <int M>
DEVICE void add_to(PerKey<M>& x, const PerKey<M>& y) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) x.of[m][half] = add(x.of[m][half], y.of[m][half]);
}

// What a row brings to the argument of exp2, and what its probabilities count.
struct RowTerm {
    f32 exponent, weight;
};
DEVICE RowTerm term_of(const Masses80& p, u32 head, u32 row) {
    if (row >= p.tokens) return {-infinity(), 0.0f};
    const f32 lse = p.lse[(u64)head * p.tokens + row];
    return {lse == -infinity() ? lse : mul(lse, -LOG2E), p.row_weights[row]};
}

// k's keys times the rows of a part of a tile: s[m][n] of keys 16 m.. and rows 8 n...
template <int D, int M>
DEVICE void dot_products(f32 (&s)[M][PART / 8][4], const u32 (&k)[M][D / 16][4], u16* q_tile) {
    const u32 lane = lane_anew();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < PART / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < D / 16; step++)
#pragma unroll
        for (int n = 0; n < PART / 16; n++) {
            const TwoB b = load_b<D>(q_tile, 16 * n, step, lane);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_bf16(s[m][2 * n], k[m][step], b.low);
                mma_bf16(s[m][2 * n + 1], k[m][step], b.high);
            }
        }
}

// Forgets own keys behind their rows. `row` is the part's first row, `key` the lane's first key.
template <int M>
DEVICE void mask(f32 (&s)[M][PART / 8][4], u32 row, u32 key) {
    const u32 lane_row = row + lane_index() % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < PART / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (lane_row + 8 * n + i % 2 < key + 16 * m + i / 2 * 8) s[m][n][i] = -infinity();
}

// The first row that does not see a key any more; keys behind the last are as it is.
DEVICE u32 end_of(const u32* ends, const Columns80& keys, u32 key) {
    return ends[least(key, keys.keys - 1)];
}

// Forgets the keys that rows do not see any more.
template <int M>
DEVICE void mask_behind(f32 (&s)[M][PART / 8][4], u32 row, u32 key, const u32* ends,
                        const Columns80& keys) {
    const u32 lane_row = row + lane_index() % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 end = end_of(ends, keys, key + 16 * m + 8 * half);
#pragma unroll
            for (int n = 0; n < PART / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (lane_row + 8 * n + i >= end) s[m][n][2 * half + i] = -infinity();
        }
}

// Adds w exp(z - lse) over a part's rows; `terms` are the rows'.
template <int M>
DEVICE void spend(PerKey<M>& spent, const f32 (&s)[M][PART / 8][4], const RowTerm* terms,
                  f32 scale2) {
#pragma unroll
    for (int n = 0; n < PART / 8; n++) {
        const Quad two = load16(terms + 8 * n + lane_index() % 4 * 2);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const f32 exponent = from_bits(two.x[i % 2 * 2]);
                const f32 weight = from_bits(two.x[i % 2 * 2 + 1]);
                const f32 share = exp2_fast(fma(s[m][n][i], scale2, exponent));
                spent.of[m][i / 2] = fma(weight, share, spent.of[m][i / 2]);
            }
    }
}

// A grid of KV heads by tiles of keys: past keys, which every row sees, come first, and of the
// own ones those that most rows see.
template <bool ANY, int D, int WARPS, int M>
DEVICE void weigh(const Masses80& p) {
    constexpr u32 KEYS = WARPS * M * 16, THREADS = WARPS * 32;
    static_assert(KEYS <= 2 * ROWS, "keys pass through the memory of the queries");
    u16* q_tiles = reinterpret_cast<u16*>(shared_memory()); // [2][ROWS, D]
    RowTerm* terms = reinterpret_cast<RowTerm*>(q_tiles + 2 * ROWS * D); // [2][ROWS]
    const u32 kv_head = block_x(), past_tiles = ceil_div(p.past.keys, KEYS);
    const bool own = block_y() >= past_tiles;
    const Columns80& keys = own ? p.own : p.past;
    const u32 first_key = (own ? block_y() - past_tiles : block_y()) * KEYS;
    const u32 warp_key = warp_index() * M * 16;
    const f32 scale2 = mul(p.scale, LOG2E);
    const u32 width = width_of<ANY, D>(p);
    const u32* ends = nullptr; // by key; null where rows behind a key see it to the last
    if (ANY) ends = own ? p.end[OWN] : p.end[PAST];
    if (ends) ends += (u64)kv_head * keys.keys;

    copy_tile<D, KEYS, THREADS>(q_tiles, keys.k + (u64)kv_head * keys.cells * width, first_key,
                                keys.keys, width);
    copy_commit();
    copy_wait<0>();
    sync_block();
    u32 k[M][D / 16][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int step = 0; step < D / 16; step++)
            load_a<D>(k[m][step], q_tiles, warp_key + 16 * m, step, lane_index());
    sync_block();

    const u32 first_tile = (own && first_key > p.first_row ? first_key : p.first_row) / ROWS;
    const u32 end_row = ends ? end_of(ends, keys, first_key + KEYS - 1) : p.tokens;
    const u32 end_tile = ceil_div(end_row, ROWS);
    const u32 tiles = ANY && end_tile < first_tile ? 0 : end_tile - first_tile; // of one head
    u32 head = kv_head * p.group, tile = 0; // of which the copy is under way
    RowTerm term = {};
    auto copy = [&](u32 stage) {
        const u32 row = (first_tile + tile) * ROWS;
        copy_tile<D, ROWS, THREADS>(q_tiles + stage * ROWS * D, p.q + (u64)head * p.tokens * width,
                                    row, p.tokens, width);
        copy_commit();
        term = term_of(p, head, row + thread_index() % ROWS);
    };
    if (!ANY || tiles > 0) copy(0);
    PerKey<M> all, of_head;
    clear(all);
    clear(of_head);
    for (u32 step = 0; step < tiles * p.group; step++) {
        const u32 stage = step % 2, row = (first_tile + tile) * ROWS;
        RowTerm* row_terms = terms + stage * ROWS;
        if (thread_index() < ROWS) row_terms[thread_index()] = term;
        copy_wait<0>();
        sync_block(); // the tile is there, and nobody needs the one before any more
        tile++;
        const bool head_done = tile == tiles;
        if (head_done) head++, tile = 0;
        if (step + 1 < tiles * p.group) copy(1 - stage);
        PerKey<M> spent;
        clear(spent);
#pragma unroll 1
        for (int part = 0; part < ROWS; part += PART) {
            if (own && row + part + PART <= first_key + warp_key) continue;
            f32 s[M][PART / 8][4];
            dot_products<D, M>(s, k, q_tiles + (stage * ROWS + part) * D);
            if (own && row + part < first_key + warp_key + M * 16)
                mask<M>(s, row + part, first_key + warp_key + lane_index() / 4);
            if (ends && row + part + PART > end_of(ends, keys, first_key + warp_key))
                mask_behind<M>(s, row + part, first_key + warp_key + lane_index() / 4, ends, keys);
            spend<M>(spent, s, row_terms + part, scale2);
        }
        add_to(of_head, spent);
        if (head_done) {
            add_to(all, of_head);
            clear(of_head);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 key = first_key + warp_key + 16 * m + 8 * half + lane_index() / 4;
            const f32 mass = sum_of_four(all.of[m][half]);
            if (lane_index() % 4 != 0 || key >= keys.keys) continue;
            keys.mass[(u64)kv_head * keys.keys + key] = mass;
            if (!finite(mass)) *p.broken = BROKEN_WEIGH;
        }
}

KERNEL(masses80_64, Masses80, 128, 3) { weigh<false, 64, 4, 2>(p); }
KERNEL(masses80_128, Masses80, 128, 3) { weigh<false, 128, 4, 2>(p); }
KERNEL(masses80_256, Masses80, 256, 2) { weigh<false, 256, 8, 1>(p); }
KERNEL(masses80_64_any, Masses80, 128, 3) { weigh<true, 64, 4, 2>(p); }
KERNEL(masses80_128_any, Masses80, 128, 3) { weigh<true, 128, 4, 2>(p); }
KERNEL(masses80_256_any, Masses80, 256, 2) { weigh<true, 256, 8, 1>(p); }
