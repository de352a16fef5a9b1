//! Gemma 4's layers in GGUF metadata: those that see everything have other heads.

use aqueduct_core::{ModelShape, Refusal, WideHeads, limits};
use aqueduct_gguf::{Field, GgufError, Value};

use super::config::{Architecture, Config, Keys, VALUES};
use super::nemotron_h::FEEDS;
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;

const KV_HEADS: &str = "attention.head_count_kv";
const HEAD_DIM: &str = "attention.key_length";
/// Elements of a value in layers with a window.
pub(super) const WINDOWED_VALUES: &str = "attention.value_length_swa";
const INPUTS: &str = "embedding_length_per_layer_input";
const SHARED: &str = "attention.shared_kv_layers";

/// What a file says of layers besides.
#[derive(Debug, Default)]
pub(super) struct Layers {
    /// See [`Decoder::keys_are_values`](crate::load::decoder::Decoder::keys_are_values).
    pub(super) keys_are_values: bool,
    pub(super) inputs: Option<u32>,
    pub(super) double_ffn: bool,
}

/// Elements of a head of layers with a window.
pub(super) fn head_dim(keys: &Keys<'_, '_>) -> Result<Option<u32>, GgufError> {
    match keys.architecture {
        Architecture::Gemma4 => keys.required("attention.key_length_swa")?.u32().map(Some),
        _ => Ok(None),
    }
}

/// KV heads of the first layer, which has a window.
pub(super) fn kv_heads(keys: &Keys<'_, '_>) -> Result<Option<u32>, GgufError> {
    Ok(each(keys, KV_HEADS)?.first().copied())
}

/// How wide the feed-forward part of the first layer is, which has keys of its own.
pub(super) fn ffn(keys: &Keys<'_, '_>) -> Result<u32, GgufError> {
    Ok(each(keys, FEEDS)?.first().copied().unwrap_or_default())
}

/// Of every layer; of all the same number where there is one.
fn each(keys: &Keys<'_, '_>, key: &str) -> Result<Vec<u32>, GgufError> {
    let field = keys.required(key)?;
    match field.value {
        Value::Array(_) => field.u32s(),
        Value::Scalar(..) | Value::Str(_) => Ok(vec![field.u32()?]),
    }
}

impl Config<'_, '_> {
    /// Adds to `shape` what is unlike in layers of Gemma 4: which have no keys, and the heads of
    /// those without a window, if these have others.
    pub(super) fn layers_of_gemma4(
        &self,
        keys: &Keys<'_, '_>,
        (shape, windows): (&mut ModelShape, &[Option<u32>]),
        checkpoint: &Checkpoint<'_>,
    ) -> Result<Layers, LoadError> {
        if keys.architecture != Architecture::Gemma4 {
            return Ok(Layers::default());
        }
        let malformed = |err| self.malformed(err);
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let number =
            |key| keys.get(key, Field::u32).map(Option::unwrap_or_default).map_err(malformed);
        let inputs = Refusal::unless_within(INPUTS, number(INPUTS)?, 0, limits::WIDTH_MAX);
        let inputs = Some(inputs.map_err(refused)?).filter(|&inputs| inputs > 0);
        shape.kv_shared_layers = number(SHARED)?;
        shape.validate().map_err(refused)?;
        let double_ffn = self.double_ffn(keys, shape)?;
        let keys_are_values = self.widened(keys, (shape, windows), checkpoint)?;
        Ok(Layers { keys_are_values, inputs, double_ffn })
    }

    /// Whether feed-forward parts of layers without keys are twice as wide as those of the others.
    fn double_ffn(&self, keys: &Keys<'_, '_>, shape: &ModelShape) -> Result<bool, LoadError> {
        let each = each(keys, FEEDS).map_err(|err| self.malformed(err))?;
        let first = shape.memory_layers() as usize;
        if each.len() == 1 || each.iter().all(|&ffn| ffn == shape.ffn) {
            return Ok(false);
        }
        let is_double = |(idx, &ffn): (usize, &u32)| {
            u64::from(ffn) == u64::from(shape.ffn) * if idx < first { 1 } else { 2 }
        };
        if each.len() == shape.layers as usize && each.iter().enumerate().all(is_double) {
            return Ok(true);
        }
        let bound = format!("{} in all layers, or twice as much in those without keys", shape.ffn);
        Err(LoadError::refused(self.path, Refusal::new(FEEDS, format!("{each:?}"), bound)))
    }

    /// Adds the heads of layers without a window to `shape`, if there are such, and tells whether
    /// their values are their keys.
    fn widened(
        &self,
        keys: &Keys<'_, '_>,
        (shape, windows): (&mut ModelShape, &[Option<u32>]),
        checkpoint: &Checkpoint<'_>,
    ) -> Result<bool, LoadError> {
        let malformed = |err| self.malformed(err);
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let each = each(keys, KV_HEADS).map_err(malformed)?;
        let all = |layer: usize| each.get(layer).or(each.first().filter(|_| each.len() == 1));
        let full = windows.iter().enumerate().filter(|(_, window)| window.is_none());
        let full: Vec<usize> = full.map(|(layer, _)| layer).collect();
        let Some(&first) = full.first() else { return Ok(false) };
        let kv_heads = all(first).copied().unwrap_or_default();
        let same = |layer: usize, window: &Option<u32>| {
            let want = if window.is_some() { shape.kv_heads } else { kv_heads };
            all(layer) == Some(&want)
        };
        if !windows.iter().enumerate().all(|(layer, window)| same(layer, window)) {
            let bound = "the same in layers with a window, and in those without";
            return Err(refused(Refusal::new(KV_HEADS, format!("{each:?}"), bound)));
        }
        let head_dim = keys.required(HEAD_DIM).and_then(Field::u32).map_err(malformed)?;
        self.same_length(keys, VALUES, head_dim)?;
        if (kv_heads, head_dim) != (shape.kv_heads, shape.head_dim) {
            let own = shape.memory_layers() as usize;
            let layers = full.iter().filter(|&&layer| layer < own).count() as u32;
            shape.wide = WideHeads { layers, kv_heads, head_dim };
            shape.validate().map_err(refused)?;
        }
        Ok(!checkpoint.tensors.contains_key(&format!("blk.{first}.attn_v.weight")))
    }
}
