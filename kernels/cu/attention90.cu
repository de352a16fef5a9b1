// Attention of a block's rows on sm_90a, bf16: over its own keys (row t sees keys 0..=t), then
// over keys of the past (every row sees every key), of either only those from some key on where
// windows or blocks bound what rows see. Tiles that no row of an item sees are left out.
//
// A block of the grid takes 64 rows of one head for each consumer, and goes from tile to tile of
// keys. A producer warpgroup lets the copy engine fill two stages of K and two of V; a consumer
// warpgroup multiplies its rows with a tile (S = Q K'), turns S into probabilities in registers,
// and multiplies them with the tile of V. A tile's S is begun before the product of the tile
// before it with V, so that the tensor cores work while exponentials are computed; and consumers
// take turns in beginning products, so that one's exponentials fall into another's products.
#include "rows90.cuh"

namespace attention90 {

// Named barriers: one of each consumer.
constexpr u32 DONE = 1, TURN = 4;

// What a kernel is made of: heads of D elements, tiles of KEYS keys, CONSUMERS times 64 rows, so
// many buffers for QUERIES; whether consumers take TURNS; whether they serve ANY shape: heads of
// fewer elements, and rows that see keys from some on only.
template <int D_, int KEYS_, int CONSUMERS_, int QUERIES_, bool TURNS_, bool ANY_>
struct Form {
    static constexpr u32 D = D_, KEYS = KEYS_, CONSUMERS = CONSUMERS_, QUERIES = QUERIES_;
    static constexpr bool TURNS = TURNS_, ANY = ANY_;
    static constexpr u32 ROWS = 64 * CONSUMERS;
    static constexpr u32 BOXES = D / 64;          // of 64 columns, side by side in a tile
    static constexpr u32 ROWS_BYTES = 64 * D * 2; // of a consumer's queries, or of its output
    static constexpr u32 TILE_BYTES = KEYS * D * 2;
    static constexpr u32 K_AT = QUERIES * CONSUMERS * ROWS_BYTES;
    static constexpr u32 V_AT = K_AT + 2 * TILE_BYTES;
    static constexpr u32 BARRIERS_AT = V_AT + 2 * TILE_BYTES;
};

// `full` when the copies have come, `free` when all who read them are done.
template <class F>
struct Barriers {
    Barrier queries_full[F::QUERIES], queries_free[F::QUERIES];
    Barrier keys_full[2], keys_free[2], values_full[2], values_free[2];
};

template <class F>
DEVICE Barriers<F>& barriers() {
    return *reinterpret_cast<Barriers<F>*>(shared_memory() + F::BARRIERS_AT);
}
template <class F>
DEVICE char* queries_at(u32 buffer, u32 consumer) {
    return shared_memory() + (buffer * F::CONSUMERS + consumer) * F::ROWS_BYTES;
}
template <class F>
DEVICE char* keys_at(u32 stage) {
    return shared_memory() + F::K_AT + stage * F::TILE_BYTES;
}
template <class F>
DEVICE char* values_at(u32 stage) {
    return shared_memory() + F::V_AT + stage * F::TILE_BYTES;
}

// Rows `row..row + ROWS` of `head`, over the tiles of own keys and then of past keys. `left_out`
// are the tiles of the present part before those that any row sees.
struct Work {
    bool any;
    u32 head, row, own_tiles, tiles, left_out;
};

// The first tile of a part of which a row sees a key.
template <class F>
DEVICE u32 begin_of(const HopperAttention& p, u32 part, u32 head, u32 row) {
    if (!F::ANY) {
        return 0;
    }
    u32 first = first_of(p, part, head / p.group, row);
    return first < p.keys[part] ? first / F::KEYS : tiles_of(p.keys[part], F::KEYS);
}

// From own keys to the past.
template <class F>
DEVICE void go_on(const HopperAttention& p, Work& work) {
    work.left_out = begin_of<F>(p, PAST, work.head, work.row);
}

// The key of its part that a tile begins with.
template <class F>
DEVICE u32 key_of(const Work& work, u32 tile) {
    u32 at = tile < work.own_tiles ? tile : tile - work.own_tiles;
    return (F::ANY ? at + work.left_out : at) * F::KEYS;
}

// Rows that see most come first, heads of one KV head side by side.
template <class F>
DEVICE Work work_of(const HopperAttention& p, u32 round) {
    u32 item = item_of(round), row_blocks = tiles_of(p.tokens, F::ROWS);
    if (item >= row_blocks * p.heads) {
        return Work{};
    }
    u32 row = (row_blocks - 1 - item / p.heads) * F::ROWS;
    u32 own = p.keys[OWN] < row + F::ROWS ? p.keys[OWN] : row + F::ROWS;
    u32 head = item % p.heads;
    u32 own_begin = begin_of<F>(p, OWN, head, row), past_begin = begin_of<F>(p, PAST, head, row);
    u32 own_tiles = tiles_of(own, F::KEYS) - own_begin;
    u32 tiles = own_tiles + tiles_of(p.keys[PAST], F::KEYS) - past_begin;
    return Work{true, head, row, own_tiles, tiles, own_tiles > 0 ? own_begin : past_begin};
}

template <class F>
DEVICE void load_queries(const HopperAttention& p, const Work& work, u32 round) {
    auto& at = barriers<F>();
    Place place = place_of(round, F::QUERIES);
    barrier_wait(&at.queries_free[place.stage], place.phase ^ 1);
    Barrier* full = &at.queries_full[place.stage];
    barrier_expect(full, F::CONSUMERS * F::ROWS_BYTES);
    for (u32 consumer = 0; consumer < F::CONSUMERS; ++consumer) {
        load_tile<F::D, 64>(queries_at<F>(place.stage, consumer), &p.q, full,
                            work.row + consumer * 64, work.head);
    }
}

// One thread: everything that comes from global memory.
template <class F>
DEVICE void produce(const HopperAttention& p) {
    auto& at = barriers<F>();
    u32 loaded = 0;
    for (u32 round = 0;; ++round) {
        Work work = work_of<F>(p, round);
        if (!work.any) {
            return;
        }
        load_queries<F>(p, work, round);
        u32 kv_head = work.head / p.group;
#pragma unroll 1
        for (u32 tile = 0; tile < work.tiles; ++tile, ++loaded) {
            Place place = place_of(loaded, 2);
            u32 part = tile < work.own_tiles ? OWN : PAST;
            if (F::ANY && tile == work.own_tiles) {
                go_on<F>(p, work);
            }
            u32 key = key_of<F>(work, tile);
            barrier_wait(&at.keys_free[place.stage], place.phase ^ 1);
            barrier_expect(&at.keys_full[place.stage], F::TILE_BYTES);
            load_tile<F::D, F::KEYS>(keys_at<F>(place.stage), &p.k[part],
                                     &at.keys_full[place.stage], key, kv_head);
            barrier_wait(&at.values_free[place.stage], place.phase ^ 1);
            barrier_expect(&at.values_full[place.stage], F::TILE_BYTES);
            load_tile<F::D, F::KEYS>(values_at<F>(place.stage), &p.v[part],
                                     &at.values_full[place.stage], key, kv_head);
        }
    }
}

// Begins o += P V.
template <class F>
DEVICE void multiply_values(f32 (&o)[F::D / 2], const u32 (&p)[F::KEYS / 16][4], u32 stage) {
    u64 values = wgmma_descriptor(values_at<F>(stage), F::KEYS * 128);
#pragma unroll
    for (u32 step = 0; step < F::KEYS / 16; ++step) {
        wgmma_rs<true>(o, p[step], wgmma_advance(values, step * 16 * 128), true);
    }
    wgmma_commit();
}

// As wgmma takes it.
template <int W>
DEVICE void narrow_all(u32 (&to)[W / 8][4], const f32 (&s)[W]) {
#pragma unroll
    for (int i = 0; i < W / 2; ++i) {
        to[i / 4][i % 4] = narrow2(s[2 * i], s[2 * i + 1]);
    }
}

// Everybody in the consumer is done with its queries: what they became goes out, and they are
// free.
template <class F>
DEVICE void finish(const HopperAttention& p, const Work& work, u32 first_row, Rows<F::D>& rows,
                   u32 consumer, u32 buffer) {
    char* output = queries_at<F>(buffer, consumer);
    gather_l(rows);
    check<F::ANY>(p, work.head, first_row, rows);
    sync_named(DONE + consumer, 128);
    if (p.to.m) {
        leave_state<F::ANY>(p, work.head, first_row, rows);
    } else {
        leave_output(p, work.head, first_row, rows, output);
        fence_async();
        sync_named(DONE + consumer, 128);
    }
    if (thread_index() % 128 == 0) {
        if (!p.to.m) {
            for (u32 box = 0; box < F::BOXES; ++box) {
                tma_store3(&p.output, output + box * 64 * 128, box * 64, work.head, first_row);
            }
            tma_store_commit();
            tma_store_wait<0>();
        }
        barrier_arrive(&barriers<F>().queries_free[buffer]);
    }
}

template <class F>
DEVICE void take_turn(u32 consumer) {
    if (F::TURNS) {
        sync_named(TURN + consumer, 256);
    }
}
template <class F>
DEVICE void pass_turn(u32 consumer) {
    if (F::TURNS) {
        arrive_named(TURN + (consumer + 1) % F::CONSUMERS, 256);
    }
}

// Which keys of a tile each row sees.
template <class F>
DEVICE void hide_tile(const HopperAttention& p, const Work& work, u32 tile, u32 first_row,
                      f32 (&s)[F::KEYS / 2]) {
    if (tile < work.own_tiles) {
        u32 key = key_of<F>(work, tile), row = first_row + row_of_thread(0);
        if (key + F::KEYS > first_row + 1) {
            hide(s, key, row + 1, row + 9);
        }
    } else {
        u32 key = key_of<F>(work, tile);
        if (key + F::KEYS > p.keys[PAST]) {
            hide(s, key, p.keys[PAST], p.keys[PAST]);
        }
    }
    if (F::ANY) {
        u32 part = tile < work.own_tiles ? OWN : PAST;
        hide_unseen(p, part, work.head / p.group, first_row, key_of<F>(work, tile), s);
    }
}

// One consumer's rows over all tiles, of which there is one; `taken` tiles were before.
template <class F>
DEVICE void see_tiles(const HopperAttention& p, Work& work, u32 consumer, u64 queries, u32 taken,
                      Rows<F::D>& rows) {
    auto& at = barriers<F>();
    u32 first_row = work.row + consumer * 64;
    f32 s[F::KEYS / 2], shrink[2];
    u32 probabilities[F::KEYS / 16][4];

    Place place = place_of(taken, 2);
    barrier_wait(&at.keys_full[place.stage], place.phase);
    take_turn<F>(consumer);
    wgmma_fence();
    multiply_across<F::D, F::KEYS>(s, queries, keys_at<F>(place.stage));
    pass_turn<F>(consumer);
    wgmma_wait<0>();
    wgmma_hold(s);
    release(&at.keys_free[place.stage]);
    hide_tile<F>(p, work, 0, first_row, s);
    soften<F::ANY>(s, rows, shrink, p.scale);
    shrink_all(rows, shrink);
    narrow_all(probabilities, s);
    barrier_wait(&at.values_full[place.stage], place.phase);
    for (u32 tile = 1; tile < work.tiles; ++tile) {
        Place next = place_of(taken + tile, 2);
        barrier_wait(&at.keys_full[next.stage], next.phase);
        take_turn<F>(consumer);
        wgmma_fence();
        multiply_across<F::D, F::KEYS>(s, queries, keys_at<F>(next.stage));
        multiply_values<F>(rows.o, probabilities, place.stage);
        pass_turn<F>(consumer);
        wgmma_wait<1>();
        wgmma_hold(s);
        release(&at.keys_free[next.stage]);
        if (tile == work.own_tiles) {
            gather_l(rows);
            if (F::ANY) {
                go_on<F>(p, work);
            }
        }
        hide_tile<F>(p, work, tile, first_row, s);
        soften<F::ANY>(s, rows, shrink, p.scale);
        // Waited for here, not before its product: the loop in it also keeps the compiler from
        // moving exponentials behind the wait for the product under way.
        barrier_wait(&at.values_full[next.stage], next.phase);
        wgmma_wait<0>();
        wgmma_hold(rows.o);
        wgmma_hold(s);
        release(&at.values_free[place.stage]);
        shrink_all(rows, shrink);
        narrow_all(probabilities, s);
        place = next;
    }
    wgmma_fence();
    multiply_values<F>(rows.o, probabilities, place.stage);
    wgmma_wait<0>();
    wgmma_hold(rows.o);
    release(&at.values_free[place.stage]);
}

template <class F>
DEVICE void consume(const HopperAttention& p, u32 consumer) {
    if (consumer == F::CONSUMERS - 1) {
        pass_turn<F>(consumer);
    }
    u32 taken = 0;
    for (u32 round = 0;; ++round) {
        Work work = work_of<F>(p, round);
        if (!work.any) {
            break;
        }
        Place place = place_of(round, F::QUERIES);
        barrier_wait(&barriers<F>().queries_full[place.stage], place.phase);
        u32 first_row = work.row + consumer * 64;
        Rows<F::D> rows;
        begin<F::ANY>(p, work.head, first_row, rows);
        if (work.tiles > 0) {
            u64 queries = wgmma_descriptor(queries_at<F>(place.stage, consumer), 0);
            see_tiles<F>(p, work, consumer, queries, taken, rows);
        }
        finish<F>(p, work, first_row, rows, consumer, place.stage);
        taken += work.tiles;
    }
    if (consumer == 0) {
        take_turn<F>(consumer); // the last one passed it on
    }
}

template <class F>
DEVICE void prepare(const HopperAttention& p) {
    auto& at = barriers<F>();
    for (u32 i = 0; i < F::QUERIES; ++i) {
        barrier_init(&at.queries_full[i], 1);
        barrier_init(&at.queries_free[i], F::CONSUMERS);
    }
    for (u32 i = 0; i < 2; ++i) {
        barrier_init(&at.keys_full[i], 1);
        barrier_init(&at.values_full[i], 1);
        barrier_init(&at.keys_free[i], 4 * F::CONSUMERS);
        barrier_init(&at.values_free[i], 4 * F::CONSUMERS);
    }
    barriers_ready();
}

template <class F, int PRODUCER_REGISTERS, int CONSUMER_REGISTERS>
DEVICE void attend(const HopperAttention& p) {
    if (thread_index() == 0) {
        prepare<F>(p);
    }
    sync_block();
    if (warp_index() < 4) {
        registers_down<PRODUCER_REGISTERS>();
        if (thread_index() == 0) {
            produce<F>(p);
        }
    } else {
        registers_up<CONSUMER_REGISTERS>();
        consume<F>(p, warp_index() / 4 - 1);
    }
}

} // namespace attention90

KERNEL(attention90_64, HopperAttention, 512, 1) {
    attention90::attend<attention90::Form<64, 128, 3, 2, true, false>, 32, 160>(p);
}
KERNEL(attention90_128, HopperAttention, 384, 1) {
    attention90::attend<attention90::Form<128, 128, 2, 2, true, false>, 40, 232>(p);
}
KERNEL(attention90_256, HopperAttention, 384, 1) {
    attention90::attend<attention90::Form<256, 64, 2, 1, false, false>, 40, 232>(p);
}
KERNEL(attention90_64_any, HopperAttention, 512, 1) {
    attention90::attend<attention90::Form<64, 128, 3, 2, true, true>, 32, 160>(p);
}
KERNEL(attention90_128_any, HopperAttention, 384, 1) {
    attention90::attend<attention90::Form<128, 128, 2, 2, true, true>, 40, 232>(p);
}
KERNEL(attention90_256_any, HopperAttention, 384, 1) {
    attention90::attend<attention90::Form<256, 64, 2, 1, false, true>, 40, 232>(p);
}
