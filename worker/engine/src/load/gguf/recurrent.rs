//! Layers that remember in a state of fixed size, in GGUF metadata.

use aqueduct_core::{ModelShape, Refusal, limits};
use aqueduct_gguf::{Field, GgufError, Value};

use super::config::{Architecture, Config, Keys};
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::load::decoder::{Gate, Recurrents, RuleShape, all_but_every};

const KV_HEADS: &str = "attention.head_count_kv";
const RECURRENT: &str = "attention.recurrent_layers";
const INTERVAL: &str = "full_attention_interval";
/// Of so many layers one is attention, where a file does not say.
const USUAL_INTERVAL: u32 = 4;

/// By which rule layers of an architecture remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gated,
    Delta { tiled: bool },
    Scan,
}

impl Architecture {
    /// `None`: all its layers are attention.
    fn remembers(self) -> Option<Kind> {
        match self {
            Self::Lfm2 | Self::Lfm2Moe => Some(Kind::Gated),
            Self::Qwen3Next => Some(Kind::Delta { tiled: false }),
            Self::Qwen35 | Self::Qwen35Moe => Some(Kind::Delta { tiled: true }),
            Self::GraniteHybrid => Some(Kind::Scan),
            _ => None,
        }
    }

    /// What multiplies what attention gives.
    pub(super) fn gate(self) -> Option<Gate> {
        matches!(self.remembers(), Some(Kind::Delta { .. })).then_some(Gate::Elements)
    }
}

/// KV heads of attention, `None` where a file does not say. Where layers may be something else, it
/// says 0 of these, and the same of all the others.
pub(super) fn kv_heads(keys: &Keys<'_, '_>) -> Result<Option<u32>, GgufError> {
    let is_hybrid = keys.architecture.remembers().is_some();
    keys.get(KV_HEADS, |field| {
        let all = field.u32s().unwrap_or_default();
        let mut some = all.into_iter().filter(|&heads| is_hybrid && heads > 0);
        match some.next() {
            Some(first) if some.all(|heads| heads == first) => Ok(first),
            _ => field.same_u32(),
        }
    })
}

/// A layer that is attention.
pub(super) fn first_attention(recurrents: Option<&Recurrents>) -> usize {
    let first = |recurrents: &Recurrents| recurrents.layers.iter().position(|is| !is);
    recurrents.and_then(first).unwrap_or(0)
}

/// The windows of layers that are attention; others have none.
pub(super) fn of_attention(
    mut windows: Vec<Option<u32>>,
    recurrents: Option<&Recurrents>,
) -> Vec<Option<u32>> {
    let layers = recurrents.iter().flat_map(|recurrents| &recurrents.layers);
    for (window, _) in windows.iter_mut().zip(layers).filter(|(_, is_recurrent)| **is_recurrent) {
        *window = None;
    }
    windows
}

impl Config<'_, '_> {
    /// `None` where all layers are attention; else `shape` gets counts of the others.
    pub(super) fn recurrents(
        &self,
        keys: &Keys<'_, '_>,
        (shape, checkpoint): (&mut ModelShape, &Checkpoint<'_>),
    ) -> Result<Option<Recurrents>, LoadError> {
        let Some(kind) = keys.architecture.remembers() else { return Ok(None) };
        let layers = match kind {
            Kind::Delta { .. } => self.unless_attention(keys, shape.layers)?,
            Kind::Gated | Kind::Scan => self.without_keys(keys, shape.layers)?,
        };
        if !layers.contains(&true) {
            return Ok(None);
        }
        let taps = if kind == Kind::Gated { "shortconv.l_cache" } else { "ssm.conv_kernel" };
        let taps = keys.required(taps).and_then(Field::u32).map_err(|err| self.malformed(err))?;
        let has = |tensor: &str| checkpoint.has_some(tensor);
        let recurrents = Recurrents {
            layers,
            taps,
            conv_bias: has(".ssm_conv1d.bias") || has(".shortconv.conv.bias"),
            biases: has(".ssm_in.bias") || has(".shortconv.in_proj.bias"),
            norm_eps: self.norm_eps(keys)?,
            rule: self.rule(keys, kind)?,
        };
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let Some(recurrents) = recurrents.checked().map_err(refused)? else { return Ok(None) };
        shape.recurrent_layers = recurrents.count();
        shape.state_bytes = recurrents.state_bytes(shape.width);
        shape.validate().map_err(refused)?;
        Ok(Some(recurrents))
    }

    /// `[layers]`: which have no KV heads. Where a file says one number, all have as many.
    fn without_keys(&self, keys: &Keys<'_, '_>, layers: u32) -> Result<Vec<bool>, LoadError> {
        let counts = keys.get(KV_HEADS, |field| match field.value {
            Value::Array(_) => field.u32s().map(Some),
            Value::Scalar(..) | Value::Str(_) => Ok(None),
        });
        let counts = counts.map_err(|err| self.malformed(err))?.flatten();
        let Some(counts) = counts else { return Ok(vec![false; layers as usize]) };
        let said = counts.into_iter().map(|heads| heads == 0).collect();
        self.of_layers(keys, (KV_HEADS, said), layers)
    }

    /// `[layers]`: which are no attention. Files say it of each, or that one of so many is, or
    /// nothing.
    fn unless_attention(&self, keys: &Keys<'_, '_>, layers: u32) -> Result<Vec<bool>, LoadError> {
        let said = keys.get(RECURRENT, |field| {
            let numbers = |_| -> Result<Vec<bool>, GgufError> {
                Ok(field.u32s()?.into_iter().map(|flag| flag != 0).collect())
            };
            field.bools().or_else(numbers)
        });
        if let Some(said) = said.map_err(|err| self.malformed(err))? {
            return self.of_layers(keys, (RECURRENT, said), layers);
        }
        let interval = keys.get(INTERVAL, Field::u32).map_err(|err| self.malformed(err))?;
        let interval = interval.unwrap_or(USUAL_INTERVAL);
        Refusal::unless_within(INTERVAL, interval, 1, limits::LAYERS_MAX)
            .map_err(|refusal| LoadError::refused(self.path, refusal))?;
        Ok(all_but_every(interval as usize, layers))
    }

    /// What `key` says of layers; of what predicts more tokens at once too, which are none.
    fn of_layers(
        &self,
        keys: &Keys<'_, '_>,
        (key, mut said): (&str, Vec<bool>),
        layers: u32,
    ) -> Result<Vec<bool>, LoadError> {
        let blocks = keys.u32("block_count").map_err(|err| self.malformed(err))? as usize;
        let layers = layers as usize;
        Refusal::unless_within(&format!("{key} count"), said.len(), layers, blocks)
            .map_err(|refusal| LoadError::refused(self.path, refusal))?;
        said.truncate(layers);
        Ok(said)
    }

    fn rule(&self, keys: &Keys<'_, '_>, kind: Kind) -> Result<RuleShape, LoadError> {
        if kind == Kind::Gated {
            return Ok(RuleShape::Gated);
        }
        let number =
            |key: &str| keys.required(key).and_then(Field::u32).map_err(|err| self.malformed(err));
        let (inner, heads) = (number("ssm.inner_size")?, number("ssm.time_step_rank")?);
        let (groups, state_dim) = (number("ssm.group_count")?, number("ssm.state_size")?);
        let head_dim = inner.checked_div(heads).filter(|_| inner.is_multiple_of(heads));
        let head_dim = head_dim.ok_or_else(|| {
            let refusal = Refusal::new("ssm.inner_size", inner, format!("a multiple of {heads}"));
            LoadError::refused(self.path, refusal)
        })?;
        Ok(match kind {
            Kind::Delta { tiled } => RuleShape::Delta {
                key_heads: groups,
                value_heads: heads,
                tiled,
                key_dim: state_dim,
                value_dim: head_dim,
                steps: 1.0,
            },
            Kind::Scan | Kind::Gated => RuleShape::Scan {
                heads,
                head_dim,
                groups,
                state_dim,
                limits: [0.0, f32::INFINITY], // no key says others
                norm: true,
            },
        })
    }

    /// Converters put rows of halves beside each other over whole heads. Where a part of a head is
    /// rotated its pairs are then others (Bamba 1), which no reader of these files puts right.
    pub(super) fn refuse_part_of_halves(
        &self,
        keys: &Keys<'_, '_>,
        (rotates, rotary_dim, head_dim): (&[bool], u32, u32),
    ) -> Result<(), LoadError> {
        if keys.architecture != Architecture::GraniteHybrid || !rotates.contains(&true) {
            return Ok(());
        }
        Refusal::unless_within("rope.dimension_count", rotary_dim, head_dim, head_dim)
            .map(drop)
            .map_err(|refusal| LoadError::refused(self.path, refusal))
    }
}
