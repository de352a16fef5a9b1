// f32 to bf16 and back, element by element.
#include "device.cuh"

// Blocks: x 256 elements.
DEVICE u64 element() { return (u64)block_x() * 256 + thread_index(); }

KERNEL(convert_to_bf16, Convert, 256, 1) {
    if (element() < p.count) {
        f32 x = static_cast<const f32*>(p.from)[element()];
        static_cast<u16*>(p.to)[element()] = narrow(x);
    }
}

KERNEL(convert_to_f32, Convert, 256, 1) {
    if (element() < p.count) {
        u16 x = static_cast<const u16*>(p.from)[element()];
        static_cast<f32*>(p.to)[element()] = widen(x);
    }
}
