// f32 to bf16 and back, element by element; keys and values laid in order of position.
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

// Blocks: x 256 chunks of 16 bytes, y KV heads, z keys and values.
KERNEL(lay_in_order, LayInOrder, 256, 1) {
    const u64 at = element();
    const u32 key = (u32)(at / p.chunks), chunk = (u32)(at % p.chunks), g = block_y();
    if (key >= p.keys) return;
    const u64 from = (u64)g * p.cells + p.table[(u64)g * p.keys + key];
    const u64 to = (u64)g * p.keys + key;
    store16(p.to[block_z()] + (to * p.chunks + chunk) * 8,
            load16(p.from[block_z()] + (from * p.chunks + chunk) * 8));
}
