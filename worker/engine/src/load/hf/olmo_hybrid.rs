//! Norms of OLMo's hybrids, which files call in two ways.

use super::super::checkpoint::Checkpoint;
use super::super::decoder::Recurrents;

/// What norms of layers that remember in a state are called instead, by transformers' modules.
const OF_STATES: &[(&str, &str)] = &[
    ("input_layernorm", "attention_layer_norm"),
    ("post_attention_layernorm", "feedforward_layer_norm"),
];

/// The same in the others, in files that transformers has written.
const OF_ATTENTION: &[(&str, &str)] = &[("feedforward_layer_norm", "post_attention_layernorm")];

/// Gives norms the names that tell before or behind what they stand.
pub(super) fn name_norms(checkpoint: &mut Checkpoint<'_>, recurrents: &Recurrents) {
    for (layer, &is_recurrent) in recurrents.layers.iter().enumerate() {
        let names = if is_recurrent { OF_STATES } else { OF_ATTENTION };
        for &(from, to) in names {
            let [from, to] = [from, to].map(|norm| format!("model.layers.{layer}.{norm}.weight"));
            if let Some(tensor) = checkpoint.tensors.remove(&from) {
                checkpoint.tensors.entry(to).or_insert(tensor);
            }
        }
    }
}
