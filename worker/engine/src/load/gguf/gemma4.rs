//! Gemma 4's layers in GGUF metadata: those that see everything have other heads.

use aqueduct_core::{ModelShape, Refusal, WideHeads};
use aqueduct_gguf::{Field, GgufError, Value};

use super::config::{Architecture, Config, Keys, VALUES};
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;

const KV_HEADS: &str = "attention.head_count_kv";
const HEAD_DIM: &str = "attention.key_length";
/// Elements of a value in layers with a window.
pub(super) const WINDOWED_VALUES: &str = "attention.value_length_swa";
const INPUTS: &str = "embedding_length_per_layer_input";
const SHARED: &str = "attention.shared_kv_layers";

/// Elements of a head of layers with a window.
pub(super) fn head_dim(keys: &Keys<'_, '_>) -> Result<Option<u32>, GgufError> {
    match keys.architecture {
        Architecture::Gemma4 => keys.required("attention.key_length_swa")?.u32().map(Some),
        _ => Ok(None),
    }
}

/// KV heads of the first layer, which has a window.
pub(super) fn kv_heads(keys: &Keys<'_, '_>) -> Result<Option<u32>, GgufError> {
    Ok(each_kv_heads(keys)?.first().copied())
}

/// Of every layer; of all the same number where there is one.
fn each_kv_heads(keys: &Keys<'_, '_>) -> Result<Vec<u32>, GgufError> {
    let field = keys.required(KV_HEADS)?;
    match field.value {
        Value::Array(_) => field.u32s(),
        Value::Scalar(..) | Value::Str(_) => Ok(vec![field.u32()?]),
    }
}

impl Config<'_, '_> {
    /// Adds the heads of layers without a window to `shape`, if there are such, and tells whether
    /// their values are their keys.
    pub(super) fn widened(
        &self,
        keys: &Keys<'_, '_>,
        (shape, windows): (&mut ModelShape, &[Option<u32>]),
        checkpoint: &Checkpoint<'_>,
    ) -> Result<bool, LoadError> {
        if keys.architecture != Architecture::Gemma4 {
            return Ok(false);
        }
        let malformed = |err| self.malformed(err);
        let refused = |refusal| LoadError::refused(self.path, refusal);
        for key in [INPUTS, SHARED] {
            let count = keys.get(key, Field::u32).map_err(malformed)?.unwrap_or(0);
            Refusal::unless_within(key, count, 0, 0).map_err(refused)?;
        }
        let each = each_kv_heads(keys).map_err(malformed)?;
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
            shape.wide = WideHeads { layers: full.len() as u32, kv_heads, head_dim };
            shape.validate().map_err(refused)?;
        }
        Ok(!checkpoint.tensors.contains_key(&format!("blk.{first}.attn_v.weight")))
    }
}
