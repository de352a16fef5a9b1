//! Layers that remember in a state of fixed size, in GGUF metadata.

use aqueduct_core::{ModelShape, Refusal, limits};
use aqueduct_gguf::{Field, GgufError, Value};

use super::config::{Architecture, Config, Keys};
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::load::decoder::{Recurrents, RuleShape, all_but_every};

const KV_HEADS: &str = "attention.head_count_kv";
const RECURRENT: &str = "attention.recurrent_layers";
const INTERVAL: &str = "full_attention_interval";
/// Of so many layers one is attention, where a file does not say.
const USUAL_INTERVAL: u32 = 4;
/// Inputs that a convolution sees; models that are served have 3 or 4.
const TAPS_MAX: u32 = 1024;

/// By which rule layers of an architecture remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Gated,
    /// Value heads go round the key heads, or those of a key head follow each other.
    Delta {
        tiled: bool,
    },
    Scan,
}

impl Architecture {
    /// `None`: all its layers are attention.
    pub(super) fn remembers(self) -> Option<Kind> {
        match self {
            Self::Lfm2 | Self::Lfm2Moe => Some(Kind::Gated),
            Self::Qwen3Next => Some(Kind::Delta { tiled: false }),
            Self::Qwen35 | Self::Qwen35Moe => Some(Kind::Delta { tiled: true }),
            Self::GraniteHybrid => Some(Kind::Scan),
            _ => None,
        }
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

impl Config<'_, '_> {
    /// `None` where all layers are attention; else counts of them in `shape` too.
    pub(super) fn recurrents(
        &self,
        keys: &Keys<'_, '_>,
        (shape, checkpoint): (&mut ModelShape, &Checkpoint<'_>),
    ) -> Result<Option<Recurrents>, LoadError> {
        let Some(kind) = keys.architecture.remembers() else { return Ok(None) };
        let layers = self.recurrent_layers(keys, (kind, shape.layers))?;
        if !layers.contains(&true) {
            return Ok(None);
        }
        let taps = if kind == Kind::Gated { "shortconv.l_cache" } else { "ssm.conv_kernel" };
        let given = keys.required(taps).and_then(Field::u32).map_err(|err| self.malformed(err))?;
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let has = |tensor: &str| checkpoint.has_some(tensor);
        let recurrents = Recurrents {
            layers,
            taps: Refusal::unless_within(taps, given, 1, TAPS_MAX).map_err(refused)?,
            conv_bias: has(".ssm_conv1d.bias") || has(".shortconv.conv.bias"),
            biases: has(".ssm_in.bias") || has(".shortconv.in_proj.bias"),
            rule: self.rule(keys, kind)?,
        };
        shape.recurrent_layers = recurrents.count();
        shape.state_bytes = recurrents.state_bytes(shape.width);
        shape.validate().map_err(refused)?;
        Ok(Some(recurrents))
    }

    /// `[layers]`: which of them remember so.
    fn recurrent_layers(
        &self,
        keys: &Keys<'_, '_>,
        (kind, layers): (Kind, u32),
    ) -> Result<Vec<bool>, LoadError> {
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let key = if matches!(kind, Kind::Delta { .. }) { RECURRENT } else { KV_HEADS };
        let numbers = |field: Field<'_, '_>, is: fn(u32) -> bool| -> Result<Vec<bool>, GgufError> {
            Ok(field.u32s()?.into_iter().map(is).collect())
        };
        let said = keys.get(key, |field| match field.value {
            Value::Scalar(..) if key == KV_HEADS => Ok(vec![false; layers as usize]),
            _ if key == KV_HEADS => numbers(field, |heads| heads == 0),
            _ => field.bools().or_else(|_| numbers(field, |flag| flag != 0)),
        });
        let said = said.map_err(|err| self.malformed(err))?;
        let Some(said) = said else {
            if key == KV_HEADS {
                return Ok(vec![false; layers as usize]);
            }
            let interval = keys.get(INTERVAL, Field::u32).map_err(|err| self.malformed(err))?;
            let interval = interval.unwrap_or(USUAL_INTERVAL);
            Refusal::unless_within(INTERVAL, interval, 1, limits::LAYERS_MAX).map_err(refused)?;
            return Ok(all_but_every(interval as usize, layers));
        };
        // What predicts more tokens at once is said of too, and belongs to no layer.
        let count = layers as usize;
        let blocks = keys.u32("block_count").map_err(|err| self.malformed(err))?;
        Refusal::unless_within(&format!("{key} count"), said.len(), count, blocks as usize)
            .map_err(refused)?;
        Ok(said.into_iter().take(count).collect())
    }

    fn rule(&self, keys: &Keys<'_, '_>, kind: Kind) -> Result<RuleShape, LoadError> {
        if kind == Kind::Gated {
            return Ok(RuleShape::Gated);
        }
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let number = |key: &str, most: u32| {
            let given = keys.required(key).and_then(Field::u32);
            let given = given.map_err(|err| self.malformed(err))?;
            Refusal::unless_within(key, given, 1, most).map_err(refused)
        };
        let inner = number("ssm.inner_size", limits::WIDTH_MAX)?;
        let heads = number("ssm.time_step_rank", limits::HEADS_MAX)?;
        let groups = number("ssm.group_count", limits::HEADS_MAX)?;
        let state_dim = number("ssm.state_size", limits::HEAD_DIM_MAX)?;
        for (key, whole, parts) in
            [("ssm.inner_size", inner, heads), ("ssm.time_step_rank", heads, groups)]
        {
            if !whole.is_multiple_of(parts) {
                let refusal = Refusal::new(key, whole, format!("a multiple of {parts}"));
                return Err(refused(refusal));
            }
        }
        let head_dim = inner / heads;
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
}
