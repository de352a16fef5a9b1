// How heads of queries and keys are rotated and stored.
#pragma once

#include "device.cuh"

DEVICE void store_as(f32* to, f32 x) { *to = x; }
DEVICE void store_as(u16* to, f32 x) { *to = narrow(x); }

// Cosine and sine of a pair, and what multiplies either element when it is rotated.
struct Turn {
    f32 cosine, sine;
    f32 first, second;
};

// Elements i and i + half of a head, rotated and rounded to `to`; whether they are finite.
template <typename T>
DEVICE bool turn_pair(T* to, u32 half, u32 i, f32 x, f32 y, Turn by) {
    f32 first = mul(fma(x, by.cosine, -mul(y, by.sine)), by.first);
    f32 second = mul(fma(y, by.cosine, mul(x, by.sine)), by.second);
    store_as(to + i, first);
    store_as(to + half + i, second);
    return finite(first) && finite(second);
}
