//! Counts of a model's layers that have to fit together.

use aqueduct_core::{ModelShape, Refusal, TokenId, WindowedLayers};
use aqueduct_kernels::{FeedForward, LayerSpec, LayerWeights};

use super::{Model, ModelParts};

/// Layers with keys have the heads that the shape says, as many wide ones as it says.
pub(super) fn check_heads(parts: &ModelParts) -> Result<(), Refusal> {
    let shape = &parts.shape;
    let mut wide = 0;
    for (idx, layer) in parts.layers.iter().enumerate() {
        let LayerSpec { heads, kv_heads, head_dim, .. } = layer.spec;
        let is = |of_heads: u32, of_dim: u32| {
            (kv_heads, head_dim) == (of_heads as usize, of_dim as usize)
        };
        let is_wide = layer.recurrent.is_none() && is(shape.wide.kv_heads, shape.wide.head_dim);
        wide += u32::from(is_wide && layer.keys_of.is_none());
        if heads != shape.heads as usize || !(is_wide || is(shape.kv_heads, shape.head_dim)) {
            let seen = format!("{heads}, {kv_heads} of keys, of {head_dim}");
            return Err(Refusal::new(format!("layers[{idx}].heads"), seen, "the shape's"));
        }
    }
    Refusal::unless_within("wide.layers", wide, shape.wide.layers, shape.wide.layers).map(drop)
}

/// What a shape says of windows.
pub(super) fn windowed(parts: &ModelParts) -> WindowedLayers {
    let ModelShape { kv_heads, head_dim, .. } = parts.shape;
    let is_counted = |layer: &LayerWeights| {
        let LayerSpec { kv_heads: heads, head_dim: elements, .. } = layer.spec;
        let has_keys = layer.recurrent.is_none() && layer.keys_of.is_none();
        has_keys && (heads, elements) == (kv_heads as usize, head_dim as usize)
    };
    let layers = parts.layers.iter().zip(&parts.windows).filter(|(layer, _)| is_counted(layer));
    let windows = layers.filter_map(|(_, window)| *window);
    windows.fold(WindowedLayers::NONE, |all, window| WindowedLayers {
        layers: all.layers + 1,
        tokens: all.tokens.max(window.most_before().max(1)), // a chunk of one token keeps it
    })
}

/// Layers without keys of their own are the last ones, as many as the shape says, and each attends
/// to keys of an earlier one that has some, of the same heads.
pub(super) fn check_lenders(parts: &ModelParts) -> Result<(), Refusal> {
    let first = parts.shape.memory_layers() as usize;
    for (idx, layer) in parts.layers.iter().enumerate() {
        let lends = |lender: &LayerWeights| {
            let heads = |layer: &LayerWeights| (layer.spec.kv_heads, layer.spec.head_dim);
            lender.recurrent.is_none() && heads(lender) == heads(layer)
        };
        let fits = match layer.keys_of {
            None => idx < first,
            Some(lender) => idx >= first && parts.layers[..first].get(lender).is_some_and(lends),
        };
        if !fits || (layer.keys_of.is_some() && layer.recurrent.is_some()) {
            let bound = format!("a layer with such keys before {first}, from that one on");
            let seen = format!("{:?}", layer.keys_of);
            return Err(Refusal::new(format!("layers[{idx}].keys_of"), seen, bound));
        }
    }
    Ok(())
}

/// What stands beside the layer before follows what mixes tokens alone, and nothing of it but that
/// takes the stream before attention.
pub(super) fn check_neighbours(layers: &[LayerWeights]) -> Result<(), Refusal> {
    for (idx, layer) in layers.iter().enumerate().filter(|(_, layer)| layer.beside_last) {
        let last = idx.checked_sub(1).map(|last| &layers[last]);
        let mixes_alone = last.is_some_and(|last| {
            matches!(last.ffn, FeedForward::Nothing) && !last.beside_last && last.keys_of.is_none()
        });
        if !mixes_alone || layer.gate.is_some() || layer.parallel || layer.keys_of.is_some() {
            let bound = "false, but behind what mixes tokens alone";
            return Err(Refusal::new(format!("layers[{idx}].beside_last"), true, bound));
        }
    }
    Ok(())
}

impl Model {
    /// Refuses token `idx` of a block if it is outside the vocabulary.
    pub(crate) fn check_token(&self, idx: usize, token: TokenId) -> Result<(), Refusal> {
        let vocab = self.parts.shape.vocab;
        match token < vocab {
            true => Ok(()),
            false => {
                let bound = format!("below vocab = {vocab}");
                Err(Refusal::new(format!("tokens[{idx}]"), token, bound))
            }
        }
    }

    /// Refuses shards where some layers have a state, which one chunk has to give to the next, or
    /// attend to keys of earlier ones.
    ///
    /// # Errors
    /// There are such layers.
    pub fn check_shards(&self) -> Result<(), Refusal> {
        let ModelShape { recurrent_layers, kv_shared_layers, .. } = self.parts.shape;
        for (name, layers) in
            [("recurrent_layers", recurrent_layers), ("kv_shared_layers", kv_shared_layers)]
        {
            let field = format!("{name} where keys are in shards");
            Refusal::unless_within(&field, layers, 0, 0)?;
        }
        Ok(())
    }
}
