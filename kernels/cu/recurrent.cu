// Before and behind the walks of recurrent_walk.cu: short convolutions, norms, gates. All of it is
// bound by memory.
#include "recurrent.cuh"

// What attention gave, times sigmoid of gates.
struct GateParams {
    const void* x;    // [rows, columns]
    const f32* gates; // [rows, columns / each]
    f32* y;           // [rows, columns]
    u32 columns, each;
};

DEVICE f32 silu(f32 x) { return div(x, add(1.0f, exp_exact(-x))); }

// Channels that a warp convolves at once, and how many of them a lane has.
constexpr u32 SPAN = 256;
constexpr u32 EACH = SPAN / 32;

// Token t of a sequence.
struct Token {
    Sequence of;
    u64 index; // among all tokens
    u32 t;
};

// What channel c of the token `age` tokens before it takes.
DEVICE f32 input(const Recurrence& p, const Token& token, u32 age, u32 c) {
    if (age <= token.t) {
        const f32* at = token.of.columns + (u64)(token.t - age) * p.columns + p.inputs + c;
        return p.rule == GATED ? mul(at[0], at[2 * p.channels]) : at[0];
    }
    u32 kept = p.taps - 1 - (age - token.t); // rows of the state, the oldest first
    return token.of.before ? token.of.before[(u64)kept * p.channels + c] : 0.0f;
}

// Channel first + 32 e + lane is y[e]; zeros from `count` on.
DEVICE void convolve(
    const Recurrence& p, const Token& token, u32 first, u32 count, f32 (&y)[EACH]
) {
    u32 lane = lane_index();
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
        u32 c = 32 * e + lane;
        y[e] = p.bias && c < count ? p.bias[first + c] : 0.0f;
    }
    for (u32 tap = 0; tap < p.taps; tap++) {
        const f32* weights = p.taps_of + (u64)tap * p.channels + first;
        u32 age = p.taps - 1 - tap;
#pragma unroll
        for (u32 e = 0; e < EACH; e++) {
            u32 c = 32 * e + lane;
            if (c < count) y[e] = fma(weights[c], input(p, token, age, first + c), y[e]);
        }
    }
}

// The last inputs of a sequence become the first elements of the state behind it.
DEVICE void remember(const Recurrence& p, const Token& token, u32 first, u32 count) {
    u32 kept = p.taps - 1, t = token.t;
    for (u32 c = first + lane_index(); c < first + count; c += 32) {
        f32* to = token.of.after + c;
        if (t + kept >= p.rows) to[(u64)(t + kept - p.rows) * p.channels] = input(p, token, 0, c);
        if (t > 0) continue;
        for (u32 row = 0; row + p.rows < kept; row++) { // what is older than all rows
            to[(u64)row * p.channels] = input(p, token, kept - p.rows - row, c);
        }
    }
}

// Unit `unit`: q of a group, k of a group, or v of a head.
DEVICE void convolve_head(const Recurrence& p, const Token& token, u32 unit) {
    bool is_key = unit < 2 * p.groups, is_query = unit < p.groups;
    u32 head = is_query ? unit : is_key ? unit - p.groups : unit - 2 * p.groups;
    u32 count = is_key ? p.state_rows : p.state_cols;
    u32 padded = is_key ? p.padded_rows : p.padded_cols;
    u32 first = (is_query ? p.q : is_key ? p.k : p.v) + head * count;
    u32 to_column = is_key ? unit * padded : 2 * p.groups * p.padded_rows + head * padded;
    f32* to = p.convolved + token.index * width_of(p) + to_column;
    for (u32 from = 0; from < padded; from += SPAN) {
        u32 left = count > from ? count - from : 0;
        left = left < SPAN ? left : SPAN;
        f32 y[EACH], squares = 0.0f, scale = 1.0f;
        convolve(p, token, first + from, left, y);
#pragma unroll
        for (u32 e = 0; e < EACH; e++) {
            y[e] = silu(y[e]);
            squares = fma(y[e], y[e], squares);
        }
        if (p.rule == DELTA && is_key) { // at most SPAN of them
            f32 factor = is_query ? div(1.0f, root((f32)count)) : 1.0f;
            scale = over_root(factor, add(warp_sum(squares), 1e-6f));
        }
#pragma unroll
        for (u32 e = 0; e < EACH; e++) {
            u32 i = from + 32 * e + lane_index();
            if (i < padded) to[i] = mul(y[e], scale);
        }
        remember(p, token, first + from, left);
    }
}

// Columns b, c and x: c times the convolution of b x.
DEVICE void convolve_gated(const Recurrence& p, const Token& token, u32 unit) {
    u32 first = unit * SPAN, count = p.channels - first;
    count = count < SPAN ? count : SPAN;
    const f32* gates = token.of.columns + (u64)token.t * p.columns + p.channels + first;
    f32* to = token.of.output + (u64)token.t * p.outputs + first;
    f32 y[EACH];
    convolve(p, token, first, count, y);
    bool good = true;
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
        u32 c = 32 * e + lane_index();
        if (c < count) {
            f32 x = mul(gates[c], y[e]);
            good &= finite(x);
            to[c] = x;
        }
    }
    if (!good && p.broken) *p.broken = p.code;
    remember(p, token, first, count);
}

// log(1 + e^x)
DEVICE f64 softplus(f64 x) {
    bool above = x > 0.0;
    return (above ? x : 0.0) + log1p_wide(exp_wide(above ? -x : x));
}

// Decays and steps of a token's heads. In f64, because a decay near 1 is multiplied with itself for
// as many tokens as it remembers.
DEVICE void decay_and_step(const Recurrence& p, const Token& token) {
    const f32* gates = token.of.columns + (u64)token.t * p.columns + p.gates;
    for (u32 head = lane_index(); head < p.heads; head += 32) {
        bool is_delta = p.rule == DELTA;
        f64 x = gates[is_delta ? p.heads + head : head];
        if (!is_delta) x *= (f64)p.dt_scale;
        f64 dt = softplus(x + (f64)p.shift[head]), step = dt;
        if (is_delta) {
            step = (f64)p.most / (1.0 + exp_wide(-(f64)gates[head]));
        } else {
            dt = dt < (f64)p.least ? (f64)p.least : dt > (f64)p.most ? (f64)p.most : dt;
            step = dt * (f64)p.x_scale;
        }
        f32 decay = (f32)exp_wide(-(f64)p.rate[head] * dt);
        store16(p.steps + (token.index * p.heads + head) * 4,
                Quad{{bits_of(decay), bits_of((f32)step), 0, 0}});
    }
}

// Blocks: x 8 tokens, a warp each, which follow each other, so that all taps but one find their
// inputs in the first level cache; y units: SPAN channels of GATED; else q and k of groups, v of
// heads, and decays.
KERNEL(recur_convolve, Recurrence, 256, 4) {
    u64 index = (u64)block_x() * 8 + warp_index();
    if (index >= (u64)p.sequences * p.rows) return;
    u32 unit = block_y(), t = (u32)(index % p.rows);
    Token token = {sequence_of(p, (u32)(index / p.rows)), index, t};
    if (p.rule == GATED) {
        convolve_gated(p, token, unit);
    } else if (unit < 2 * p.groups + p.heads) {
        convolve_head(p, token, unit);
    } else {
        decay_and_step(p, token);
    }
}

// Norms and gates of what was read: WARPS warps for each part of a row.
template <u32 WARPS>
DEVICE void finish(const Recurrence& p) {
    u64 item = (u64)block_x() * (8 / WARPS) + warp_index() / WARPS, index = item / p.parts;
    if (index >= (u64)p.sequences * p.rows) return;
    u32 part = (u32)(item % p.parts), t = (u32)(index % p.rows), size = p.outputs / p.parts;
    Sequence of = sequence_of(p, (u32)(index / p.rows));
    const f32* x = p.walked + index * p.outputs + part * size;
    const f32* z = of.columns + (u64)t * p.columns + p.z + part * size;
    f32* to = of.output + (u64)t * p.outputs + part * size;
    bool is_scan = p.rule == SCAN, good = true;
    const f32* norm = p.norm && is_scan ? p.norm + part * size : p.norm;
    u32 begin = thread_index() % (32 * WARPS);
    f32 squares = 0.0f, scale = 1.0f;
    for (u32 i = begin; norm && i < size; i += 32 * WARPS) {
        f32 y = is_scan ? mul(x[i], silu(z[i])) : x[i];
        squares = fma(y, y, squares);
    }
    squares = warp_sum(squares);
    if (WARPS > 1) {
        f32* sums = (f32*)shared_memory();
        if (lane_index() == 0) sums[warp_index()] = squares;
        sync_block();
        squares = 0.0f;
        for (u32 warp = 0; warp < WARPS; warp++) squares = add(squares, sums[warp]);
    }
    if (norm) scale = over_root(1.0f, add(div(squares, (f32)size), p.eps));
    for (u32 i = begin; i < size; i += 32 * WARPS) {
        f32 gate = silu(z[i]), y = is_scan ? mul(x[i], gate) : x[i];
        if (norm) y = mul(mul(y, scale), norm[i]);
        if (!is_scan) y = mul(y, gate);
        good &= finite(y);
        to[i] = y;
    }
    if (!good && p.broken) *p.broken = p.code;
}
KERNEL(recur_finish_1, Recurrence, 256, 4) { finish<1>(p); }
KERNEL(recur_finish_8, Recurrence, 256, 4) { finish<8>(p); }

// Blocks: x rows, y 256 columns.
template <typename T>
DEVICE void gate_row(const GateParams& p) {
    u32 column = block_y() * 256 + thread_index();
    if (column >= p.columns) return;
    u64 row = block_x();
    f32 gate = p.gates[row * (p.columns / p.each) + column / p.each];
    f32 x = wide(((const T*)p.x)[row * p.columns + column]);
    p.y[row * p.columns + column] = mul(x, div(1.0f, add(1.0f, exp_exact(-gate))));
}
KERNEL(recur_gate_f32, GateParams, 256, 4) { gate_row<f32>(p); }
KERNEL(recur_gate_bf16, GateParams, 256, 4) { gate_row<u16>(p); }
