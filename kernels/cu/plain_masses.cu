// Column masses: what rows spend on each key. Every dtype, head size, table and window, simply.
//
// A thread has one key of one KV head, and is the only one that writes its mass: the group's
// heads ascending, each head's rows ascending.
#include "device.cuh"

#include "attention.cuh"

constexpr u32 COLUMNS = 128;

// What one head's rows spend on the key, added to `mass`.
template <typename T>
DEVICE f32 spent(const PlainMasses& p, u32 h, u32 position, const T* k, f32 mass) {
    const QueryArray& queries = p.queries;
    u64 first_row = (u64)h * queries.tokens;
    f32 slope = slope_of(queries, h);
    for (u32 t = 0; t < queries.tokens; ++t) {
        f32 lse = p.lse[first_row + t], weight = p.row_weights[t];
        Sight sight = sight_of(queries, t);
        if (sees(sight, position) && lse != -infinity() && weight != 0.0f) {
            const T* q = static_cast<const T*>(queries.q) + (first_row + t) * queries.head_dim;
            f32 z = fallen(logit(q, k, queries), slope, sight.last - position);
            mass = fma(weight, exp_beside(z, lse), mass);
        }
    }
    return mass;
}

// Blocks: x COLUMNS keys, y KV heads.
template <typename T>
DEVICE void weigh_column(const PlainMasses& p) {
    u32 j = block_x() * COLUMNS + thread_index(), g = block_y();
    if (j >= p.keys.keys) {
        return;
    }
    u64 column = (u64)g * p.keys.keys + j;
    u32 position = p.keys.positions[column], group = p.queries.heads / p.keys.kv_heads;
    const T* k = static_cast<const T*>(p.keys.k) + row_of(p.keys, g, j) * p.queries.head_dim;
    f32 mass = 0;
    for (u32 h = g * group; h < (g + 1) * group; ++h) {
        mass = spent(p, h, position, k, mass);
    }
    p.mass[column] = mass;
    if (!finite(mass)) {
        *p.broken = BROKEN_WEIGH;
    }
}

KERNEL(plain_masses_f32, PlainMasses, 128, 1) { weigh_column<f32>(p); }
KERNEL(plain_masses_bf16, PlainMasses, 128, 1) { weigh_column<u16>(p); }
