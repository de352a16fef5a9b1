// What the kernels of attention and masses have in common.
#pragma once
#include "device.cuh"

// Exponentials are powers of two: exp(x) = exp2(LOG2E x).
constexpr f32 LOG2E = 1.44269504088896340736f;

// What *broken says: `Broken` in kernels/src/cuda/mod.rs.
constexpr u32 BROKEN_ATTEND = 4;
constexpr u32 BROKEN_WEIGH = 5;

DEVICE f32 wide(f32 x) { return x; }
DEVICE f32 wide(u16 x) { return widen(x); }

// The positions that a row sees.
struct Sight {
    u32 first, last;
};
DEVICE Sight sight_of(const QueryArray& queries, u32 t) {
    u32 last = queries.start + t;
    return Sight{last + 1 > queries.window ? last + 1 - queries.window : 0, last};
}
DEVICE bool sees(Sight sight, u32 position) {
    return position >= sight.first && position <= sight.last;
}

// Row of k and v that holds key j of KV head g.
DEVICE u64 row_of(const KeyArrays& keys, u32 g, u32 j) {
    u32 cell = keys.table ? keys.table[(u64)g * keys.keys + j] : j;
    return (u64)g * keys.cells + cell;
}

// scale (q . k), elements ascending: rows and masses agree on it bit for bit.
template <typename Q, typename K>
DEVICE f32 logit(const Q* q, const K* k, const QueryArray& queries) {
    f32 dot = 0;
    for (u32 i = 0; i < queries.head_dim; ++i) {
        dot = fma(wide(q[i]), wide(k[i]), dot);
    }
    return mul(dot, queries.scale);
}

// exp(z - m) where neither is what was not seen: m is finite.
DEVICE f32 exp_beside(f32 z, f32 m) { return exp2_fast(mul(add(z, -m), LOG2E)); }

// In the same order on every lane.
DEVICE f32 warp_max(f32 x) {
    for (u32 by = 16; by > 0; by /= 2) {
        x = fmax(x, shuffle_xor(x, by));
    }
    return x;
}
DEVICE f32 warp_sum(f32 x) {
    for (u32 by = 16; by > 0; by /= 2) {
        x = add(x, shuffle_xor(x, by));
    }
    return x;
}
