// The one arithmetic of gates, and of what stands where there is none.
#pragma once
#include "device.cuh"

// What an activation makes of gate and up; kernels/src/weights.rs has the formulas.
DEVICE f32 gated(u32 activation, f32 gate, f32 up) {
    if (activation == CLAMPED_SILU) {
        gate = gate > 7.0f ? 7.0f : gate; // NaN stays NaN
        up = add(1.0f, up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up);
        return mul(div(gate, add(1.0f, exp_exact(mul(gate, -1.702f)))), up);
    }
    if (activation == RELU_SQUARED) {
        gate = gate < 0.0f ? 0.0f : gate; // NaN stays NaN
        return mul(mul(gate, gate), up);
    }
    f32 x = gate;
    if (activation == GELU_TANH) x = mul(gate, fma(mul(gate, gate), 0.071354814f, 1.5957691f));
    return mul(div(gate, add(1.0f, exp_exact(-x))), up);
}

// x Phi(x) as max(x, 0) - |x| (1 - Phi(|x|)); kernels/src/cpu/curves.rs has the polynomial.
DEVICE f32 gelu(f32 x) {
    const f32 TAIL[7] = {0.042180404f, -0.24545152f, 0.46605843f, -0.23368952f,
                         0.25410494f,  0.08970802f,  0.1270892f};
    f32 size = x < 0.0f ? -x : x, t = div(1.0f, fma(size, 0.31f, 1.0f)), tail = TAIL[0];
#pragma unroll
    for (u32 i = 1; i < 7; i++) tail = fma(tail, t, TAIL[i]);
    tail = mul(mul(tail, t), exp_exact(mul(mul(size, size), -0.5f)));
    return fma(-size, tail, x < 0.0f ? 0.0f : x);
}

// e^x - 1 - x for x <= 0: near 0 by the series' polynomial of kernels/src/cpu/exp.rs.
DEVICE f32 exp_beyond_line(f32 x) {
    const f32 NEAR[6] = {1.9875691e-4f, 1.3982e-3f,    8.333452e-3f,
                         4.1665796e-2f, 1.6666665e-1f, 0.5f};
    if (x < -0.34657359f) return add(add(exp_exact(x), -1.0f), -x);
    f32 p = NEAR[0];
#pragma unroll
    for (u32 i = 1; i < 6; i++) p = fma(p, x, NEAR[i]);
    return mul(p, mul(x, x));
}

// What is made of an up projection that no gate multiplies. NaN stays NaN.
DEVICE f32 curved(const PrepareParams& p, f32 x) {
    if (p.activation == GELU) return gelu(x);
    if (p.activation == RELU) return x < 0.0f ? 0.0f : x;
    if (p.activation == RELU_SQUARED) {
        x = x < 0.0f ? 0.0f : x;
        return mul(x, x);
    }
    if (p.activation == XIELU) {
        f32 below = x > p.eps ? p.eps : x;
        f32 bent = mul(p.negative, add(exp_beyond_line(below), add(below, -x)));
        return fma(x, p.beta, x > 0.0f ? mul(mul(p.positive, x), x) : bent);
    }
    return gated(p.activation, x, 1.0f);
}
