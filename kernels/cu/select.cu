// Which keys a memory set keeps, and the copy of what it keeps: the past followed by the block's
// own keys, both ascending by position, so that "index" and "position" are one order.
//
// What always stays, positions below `sinks` and from `recent` on, is a prefix and a suffix of
// that order; the candidates are the span between, of which the best by rank stay. Ranks become
// integers in the same order, of which a radix search finds the lowest that stays; ties go to
// the smaller index. One block a head: what it decides takes a few microseconds, and the bytes
// are moved by select_gather on the whole chip.
#include "device.cuh"

constexpr u32 THREADS = 1024;
constexpr u32 WARPS = THREADS / 32;
constexpr u32 BINS = 2048;

DEVICE u32 at_least(u32 a, u32 b) { return a > b ? a : b; }
DEVICE u32 at_most(u32 a, u32 b) { return a < b ? a : b; }

// What `fold` makes of all threads' `x`, in a fixed order, for every thread; `warps` has a place
// for each warp.
template <typename T, typename FOLD>
DEVICE T block_fold(T x, T* warps, FOLD fold) {
    for (u32 mask = 16; mask > 0; mask /= 2) x = fold(x, shuffle_xor(x, mask));
    if (lane_index() == 0) warps[warp_index()] = x;
    sync_block();
    x = warps[lane_index()];
    for (u32 mask = 16; mask > 0; mask /= 2) x = fold(x, shuffle_xor(x, mask));
    sync_block();
    return x;
}
template <typename T>
DEVICE T block_sum(T x, T* warps) {
    return block_fold(x, warps, [](T a, T b) { return a + b; });
}

// Integers in the order of the ranks; NaN is the lowest rank, and +0 and -0 are one.
DEVICE u32 order_of(f32 score, f32 votes, u32 age_normalised) {
    f32 rank = age_normalised ? div(score, fmax(votes, 1e-30f)) : score;
    u32 bits = bits_of(rank);
    if ((bits & 0x7fffffff) > 0x7f800000) bits = 0xff800000;
    if (bits == 0x80000000) bits = 0;
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

// The order of the lowest rank, and of keys that no row to come sees.
constexpr u32 LOWEST = ~0xff800000u;

// A past score or votes with what the block adds.
DEVICE f32 counted(f32 tally, f32 fade, f32 gain) { return add(mul(tally, fade), gain); }

struct Key {
    u32 position;
    f32 score, votes;
};

// Key `i` of head `g`.
DEVICE Key key_of(const SelectKeys& p, u32 g, u32 i) {
    if (i < p.past) {
        u64 at = (u64)g * p.past + i;
        return Key{p.positions[at], counted(p.score[at], p.fade, p.past_mass[at]),
                   counted(p.votes[at], p.fade, p.past_votes)};
    }
    u32 j = i - p.past;
    return Key{p.end + j, p.own_mass[(u64)g * p.own + j], p.own_votes[j]};
}

struct Span {
    u32 first, end;
};
DEVICE bool within(Span span, u32 i) { return i >= span.first && i < span.end; }

// Of `count` keys, those of this thread's warp.
DEVICE Span span_of_warp(u32 count) {
    u32 each = (count + THREADS - 1) / THREADS * 32;
    return Span{at_most(warp_index() * each, count), at_most((warp_index() + 1) * each, count)};
}

struct Scratch {
    u32 bins[BINS];
    u64 counts[WARPS];
    f64 sums[WARPS];
    u32 bin, left;
    u32 unused[2];
};

// Candidates above `order` stay, and of those at it the first `ties`.
struct Cut {
    u32 order, ties;
};

// Writes every key's order; returns the span of the candidates, and the sum of all scores.
DEVICE Span rank_all(const SelectKeys& p, Scratch* scratch, u32* ranks, f64& all_scores) {
    Span mine = span_of_warp(p.past + p.own);
    u64 counts = 0; // below `sinks`, and in the upper half below `recent`
    f64 scores = 0.0;
    for (u32 i = mine.first + lane_index(); i < mine.end; i += 32) {
        Key key = key_of(p, block_x(), i);
        bool seen = key.position >= p.first_seen;
        ranks[i] = seen ? order_of(key.score, key.votes, p.age_normalised) : LOWEST;
        if (seen) scores += key.score;
        counts += (u64)(key.position < p.sinks) | (u64)(key.position < p.recent) << 32;
    }
    counts = block_sum(counts, scratch->counts);
    all_scores = block_sum(scores, scratch->sums);
    u32 first = (u32)counts;
    return Span{first, at_least(first, (u32)(counts >> 32))};
}

// Of the bins, filled with at least `left` keys, that of the `left`-th from above, and how many
// keys of it are among the `left` best.
DEVICE Cut bin_of(Scratch* scratch, u32 left) {
    u32 high = BINS - 1 - 2 * thread_index();
    u32 in_high = scratch->bins[high], in_both = in_high + scratch->bins[high - 1];
    u32 before = in_both; // of this warp's threads up to this one
    for (u32 by = 1; by < 32; by *= 2) {
        u32 other = shuffle_up(before, by);
        if (lane_index() >= by) before += other;
    }
    if (lane_index() == 31) scratch->counts[warp_index()] = before;
    sync_block();
    u32 earlier = lane_index() < warp_index() ? (u32)scratch->counts[lane_index()] : 0;
    for (u32 mask = 16; mask > 0; mask /= 2) earlier += shuffle_xor(earlier, mask);
    before += earlier - in_both;
    if (before < left && left <= before + in_both) {
        bool is_high = left <= before + in_high;
        scratch->bin = is_high ? high : high - 1;
        scratch->left = left - before - (is_high ? 0 : in_high);
    }
    sync_block();
    return Cut{scratch->bin, scratch->left};
}

// Of the candidates whose bits above KNOWN are `cut.order`, finds what the bits from SHIFT on are
// where `cut.ties` of them stay.
template <u32 KNOWN, u32 SHIFT>
DEVICE Cut narrowed(Scratch* scratch, const u32* ranks, Span rest, Cut cut) {
    constexpr u32 WIDTH = KNOWN - SHIFT;
    for (u32 i = thread_index(); i < BINS; i += THREADS) scratch->bins[i] = 0;
    sync_block();
    for (u32 i = rest.first + thread_index(); i < rest.end; i += THREADS) {
        bool matches = (u32)((u64)ranks[i] >> KNOWN) == cut.order;
        if (matches) atomic_add(&scratch->bins[ranks[i] >> SHIFT & ((1u << WIDTH) - 1)], 1);
    }
    sync_block();
    Cut bin = bin_of(scratch, cut.ties);
    return Cut{(u32)((u64)cut.order << WIDTH) | bin.order, bin.ties};
}

// Where to cut so that `heavy` of `rest` stay.
DEVICE Cut cut_of(Scratch* scratch, const u32* ranks, Span rest, u32 heavy) {
    if (heavy == 0) return Cut{0xffffffff, 0};            // infinity, the highest rank, is below
    if (heavy >= rest.end - rest.first) return Cut{0, 0}; // and the lowest above 0
    Cut cut = narrowed<32, 21>(scratch, ranks, rest, Cut{0, heavy});
    cut = narrowed<21, 10>(scratch, ranks, rest, cut);
    return narrowed<10, 0>(scratch, ranks, rest, cut);
}

// Lanes whose keys stay for sure, and those whose keys are ties, of the 32 keys from `base` on.
struct Lanes {
    u32 sure, tied;
};
DEVICE Lanes lanes_of(const u32* ranks, Span mine, Span rest, Cut cut, u32 base) {
    u32 i = base + lane_index();
    bool here = i < mine.end, candidate = here && within(rest, i);
    u32 rank = candidate ? ranks[i] : 0;
    return Lanes{ballot(here && (!candidate || rank > cut.order)),
                 ballot(candidate && rank == cut.order)};
}
DEVICE u64 count_of(Lanes lanes) { return bits_set(lanes.sure) | (u64)bits_set(lanes.tied) << 32; }

// Sure keys and ties of the warps before this one, the ties in the upper half.
DEVICE u64 earlier_warps(Scratch* scratch, const u32* ranks, Span mine, Span rest, Cut cut) {
    u64 own = 0;
    for (u32 base = mine.first; base < mine.end; base += 32) {
        own += count_of(lanes_of(ranks, mine, rest, cut, base));
    }
    if (lane_index() == 0) scratch->counts[warp_index()] = own;
    sync_block();
    u64 earlier = lane_index() < warp_index() ? scratch->counts[lane_index()] : 0;
    for (u32 mask = 16; mask > 0; mask /= 2) earlier += shuffle_xor(earlier, mask);
    return earlier;
}

DEVICE void keep(const SelectKeys& p, u32 i, u64 to, const Key& key) {
    u32 g = block_x();
    p.kept_positions[to] = key.position;
    p.kept_score[to] = key.score;
    p.kept_votes[to] = key.votes;
    if (p.kept_table) p.kept_table[to] = i < p.past ? p.table[(u64)g * p.past + i] : i;
    p.source[to] = i;
}

// Grid: heads. Shared memory: Scratch, and the ranks of a head where `p.ranks` is null.
KERNEL(select_keys, SelectKeys, THREADS, 1) {
    Scratch* scratch = reinterpret_cast<Scratch*>(shared_memory());
    u32 g = block_x(), all = p.past + p.own;
    u32* ranks = p.ranks ? p.ranks + (u64)g * all : reinterpret_cast<u32*>(scratch + 1);
    f64 all_scores;
    Span rest = rank_all(p, scratch, ranks, all_scores);
    Cut cut = cut_of(scratch, ranks, rest, p.kept + (rest.end - rest.first) - all);
    Span mine = span_of_warp(all);
    u64 before = earlier_warps(scratch, ranks, mine, rest, cut);
    u32 below = (1u << lane_index()) - 1;
    f64 kept_scores = 0.0;
    for (u32 base = mine.first; base < mine.end; base += 32) {
        Lanes lanes = lanes_of(ranks, mine, rest, cut, base);
        u32 ties = (u32)(before >> 32) + bits_set(lanes.tied & below);
        u32 sure = (u32)before + bits_set(lanes.sure & below);
        bool stays = lanes.sure >> lane_index() & 1;
        stays = stays || ((lanes.tied >> lane_index() & 1) && ties < cut.ties);
        if (stays) {
            Key key = key_of(p, g, base + lane_index());
            keep(p, base + lane_index(), (u64)g * p.kept + sure + at_most(ties, cut.ties), key);
            if (key.position >= p.first_seen) kept_scores += key.score;
        }
        before += count_of(lanes);
    }
    kept_scores = block_sum(kept_scores, scratch->sums);
    if (thread_index() == 0) {
        p.sums[2 * g] = kept_scores;
        p.sums[2 * g + 1] = all_scores;
    }
}

// Grid: keys / 256, heads.
KERNEL(select_join, SelectJoin, 256, 1) {
    u32 i = block_x() * 256 + thread_index(), all = p.past + p.own;
    if (i >= all) return;
    bool is_past = i < p.past;
    u64 from = (u64)block_y() * p.past + i, to = (u64)block_y() * all + i;
    p.kept_positions[to] = is_past ? p.positions[from] : p.end + (i - p.past);
    p.kept_score[to] = is_past ? p.score[from] : 0.0f;
    p.kept_votes[to] = is_past ? p.votes[from] : 0.0f;
    if (p.kept_table) p.kept_table[to] = is_past ? p.table[from] : i;
}

// Row of past or own that kept key `row` of head `g` comes from.
struct Row {
    bool is_past;
    u64 cell;
};
DEVICE Row row_of(const SelectGather& p, u32 g, u32 row) {
    u32 i = p.source ? p.source[(u64)g * p.kept + row] : row;
    if (i < p.past_keys) {
        u32 cell = p.past_table ? p.past_table[(u64)g * p.past_keys + i] : i;
        return Row{true, (u64)g * p.past_cells + cell};
    }
    i -= p.past_keys;
    u32 cell = p.own_table ? p.own_table[(u64)g * p.own_keys + i] : i;
    return Row{false, (u64)g * p.own_cells + cell};
}

template <typename UNIT>
DEVICE UNIT load(const UNIT* from) {
    return *from;
}
DEVICE Quad load(const Quad* from) { return load16(from); }
template <typename UNIT>
DEVICE void store(UNIT* to, UNIT unit) {
    *to = unit;
}
DEVICE void store(Quad* to, Quad unit) { store16(to, unit); }

constexpr u32 UNITS = 4; // of a thread, all asked for before the first is written

template <typename UNIT>
DEVICE void gather(const SelectGather& p) {
    u32 g = block_y(), z = block_z(), units = (p.kept - p.first) * p.row_units;
    u32 begin = block_x() * UNITS * 256 + thread_index();
    const UNIT* past = static_cast<const UNIT*>(p.past[z]);
    const UNIT* own = static_cast<const UNIT*>(p.own[z]);
    UNIT copies[UNITS];
#pragma unroll
    for (u32 n = 0; n < UNITS; n++) {
        u32 unit = begin + n * 256;
        if (unit >= units) continue;
        Row row = row_of(p, g, p.first + unit / p.row_units);
        copies[n] = load((row.is_past ? past : own) + row.cell * p.row_units + unit % p.row_units);
    }
    UNIT* to = static_cast<UNIT*>(p.to[z]) + ((u64)g * p.to_cells + p.first) * p.row_units;
#pragma unroll
    for (u32 n = 0; n < UNITS; n++) {
        u32 unit = begin + n * 256;
        if (unit < units) store(to + unit, copies[n]);
    }
}

// Grid: units of a head / 1024, heads, keys and values. Units of 16, 4 and 2 bytes.
KERNEL(select_gather16, SelectGather, 256, 1) { gather<Quad>(p); }
KERNEL(select_gather4, SelectGather, 256, 1) { gather<u32>(p); }
KERNEL(select_gather2, SelectGather, 256, 1) { gather<u16>(p); }

struct ReplaceScratch {
    u64 worst[WARPS];
    f64 sums[WARPS];
};

// The candidate that ranks lowest: its order, and below it the complement of its index, so that
// of equals the last is the lowest.
DEVICE u64 worth(u32 position, u32 order, u32 i, const SelectReplace& p) {
    bool candidate = position >= p.sinks && position < p.recent;
    if (position < p.first_seen) order = LOWEST;
    return candidate ? (u64)order << 32 | (u32)~i : ~(u64)0;
}

// Counts the block's gains in place; returns the index of the key to go, `p.keys` for the new one.
DEVICE u32 count_and_find(const SelectReplace& p, ReplaceScratch* scratch, u64 head) {
    f32 new_score = p.own_mass[block_x()];
    u32 new_order = order_of(new_score, p.new_votes, p.age_normalised);
    u64 worst = worth(p.end, new_order, p.keys, p);
    bool new_seen = p.end >= p.first_seen;
    f64 all = thread_index() == 0 && new_seen ? new_score : 0.0;
    for (u32 i = thread_index(); i < p.keys; i += THREADS) {
        f32 score = counted(p.score[head + i], p.fade, p.past_mass[head + i]);
        f32 votes = counted(p.votes[head + i], p.fade, p.new_votes);
        p.score[head + i] = score;
        p.votes[head + i] = votes;
        if (p.fresh_table) p.table[head + i] = i;
        if (p.positions[head + i] >= p.first_seen) all += score;
        u64 other = worth(p.positions[head + i], order_of(score, votes, p.age_normalised), i, p);
        worst = other < worst ? other : worst;
    }
    worst = block_fold(worst, scratch->worst, [](u64 a, u64 b) { return a < b ? a : b; });
    u32 gone = ~(u32)worst;
    f64 kept = thread_index() == 0 && new_seen && gone != p.keys ? new_score : 0.0;
    for (u32 i = thread_index(); i < p.keys; i += THREADS) {
        if (i != gone && p.positions[head + i] >= p.first_seen) kept += p.score[head + i];
    }
    kept = block_sum(kept, scratch->sums);
    all = block_sum(all, scratch->sums);
    if (thread_index() == 0) {
        p.sums[2 * block_x()] = kept;
        p.sums[2 * block_x() + 1] = all;
    }
    return gone;
}

// Drops key `gone`, moves the later ones up, and puts the new one, in `cell`, behind them.
DEVICE void move_up(const SelectReplace& p, u64 head, u32 gone, u32 cell) {
    for (u32 base = gone / THREADS * THREADS; base < p.keys; base += THREADS) {
        u32 i = base + thread_index();
        u64 next = head + i + 1;
        bool moves = i >= gone && i < p.keys, inside = moves && i + 1 < p.keys;
        u32 position = inside ? p.positions[next] : p.end;
        u32 its_cell = inside ? p.table[next] : cell;
        f32 score = inside ? p.score[next] : p.own_mass[block_x()];
        f32 votes = inside ? p.votes[next] : p.new_votes;
        sync_block(); // what is written next was read: each turn reads one key ahead of its own
        if (!moves) continue;
        p.positions[head + i] = position;
        p.table[head + i] = its_cell;
        p.score[head + i] = score;
        p.votes[head + i] = votes;
    }
}

// Grid: heads.
KERNEL(select_replace, SelectReplace, THREADS, 1) {
    ReplaceScratch* scratch = reinterpret_cast<ReplaceScratch*>(shared_memory());
    u32 g = block_x();
    u64 head = (u64)g * p.keys;
    u32 gone = count_and_find(p, scratch, head);
    if (gone == p.keys) return;
    u32 cell = p.table[head + gone];
    sync_block();
    move_up(p, head, gone, cell);
    u64 to = ((u64)g * p.cells + cell) * p.row_units;
    u64 from = ((u64)g * p.own_cells + (p.own_table ? p.own_table[g] : 0)) * p.row_units;
    for (u32 unit = thread_index(); unit < 2 * p.row_units; unit += THREADS) {
        u32 z = unit / p.row_units, column = unit % p.row_units;
        p.to[z][to + column] = p.own[z][from + column];
    }
}
