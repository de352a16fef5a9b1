// What the parts that few.cu left say together, and the masses from its logits.
#include "device.cuh"

#include "attention.cuh"

constexpr u32 THREADS = 256;
// Parts whose sums are on their way at once: one after the other waits for memory each time.
constexpr u32 AHEAD = 4;

// o of one row, summed over parts: `slices` sums of every so-manieth part, then those in order.
// Thread i has elements 4 (i % lanes) and on of slice i / lanes; those behind the last slice add
// nothing. Holds for threads below `lanes`.
DEVICE Four sum_parts(const FewCombine& p, u32 row, const f32* shares, f32* sums) {
    u32 lanes = p.head_dim / 4, slices = THREADS / lanes;
    u32 slice = thread_index() / lanes, lane = thread_index() % lanes;
    u64 all_rows = (u64)p.heads * p.tokens;
    Four sum = {};
    for (u32 first = slice; slice < slices && first < p.splits; first += AHEAD * slices) {
        Four o[AHEAD] = {};
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            u32 part = first + i * slices;
            if (part < p.splits) {
                o[i] = load4(p.parts.o + (part * all_rows + row) * p.head_dim + lane * 4);
            }
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; ++i) {
            u32 part = first + i * slices;
            for (u32 e = 0; e < 4 && part < p.splits; ++e) {
                sum.x[e] = fma(o[i].x[e], shares[part], sum.x[e]);
            }
        }
    }
    put4(sums + thread_index() * 4, sum);
    sync_block();
    Four total = {};
    for (u32 i = lane; i < THREADS; i += lanes) {
        for (u32 e = 0; e < 4; ++e) {
            total.x[e] = add(total.x[e], sums[i * 4 + e]);
        }
    }
    return total;
}

// Blocks: x rows of [heads, tokens]. Shared memory: THREADS * 4 + splits f32.
KERNEL(few_combine, FewCombine, 256, 1) {
    u32 row = block_x(), all_rows = p.heads * p.tokens;
    f32* sums = reinterpret_cast<f32*>(shared_memory());
    f32* shares = sums + THREADS * 4;
    f32 m = -infinity(), l = 0;
    for (u32 part = lane_index(); part < p.splits; part += 32) {
        m = fmax(m, p.parts.m[part * all_rows + row]);
    }
    m = warp_max(m);
    f32 sink = p.sinks ? p.sinks[row / p.tokens] : -infinity();
    m = fmax(m, sink);
    for (u32 part = thread_index(); part < p.splits; part += THREADS) {
        f32 of_part = p.parts.m[part * all_rows + row];
        shares[part] = of_part == -infinity() ? 0.0f : exp_beside(of_part, m);
    }
    sync_block();
    for (u32 part = lane_index(); part < p.splits; part += 32) {
        l = fma(p.parts.l[part * all_rows + row], shares[part], l);
    }
    l = add(warp_sum(l), sink == -infinity() ? 0.0f : exp_beside(sink, m));
    Four o = sum_parts(p, row, shares, sums);
    u32 element = thread_index() * 4;
    if (element < p.head_dim) {
        bool whole = finite(l) && finite(o.x[0]) && finite(o.x[1]) && finite(o.x[2]) &&
                     finite(o.x[3]);
        if (!whole) {
            *p.broken = BROKEN_ATTEND;
        }
        if (p.to.o) {
            put4(p.to.o + (u64)row * p.head_dim + element, o);
        } else {
            f32 share = l > 0.0f ? div(1.0f, l) : 0.0f;
            for (u32 e = 0; e < 4; ++e) {
                o.x[e] = mul(o.x[e], share);
            }
            u64 to_row = (u64)(row % p.tokens) * p.heads + row / p.tokens;
            u64 to = to_row * p.head_dim + element;
            if (p.rounds) {
                put4(static_cast<u16*>(p.output) + to, o);
            } else {
                put4(static_cast<f32*>(p.output) + to, o);
            }
        }
    }
    if (thread_index() == 0) {
        if (p.to.o) {
            p.to.m[row] = m;
            p.to.l[row] = l;
        } else {
            p.lse[row] = add(m, log_exact(l));
        }
    }
}

// Blocks: x 128 keys, y KV heads, z past or own keys. The group's heads ascending, each head's
// rows ascending.
KERNEL(few_masses, FewMasses, 128, 1) {
    const FewColumns& columns = p.stretches[block_z()];
    u32 j = block_x() * 128 + thread_index(), g = block_y(), rows = p.group * p.tokens;
    if (j >= columns.keys) {
        return;
    }
    f32 mass = 0;
    for (u32 row = g * rows; row < (g + 1) * rows; ++row) {
        f32 lse = p.lse[row];
        if (lse != -infinity()) {
            f32 z = columns.logits[(u64)row * columns.keys + j];
            mass = fma(p.row_weights[row % p.tokens], exp_beside(z, lse), mass);
        }
    }
    columns.mass[(u64)g * columns.keys + j] = mass;
    if (!finite(mass)) {
        *p.broken = BROKEN_WEIGH;
    }
}
