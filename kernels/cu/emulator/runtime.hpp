// The threads of one block as fibers on one thread of the host.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "emulator.hpp"

namespace emulator {

typedef long long i64;
constexpr u32 LANES = 32;
constexpr u32 BARRIERS = 16;

enum class State : u8 { Ready, Waiting, Done };

// A copy that cp.async began.
struct Copy {
    void* to;
    const void* from;
    bool valid;
};

// A box between an array and shared memory.
struct BoxCopy {
    const TensorMap* map;
    u32 shared;
    Barrier* barrier;
    i32 at[3];
};

// What a fiber waits for, in words that are put together only when they are read.
struct Waits {
    const char* what = "";
    const char* name = nullptr;
    i32 number = -1;

    std::string text() const;
    bool operator==(const Waits&) const = default;
};

struct Fiber {
    void* stack_pointer;
    Thread thread;
    Waits waits_for;
    const Barrier* waits_at;
    std::deque<std::vector<Copy>> groups;
    std::vector<Copy> open_group;
    std::deque<std::vector<BoxCopy>> stores;
    std::vector<BoxCopy> open_stores;
};

// A warp's sums of products that are under way, and the registers that they came from.
struct Sums {
    u32 width;
    u32 under_way;
    f32* at[LANES];
    std::vector<f32> values;
};

struct PendingProduct {
    std::shared_ptr<Sums> sums;
    bool from_registers;
    u32 a[LANES][4];
    u64 a_tile;
    u64 b_tile;
    bool transposed;
    bool keep;
};

struct Warp {
    const Together* what;
    u32 arrived;
    void* mine[LANES];
    // Groups of a warpgroup's products; the last is open.
    std::deque<std::vector<PendingProduct>> products;
    u64 products_begun;
    bool fenced;
};

struct NamedBarrier {
    u32 expected;
    u32 arrived;
    std::vector<u32> waiting;
};

// What runs now. Blocks of a launch come one after the other.
struct Block {
    const Kernel* kernel;
    const void* params;
    u32 live;
    u32 shared_bytes;
    // Asynchronous work is done as soon as it is asked for, instead of as late as is allowed.
    bool eager;
    u64 seed;
    // One for each thread, and one more: the copy engine.
    std::vector<Fiber> fibers;
    std::vector<State> states;
    // Whose turn it is in a sweep, and how far this one is.
    std::vector<u32> order;
    u32 place;
    std::vector<Warp> warps;
    NamedBarrier barriers[BARRIERS];
    std::vector<BoxCopy> loads;
    u64 loads_done;
    // Shared memory as the copy engine and wgmma last saw it, and after how many fences they did.
    u32 fences;
    std::vector<u8> seen_by_engine;
    std::vector<u32> seen_after;
    bool failed;
    std::string error;
};
extern __thread Block* running __attribute__((tls_model("initial-exec")));

// The fiber that runs.
inline Fiber& fiber() { return running->fibers[self->index]; }
// Lets others run until somebody has made this fiber ready again; what it waits for is for the
// report when nobody does.
void wait(const char* what, const char* name = nullptr, i32 number = -1);
// Ends the launch; printf's format.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Refuses what is not all in the block's shared memory, or not aligned.
void check_shared(const char* what, const void* at, u64 bytes, u64 alignment);
void finish_copies(Fiber& fiber, u32 groups_under_way);
// Makes one load of `block.loads` come, each time that it is resumed.
void run_engine();
void engine_wrote(u32 place, u32 bytes);
// Refuses what ordinary stores wrote where no fence came since.
void engine_reads(u32 place, u32 bytes);
// A place in shared memory with the swizzle of 128 bytes.
u32 swizzled(u32 place);
// splitmix64
u64 scrambled(u64 x);

} // namespace emulator
