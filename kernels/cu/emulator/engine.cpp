// The copy engine of sm_90a and its barriers.
#include "runtime.hpp"

namespace emulator {
namespace {

constexpr u32 BOX_COLUMNS = 64;
constexpr u64 MAGIC = 0x70616d2d72736e74;
constexpr u32 MARK = 0xa5;
constexpr i64 NO_BYTES = 1 << 22;

// What Rust's `tensor_map` writes; behind it the 128 bytes are zero.
struct Map {
    u64 magic;
    u64 address;
    u64 size[3];
    u64 stride_bytes[2];
    u64 box_size[3];
};

struct BarrierState {
    u64 pending : 16;
    u64 expected : 16;
    u64 phase : 1;
    u64 bytes : 23; // under way, and NO_BYTES
    u64 mark : 8;
};
static_assert(sizeof(BarrierState) == sizeof(Barrier));

BarrierState state_of(Barrier* at) {
    check_shared("a barrier", at, sizeof(Barrier), 8);
    BarrierState state;
    memcpy(&state, at, sizeof(state));
    if (state.mark != MARK) fail("the barrier at byte %u was never set up", place_in_shared(at));
    return state;
}

// The next phase begins when all have come, and all bytes.
void settle(Barrier* at, BarrierState state) {
    if (state.pending == 0 && state.bytes == NO_BYTES) {
        state.phase ^= 1;
        state.pending = state.expected;
        for (u32 i = 0; i < running->fibers.size(); i++) {
            if (running->fibers[i].waits_at == at) running->states[i] = State::Ready;
        }
    }
    memcpy(at, &state, sizeof(state));
}

const Map& read_map(const TensorMap* map) {
    const Map& opened = *(const Map*)map;
    if (opened.magic != MAGIC) fail("there is no tensor map at 0x%llx", (u64)map);
    return opened;
}

u64 bytes_of(const Map& map) {
    return map.box_size[0] * map.box_size[1] * map.box_size[2] * sizeof(u16);
}

// Visits every element of a box: where it is in shared memory, and in the array, or null.
template <typename Visit>
void visit(const BoxCopy& copy, Visit each) {
    const Map& map = read_map(copy.map);
    u64 rows = map.box_size[1] * map.box_size[2];
    for (u64 row = 0; row < rows; row++) {
        i64 y = copy.at[1] + (i64)(row % map.box_size[1]);
        i64 z = copy.at[2] + (i64)(row / map.box_size[1]);
        bool inside = y >= 0 && y < (i64)map.size[1] && z >= 0 && z < (i64)map.size[2];
        u64 begin = map.address + (u64)y * map.stride_bytes[0] + (u64)z * map.stride_bytes[1];
        for (u64 column = 0; column < BOX_COLUMNS; column++) {
            i64 x = copy.at[0] + (i64)column;
            u32 place = copy.shared + (u32)(row * BOX_COLUMNS + column) * 2;
            bool there = inside && x >= 0 && x < (i64)map.size[0];
            each((u16*)(self->shared + swizzled(place)), there ? (u16*)begin + x : nullptr);
        }
    }
}

BoxCopy copy_of(const TensorMap* map, const void* shared, Barrier* barrier, i32 x, i32 y, i32 z) {
    check_shared("a box", shared, bytes_of(read_map(map)), 128);
    return BoxCopy{map, place_in_shared(shared), barrier, {x, y, z}};
}

void finish_load(const BoxCopy& copy) {
    visit(copy, [](u16* to, const u16* from) { *to = from ? *from : 0; });
    u64 bytes = bytes_of(read_map(copy.map));
    engine_wrote(copy.shared, (u32)bytes);
    BarrierState state = state_of(copy.barrier);
    state.bytes -= bytes;
    settle(copy.barrier, state);
}

void finish_store(const BoxCopy& copy) {
    engine_reads(copy.shared, (u32)bytes_of(read_map(copy.map)));
    visit(copy, [](const u16* from, u16* to) {
        if (to) *to = *from;
    });
}

} // namespace

u32 swizzled(u32 place) { return place ^ (place >> 7 & 7) << 4; }

void barrier_start(Barrier* at, u32 arrivals) {
    check_shared("a barrier", at, sizeof(Barrier), 8);
    BarrierState state{};
    state.pending = state.expected = arrivals;
    state.bytes = NO_BYTES;
    state.mark = MARK;
    memcpy(at, &state, sizeof(state));
}

void barrier_come(Barrier* at, u32 bytes) {
    BarrierState state = state_of(at);
    if (state.pending == 0) fail("more arrive at barrier %u than it expects", place_in_shared(at));
    state.bytes += bytes;
    state.pending--;
    settle(at, state);
}

void barrier_pass(Barrier* at, u32 phase) {
    if (phase > 1) fail("phase %u of a barrier", phase);
    while (state_of(at).phase == phase) {
        fiber().waits_at = at;
        const char* what = phase == 0 ? "for phase 0 of the barrier at byte "
                                      : "for phase 1 of the barrier at byte ";
        wait(what, nullptr, (i32)place_in_shared(at));
        fiber().waits_at = nullptr;
    }
}

void load_box(void* to, const TensorMap* map, Barrier* barrier, i32 x, i32 y, i32 z) {
    BoxCopy copy = copy_of(map, to, barrier, x, y, z);
    state_of(barrier);
    if (running->eager) return finish_load(copy);
    running->loads.push_back(copy);
}

void run_engine() {
    for (;;) {
        // In no order that anybody could rely on.
        u64 pick = scrambled(running->seed + running->loads_done++) % running->loads.size();
        BoxCopy copy = running->loads[pick];
        running->loads.erase(running->loads.begin() + (long)pick);
        finish_load(copy);
        wait("for work");
    }
}

void store_box(const TensorMap* map, const void* from, i32 x, i32 y, i32 z) {
    BoxCopy copy = copy_of(map, from, nullptr, x, y, z);
    if (running->eager) return finish_store(copy);
    fiber().open_stores.push_back(copy);
}

void stores_close() {
    Fiber& mine = fiber();
    mine.stores.push_back(std::move(mine.open_stores));
    mine.open_stores.clear();
}

void stores_finish(u32 groups_under_way) {
    Fiber& mine = fiber();
    while (mine.stores.size() > groups_under_way) {
        for (const BoxCopy& copy : mine.stores.front()) finish_store(copy);
        mine.stores.pop_front();
    }
}

void fence_engine() { running->fences++; }

void engine_wrote(u32 place, u32 bytes) {
    memcpy(&running->seen_by_engine[place], self->shared + place, bytes);
    for (u32 i = place / 16; i < (place + bytes) / 16; i++) running->seen_after[i] = running->fences;
}

void engine_reads(u32 place, u32 bytes) {
    for (u32 at = place; at < place + bytes; at += 16) {
        u32& seen_after = running->seen_after[at / 16];
        u8* seen = &running->seen_by_engine[at];
        if (memcmp(seen, self->shared + at, 16) == 0) continue;
        if (seen_after == running->fences) {
            fail("byte %u of shared memory was written, and no fence_async came before wgmma or "
                 "the copy engine reads it", at);
        }
        memcpy(seen, self->shared + at, 16);
        seen_after = running->fences;
    }
}

} // namespace emulator
