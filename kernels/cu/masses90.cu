// Column masses on sm_90a, bf16: what the rows of a head spend on each key, exp(z - lse) with the
// lse of the merged state, times the rows' weights.
//
// A block of the grid takes 256 keys and one head: two consumer warpgroups keep 128 keys each in
// shared memory while the rows that see any of them stream through, 64 at a time. A column's sum
// stays in registers until the last row; so it has one writer, and an order that depends on rows
// alone. Sums are per query head, `add_heads` adds a group's: with the group's heads in one block
// there would be too few blocks of too unequal lengths (8 KV heads, 5120 keys: 160 items for 132
// multiprocessors, instead of 640), while the columns of all heads are not even a megabyte.
#include "tiles90.cuh"

namespace masses90 {

using namespace tiles90;

// Named barriers: one of each consumer.
constexpr u32 SUMMED = 1;

// Keys of a block of the grid; a consumer's.
constexpr u32 KEYS = 256, SHARE = 128, CONSUMERS = 2;

// What a row weighs, and what is added to its logits, in powers of two: -lse.
struct alignas(8) RowTerms {
    f32 offset, weight;
};

// Heads of D elements, so many buffers for KEYS, so many stages of 64 rows; whether a consumer
// has products under way while it computes exponentials. With 256 elements the products last twice
// as long as the exponentials, so that those of the other consumer are enough. With ANY, windows or
// blocks may bound what rows see.
template <int D_, int BUFFERS_, int STAGES_, bool AHEAD_, bool ANY_>
struct Form {
    static constexpr u32 D = D_, BUFFERS = BUFFERS_, STAGES = STAGES_;
    static constexpr bool AHEAD = AHEAD_, ANY = ANY_;
    // Warps that write terms. With more than stages, one could come to a stage two rounds early,
    // when its barrier looks as it will then.
    static constexpr u32 WRITERS = STAGES < 3 ? STAGES : 3;
    static constexpr u32 SHARE_BYTES = SHARE * D * 2;
    static constexpr u32 ROWS_BYTES = 64 * D * 2;
    static constexpr u32 Q_AT = BUFFERS * CONSUMERS * SHARE_BYTES;
    static constexpr u32 TERMS_AT = Q_AT + STAGES * ROWS_BYTES;
    static constexpr u32 TERMS_BYTES = 64 * sizeof(RowTerms);
    // For each consumer, [4 warps, SHARE] f32.
    static constexpr u32 SUMS_AT = TERMS_AT + STAGES * TERMS_BYTES;
    static constexpr u32 SUMS_BYTES = 4 * SHARE * 4;
    static constexpr u32 BARRIERS_AT = SUMS_AT + CONSUMERS * SUMS_BYTES;
};

// `full` when copies and terms have come, `free` when all who read them are done.
template <class F>
struct Barriers {
    Barrier keys_full[F::BUFFERS], keys_free[F::BUFFERS];
    Barrier rows_full[F::STAGES], rows_free[F::STAGES];
};

template <class F>
DEVICE Barriers<F>& barriers() {
    return *reinterpret_cast<Barriers<F>*>(shared_memory() + F::BARRIERS_AT);
}
template <class F>
DEVICE char* keys_at(u32 buffer, u32 consumer) {
    return shared_memory() + (buffer * CONSUMERS + consumer) * F::SHARE_BYTES;
}
template <class F>
DEVICE char* rows_at(u32 stage) {
    return shared_memory() + F::Q_AT + stage * F::ROWS_BYTES;
}
template <class F>
DEVICE RowTerms* terms_at(u32 stage) {
    return reinterpret_cast<RowTerms*>(shared_memory() + F::TERMS_AT + stage * F::TERMS_BYTES);
}
template <class F>
DEVICE f32* sums_at(u32 consumer) {
    return reinterpret_cast<f32*>(shared_memory() + F::SUMS_AT + consumer * F::SUMS_BYTES);
}

// Keys `key..key + KEYS` of a part for `head`, and the tiles of 64 rows that may see them.
struct Work {
    bool any;
    u32 part, head, key, first_tile, tiles;
};

// The end of the rows that have weight and see any of the keys from `key` on.
DEVICE u32 end_of(const HopperMasses& p, u32 part, u32 head, u32 key) {
    const u32* end = p.end[part];
    if (!end) {
        return p.end_row;
    }
    u32 keys = p.keys[part], last = (keys < key + KEYS ? keys : key + KEYS) - 1;
    u32 row = end[(u64)(head / p.group) * keys + last];
    return row < p.end_row ? row : p.end_row;
}

// Past keys come first, for every row sees them, then own keys; heads of one KV head side by side.
template <class F>
DEVICE Work work_of(const HopperMasses& p, u32 round) {
    u32 item = item_of(round), place = item / p.heads;
    u32 past_tiles = tiles_of(p.keys[PAST], KEYS);
    u32 part = place < past_tiles ? PAST : OWN;
    u32 key = (part == PAST ? place : place - past_tiles) * KEYS;
    if (key >= p.keys[part]) {
        return Work{};
    }
    u32 first = part == OWN && key > p.first_row ? key : p.first_row, head = item % p.heads;
    u32 end = F::ANY ? end_of(p, part, head, key) : p.end_row;
    u32 first_tile = first / 64, end_tile = tiles_of(end, 64);
    u32 tiles = end_tile > first_tile ? end_tile - first_tile : 0;
    return Work{true, part, head, key, first_tile, tiles};
}

template <class F>
DEVICE void load_keys(const HopperMasses& p, const Work& work, u32 round) {
    auto& at = barriers<F>();
    Place place = place_of(round, F::BUFFERS);
    Barrier* full = &at.keys_full[place.stage];
    barrier_wait(&at.keys_free[place.stage], place.phase ^ 1);
    barrier_expect(full, CONSUMERS * F::SHARE_BYTES);
    for (u32 consumer = 0; consumer < CONSUMERS; ++consumer) {
        load_tile<F::D, SHARE>(keys_at<F>(place.stage, consumer), &p.k[work.part], full,
                               work.key + consumer * SHARE, work.head / p.group);
    }
}

// One thread: keys, and rows.
template <class F>
DEVICE void produce(const HopperMasses& p) {
    auto& at = barriers<F>();
    u32 loaded = 0;
    for (u32 round = 0;; ++round) {
        Work work = work_of<F>(p, round);
        if (!work.any) {
            return;
        }
        load_keys<F>(p, work, round);
#pragma unroll 1
        for (u32 tile = 0; tile < work.tiles; ++tile, ++loaded) {
            Place place = place_of(loaded, F::STAGES);
            Barrier* full = &at.rows_full[place.stage];
            barrier_wait(&at.rows_free[place.stage], place.phase ^ 1);
            barrier_expect(full, F::ROWS_BYTES);
            load_tile<F::D, 64>(rows_at<F>(place.stage), &p.q, full,
                                (work.first_tile + tile) * 64, work.head);
        }
    }
}

// Rows that are none, and rows that saw nothing, spend nothing.
DEVICE RowTerms terms_of(const HopperMasses& p, u32 head, u32 t) {
    f32 lse = t < p.tokens ? p.lse[(u64)head * p.tokens + t] : -infinity();
    if (lse == -infinity()) {
        return RowTerms{-infinity(), 0.0f};
    }
    return RowTerms{mul(lse, -LOG2E), p.row_weights[t]};
}

// Several warps in turns, because one would wait for memory longer than a tile lasts: what goes
// with the rows.
template <class F>
DEVICE void produce_terms(const HopperMasses& p, u32 turn) {
    auto& at = barriers<F>();
    u32 loaded = 0;
    for (u32 round = 0;; ++round) {
        Work work = work_of<F>(p, round);
        if (!work.any) {
            return;
        }
#pragma unroll 1
        for (u32 tile = 0; tile < work.tiles; ++tile, ++loaded) {
            if (loaded % F::WRITERS != turn) {
                continue;
            }
            Place place = place_of(loaded, F::STAGES);
            u32 row = (work.first_tile + tile) * 64 + lane_index();
            RowTerms low = terms_of(p, work.head, row), high = terms_of(p, work.head, row + 32);
            barrier_wait(&at.rows_free[place.stage], place.phase ^ 1);
            RowTerms* to = terms_at<F>(place.stage);
            to[lane_index()] = low;
            to[lane_index() + 32] = high;
            barrier_arrive(&at.rows_full[place.stage]);
        }
    }
}

// A consumer's sums: columns 8 i + 2 (lane % 4) and the next.
struct Sums {
    f32 x[SHARE / 4];
};

// Where a consumer is: its keys, and how many tiles of rows were before the item's.
struct Course {
    u32 consumer;
    const char* keys;
    u32 key, taken;
};

// Begins s = Q K' with the rows of the item's `tile`.
template <class F>
DEVICE void begin(f32 (&s)[SHARE / 2], const Course& course, u32 tile) {
    Place place = place_of(course.taken + tile, F::STAGES);
    barrier_wait(&barriers<F>().rows_full[place.stage], place.phase);
    wgmma_fence();
    u64 rows = wgmma_descriptor(rows_at<F>(place.stage), 0);
    multiply_across<F::D, SHARE>(s, rows, course.keys, course.consumer >= CONSUMERS);
}

// Adds what the rows of a tile, of which s are the products, spend.
template <class F>
DEVICE void spend(f32 (&s)[SHARE / 2], const HopperMasses& p, const Work& work,
                  const Course& course, u32 tile, Sums& sums) {
    wgmma_hold(s);
    u32 stage = place_of(course.taken + tile, F::STAGES).stage;
    RowTerms terms[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        terms[row] = terms_at<F>(stage)[row_of_thread(row)];
    }
    sync_warp();
    release(&barriers<F>().rows_free[stage]);
    u32 first_row = (work.first_tile + tile) * 64;
    if (work.part == OWN && course.key + SHARE > first_row + 1) {
        u32 row = first_row + row_of_thread(0);
        hide(s, course.key, row + 1, row + 9);
    }
    if (F::ANY) {
        hide_unseen(p, work.part, work.head / p.group, first_row, course.key, s);
    }
    f32 scale2 = mul(p.scale, LOG2E);
#pragma unroll
    for (int i = 0; i < int(SHARE) / 8; ++i) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                f32 share = exp2_fast(fma(s[4 * i + 2 * row + k], scale2, terms[row].offset));
                f32& sum = sums.x[2 * i + k];
                sum = fma(share, terms[row].weight, sum);
            }
        }
    }
}

// All rows of an item. Products under way never cross the end of a loop's body, where the
// compiler would wait for them: hence four tiles at a time, and the rest one by one.
template <class F>
DEVICE void consume_rows(const HopperMasses& p, const Work& work, const Course& course,
                         Sums& sums) {
    f32 a[SHARE / 2], b[SHARE / 2];
    u32 tile = 0;
#pragma unroll 1
    for (; F::AHEAD && tile + 4 <= work.tiles; tile += 4) {
        begin<F>(a, course, tile);
        begin<F>(b, course, tile + 1);
        wgmma_wait<1>();
        spend<F>(a, p, work, course, tile, sums);
        begin<F>(a, course, tile + 2);
        wgmma_wait<1>();
        spend<F>(b, p, work, course, tile + 1, sums);
        begin<F>(b, course, tile + 3);
        wgmma_wait<1>();
        spend<F>(a, p, work, course, tile + 2, sums);
        wgmma_wait<0>();
        spend<F>(b, p, work, course, tile + 3, sums);
    }
#pragma unroll 1
    for (; tile < work.tiles; ++tile) {
        begin<F>(a, course, tile);
        wgmma_wait<0>();
        spend<F>(a, p, work, course, tile, sums);
    }
}

// Adds a consumer's sums, rows ascending by eights and then by warps, and writes them.
template <class F>
DEVICE void leave(const HopperMasses& p, const Work& work, const Course& course, Sums& sums) {
    f32* of_warps = sums_at<F>(course.consumer);
    u32 warp = warp_index() % 4, thread = thread_index() % 128;
    sync_named(SUMMED + course.consumer, 128); // the last item's have been read
#pragma unroll
    for (int i = 0; i < int(SHARE) / 4; ++i) {
        f32 sum = sums.x[i];
        sum = add(sum, shuffle_xor(sum, 4));
        sum = add(sum, shuffle_xor(sum, 8));
        sum = add(sum, shuffle_xor(sum, 16));
        if (lane_index() < 4) {
            of_warps[warp * SHARE + column_of_thread(i / 2) + i % 2] = sum;
        }
    }
    sync_named(SUMMED + course.consumer, 128);
    u32 key = course.key + thread;
    if (key < p.keys[work.part]) {
        f32 sum = of_warps[thread];
        for (u32 other = 1; other < 4; ++other) {
            sum = add(sum, of_warps[other * SHARE + thread]);
        }
        p.columns[work.part][(u64)work.head * p.keys[work.part] + key] = sum;
        if (!finite(sum)) {
            *p.broken = BROKEN_WEIGH;
        }
    }
}

template <class F>
DEVICE void consume(const HopperMasses& p, u32 consumer) {
    auto& at = barriers<F>();
    u32 taken = 0;
    for (u32 round = 0;; ++round) {
        Work work = work_of<F>(p, round);
        if (!work.any) {
            return;
        }
        Place place = place_of(round, F::BUFFERS);
        barrier_wait(&at.keys_full[place.stage], place.phase);
        const char* keys = keys_at<F>(place.stage, consumer);
        Course course{consumer, keys, work.key + consumer * SHARE, taken};
        Sums sums = {};
        consume_rows<F>(p, work, course, sums);
        release(&at.keys_free[place.stage]);
        leave<F>(p, work, course, sums);
        taken += work.tiles;
    }
}

template <class F>
DEVICE void prepare() {
    auto& at = barriers<F>();
    for (u32 i = 0; i < F::BUFFERS; ++i) {
        barrier_init(&at.keys_full[i], 1);
        barrier_init(&at.keys_free[i], 4 * CONSUMERS);
    }
    for (u32 i = 0; i < F::STAGES; ++i) {
        barrier_init(&at.rows_full[i], 1 + 32);
        barrier_init(&at.rows_free[i], 4 * CONSUMERS);
    }
    barriers_ready();
}

template <class F>
DEVICE void weigh(const HopperMasses& p) {
    if (thread_index() == 0) {
        prepare<F>();
    }
    sync_block();
    u32 warp = warp_index();
    if (warp < 4) {
        registers_down<40>();
        if (thread_index() == 0) {
            produce<F>(p);
        } else if (warp > 0 && warp <= F::WRITERS) {
            produce_terms<F>(p, warp - 1);
        }
    } else {
        registers_up<232>();
        consume<F>(p, warp / 4 - 1);
    }
}

} // namespace masses90

KERNEL(masses90_64, HopperMasses, 384, 1) {
    masses90::weigh<masses90::Form<64, 2, 5, true, false>>(p);
}
KERNEL(masses90_128, HopperMasses, 384, 1) {
    masses90::weigh<masses90::Form<128, 2, 5, true, false>>(p);
}
KERNEL(masses90_256, HopperMasses, 384, 1) {
    masses90::weigh<masses90::Form<256, 1, 2, false, false>>(p);
}
KERNEL(masses90_64_any, HopperMasses, 384, 1) {
    masses90::weigh<masses90::Form<64, 2, 5, true, true>>(p);
}
KERNEL(masses90_128_any, HopperMasses, 384, 1) {
    masses90::weigh<masses90::Form<128, 2, 5, true, true>>(p);
}
KERNEL(masses90_256_any, HopperMasses, 384, 1) {
    masses90::weigh<masses90::Form<256, 1, 2, false, true>>(p);
}

// Adds the columns of a KV head's query heads, ascending. Blocks: x 256 keys, y KV heads.
KERNEL(add_heads, AddHeads, 256, 1) {
    u32 key = block_x() * 256 + thread_index(), kv_head = block_y();
    if (key < p.keys) {
        const f32* columns = p.columns + (u64)kv_head * p.group * p.keys + key;
        f32 sum = *columns;
        for (u32 head = 1; head < p.group; ++head) {
            sum = add(sum, columns[(u64)head * p.keys]);
        }
        p.mass[(u64)kv_head * p.keys + key] = sum;
    }
}
