// Runs kernels: fibers, what they wait for, and the functions that Rust calls.
#include "runtime.hpp"

#include <csignal>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

// One launch, as kernels/src/cuda/emulated.rs spells it.
struct AqLaunch {
    const char* name;
    u32 grid[3];
    u32 threads;
    u32 capability;
    u64 shared_bytes;
    const void* params;
    u64 params_bytes;
    u64 seed;
    char* error;
    u64 error_bytes;
};

namespace emulator {

__thread Thread* self;
__thread Block* running;

namespace {

constexpr u64 STACK_BYTES = 256 << 10;
// Stacks begin at other lines of their pages, or all would share a few sets of every cache.
constexpr u64 STACK_STEP = 13 * 64;
constexpr u64 STACK_STEPS_MOST = 64 << 10;
constexpr u64 GUARD_BYTES = 64 << 10;
constexpr u64 SHARED_MOST = 256 << 10;
constexpr u64 PARAMS_MOST = 4096;
constexpr u64 SHARED_STEP = 1024;
constexpr int POISON = 0xff;

Kernel* kernels;
__thread void* scheduler __attribute__((tls_model("initial-exec")));

// Puts the registers that a call must keep on the stack, leaves the stack pointer in *from, and
// goes on where `to` was left.
extern "C" void aq_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl aq_switch
.hidden aq_switch
.type aq_switch, @function
aq_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size aq_switch, .-aq_switch
)");

// Memory between guards: touching what is beyond is a fault.
struct Guarded {
    char* begin = nullptr;
    u64 bytes = 0;

    void map(u64 wanted) {
        void* all = mmap(nullptr, wanted + 2 * GUARD_BYTES, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED) return;
        begin = (char*)all + GUARD_BYTES;
        bytes = wanted;
        mprotect(begin, bytes, PROT_READ | PROT_WRITE);
    }
    ~Guarded() {
        if (begin) munmap(begin - GUARD_BYTES, bytes + 2 * GUARD_BYTES);
    }
    char* end() const { return begin + bytes; }
    bool is_near(u64 address) const {
        return address - (u64)(begin - GUARD_BYTES) < bytes + 2 * GUARD_BYTES;
    }
};

// What one thread of the host keeps from launch to launch.
struct Stage {
    std::vector<std::unique_ptr<Guarded>> stacks;
    Guarded shared;
    char* shared_page = nullptr; // the first that may be touched
    Guarded fault_stack;
    Block block;
    u64 fault_address = 0;
    int fault_signal = 0;
};
thread_local Stage stage;

// The next in the order of this sweep who is ready, or null at its end.
Fiber* next_ready() {
    while (running->place < running->order.size()) {
        u32 next = running->order[running->place++];
        if (running->states[next] == State::Ready) return &running->fibers[next];
    }
    return nullptr;
}

bool is_engine() { return self->index == self->threads; }

void open(NamedBarrier& barrier) {
    for (u32 waiting : barrier.waiting) running->states[waiting] = State::Ready;
    barrier.waiting.clear();
    barrier.arrived = 0;
}

// Leaves this fiber to the next in the sweep's order who is ready, or to the scheduler.
void leave() {
    void** mine = &fiber().stack_pointer;
    void* next = scheduler;
    if (!is_engine()) {
        if (Fiber* ready = next_ready()) {
            self = &ready->thread;
            next = ready->stack_pointer;
        }
    }
    aq_switch(mine, next);
}

void finish_fiber() {
    Fiber& done = fiber();
    if (done.open_group.size()) copy_close();
    finish_copies(done, 0);
    if (done.stores.size() + done.open_stores.size() > 0) fail("ends before its stores have");
    running->states[self->index] = State::Done;
    running->live--;
    NamedBarrier& all = running->barriers[0];
    if (all.arrived > 0 && all.arrived == running->live) open(all);
}

void run_fiber() {
    if (is_engine()) run_engine();
    running->kernel->body(running->params);
    finish_fiber();
    leave();
    __builtin_unreachable();
}

void resume(Fiber& next) {
    self = &next.thread;
    aq_switch(&scheduler, next.stack_pointer);
    self = nullptr;
}

void prepare(Fiber& fiber, const Guarded& stack) {
    // As if it had been switched away from at the first instruction of `run_fiber`.
    u64 step = fiber.thread.index * STACK_STEP % STACK_STEPS_MOST;
    void** top = (void**)(stack.end() - 64 - step);
    *--top = nullptr;
    *--top = (void*)run_fiber;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
    fiber.waits_at = nullptr;
    fiber.groups.clear();
    fiber.open_group.clear();
    fiber.stores.clear();
    fiber.open_stores.clear();
}

// Warps in an order that the seed decides; lanes of one come ascending or descending.
std::vector<u32> order_of(u32 threads, u64 seed) {
    u32 warps = (threads + LANES - 1) / LANES;
    std::vector<u32> order;
    std::vector<u32> left(warps);
    for (u32 i = 0; i < warps; i++) left[i] = i;
    bool descending = scrambled(seed) & 1;
    for (u32 i = 0; i < warps; i++) {
        u64 pick = scrambled(seed + i) % left.size();
        u32 warp = left[pick];
        left.erase(left.begin() + (long)pick);
        for (u32 lane = 0; lane < LANES; lane++) {
            u32 thread = warp * LANES + (descending ? LANES - 1 - lane : lane);
            if (thread < threads) order.push_back(thread);
        }
    }
    return order;
}

// Who waits for what, threads that wait for the same together.
std::string waiting_list() {
    std::string list;
    u32 threads = (u32)running->fibers.size() - 1;
    for (u32 first = 0, last; first < threads; first = last) {
        const Fiber& one = running->fibers[first];
        State state = running->states[first];
        for (last = first + 1; last < threads; last++) {
            const Fiber& other = running->fibers[last];
            if (running->states[last] != state || other.waits_for != one.waits_for) break;
        }
        char range[64];
        snprintf(range, sizeof(range), "; threads %u to %u ", first, last - 1);
        list += range + (state == State::Done ? "have ended" : "wait " + one.waits_for.text());
    }
    return list;
}

void blame(const std::string& what) {
    running->failed = true;
    running->error = "kernel " + std::string(running->kernel->name);
    if (self) {
        char where[64];
        snprintf(where, sizeof(where), ", block (%u, %u, %u), ", self->block[0], self->block[1],
                 self->block[2]);
        running->error += where;
        running->error += is_engine() ? "copy engine" : "thread " + std::to_string(self->index);
    }
    running->error += ": " + what;
}

// Where a fault goes on, on a stack of its own.
void after_fault() {
    if (stage.fault_signal == SIGFPE) fail("an integer is divided by zero");
    if (stage.shared.is_near(stage.fault_address)) {
        fail("byte %lld of %u bytes of shared memory is touched",
             (i64)(stage.fault_address - (u64)self->shared), running->shared_bytes);
    }
    if (stage.stacks[self->index]->is_near(stage.fault_address)) {
        fail("more than %llu bytes of local variables", STACK_BYTES);
    }
    fail("address 0x%llx is touched, where no array is", stage.fault_address);
}

struct sigaction previous[NSIG];

void on_fault(int signal, siginfo_t* info, void* context) {
    if (!self) {
        // Not ours: once more, for whoever was here before.
        sigaction(signal, &previous[signal], nullptr);
        return;
    }
    stage.fault_address = (u64)info->si_addr;
    stage.fault_signal = signal;
    auto& registers = ((ucontext_t*)context)->uc_mcontext.gregs;
    registers[REG_RSP] = (greg_t)(stage.fault_stack.end() - 64 - 8);
    registers[REG_RIP] = (greg_t)after_fault;
}

void catch_faults() {
    static const bool once = [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (int signal : {SIGSEGV, SIGBUS, SIGFPE}) {
            sigaction(signal, &action, &previous[signal]);
        }
        return true;
    }();
    (void)once;
}

// Shared memory of `bytes`, aligned, poisoned, with nothing that may be touched around it.
char* fresh_shared(u32 bytes) {
    Guarded& all = stage.shared;
    u64 rounded = (bytes + SHARED_STEP - 1) / SHARED_STEP * SHARED_STEP;
    char* shared = all.end() - rounded;
    char* page = (char*)((u64)shared & ~(u64)4095);
    if (stage.shared_page != page) { // other threads of the host stand still for it
        mprotect(all.begin, (u64)(page - all.begin), PROT_NONE);
        mprotect(page, (u64)(all.end() - page), PROT_READ | PROT_WRITE);
        stage.shared_page = page;
    }
    if (page < all.end()) memset(page, POISON, (u64)(all.end() - page));
    return shared;
}

void check_beyond_shared(const char* shared) {
    for (const char* at = shared + running->shared_bytes; at < stage.shared.end(); at++) {
        if ((u8)*at == POISON) continue;
        blame("byte " + std::to_string(at - shared) + " of " +
              std::to_string(running->shared_bytes) + " bytes of shared memory was written");
        return;
    }
}

} // namespace

u64 scrambled(u64 x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

std::string Waits::text() const {
    return what + std::string(name ? name : "") + (number < 0 ? "" : std::to_string(number));
}

void add_kernel(Kernel* kernel) {
    kernel->next = kernels;
    kernels = kernel;
}

void wait(const char* what, const char* name, i32 number) {
    // Field by field: read as a whole, a record that was just written so stalls the processor.
    Waits& waits_for = fiber().waits_for;
    waits_for.what = what;
    waits_for.name = name;
    waits_for.number = number;
    running->states[self->index] = State::Waiting;
    leave();
}

void fail(const char* format, ...) {
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    blame(what);
    aq_switch(&fiber().stack_pointer, scheduler);
    __builtin_unreachable();
}

void refuse(const char* what, u64 value) { fail("%s 0x%llx", what, value); }

void check_shared(const char* what, const void* at, u64 bytes, u64 alignment) {
    u64 offset = (u64)at - (u64)self->shared;
    if (offset > running->shared_bytes || offset + bytes > running->shared_bytes) {
        fail("%s is at byte %lld of %u bytes of shared memory", what, (i64)offset,
             running->shared_bytes);
    }
    if (offset % alignment != 0) {
        fail("%s is at byte %llu of shared memory, no multiple of %llu", what, offset, alignment);
    }
}

u32 place_in_shared(const void* at) {
    check_shared("what is addressed", at, 0, 1);
    return (u32)((u64)at - (u64)self->shared);
}

void together(const Together& what, void* mine) {
    u32 lane = self->index % LANES;
    if (self->threads % LANES != 0) fail("%s needs whole warps", what.name);
    Warp& warp = running->warps[self->index / LANES];
    if (warp.arrived == 0) warp.what = &what;
    if (warp.what != &what) {
        fail("lanes of one warp part: one comes to %s, others are at %s", what.name,
             warp.what->name);
    }
    warp.mine[lane] = mine;
    if (++warp.arrived < LANES) return wait("for its warp at ", what.name);
    what.run(warp.mine);
    warp.arrived = 0;
    State* first = &running->states[self->index - lane];
    for (u32 i = 0; i < LANES; i++) first[i] = State::Ready;
}

namespace {
const Together SYNC = {"sync_warp", [](void* const*) {}};
const Together EXCHANGE = {"a shuffle", [](void* const* lanes) {
    for (u32 i = 0; i < LANES; i++) {
        Exchange* mine = (Exchange*)lanes[i];
        mine->taken = ((Exchange*)lanes[mine->from])->given;
    }
}};
const Together VOTE = {"ballot", [](void* const* lanes) {
    u64 votes = 0;
    for (u32 i = 0; i < LANES; i++) votes |= ((Exchange*)lanes[i])->given << i;
    for (u32 i = 0; i < LANES; i++) ((Exchange*)lanes[i])->taken = votes;
}};
} // namespace

u64 exchange(u64 given, u32 from) {
    Exchange mine{given, from, 0};
    together(EXCHANGE, &mine);
    return mine.taken;
}

u32 vote(bool yes) {
    Exchange mine{yes, 0, 0};
    together(VOTE, &mine);
    return (u32)mine.taken;
}

void sync_lanes() { together(SYNC, nullptr); }

void sync_threads(u32 id, u32 threads, bool waits) {
    if (id >= BARRIERS) fail("there is no barrier %u", id);
    if ((id == 0) != (threads == ALL)) fail("barrier 0 is the one of the whole block");
    if (id != 0 && (threads % LANES != 0 || threads > self->threads)) {
        fail("barrier %u of %u threads, in a block of %u", id, threads, self->threads);
    }
    NamedBarrier& barrier = running->barriers[id];
    u32 expected = id == 0 ? running->live : threads;
    if (barrier.arrived > 0 && id != 0 && barrier.expected != expected) {
        fail("barrier %u of %u threads, where others expect %u", id, expected, barrier.expected);
    }
    barrier.expected = expected;
    if (++barrier.arrived == expected) {
        open(barrier);
    } else if (waits) {
        barrier.waiting.push_back(self->index);
        wait("at barrier ", nullptr, (i32)id);
    }
}

namespace {

void finish_copy(const Copy& copy) {
    if (copy.valid) {
        memcpy(copy.to, copy.from, 16);
    } else {
        memset(copy.to, 0, 16);
    }
}

} // namespace

void copy_begin(void* to, const void* from, bool valid) {
    check_shared("what copy_async16 writes", to, 16, 16);
    if (valid && (u64)from % 16 != 0) fail("copy_async16 reads at 0x%llx", (u64)from);
    Copy copy{to, from, valid};
    if (running->eager) return finish_copy(copy);
    fiber().open_group.push_back(copy);
}

void copy_close() {
    Fiber& mine = fiber();
    mine.groups.push_back(std::move(mine.open_group));
    mine.open_group.clear();
}

void copy_finish(u32 groups_under_way) { finish_copies(fiber(), groups_under_way); }

void finish_copies(Fiber& mine, u32 groups_under_way) {
    while (mine.groups.size() > groups_under_way) {
        for (const Copy& copy : mine.groups.front()) finish_copy(copy);
        mine.groups.pop_front();
    }
}

namespace {

void begin_block(const u32 (&at)[3], const u32 (&grid)[3], u32 threads, u64 seed) {
    char* shared = fresh_shared(running->shared_bytes);
    running->live = threads;
    running->seed = seed;
    running->eager = scrambled(seed) % 4 == 0;
    running->loads.clear();
    running->loads_done = running->fences = 0;
    running->seen_by_engine.assign(running->shared_bytes, POISON);
    running->seen_after.assign(running->shared_bytes / 16 + 1, 0);
    for (Warp& warp : running->warps) warp = {};
    for (NamedBarrier& barrier : running->barriers) barrier = {};
    for (u32 i = 0; i <= threads; i++) {
        Fiber& fiber = running->fibers[i];
        fiber.thread = {i, threads, {at[0], at[1], at[2]}, {grid[0], grid[1], grid[2]}, shared};
        prepare(fiber, *stage.stacks[i]);
    }
    running->states.assign(threads, State::Ready);
    running->states.push_back(State::Waiting);
    running->order = order_of(threads, seed);
}

// Lets everybody who is ready go on, one after the other; whether there was anybody.
bool sweep() {
    running->place = 0;
    Fiber* first = next_ready();
    if (first) resume(*first);
    return first != nullptr;
}

void end_block(const char* shared) {
    if (!running->loads.empty()) return blame("the block ends before its loads have");
    for (size_t i = 0; i < running->warps.size(); i++) {
        if (running->warps[i].products_begun != running->warps[i / 4 * 4].products_begun) {
            return blame("warps of one warpgroup begin different numbers of wgmma");
        }
    }
    check_beyond_shared(shared);
}

// Runs one block to its end, or to an error.
void run_block(const u32 (&at)[3], const u32 (&grid)[3], u32 threads, u64 seed) {
    begin_block(at, grid, threads, seed);
    Fiber& engine = running->fibers[threads];
    while (running->live > 0) {
        bool anybody = sweep();
        if (!anybody && !running->loads.empty()) {
            resume(engine);
        } else if (!anybody) {
            blame("nobody can go on" + waiting_list());
        }
        if (running->failed) return;
    }
    end_block(engine.thread.shared);
}

void make_room(u32 threads) {
    catch_faults();
    running = &stage.block;
    if (!stage.shared.begin) stage.shared.map(SHARED_MOST);
    if (!stage.fault_stack.begin) stage.fault_stack.map(64 << 10);
    while (stage.stacks.size() <= threads) {
        stage.stacks.push_back(std::make_unique<Guarded>());
        stage.stacks.back()->map(STACK_BYTES);
    }
    running->fibers.resize(threads + 1);
    running->warps.resize((threads + LANES - 1) / LANES);
}

const Kernel* kernel_named(const char* name) {
    const Kernel* kernel = kernels;
    while (kernel && strcmp(kernel->name, name) != 0) kernel = kernel->next;
    return kernel;
}

// What is wrong with the launch of `kernel`, or an empty string.
std::string wrong_launch(const Kernel* kernel, const AqLaunch& launch) {
    if (!kernel) return "there is no such kernel";
    bool is_of_90 = std::string(kernel->file).ends_with("90.cu");
    if (is_of_90 && launch.capability != 90) return "it is for chips of capability 9.0 alone";
    if (launch.params_bytes != kernel->params_bytes) {
        return "its parameters have " + std::to_string(kernel->params_bytes) + " bytes, not " +
               std::to_string(launch.params_bytes);
    }
    if (launch.params_bytes > PARAMS_MOST) return "its parameters are too large";
    if (launch.threads == 0 || launch.threads > kernel->threads) {
        return "it has at most " + std::to_string(kernel->threads) + " threads a block, not " +
               std::to_string(launch.threads);
    }
    if (launch.shared_bytes > SHARED_MOST) return "so much shared memory is nowhere";
    return "";
}

// Runs all blocks, one after the other; what went wrong, or an empty string.
std::string run(const Kernel* kernel, const AqLaunch& launch) {
    make_room(launch.threads);
    alignas(64) char params[PARAMS_MOST];
    memcpy(params, launch.params, launch.params_bytes);
    running->kernel = kernel;
    running->params = params;
    running->shared_bytes = (u32)launch.shared_bytes;
    running->failed = false;
    const u32(&grid)[3] = launch.grid;
    u64 blocks = (u64)grid[0] * grid[1] * grid[2];
    for (u64 i = 0; i < blocks && !running->failed; i++) {
        u32 at[3] = {(u32)(i % grid[0]), (u32)(i / grid[0] % grid[1]),
                     (u32)(i / grid[0] / grid[1])};
        run_block(at, grid, launch.threads, launch.seed + i);
    }
    return running->failed ? running->error : "";
}

} // namespace
} // namespace emulator

using namespace emulator;

extern "C" int aq_launch(const AqLaunch* launch) {
    const Kernel* kernel = kernel_named(launch->name);
    std::string wrong = wrong_launch(kernel, *launch);
    if (wrong.empty()) wrong = run(kernel, *launch);
    if (wrong.empty()) return 0;
    snprintf(launch->error, launch->error_bytes, "%s", wrong.c_str());
    return 1;
}

// The bytes of a kernel's parameters, or 0 where there is no such kernel.
extern "C" u64 aq_params_bytes(const char* name) {
    const Kernel* kernel = kernel_named(name);
    return kernel ? kernel->params_bytes : 0;
}

// The name of kernel `index`, or null behind the last.
extern "C" const char* aq_kernel_name(u64 index) {
    const Kernel* kernel = kernels;
    while (kernel && index-- > 0) kernel = kernel->next;
    return kernel ? kernel->name : nullptr;
}
