// The threads of one block as fibers on one thread of the host.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
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

struct Fiber {
    void* stack_pointer;
    State state;
    Thread thread;
    std::string waits_for;
    std::deque<std::vector<Copy>> groups;
    std::vector<Copy> open_group;
};

struct Warp {
    const Together* what;
    u32 arrived;
    void* mine[LANES];
};

struct NamedBarrier {
    u32 expected;
    u32 arrived;
    std::vector<Fiber*> waiting;
};

// What runs now. Blocks of a launch come one after the other.
struct Block {
    const Kernel* kernel;
    const void* params;
    u32 live;
    u32 shared_bytes;
    // Asynchronous work is done as soon as it is asked for, instead of as late as is allowed.
    bool eager;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    NamedBarrier barriers[BARRIERS];
    bool failed;
    std::string error;
};
extern thread_local Block block;

// The fiber that runs.
Fiber& fiber();
// Lets others run until somebody has made this fiber ready again; `waits_for` is for the report
// when nobody does.
void wait(std::string waits_for);
// Ends the launch; printf's format.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Refuses what is not all in the block's shared memory, or not aligned.
void check_shared(const char* what, const void* at, u64 bytes, u64 alignment);
void finish_copies(Fiber& fiber, u32 groups_under_way);

} // namespace emulator
