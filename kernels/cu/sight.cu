// What rows see of keys where a window or blocks bound it: a tail of the keys at or before them,
// found once, so that kernels of tiles compare indices and read no position.
#include "device.cuh"

#include "attention.cuh"

// The first of ascending `positions` that is not below `position`, or `count`.
DEVICE u32 lower_bound(const u32* positions, u32 count, u32 position) {
    u32 low = 0;
    while (count > 0) {
        u32 half = count / 2;
        bool below = positions[low + half] < position;
        low = below ? low + half + 1 : low;
        count = below ? count - half - 1 : half;
    }
    return low;
}

// The first row that does not see what stands at `position`, of those that stand at or behind it:
// where sight begins never falls from row to row.
DEVICE u32 end_of(const QueryArray& queries, u32 position) {
    u64 end = queries.blocks > 0 ? ((u64)(position / queries.blocks) + 1) * queries.blocks
                                 : (u64)position + queries.window;
    u64 rows = end > queries.start ? end - queries.start : 0;
    return rows < queries.tokens ? (u32)rows : queries.tokens;
}

// Blocks: x 256 rows or keys, y KV heads.
KERNEL(find_sight, FindSight, 256, 1) {
    const u32 at = block_x() * 256 + thread_index(), g = block_y();
    const u32* positions = p.positions + (u64)g * p.keys;
    if (at < p.queries.tokens) {
        u32 first = sight_of(p.queries, at).first;
        p.first[(u64)g * p.queries.tokens + at] = lower_bound(positions, p.keys, first);
    }
    if (at < p.keys) p.end[(u64)g * p.keys + at] = end_of(p.queries, positions[at]);
}
