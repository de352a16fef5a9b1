// The words of device.cuh and mma.cuh for the host's C++ compiler, so that tests run every kernel
// without a GPU. Threads of a block are fibers that run until they have to wait (runtime.cpp);
// a matrix instruction is done by the last of the lanes that come to it (matrix.cpp).
//
// No header of C or C++ is included: their names (fma, div, fmax) are words of kernels.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

namespace emulator {

// What a thread knows of itself.
struct Thread {
    u32 index;
    u32 threads;
    u32 block[3];
    u32 grid[3];
    char* shared;
};
extern __thread Thread* self __attribute__((tls_model("initial-exec")));

// A kernel's body and what a launch must agree with.
struct Kernel {
    const char* name;
    const char* file;
    u64 params_bytes;
    u32 threads;
    void (*body)(const void* params);
    Kernel* next;
};
void add_kernel(Kernel* kernel);
struct Registered {
    explicit Registered(Kernel* kernel) { add_kernel(kernel); }
};

// What all lanes of a warp do at once: the last who comes does it for all, in `run`.
struct Together {
    const char* name;
    void (*run)(void* const* lanes);
};
void together(const Together& what, void* mine);

// A value of one lane and whose value it asks for.
struct Exchange {
    u64 given;
    u32 from;
    u64 taken;
};
u64 exchange(u64 given, u32 from);
u32 vote(bool yes);
void sync_lanes();
void sync_threads(u32 barrier, u32 threads, bool waits);
constexpr u32 ALL = 0;

struct Product {
    void* c;
    const u32* a;
    const u32* b;
};
extern const Together LOAD_ROWS, LOAD_COLUMNS, PRODUCT_BF16, PRODUCT_INT8;
struct RowLoad {
    u32* to;
    const void* row;
};

void copy_begin(void* to, const void* from, bool valid);
void copy_close();
void copy_finish(u32 groups_under_way);

// Ends the launch with an error that `what` explains.
[[noreturn]] void refuse(const char* what, u64 value);
u32 place_in_shared(const void* at);

template <typename T>
T taken_from(u32 lane, T x) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes exchange 4 or 8 bytes");
    u64 bits = 0;
    __builtin_memcpy(&bits, &x, sizeof(T));
    bits = exchange(bits, lane);
    __builtin_memcpy(&x, &bits, sizeof(T));
    return x;
}
// Approximating instructions take what is denormal for zero, and make zero of it.
inline f32 flushed(f32 x) {
    return __builtin_fabsf(x) < __FLT_MIN__ ? __builtin_copysignf(0.0f, x) : x;
}
inline const void* aligned16(const void* at) {
    if ((u64)at % 16 != 0) refuse("16 bytes are asked for at the odd address", (u64)at);
    return at;
}

} // namespace emulator

#define DEVICE [[maybe_unused]] static inline

#define KERNEL(NAME, PARAMS, THREADS, MIN_BLOCKS)                                                  \
    static void NAME##_body(const PARAMS& p);                                                      \
    static emulator::Kernel NAME##_kernel = {                                                      \
        #NAME, __FILE__, sizeof(PARAMS), THREADS,                                                  \
        [](const void* params) { NAME##_body(*static_cast<const PARAMS*>(params)); }, nullptr};    \
    static emulator::Registered NAME##_registered(&NAME##_kernel);                                 \
    static void NAME##_body([[maybe_unused]] const PARAMS& p)

DEVICE u32 thread_index() { return emulator::self->index; }
DEVICE u32 lane_index() { return thread_index() & 31; }
DEVICE u32 warp_index() { return thread_index() >> 5; }
DEVICE u32 block_x() { return emulator::self->block[0]; }
DEVICE u32 block_y() { return emulator::self->block[1]; }
DEVICE u32 block_z() { return emulator::self->block[2]; }
DEVICE u32 grid_x() { return emulator::self->grid[0]; }
DEVICE u32 grid_y() { return emulator::self->grid[1]; }
DEVICE u32 threads_of_block() { return emulator::self->threads; }
DEVICE char* shared_memory() { return emulator::self->shared; }

DEVICE void sync_block() { emulator::sync_threads(0, emulator::ALL, true); }
DEVICE void sync_warp() { emulator::sync_lanes(); }
DEVICE void sync_named(u32 id, u32 threads) { emulator::sync_threads(id, threads, true); }
DEVICE void arrive_named(u32 id, u32 threads) { emulator::sync_threads(id, threads, false); }

template <typename T>
DEVICE T shuffle_xor(T x, u32 mask) {
    return emulator::taken_from((lane_index() ^ mask) & 31, x);
}
template <typename T>
DEVICE T shuffle(T x, u32 lane) {
    return emulator::taken_from(lane & 31, x);
}
template <typename T>
DEVICE T shuffle_up(T x, u32 by) {
    return emulator::taken_from(by > lane_index() ? lane_index() : lane_index() - by, x);
}
DEVICE u32 ballot(bool yes) { return emulator::vote(yes); }
DEVICE u32 bits_set(u32 x) { return (u32)__builtin_popcount(x); }

DEVICE u32 atomic_add(u32* at, u32 x) { return __atomic_fetch_add(at, x, __ATOMIC_SEQ_CST); }
DEVICE void atomic_or(u32* at, u32 x) { __atomic_fetch_or(at, x, __ATOMIC_SEQ_CST); }

DEVICE f32 fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
DEVICE f32 mul(f32 a, f32 b) { return a * b; }
DEVICE f32 add(f32 a, f32 b) { return a + b; }
DEVICE f32 div(f32 a, f32 b) { return a / b; }
DEVICE f32 root(f32 x) { return __builtin_sqrtf(x); }
// NaN gives way, as in C's fmaxf, which is a call.
DEVICE f32 fmax(f32 a, f32 b) { return b != b || a > b ? a : b; }
DEVICE u32 bits_of(f32 x) { return __builtin_bit_cast(u32, x); }
DEVICE f32 from_bits(u32 x) { return __builtin_bit_cast(f32, x); }
DEVICE f32 exp2_fast(f32 x) {
    return emulator::flushed(__builtin_exp2f(emulator::flushed(x)));
}
DEVICE f32 log2_fast(f32 x) {
    return emulator::flushed(__builtin_log2f(emulator::flushed(x)));
}
DEVICE f32 exp_exact(f32 x) { return __builtin_expf(x); }
DEVICE f32 log_exact(f32 x) { return __builtin_logf(x); }
DEVICE f64 exp_wide(f64 x) { return __builtin_exp(x); }
DEVICE f64 log1p_wide(f64 x) { return __builtin_log1p(x); }
DEVICE f32 infinity() { return __builtin_inff(); }
DEVICE bool finite(f32 x) { return __builtin_isfinite(x); }
// Ties to even; beyond what an i32 holds its nearest end, and NaN is 0.
DEVICE i32 nearest(f32 x) {
    if (x != x) return 0;
    if (x >= 2147483648.0f) return 0x7fffffff;
    if (x < -2147483648.0f) return -0x7fffffff - 1;
    return (i32)__builtin_rintf(x);
}

DEVICE f32 widen(u16 x) { return from_bits((u32)x << 16); }
DEVICE u16 narrow(f32 x) {
    if (x != x) return 0x7fff;
    u32 bits = bits_of(x);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
DEVICE u32 narrow2(f32 low, f32 high) { return (u32)narrow(high) << 16 | narrow(low); }

struct alignas(16) Quad {
    u32 x[4];
};
DEVICE Quad load16(const void* from) {
    Quad q;
    __builtin_memcpy(&q, emulator::aligned16(from), sizeof(q));
    return q;
}
DEVICE void store16(void* to, Quad q) {
    emulator::aligned16(to);
    __builtin_memcpy(to, &q, sizeof(q));
}

DEVICE u32 shared_address(const void* at) { return emulator::place_in_shared(at); }

DEVICE void ldmatrix4(u32 (&to)[4], const void* row) {
    emulator::RowLoad mine{to, row};
    emulator::together(emulator::LOAD_ROWS, &mine);
}
DEVICE void ldmatrix4_transposed(u32 (&to)[4], const void* row) {
    emulator::RowLoad mine{to, row};
    emulator::together(emulator::LOAD_COLUMNS, &mine);
}
DEVICE void mma_bf16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    emulator::Product mine{c, a, b};
    emulator::together(emulator::PRODUCT_BF16, &mine);
}
DEVICE void mma_int8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    emulator::Product mine{c, a, b};
    emulator::together(emulator::PRODUCT_INT8, &mine);
}

DEVICE void copy_async16(void* to, const void* from, bool valid) {
    emulator::copy_begin(to, from, valid);
}
DEVICE void copy_commit() { emulator::copy_close(); }
template <int N>
DEVICE void copy_wait() {
    emulator::copy_finish(N);
}

#include "hopper.hpp"
