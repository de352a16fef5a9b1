// What one or two partial states over different keys say together, and beside them what has no
// value: output and log-sum-exp.
//
// Bound by memory: 8 bytes an element read, 4 or 2 written. A warp has one (head, token).
#include "device.cuh"

#include "attention.cuh"

constexpr u32 WARPS = 8;

// What o of either is multiplied by, and the log-sum-exp of both.
struct Shares {
    f32 a, b, lse;
};

// An empty state takes no part: its m may not be subtracted from another's.
DEVICE Shares shares_of(const MergeStates& p, u64 row) {
    f32 ma = p.a.m[row], mb = p.b.m ? p.b.m[row] : -infinity(), m = fmax(ma, mb);
    f32 sink = p.sinks ? p.sinks[row / p.tokens] : -infinity();
    m = fmax(m, sink);
    f32 a = ma == -infinity() ? 0.0f : exp_beside(ma, m);
    f32 b = mb == -infinity() ? 0.0f : exp_beside(mb, m);
    f32 l = fma(p.a.l[row], a, p.b.l ? mul(p.b.l[row], b) : 0.0f);
    l = add(l, sink == -infinity() ? 0.0f : exp_beside(sink, m));
    if (!(l > 0.0f)) {
        return Shares{0.0f, 0.0f, -infinity()};
    }
    return Shares{div(a, l), div(b, l), add(m, log_exact(l))};
}

// Blocks: x WARPS rows of [heads, tokens].
template <typename T>
DEVICE void merge_row(const MergeStates& p) {
    u64 row = (u64)block_x() * WARPS + warp_index();
    if (row >= (u64)p.heads * p.tokens) {
        return;
    }
    u32 h = row / p.tokens, t = row % p.tokens, lane = lane_index(), width = p.head_dim;
    Shares shares = shares_of(p, row);
    const f32* a = p.a.o + row * width;
    const f32* b = p.b.o + row * width;
    T* to = static_cast<T*>(p.output) + ((u64)t * p.heads + h) * width;
    u32 fours = width % 4 == 0 ? width / 4 : 0;
    for (u32 i = lane; i < fours; i += 32) {
        Four x = load4(a + i * 4), y = p.b.o ? load4(b + i * 4) : Four{};
        for (u32 e = 0; e < 4; ++e) {
            x.x[e] = fma(x.x[e], shares.a, mul(y.x[e], shares.b));
        }
        put4(to + i * 4, x);
    }
    for (u32 i = fours * 4 + lane; i < width; i += 32) {
        put(to + i, fma(a[i], shares.a, mul(p.b.o ? b[i] : 0.0f, shares.b)));
    }
    if (lane == 0) {
        p.lse[row] = shares.lse;
    }
}

KERNEL(merge_output_f32, MergeStates, 256, 1) { merge_row<f32>(p); }
KERNEL(merge_output_bf16, MergeStates, 256, 1) { merge_row<u16>(p); }
