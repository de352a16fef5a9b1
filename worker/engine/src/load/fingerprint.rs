//! One number for a model: workers may share a cluster only if theirs are equal.
//!
//! XXH3-128 over the decoder's description, the dtypes in use, and name, type and every byte of
//! every tensor that the model uses, in the order in which they are packed. All bytes, because
//! packing reads them all anyway and the hash runs at the speed of memory. It tells models
//! apart; it does not defend against somebody who makes two that collide.

use aqueduct_core::{ModelShape, WideHeads};
use xxhash_rust::xxh3::Xxh3;

use super::LoadOptions;
use super::checkpoint::{self, Laid, Stored};
use super::decoder::{Decoder, Scales, Softcaps};
use super::held::Held;

/// What most decoders have is left out, and the rest stands as it always has: workers of two
/// builds share a cluster while it is upgraded, and what was snapshot is found again.
fn described(decoder: &Decoder) -> String {
    let Decoder { family, shape, norm_eps, rope, rotates, window_rope, scales, .. } = decoder;
    let Decoder { windows, biases, expert_biases, softcaps, tied, parallel, .. } = decoder;
    let Decoder { activations, head_bias, latent, recurrent, gate, .. } = decoder;
    let shape = described_shape(shape);
    let mut all = format!(
        "Decoder {{ family: {family:?}, shape: {shape}, norm_eps: {norm_eps:?}, rope: {rope:?}, \
         windows: {windows:?}, biases: {biases:?}, tied: {tied:?} }}"
    );
    if rotates.contains(&false) {
        all += &format!(" rotates: {rotates:?}");
    }
    if let Some(rope) = window_rope {
        all += &format!(" window_rope: {rope:?}");
    }
    if let Some(temperature) = &decoder.temperature {
        all += &format!(" temperature: {temperature:?}");
    }
    all += &described_experts(decoder);
    if let Some(latent) = latent {
        all += &format!(" latent: {latent:?}");
        // Of these a folder may say otherwise.
        if decoder.order.neighbours != family.neighbours() {
            all += &format!(" neighbours: {}", decoder.order.neighbours);
        }
    }
    if let Some(recurrent) = recurrent {
        all += &format!(" recurrent: {recurrent:?}");
    }
    if let Some(folded) = &decoder.folded {
        all += &format!(" folded: {folded:?}");
    }
    if decoder.shape.wide != WideHeads::NONE {
        let (wide, same) = (decoder.shape.wide, decoder.keys_are_values);
        all += &format!(" wide: {wide:?} keys_are_values: {same}");
    }
    all += &described_sight(decoder);
    if let Some(gate) = gate {
        all += &format!(" gate: {gate:?}");
    }
    if let Some(clip) = decoder.clip {
        all += &format!(" clip: {clip:?}");
    }
    if decoder.layer_norms != family.layer_norms() {
        all += &format!(" layer_norms: {:?}", decoder.layer_norms);
    }
    if *expert_biases {
        all += " expert_biases";
    }
    if *parallel {
        all += " parallel";
    }
    if !decoder.is_gated() {
        all += &format!(" activations: {activations:?}");
    }
    if *head_bias {
        all += " head_bias";
    }
    if let Some(rows) = decoder.head_rows {
        all += &format!(" head_rows: {rows}");
    }
    if *softcaps != Softcaps::default() {
        all += &format!(" softcaps: {softcaps:?}");
    }
    if *scales != Scales::usual(decoder.shape.head_dim) {
        all += &format!(" scales: {scales:?}");
    }
    let multipliers = decoder.multipliers.as_ref();
    all + &multipliers.map_or_else(String::new, |by| format!(" multipliers: {by:?}"))
}

fn described_experts(decoder: &Decoder) -> String {
    let mut all = String::new();
    if let Some(experts) = &decoder.experts {
        all += &format!(" experts: {experts:?}");
    }
    if let Some(groups) = &decoder.expert_groups {
        all += &format!(" expert_groups: {groups:?}");
    }
    if decoder.shared_half {
        all += " shared_half";
    }
    all
}

/// What rows see besides a window, and what layers have besides the stream.
fn described_sight(decoder: &Decoder) -> String {
    let mut all = String::new();
    if let Some(alibi) = &decoder.alibi {
        all += &format!(" alibi: {alibi:?}");
    }
    if decoder.in_blocks || decoder.unit_norms {
        let (blocks, still) = (decoder.in_blocks, &decoder.still_temperature);
        all += &format!(" blocks: {blocks} unit_norms: {} still: {still:?}", decoder.unit_norms);
    }
    if decoder.shape.kv_shared_layers > 0 || decoder.inputs.is_some() {
        let (shared, inputs) = (decoder.shape.kv_shared_layers, decoder.inputs);
        all += &format!(" shared: {shared} {} inputs: {inputs:?}", decoder.double_ffn);
    }
    all
}

/// What states are follows from what else is described.
fn described_shape(shape: &ModelShape) -> String {
    let ModelShape { vocab, layers, width, heads, kv_heads, head_dim, ffn, max_positions, .. } =
        shape;
    format!(
        "ModelShape {{ vocab: {vocab}, layers: {layers}, width: {width}, heads: {heads}, \
         kv_heads: {kv_heads}, head_dim: {head_dim}, ffn: {ffn}, max_positions: {max_positions} }}"
    )
}

/// A hash in the making.
pub(crate) struct Fingerprint(Xxh3);

impl Fingerprint {
    pub(crate) fn new(decoder: &Decoder, options: &LoadOptions) -> Self {
        let mut hash = Xxh3::new();
        hash.update(format!("{} {:?}", described(decoder), options.kv).as_bytes());
        Self(hash)
    }

    /// What follows is held like this.
    pub(crate) fn hold(&mut self, held: Held) {
        self.0.update(format!("{held:?}").as_bytes());
    }

    pub(crate) fn add(&mut self, name: &str, tensor: &Stored<'_>) {
        self.0.update(name.as_bytes());
        self.0.update(tensor.dtype.as_bytes());
        self.0.update(&(tensor.bytes.len() as u64).to_le_bytes());
        self.0.update(tensor.bytes);
        match tensor.laid {
            Laid::Scaled(checkpoint::Scales { bytes, factor, .. }) => {
                self.0.update(bytes);
                if factor != 1.0 {
                    self.0.update(&factor.to_le_bytes());
                }
            }
            Laid::FewBits(integers) => integers.beside().for_each(|bytes| self.0.update(bytes)),
            Laid::Ternary { scale } => self.0.update(&scale.to_le_bytes()),
            Laid::Rows | Laid::Columns | Laid::Turned { .. } => {}
        }
    }

    /// 32 hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}
