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
    if (queries.blocks > 0) return Sight{last - last % queries.blocks, last};
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

// cap tanh(z / cap); NaN of what is not finite. Near 0, where the quotient would lose digits, by the
// convergent of tanh's continued fraction (Lambert 1768) that is within 1e-9 of it.
DEVICE f32 capped(f32 z, f32 cap) {
    f32 x = div(z, cap), square = mul(x, x);
    if (square < 0.25f) {
        f32 over = fma(square, fma(square, 21.0f, 1260.0f), 10395.0f);
        f32 under = fma(square, fma(square, add(square, 210.0f), 4725.0f), 10395.0f);
        return mul(cap, mul(x, div(over, under)));
    }
    f32 great = add(1.0f, -div(2.0f, add(exp_exact(mul(2.0f, x)), 1.0f)));
    return fma(z, 0.0f, mul(cap, great));
}

// Adds the products of the first elements, as many as are whole eights, to sums of every fourth;
// gives how many those are. Lanes have a key each, so a load by twos would be a sector for each.
template <typename Q>
DEVICE u32 add_eights(f32 (&dot)[4], const Q* q, const u16* k, u32 head_dim) {
    if (head_dim % 8 != 0 || (u64)k % 16 != 0) return 0;
    for (u32 i = 0; i < head_dim; i += 8) {
        Quad quad = load16(k + i);
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            u32 word = quad.x[e / 2];
            f32 element = from_bits(e % 2 == 0 ? word << 16 : word & 0xffff0000u);
            dot[e % 4] = fma(wide(q[i + e]), element, dot[e % 4]);
        }
    }
    return head_dim;
}
template <typename Q>
DEVICE u32 add_eights(f32 (&)[4], const Q*, const f32*, u32) { return 0; }

// scale (q . k), in four sums of every fourth element: rows and masses agree on it bit for bit.
template <typename Q, typename K>
DEVICE f32 logit(const Q* q, const K* k, const QueryArray& queries) {
    f32 dot[4] = {};
    for (u32 i = add_eights(dot, q, k, queries.head_dim); i < queries.head_dim; i += 4) {
        for (u32 e = 0; e < 4 && i + e < queries.head_dim; ++e) {
            dot[e] = fma(wide(q[i + e]), wide(k[i + e]), dot[e]);
        }
    }
    f32 z = mul(add(add(dot[0], dot[1]), add(dot[2], dot[3])), queries.scale);
    return queries.softcap > 0.0f ? capped(z, queries.softcap) : z;
}

// What a head's logits fall by for each position between row and key.
DEVICE f32 slope_of(const QueryArray& queries, u32 h) {
    return queries.slopes ? queries.slopes[h] : 0.0f;
}

// A logit so far from its row, by whole numbers: exact wherever both stand. Of slope 0 it is z.
DEVICE f32 fallen(f32 z, f32 slope, u32 distance) { return fma(-slope, (f32)distance, z); }

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

// Four elements at once, at an address that is a multiple of 16 bytes (8 where they are bf16).
struct Four {
    f32 x[4];
};
DEVICE Four load4(const f32* from) {
    Quad quad = load16(from);
    return Four{{from_bits(quad.x[0]), from_bits(quad.x[1]), from_bits(quad.x[2]),
                 from_bits(quad.x[3])}};
}

DEVICE void put4(f32* to, Four four) {
    store16(to, Quad{{bits_of(four.x[0]), bits_of(four.x[1]), bits_of(four.x[2]),
                      bits_of(four.x[3])}});
}
DEVICE void put4(u16* to, Four four) {
    u32* pairs = reinterpret_cast<u32*>(to);
    pairs[0] = narrow2(four.x[0], four.x[1]);
    pairs[1] = narrow2(four.x[2], four.x[3]);
}
DEVICE void put(f32* to, f32 x) { *to = x; }
DEVICE void put(u16* to, f32 x) { *to = narrow(x); }
