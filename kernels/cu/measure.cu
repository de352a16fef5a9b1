// What measures need: elements that are not all alike, and what memory gives at most.
#include "device.cuh"

constexpr u32 THREADS = 256;
// Quads of 16 bytes that a thread has under way at once.
constexpr u32 DEEP = 4;

// Murmur's last step: every bit of the result depends on every bit of x.
DEVICE u64 mixed(u64 x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

// The sum of four even distributions is nearly a normal one; this has variance 1.
DEVICE f32 normal(u64 word) {
    i32 sum = -2 * 65535;
    for (u32 part = 0; part < 4; ++part) {
        sum += (i32)((word >> (16 * part)) & 65535);
    }
    return mul((f32)sum, 1.7320508f / 65536.0f);
}

// Blocks: x 256 elements.
KERNEL(noise_bf16, Noise, THREADS, 1) {
    u64 at = (u64)block_x() * THREADS + thread_index();
    if (at < p.count) {
        p.to[at] = narrow(mul(normal(mixed(p.seed + at)), p.size));
    }
}

// Blocks: x 1024 quads.
KERNEL(measure_copy, Roof, THREADS, 1) {
    u64 first = (u64)block_x() * THREADS * DEEP + thread_index();
    Quad quads[DEEP];
    for (u32 i = 0; i < DEEP; ++i) {
        u64 at = first + i * THREADS;
        if (at < p.quads) quads[i] = load16(p.from + at);
    }
    for (u32 i = 0; i < DEEP; ++i) {
        u64 at = first + i * THREADS;
        if (at < p.quads) store16(p.to + at, quads[i]);
    }
}

// As measure_copy; `to` is one word for each warp.
KERNEL(measure_read, Roof, THREADS, 1) {
    u64 first = (u64)block_x() * THREADS * DEEP + thread_index();
    u32 all = 0;
    u64 warp = (u64)block_x() * (THREADS / 32) + warp_index();
    for (u32 i = 0; i < DEEP; ++i) {
        u64 at = first + i * THREADS;
        if (at < p.quads) {
            Quad quad = load16(p.from + at);
            all ^= quad.x[0] ^ quad.x[1] ^ quad.x[2] ^ quad.x[3];
        }
    }
    for (u32 mask = 16; mask > 0; mask /= 2) {
        all ^= shuffle_xor(all, mask);
    }
    // Four bytes for every 2 KiB: a reader that nobody hears would not be compiled.
    if (lane_index() == 0 && first < p.quads) {
        reinterpret_cast<u32*>(p.to)[warp] = all;
    }
}
