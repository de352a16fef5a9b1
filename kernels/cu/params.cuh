// The argument of every kernel, field by field what kernels/src/cuda/params.rs says.
#pragma once

// A description of an array in global memory for the copy engine: 128 opaque bytes.
struct alignas(64) TensorMap {
    u64 words[16];
};
