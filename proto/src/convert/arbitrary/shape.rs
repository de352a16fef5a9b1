//! Shapes of models.

use aqueduct_core::{ModelShape, WideHeads, WindowedLayers, limits};
use proptest::prelude::*;

pub(crate) fn shape() -> impl Strategy<Value = ModelShape> {
    let counts = (1..1000u32, 1..=limits::LAYERS_MAX, 1..1000u32, 1..1000u32, any::<u32>());
    let heads = (1..16u32, 1..16u32, 1..=limits::HEAD_DIM_MAX / 2);
    let states = (0..limits::LAYERS_MAX, 0..=limits::STATE_BYTES_MAX);
    (counts, heads, states).prop_map(
        |(
            (vocab, layers, width, ffn, max_positions),
            (kv_heads, group, half),
            (recurrent, state_bytes),
        )| ModelShape {
            wide: wide(layers - recurrent % layers, kv_heads * group, 2 * half),
            kv_shared_layers: (layers - recurrent % layers - 1) / 2,
            windowed: windowed(layers - recurrent % layers, vocab),
            vocab,
            layers,
            width,
            heads: kv_heads * group,
            kv_heads,
            head_dim: 2 * half,
            ffn,
            max_positions,
            recurrent_layers: recurrent % layers,
            state_bytes: if recurrent % layers == 0 { 0 } else { state_bytes },
        },
    )
}

/// Of so many layers with keys, every third model has some with heads of twice the size.
fn wide(layers: u32, heads: u32, head_dim: u32) -> WideHeads {
    match layers.is_multiple_of(3) && 2 * head_dim <= limits::HEAD_DIM_MAX {
        true => WideHeads { layers: layers / 3, kv_heads: heads, head_dim: 2 * head_dim },
        false => WideHeads::NONE,
    }
}

/// Of so many layers with keys, every second model has some with a window.
fn windowed(layers: u32, tokens: u32) -> WindowedLayers {
    match layers.is_multiple_of(2) && layers >= 8 {
        true => WindowedLayers { layers: layers / 8, tokens },
        false => WindowedLayers::NONE,
    }
}
