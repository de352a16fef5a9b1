// The one arithmetic of gates.
#pragma once
#include "device.cuh"

// What an activation makes of gate and up; kernels/src/weights.rs has the formulas.
DEVICE f32 gated(u32 activation, f32 gate, f32 up) {
    if (activation == CLAMPED_SILU) {
        gate = gate > 7.0f ? 7.0f : gate; // NaN stays NaN
        up = add(1.0f, up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up);
        return mul(div(gate, add(1.0f, exp_exact(mul(gate, -1.702f)))), up);
    }
    f32 x = gate;
    if (activation == GELU_TANH) x = mul(gate, fma(mul(gate, gate), 0.071354814f, 1.5957691f));
    return mul(div(gate, add(1.0f, exp_exact(-x))), up);
}
