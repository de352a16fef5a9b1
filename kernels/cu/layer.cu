// Everything of a layer that is neither a product nor attention: norms, gates, rounding,
// rotation, embedding. All of it is bound by memory.
//
// Rows are worked on in groups of 128 columns, a warp each and four columns a lane: the groups of
// eight-bit integers. Sums go up trees of warps in a fixed order.
#include "gated.cuh"
#include "heads.cuh"

constexpr u32 GROUP = 128;

struct Four {
    f32 x[4];
};

// Columns `column..column + 4` of a row that begins at `row`; zeros where there are none.
DEVICE Four read_four(const f32* row, u32 columns, u32 column) {
    Four four = {};
    if (columns % 4 == 0 && column < columns && (u64)row % 16 == 0) {
        Quad quad = load16(row + column);
#pragma unroll
        for (u32 i = 0; i < 4; i++) four.x[i] = from_bits(quad.x[i]);
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) four.x[i] = column + i < columns ? row[column + i] : 0.0f;
    }
    return four;
}
DEVICE Four read_four(const u16* row, u32 columns, u32 column) {
    Four four = {};
#pragma unroll
    for (u32 i = 0; i < 4; i++) four.x[i] = column + i < columns ? widen(row[column + i]) : 0.0f;
    return four;
}

DEVICE bool all_finite(Four four) {
    return finite(four.x[0]) && finite(four.x[1]) && finite(four.x[2]) && finite(four.x[3]);
}
DEVICE void report(const PrepareParams& p, bool good) {
    if (!good && p.broken) *p.broken = p.code;
}

DEVICE f32 sum_of_warp(f32 x) {
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) x = add(x, shuffle_xor(x, mask));
    return x;
}

// The forms in which rows are multiplied. `put` writes four columns of a lane; all lanes of a
// warp have the same row and group.
struct AsF32 {
    DEVICE void put(const PrepareParams& p, u32 row, u32 group, Four four) {
        u32 column = group * GROUP + lane_index() * 4;
        f32* to = (f32*)p.y + (u64)row * p.y_stride + column;
        if (p.y_stride % 4 == 0) {
            if (column >= p.y_stride) return;
            Quad quad;
#pragma unroll
            for (u32 i = 0; i < 4; i++) quad.x[i] = bits_of(four.x[i]);
            store16(to, quad);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (column + i < p.y_stride) to[i] = four.x[i];
            }
        }
    }
};

struct AsBf16 {
    DEVICE void put(const PrepareParams& p, u32 row, u32 group, Four four) {
        struct alignas(8) Words {
            u32 x[2];
        };
        u32 column = group * GROUP + lane_index() * 4;
        if (column >= p.y_stride) return; // a multiple of 8
        Words words = {{narrow2(four.x[0], four.x[1]), narrow2(four.x[2], four.x[3])}};
        *(Words*)((u16*)p.y + (u64)row * p.y_stride + column) = words;
    }
};

// kernels/src/int8.rs, bit for bit.
struct AsInt8 {
    DEVICE void put(const PrepareParams& p, u32 row, u32 group, Four four) {
        const f32 ROUND = 12582912.0f; // 1.5 * 2^23: leaves the nearest integer in the low bits
        u32 largest = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 magnitude = bits_of(four.x[i]) & 0x7fffffff;
            largest = magnitude > largest ? magnitude : largest;
        }
#pragma unroll
        for (u32 mask = 16; mask > 0; mask /= 2) {
            u32 other = shuffle_xor(largest, mask);
            largest = other > largest ? other : largest;
        }
        f32 scale = div(from_bits(largest), 127.0f);
        u32 exponent = bits_of(scale) >> 23 & 0xff;
        bool normal = exponent != 0 && exponent != 0xff;
        f32 inverse = div(127.0f, from_bits(largest));
        u32 bytes = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 q = bits_of(add(mul(four.x[i], inverse), ROUND)) & 0xff;
            bytes |= normal ? q << 8 * i : 0;
        }
        if (lane_index() == 0) {
            f32 unusual = exponent == 0xff ? from_bits(0x7fc00000) : 0.0f;
            p.scales[(u64)group * p.scale_stride + row] = normal ? scale : unusual;
        }
        u32 column = group * GROUP + lane_index() * 4;
        if (column < p.y_stride) { // a multiple of 16
            *(u32*)((u8*)p.y + (u64)row * p.y_stride + column) = bytes;
        }
    }
};

// Rows as they are, or times a number, a warp for each group.
template <typename T, typename Form, bool SCALES = false>
DEVICE void prepare_rows(const PrepareParams& p) {
    u32 groups = (p.columns + GROUP - 1) / GROUP;
    u64 item = (u64)block_x() * 8 + warp_index();
    u32 row = (u32)(item / groups), group = (u32)(item % groups);
    if (row >= p.rows) return;
    const T* from = (const T*)p.x + (u64)row * p.columns;
    Four four = read_four(from, p.columns, group * GROUP + lane_index() * 4);
    if (SCALES) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) four.x[i] = mul(four.x[i], p.factor);
    }
    Form::put(p, row, group, four);
}
KERNEL(round_f32, PrepareParams, 256, 4) { prepare_rows<f32, AsBf16>(p); }
KERNEL(quantise_f32, PrepareParams, 256, 4) { prepare_rows<f32, AsInt8>(p); }
KERNEL(widen_bf16, PrepareParams, 256, 4) { prepare_rows<u16, AsF32>(p); }
KERNEL(round_bf16, PrepareParams, 256, 4) { prepare_rows<u16, AsBf16>(p); }
KERNEL(quantise_bf16, PrepareParams, 256, 4) { prepare_rows<u16, AsInt8>(p); }

// Where they lie perhaps.
KERNEL(scale_f32, PrepareParams, 256, 4) { prepare_rows<f32, AsF32, true>(p); }

// Looks at what a library made, a warp for each group of a row.
KERNEL(check_f32, PrepareParams, 256, 4) {
    u32 groups = (p.columns + GROUP - 1) / GROUP;
    u64 item = (u64)block_x() * 8 + warp_index();
    u32 row = (u32)(item / groups), column = (u32)(item % groups) * GROUP + lane_index() * 4;
    if (row >= p.rows) return;
    report(p, all_finite(read_four((const f32*)p.x + (u64)row * p.columns, p.columns, column)));
}

// [rows, 2 columns], gate first, or [rows, columns] of gates beside as many others, to
// activation(gate) * up; a warp for each group.
template <typename Form>
DEVICE void prepare_gate(const PrepareParams& p) {
    u32 groups = (p.columns + GROUP - 1) / GROUP;
    u64 item = (u64)block_x() * 8 + warp_index();
    u32 row = (u32)(item / groups), group = (u32)(item % groups);
    if (row >= p.rows) return;
    const f32 *from = (const f32*)p.x + (u64)row * 2 * p.columns, *beside = from + p.columns;
    if (p.residual) {
        from -= (u64)row * p.columns;
        beside = p.residual + (u64)row * p.columns;
    }
    u32 column = group * GROUP + lane_index() * 4;
    Four gate = read_four(from, p.columns, column);
    Four up = read_four(beside, p.columns, column);
    report(p, all_finite(gate) && all_finite(up));
#pragma unroll
    for (u32 i = 0; i < 4; i++) gate.x[i] = gated(p.activation, gate.x[i], up.x[i]);
    Form::put(p, row, group, gate);
}
KERNEL(gate_f32, PrepareParams, 256, 4) { prepare_gate<AsF32>(p); }
KERNEL(gate_bf16, PrepareParams, 256, 4) { prepare_gate<AsBf16>(p); }
KERNEL(gate_int8, PrepareParams, 256, 4) { prepare_gate<AsInt8>(p); }

// [rows, columns] of an up projection that has no gate; a warp for each group.
template <typename Form>
DEVICE void prepare_curve(const PrepareParams& p) {
    u32 groups = (p.columns + GROUP - 1) / GROUP;
    u64 item = (u64)block_x() * 8 + warp_index();
    u32 row = (u32)(item / groups), group = (u32)(item % groups);
    if (row >= p.rows) return;
    const f32* from = (const f32*)p.x + (u64)row * p.columns;
    Four four = read_four(from, p.columns, group * GROUP + lane_index() * 4);
    report(p, all_finite(four));
#pragma unroll
    for (u32 i = 0; i < 4; i++) four.x[i] = curved(p, four.x[i]);
    Form::put(p, row, group, four);
}
KERNEL(curve_f32, PrepareParams, 256, 4) { prepare_curve<AsF32>(p); }
KERNEL(curve_bf16, PrepareParams, 256, 4) { prepare_curve<AsBf16>(p); }
KERNEL(curve_int8, PrepareParams, 256, 4) { prepare_curve<AsInt8>(p); }

// (x / sqrt(mean of x^2 + eps) * norm (+ residual)) * factor, a block for each row
// (Zhang and Sennrich 2019).
template <typename Form>
DEVICE void prepare_norm(const PrepareParams& p) {
    const u32 WARPS = 8;
    f32* sums = (f32*)shared_memory();
    u32 groups = (p.columns + GROUP - 1) / GROUP, row = block_x();
    const f32* from = (const f32*)p.x + (u64)row * p.columns;
    f32 squares = 0;
    for (u32 group = warp_index(); group < groups; group += WARPS) {
        Four four = read_four(from, p.columns, group * GROUP + lane_index() * 4);
#pragma unroll
        for (u32 i = 0; i < 4; i++) squares = fma(four.x[i], four.x[i], squares);
    }
    squares = sum_of_warp(squares);
    if (lane_index() == 0) sums[warp_index()] = squares;
    sync_block();
    squares = 0;
    for (u32 warp = 0; warp < WARPS; warp++) squares = add(squares, sums[warp]);
    f32 scale = over_root(1.0f, add(div(squares, (f32)p.columns), p.eps));
    report(p, finite(scale));
    for (u32 group = warp_index(); group < groups; group += WARPS) {
        u32 column = group * GROUP + lane_index() * 4;
        Four four = read_four(from, p.columns, column);
        Four norm = read_four(p.norm, p.columns, column);
        report(p, all_finite(four));
#pragma unroll
        for (u32 i = 0; i < 4; i++) four.x[i] = mul(mul(four.x[i], scale), norm.x[i]);
        if (p.residual) {
            Four beside = read_four(p.residual + (u64)row * p.columns, p.columns, column);
#pragma unroll
            for (u32 i = 0; i < 4; i++) four.x[i] = add(four.x[i], beside.x[i]);
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) four.x[i] = mul(four.x[i], p.factor);
        Form::put(p, row, group, four);
    }
}
KERNEL(norm_f32, PrepareParams, 256, 4) { prepare_norm<AsF32>(p); }
KERNEL(norm_bf16, PrepareParams, 256, 4) { prepare_norm<AsBf16>(p); }
KERNEL(norm_int8, PrepareParams, 256, 4) { prepare_norm<AsInt8>(p); }

// The parts of a row, weighed and added in their order, and what goes with them.
KERNEL(combine_rows, CombineParams, 256, 4) {
    u64 row = block_x();
    f32 gate = 1.0f;
    if (p.gates) gate = div(1.0f, add(1.0f, exp_exact(-p.gates[row])));
    for (u32 i = thread_index(); i < p.columns; i += threads_of_block()) {
        f32 sum = 0.0f;
        for (u32 part = 0; part < p.count; part++) {
            u64 at = row * p.count + part;
            sum = fma(p.parts[at][i], p.weights[at], sum);
        }
        u64 at = row * p.columns + i;
        if (p.shared) sum = fma(p.shared[at], gate, sum);
        if (p.residual) sum = add(p.residual[at], sum);
        p.y[at] = sum;
    }
}

// The weights of a norm, or null, and of how many elements it is.
struct HeadNorm {
    const f32* weights;
    u32 span;
};

// What an RMS norm of so many elements multiplies them by, all threads of a warp alike.
DEVICE f32 norm_scale(const f32* x, u32 span, f32 eps) {
    f32 squares = 0;
    for (u32 i = lane_index(); i < span; i += 32) squares = fma(x[i], x[i], squares);
    return over_root(1.0f, add(div(sum_of_warp(squares), (f32)span), eps));
}

// What is further from 0 than `most` cut off there, but what is infinite, so that it is seen.
DEVICE f32 clipped(f32 x, f32 most) {
    if (!finite(x)) return x;
    return x > most ? most : x < -most ? -most : x;
}

// Head `head` of a token, all of which begin at `heads`: norm, rotation of element i against
// i + head_dim / 2 by row `turn` of angles, rounding. Each head's warp sums the squares of all
// heads that share a norm. What is rotated has the squares that it had, so a norm behind it is a
// factor.
template <typename T>
DEVICE void turn_head(
    const HeadsParams& p, const f32* heads, u32 head, T* to, HeadNorm of, u32 turn
) {
    u32 d = p.head_dim, half = d / 2, lane = lane_index();
    const f32 *from = heads + head * d, *norm = of.weights;
    f32 scale = 1.0f;
    if (norm) {
        bool together = of.span > d && !p.norms_apart;
        scale = norm_scale(together ? heads : from, together ? of.span : d, p.eps);
        if (of.span > d) norm += head * d;
    }
    bool good = true;
    for (u32 i = lane; i < half; i += 32) {
        f32 x = from[i], y = from[i + half];
        u64 angle = (u64)turn * half + i;
        Turn by = Turn{p.cosines[angle], p.sines[angle], 1.0f, 1.0f};
        if (norm) {
            x = mul(x, scale), y = mul(y, scale);
            if (p.norms_last) {
                by.first = norm[i], by.second = norm[i + half];
            } else {
                x = mul(x, norm[i]), y = mul(y, norm[i + half]);
            }
        }
        x = clipped(x, p.clip), y = clipped(y, p.clip);
        good &= turn_pair(to, half, i, x, y, by);
    }
    if (!good) *p.broken = p.code;
}

// A stacked projection into rotated queries and keys, and values: a warp for each head of a token.
template <typename T>
DEVICE void split_heads(const HeadsParams& p) {
    u32 stacked = p.heads + 2 * p.kv_heads, d = p.head_dim;
    u64 item = (u64)block_x() * 8 + warp_index();
    u32 token = (u32)(item / stacked), head = (u32)(item % stacked);
    if (token >= p.tokens) return;
    const f32 *from = p.qkv + item * d, *heads = from - (u64)head * d;
    if (head < p.heads) {
        T* to = (T*)p.q + ((u64)head * p.tokens + token) * d;
        turn_head(p, heads, head, to, HeadNorm{p.q_norm, p.q_span}, token + p.queries_from);
    } else if (head < p.heads + p.kv_heads) {
        u32 kv_head = head - p.heads;
        u64 row = (u64)kv_head * p.tokens + token;
        T* to = (T*)p.k + row * d;
        turn_head(p, heads + p.heads * d, kv_head, to, HeadNorm{p.k_norm, p.k_span}, token);
        if (lane_index() == 0) p.positions[row] = p.start + token;
    } else {
        u64 row = (u64)(head - p.heads - p.kv_heads) * p.tokens + token;
        f32 scale = p.v_norm ? norm_scale(from, d, p.eps) : 1.0f;
        bool good = true;
        for (u32 i = lane_index(); i < d; i += 32) {
            f32 x = p.v_norm ? mul(mul(from[i], scale), p.v_norm[i]) : from[i];
            x = clipped(x, p.clip);
            good &= finite(x);
            store_as((T*)p.v + row * d + i, x);
        }
        if (!good) *p.broken = p.code;
    }
}
KERNEL(heads_f32, HeadsParams, 256, 4) { split_heads<f32>(p); }
KERNEL(heads_bf16, HeadsParams, 256, 4) { split_heads<u16>(p); }

// Rows of a table, widened and scaled.
DEVICE f32 entry(const EmbedParams& p, const f32* row, u32, u32 column) { return row[column]; }
DEVICE f32 entry(const EmbedParams& p, const u16* row, u32, u32 column) {
    return widen(row[column]);
}
DEVICE f32 entry(const EmbedParams& p, const i8* row, u32 token, u32 column) {
    return mul((f32)row[column], p.scales[(u64)(column / GROUP) * p.scale_stride + token]);
}
template <typename T>
DEVICE void embed(const EmbedParams& p) {
    u32 token = p.tokens[block_x()];
    const T* row = (const T*)p.table + (u64)token * p.stride;
    for (u32 i = thread_index(); i < p.columns; i += threads_of_block()) {
        p.y[(u64)block_x() * p.columns + i] = mul(entry(p, row, token, i), p.scale);
    }
}
KERNEL(embed_f32, EmbedParams, 256, 4) { embed<f32>(p); }
KERNEL(embed_bf16, EmbedParams, 256, 4) { embed<u16>(p); }
KERNEL(embed_int8, EmbedParams, 256, 4) { embed<i8>(p); }

// Rows of f32, of which each that is made has a factor of its own.
KERNEL(weigh_rows, EmbedParams, 256, 4) {
    const f32* row = (const f32*)p.table + (u64)p.tokens[block_x()] * p.stride;
    f32 weight = p.scales[block_x()];
    for (u32 i = thread_index(); i < p.columns; i += threads_of_block()) {
        p.y[(u64)block_x() * p.columns + i] = mul(row[i], weight);
    }
}
