//! Rotary embedding in GGUF metadata, and the `rope_freqs` tensor of Llama 3.1.

use aqueduct_core::ModelShape;
use aqueduct_gguf::{Field, GgufError};

use super::config::{Config, Keys};
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::rope::{Rope, Scaling, Yarn, yarn_attention_factor};

/// One factor per frequency: what the converter makes of llama3 scaling.
const FACTORS: &str = "rope_freqs.weight";
const TYPES: &str = "none, linear, yarn (and llama3 as rope_freqs.weight)";

/// The rotation that all layers share, and how many positions it is for.
pub(super) fn rope(
    config: &Config<'_, '_>,
    keys: &Keys<'_, '_>,
    checkpoint: &Checkpoint<'_>,
    shape: &ModelShape,
) -> Result<(Rope, u32), LoadError> {
    let theta = keys.get("rope.freq_base", Field::f64).map_err(|err| config.malformed(err))?;
    // A file with a factor and no type means linear, as llama.cpp reads it.
    let name = keys.get("rope.scaling.type", Field::str).map_err(|err| config.malformed(err))?;
    let factor = factor(keys).map_err(|err| config.malformed(err))?;
    let scaling = match name.unwrap_or("linear") {
        "none" => Scaling::None,
        "linear" if factor == 1.0 => Scaling::None,
        "linear" => Scaling::Linear { factor },
        "yarn" => yarn(keys, factor, shape).map_err(|err| config.malformed(err))?,
        name => return Err(config.unsupported("rope type", name, TYPES)),
    };
    let positions = scaling.positions(shape.max_positions);
    let scaling = match per_frequency(checkpoint, shape)? {
        None => scaling,
        Some(factors) if scaling == Scaling::None => Scaling::PerFrequency(factors),
        Some(_) => {
            let name = format!("{} with {FACTORS}", name.unwrap_or("linear"));
            return Err(config.unsupported("rope type", &name, TYPES));
        }
    };
    let theta = theta.unwrap_or(10_000.0);
    let rope = Rope::scaled(theta, shape.head_dim as usize, &scaling)
        .map_err(|refusal| LoadError::refused(config.path, refusal))?;
    Ok((rope, positions))
}

/// 0 stands for "not scaled" in files; `scale_linear` is what older ones say.
fn factor(keys: &Keys<'_, '_>) -> Result<f64, GgufError> {
    let factor = match keys.get("rope.scaling.factor", Field::f64)? {
        None => keys.get("rope.scale_linear", Field::f64)?,
        factor => factor,
    };
    Ok(factor.filter(|&factor| factor != 0.0).unwrap_or(1.0))
}

fn yarn(keys: &Keys<'_, '_>, factor: f64, shape: &ModelShape) -> Result<Scaling, GgufError> {
    let or = |key: &str, default: f64| {
        Ok(keys.get(&format!("rope.scaling.{key}"), Field::f64)?.unwrap_or(default))
    };
    let original = keys.get("rope.scaling.original_context_length", Field::u32)?;
    Ok(Scaling::Yarn(Yarn {
        factor,
        original_positions: original.unwrap_or(shape.max_positions).into(),
        beta_fast: or("yarn_beta_fast", 32.0)?,
        beta_slow: or("yarn_beta_slow", 1.0)?,
        attention_factor: or("attn_factor", 1.0)? * yarn_attention_factor(factor, 1.0),
        truncate: true,
    }))
}

fn per_frequency(
    checkpoint: &Checkpoint<'_>,
    shape: &ModelShape,
) -> Result<Option<Vec<f64>>, LoadError> {
    if !checkpoint.tensors.contains_key(FACTORS) {
        return Ok(None);
    }
    let stored = checkpoint.find(FACTORS, &[shape.head_dim as usize / 2])?;
    Ok(Some(stored.f32(FACTORS)?.into_iter().map(f64::from).collect()))
}
