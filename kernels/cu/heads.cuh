// How heads of queries and keys are rotated and stored.
#pragma once

#include "device.cuh"

DEVICE void store_as(f32* to, f32 x) { *to = x; }
DEVICE void store_as(u16* to, f32 x) { *to = narrow(x); }

// Elements i and i + half of a head, rotated and rounded to `to`; whether they are finite.
template <typename T>
DEVICE bool turn_pair(T* to, u32 half, u32 i, f32 x, f32 y, f32 cosine, f32 sine) {
    f32 first = fma(x, cosine, -mul(y, sine)), second = fma(y, cosine, mul(x, sine));
    store_as(to + i, first);
    store_as(to + half + i, second);
    return finite(first) && finite(second);
}
