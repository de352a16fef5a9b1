// What a thread of attention90.cu has of two rows: where they begin, what a tile of keys does to
// them, how they are left.
#pragma once
#include "tiles90.cuh"

namespace attention90 {

using namespace tiles90;

// What a thread knows of its two rows, and their elements 8 i + 2 (lane % 4) and the next.
template <u32 D>
struct Rows {
    f32 o[D / 2];
    f32 m[2]; // natural units
    f32 l[2]; // of the keys that this thread has seen
};

// s becomes exp(scale s - m) with the maximum so far; `shrink` is what o so far is worth. Rows of
// ANY shape may have seen nothing yet; for them any number serves in place of m.
template <bool ANY, int W, u32 D>
DEVICE void soften(f32 (&s)[W], Rows<D>& rows, f32 (&shrink)[2], f32 scale) {
    f32 scale2 = mul(scale, LOG2E);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        f32 top[2] = {s[2 * row], s[2 * row + 1]};
#pragma unroll
        for (int i = 1; i < W / 4; ++i) {
            top[0] = fmax(top[0], s[4 * i + 2 * row]);
            top[1] = fmax(top[1], s[4 * i + 2 * row + 1]);
        }
        f32 most = fmax(top[0], top[1]);
        most = fmax(most, shuffle_xor(most, 1));
        most = fmax(most, shuffle_xor(most, 2));
        f32 m = fmax(rows.m[row], mul(most, scale));
        f32 base = ANY && m == -infinity() ? 0.0f : m;
        f32 offset = mul(base, -LOG2E);
        // Of the difference: a maximum that stays shrinks nothing, however many tiles there are.
        shrink[row] = exp2_fast(mul(add(rows.m[row], -base), LOG2E));
        rows.m[row] = m;
        f32 sum[2] = {};
#pragma unroll
        for (int i = 0; i < W / 4; ++i) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                f32& x = s[4 * i + 2 * row + k];
                x = exp2_fast(fma(x, scale2, offset));
                sum[k] = add(sum[k], x);
            }
        }
        rows.l[row] = fma(rows.l[row], shrink[row], add(sum[0], sum[1]));
    }
}

template <u32 D>
DEVICE void shrink_all(Rows<D>& rows, const f32 (&shrink)[2]) {
#pragma unroll
    for (int i = 0; i < int(D) / 2; ++i) {
        rows.o[i] = mul(rows.o[i], shrink[i / 2 % 2]);
    }
}

// Sums l over the four threads that share a row; the first of them goes on from the sum, as it
// would from a state that was left in memory.
template <u32 D>
DEVICE void gather_l(Rows<D>& rows) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        f32 l = rows.l[row];
        l = add(l, shuffle_xor(l, 1));
        l = add(l, shuffle_xor(l, 2));
        rows.l[row] = lane_index() % 4 == 0 ? l : 0.0f;
    }
}

DEVICE u64 index_of(const HopperAttention& p, u32 head, u32 row) {
    return (u64)head * p.tokens + row;
}

// Elements of a head. Kernels of ANY shape take narrower heads than D, which to products are as if
// zeros were beside them.
template <bool ANY, u32 D>
DEVICE u32 width_of(const HopperAttention& p) {
    return ANY ? opaque(p.head_dim) : D;
}

// Two f32 side by side.
struct alignas(8) Pair {
    f32 x[2];
};

// Where rows begin: with nothing seen, or at a state.
template <bool ANY, u32 D>
DEVICE void begin(const HopperAttention& p, u32 head, u32 first_row, Rows<D>& rows) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        u32 t = first_row + row_of_thread(row), width = width_of<ANY, D>(p);
        bool known = p.from.m && t < p.tokens;
        u64 at = index_of(p, head, t);
        rows.m[row] = known ? p.from.m[at] : -infinity();
        rows.l[row] = known && lane_index() % 4 == 0 ? p.from.l[at] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < D / 8; ++i) {
            Pair o = {};
            if (known && !ANY) {
                o = *reinterpret_cast<const Pair*>(p.from.o + at * D + column_of_thread(i));
            }
            rows.o[4 * i + 2 * row] = o.x[0];
            rows.o[4 * i + 2 * row + 1] = o.x[1];
        }
        // By itself, or registers spill.
#pragma unroll
        for (u32 i = 0; i < D / 8; ++i) {
            if (!ANY || !known || 8 * i >= width) {
                break;
            }
            Pair o = *reinterpret_cast<const Pair*>(p.from.o + at * width + column_of_thread(i));
            rows.o[4 * i + 2 * row] = o.x[0];
            rows.o[4 * i + 2 * row + 1] = o.x[1];
        }
    }
}

// Leaves m, l and o; l is summed.
template <bool ANY, u32 D>
DEVICE void leave_state(const HopperAttention& p, u32 head, u32 first_row, const Rows<D>& rows) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        u32 t = first_row + row_of_thread(row), width = width_of<ANY, D>(p);
        if (t < p.tokens) {
            u64 at = index_of(p, head, t);
            if (lane_index() % 4 == 0) {
                p.to.m[at] = rows.m[row];
                p.to.l[at] = rows.l[row];
            }
#pragma unroll
            for (u32 i = 0; i < D / 8; ++i) {
                if (8 * i >= width) {
                    break;
                }
                *reinterpret_cast<Pair*>(p.to.o + at * width + column_of_thread(i)) =
                    Pair{{rows.o[4 * i + 2 * row], rows.o[4 * i + 2 * row + 1]}};
            }
        }
    }
}

// Leaves o / l as bf16 where the queries were, swizzled as the copy engine wants it, and lse.
template <u32 D>
DEVICE void leave_output(const HopperAttention& p, u32 head, u32 first_row, const Rows<D>& rows,
                         char* to) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        u32 r = row_of_thread(row), t = first_row + r;
        f32 l = shuffle(rows.l[row], lane_index() & ~3u);
        f32 share = l > 0.0f ? div(1.0f, l) : 0.0f;
        if (t < p.tokens && lane_index() % 4 == 0) {
            p.lse[index_of(p, head, t)] = l > 0.0f ? add(rows.m[row], log_exact(l)) : -infinity();
        }
#pragma unroll
        for (u32 i = 0; i < D / 8; ++i) {
            char* line = to + i / 8 * 64 * 128 + r * 128;
            u32 pair = narrow2(mul(rows.o[4 * i + 2 * row], share),
                               mul(rows.o[4 * i + 2 * row + 1], share));
            *reinterpret_cast<u32*>(line + (i % 8 ^ r % 8) * 16 + lane_index() % 4 * 4) = pair;
        }
    }
}

// Whether a row sees any key, or has seen one; without bounds every row does.
template <bool ANY>
DEVICE bool sees_any(const HopperAttention& p, u32 head, u32 row) {
    u32 kv_head = head / p.group;
    return !ANY || p.from.m || first_of(p, OWN, kv_head, row) < p.keys[OWN] ||
           first_of(p, PAST, kv_head, row) < p.keys[PAST];
}

template <bool ANY, u32 D>
DEVICE void check(const HopperAttention& p, u32 head, u32 first_row, const Rows<D>& rows) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        bool known = rows.m[row] > -infinity();
        if (ANY && !known) {
            known = !sees_any<ANY>(p, head, first_row + row_of_thread(row));
        }
        bool whole = finite(rows.l[row]) && known;
#pragma unroll
        for (u32 i = 0; i < D / 8; ++i) {
            whole = whole && finite(rows.o[4 * i + 2 * row]) && finite(rows.o[4 * i + 2 * row + 1]);
        }
        if (!whole && first_row + row_of_thread(row) < p.tokens) {
            *p.broken = BROKEN_ATTEND;
        }
    }
}

} // namespace attention90
