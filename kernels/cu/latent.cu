// Heads whose keys and values come of a few numbers that all of them share. All of it is bound by
// memory.
#include "device.cuh"
#include "heads.cuh"

struct TakeParams {
    const void* x; // [rows, stride], from the first column that is taken
    void* y;       // [rows, columns]
    u64 rows;
    u32 columns;
    u32 stride;
};

struct LatentParams {
    const f32* queries; // [tokens, queries_stride], heads head_dim of them
    const f32* keys;    // [tokens, heads (head_dim - shared + value_dim)], keys of all heads first
    const f32* common;  // [tokens, common_stride], `shared` of them
    const f32* cosines; // [tokens, head_dim / 2], and as many of queries if they have their own
    const f32* sines;
    void* q;            // [heads, tokens, head_dim]
    void* k;
    void* v;
    u32* positions;     // [heads, tokens]
    u32* broken;
    u32 tokens;
    u32 heads;
    u32 head_dim;
    u32 shared;         // elements that keys have in common
    u32 value_dim;      // elements of a value; zeros follow
    u32 queries_stride;
    u32 common_stride;
    u32 start;
    u32 code;           // what `broken` becomes
    u32 queries_from;   // the row of the first token's queries among angles: 0 or `tokens`
};

// Some columns of rows, a warp for each row.
template <typename T>
DEVICE void take_columns(const TakeParams& p) {
    u64 row = (u64)block_x() * 8 + warp_index();
    if (row >= p.rows) return;
    const T* from = (const T*)p.x + row * p.stride;
    T* to = (T*)p.y + row * p.columns;
    for (u32 i = lane_index(); i < p.columns; i += 32) to[i] = from[i];
}
KERNEL(take_f32, TakeParams, 256, 4) { take_columns<f32>(p); }
KERNEL(take_bf16, TakeParams, 256, 4) { take_columns<u16>(p); }

// Element i of either half of a key: those that keys have in common come first.
DEVICE f32 element(const f32* common, const f32* own, u32 shared_half, u32 i) {
    return i < shared_half ? common[i] : own[i - shared_half];
}

// Queries, keys and values of what three products made: a warp for each head of a token.
template <typename T>
DEVICE void latent_heads(const LatentParams& p) {
    u32 d = p.head_dim, half = d / 2, lane = lane_index(), own = d - p.shared;
    u64 item = (u64)block_x() * 8 + warp_index();
    u32 token = (u32)(item / (3 * p.heads)), stacked = (u32)(item % (3 * p.heads));
    if (token >= p.tokens) return;
    u32 head = stacked % p.heads;
    u64 row = (u64)head * p.tokens + token;
    const f32* made = p.keys + (u64)token * p.heads * (own + p.value_dim);
    u32 turn = stacked < p.heads ? token + p.queries_from : token;
    const f32 *cosines = p.cosines + (u64)turn * half, *sines = p.sines + (u64)turn * half;
    bool good = true;
    if (stacked < p.heads) {
        const f32* from = p.queries + (u64)token * p.queries_stride + head * d;
        T* to = (T*)p.q + row * d;
        for (u32 i = lane; i < half; i += 32) {
            Turn by = Turn{cosines[i], sines[i], 1.0f, 1.0f};
            good &= turn_pair(to, half, i, from[i], from[i + half], by);
        }
    } else if (stacked < 2 * p.heads) {
        const f32 *from = made + head * own, *common = p.common + (u64)token * p.common_stride;
        u32 shared_half = p.shared / 2;
        T* to = (T*)p.k + row * d;
        for (u32 i = lane; i < half; i += 32) {
            f32 x = element(common, from, shared_half, i);
            f32 y = element(common + shared_half, from + own / 2, shared_half, i);
            good &= turn_pair(to, half, i, x, y, Turn{cosines[i], sines[i], 1.0f, 1.0f});
        }
        if (lane == 0) p.positions[row] = p.start + token;
    } else {
        const f32* from = made + p.heads * own + head * p.value_dim;
        for (u32 i = lane; i < d; i += 32) {
            f32 x = i < p.value_dim ? from[i] : 0.0f;
            good &= finite(x);
            store_as((T*)p.v + row * d + i, x);
        }
    }
    if (!good) *p.broken = p.code;
}
KERNEL(latent_heads_f32, LatentParams, 256, 4) { latent_heads<f32>(p); }
KERNEL(latent_heads_bf16, LatentParams, 256, 4) { latent_heads<u16>(p); }
