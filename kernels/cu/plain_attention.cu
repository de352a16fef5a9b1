// The partial state of rows over keys: every dtype, head size, table and window, simply.
//
// A warp has one row of one head. For the logits of 32 keys each lane has a key, and for their
// weighted sum each lane has SHARE of the head's elements, keys ascending. Keys that a row does
// not see are not read.
#include "device.cuh"

#include "attention.cuh"

constexpr u32 WARPS = 4;

// A row's own (m, l, o): l in parts, one a lane.
template <int SHARE>
struct RowState {
    f32 m, l;
    f32 o[SHARE];
    bool saw;
};

// Takes in the keys `first..first + 32` that `seen` says; `z` is the logit of the lane's own.
// `shared` has room for 32 logits and 32 weights.
template <typename T, int SHARE>
DEVICE void take(RowState<SHARE>& state, const PlainAttention& p, u32 g, u32 first, u32 seen, f32 z,
                 f32* shared) {
    u32 lane = lane_index(), width = p.queries.head_dim;
    f32* weights = shared + 32;
    shared[lane] = z;
    sync_warp();
    f32 m = state.m;
    for (u32 j = 0; j < 32; ++j) {
        m = fmax(m, shared[j]);
    }
    f32 beside = m == -infinity() ? 0.0f : m;
    f32 shrink = exp_beside(state.m, beside);
    f32 weight = seen >> lane & 1 ? exp_beside(z, beside) : 0.0f;
    state.m = m;
    state.l = fma(state.l, shrink, weight);
    weights[lane] = weight;
    sync_warp();
    for (int i = 0; i < SHARE; ++i) {
        state.o[i] = mul(state.o[i], shrink);
    }
    for (u32 j = 0; j < 32; ++j) {
        if (seen >> j & 1) {
            const T* v = static_cast<const T*>(p.keys.v) + row_of(p.keys, g, first + j) * width;
            f32 weight = weights[j];
            for (u32 i = 0; i < SHARE; ++i) {
                u32 element = i * 32 + lane;
                if (element < width) {
                    state.o[i] = fma(weight, wide(v[element]), state.o[i]);
                }
            }
        }
    }
}

template <int SHARE>
DEVICE void write(RowState<SHARE>& state, const PlainAttention& p, u64 row) {
    u32 lane = lane_index(), width = p.queries.head_dim;
    f32 l = warp_sum(state.l);
    bool whole = finite(l) && !(state.saw && state.m == -infinity());
    if (lane == 0) {
        p.to.m[row] = state.m;
        p.to.l[row] = l;
    }
    for (u32 i = 0; i < SHARE; ++i) {
        u32 element = i * 32 + lane;
        if (element < width) {
            p.to.o[row * width + element] = state.o[i];
            whole = whole && finite(state.o[i]);
        }
    }
    if (!whole) {
        *p.broken = BROKEN_ATTEND;
    }
}

// Blocks: x WARPS rows, y heads. Shared memory: head_dim + 64 f32 a warp.
template <typename T, int SHARE>
DEVICE void attend_row(const PlainAttention& p) {
    u32 t = block_x() * WARPS + warp_index(), h = block_y(), lane = lane_index();
    const QueryArray& queries = p.queries;
    const KeyArrays& keys = p.keys;
    if (t >= queries.tokens) {
        return;
    }
    u32 g = h / (queries.heads / keys.kv_heads), width = queries.head_dim;
    u64 row = (u64)h * queries.tokens + t;
    f32* q = reinterpret_cast<f32*>(shared_memory()) + warp_index() * (width + 64);
    for (u32 i = lane; i < width; i += 32) {
        q[i] = wide(static_cast<const T*>(queries.q)[row * width + i]);
    }
    sync_warp();
    Sight sight = sight_of(queries, t);
    f32 slope = slope_of(queries, h);
    const u32* positions = keys.positions + (u64)g * keys.keys;
    RowState<SHARE> state = {-infinity(), 0.0f, {}, false};
    for (u32 first = 0; first < keys.keys && positions[first] <= sight.last; first += 32) {
        u32 j = first + lane;
        bool seen = j < keys.keys && sees(sight, positions[j]);
        u32 all_seen = ballot(seen);
        if (all_seen != 0) {
            const T* k = static_cast<const T*>(keys.k);
            f32 z = -infinity();
            if (seen) {
                f32 near = logit(q, k + row_of(keys, g, j) * width, queries);
                z = fallen(near, slope, sight.last - positions[j]);
            }
            state.saw = true;
            take<T>(state, p, g, first, all_seen, z, q + width);
        }
    }
    write(state, p, row);
}

KERNEL(plain_attention_f32_64, PlainAttention, 128, 1) { attend_row<f32, 2>(p); }
KERNEL(plain_attention_f32_128, PlainAttention, 128, 1) { attend_row<f32, 4>(p); }
KERNEL(plain_attention_f32_256, PlainAttention, 128, 1) { attend_row<f32, 8>(p); }
KERNEL(plain_attention_f32_512, PlainAttention, 128, 1) { attend_row<f32, 16>(p); }
KERNEL(plain_attention_bf16_64, PlainAttention, 128, 1) { attend_row<u16, 2>(p); }
KERNEL(plain_attention_bf16_128, PlainAttention, 128, 1) { attend_row<u16, 4>(p); }
KERNEL(plain_attention_bf16_256, PlainAttention, 128, 1) { attend_row<u16, 8>(p); }
KERNEL(plain_attention_bf16_512, PlainAttention, 128, 1) { attend_row<u16, 16>(p); }
