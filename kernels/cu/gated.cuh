// The one arithmetic of SwiGLU.
#pragma once
#include "device.cuh"

// silu(gate) * up  (Shazeer 2020).
DEVICE f32 gated(f32 gate, f32 up) {
    return mul(div(gate, add(1.0f, exp_exact(-gate))), up);
}
