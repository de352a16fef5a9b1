//! Layers that remember in a state of fixed size, in GGUF metadata.

use aqueduct_core::{ModelShape, Refusal, limits};
use aqueduct_gguf::{Field, GgufError, Value};

use super::config::{Architecture, Config, Keys};
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::load::decoder::{Gate, Recurrents, RuleShape, all_but_every};

pub(super) const KV_HEADS: &str = "attention.head_count_kv";
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
            Self::GraniteHybrid | Self::FalconH1 => Some(Kind::Scan),
            Self::NemotronH | Self::NemotronHMoe => Some(Kind::Scan),
            _ => None,
        }
    }

    /// What multiplies what attention gives.
    pub(super) fn gate(self) -> Option<Gate> {
        let has = self == Self::Afmoe || matches!(self.remembers(), Some(Kind::Delta { .. }));
        has.then_some(Gate::Elements)
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
        let folded = self.folded(keys)?;
        let layers = match kind {
            _ if folded.is_some() => folded.map_or_else(Vec::new, |folded| folded.states()),
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
            rule: self.rule(keys, kind, has(".ssm_norm.weight"))?,
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

    fn rule(
        &self,
        keys: &Keys<'_, '_>,
        kind: Kind,
        has_norm: bool,
    ) -> Result<RuleShape, LoadError> {
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
        // Ollama's files say it.
        let said = keys.get("ssm.v_head_reordered", Field::bool);
        let said = said.map_err(|err| self.malformed(err))?;
        Ok(match kind {
            Kind::Delta { tiled } => RuleShape::Delta {
                key_heads: groups,
                value_heads: heads,
                tiled: said.unwrap_or(tiled),
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
                norm: has_norm || keys.architecture != Architecture::FalconH1,
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aqueduct_core::{WideHeads, WindowedLayers};
    use aqueduct_gguf::Gguf;
    use aqueduct_gguf::write::Writer;

    use super::*;

    const SHAPE: ModelShape = ModelShape {
        vocab: 32,
        layers: 4,
        width: 32,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        ffn: 48,
        max_positions: 64,
        recurrent_layers: 0,
        state_bytes: 0,
        wide: WideHeads::NONE,
        kv_shared_layers: 0,
        windowed: WindowedLayers::NONE,
    };

    /// What `read` makes of a file of five blocks, of which one belongs to no layer.
    fn of<T>(
        architecture: Architecture,
        more: impl Fn(Writer, &str) -> Writer,
        read: impl Fn(&Config<'_, '_>, &Keys<'_, '_>) -> Result<T, LoadError>,
    ) -> Result<T, String> {
        let name = architecture.name();
        let file = Writer::new()
            .u32(&format!("{name}.block_count"), 5)
            .f32(&format!("{name}.attention.layer_norm_rms_epsilon"), 0.5);
        let bytes = more(file, name).finish();
        let gguf = Gguf::parse(&bytes).unwrap();
        let config = Config { path: "file", gguf: &gguf };
        read(&config, &Keys { gguf: &gguf, architecture }).map_err(|error| error.to_string())
    }

    fn recurrents(
        architecture: Architecture,
        more: impl Fn(Writer, &str) -> Writer,
    ) -> Result<(Option<Recurrents>, [u64; 2]), String> {
        let none = Checkpoint { path: "file".to_owned(), tensors: BTreeMap::new() };
        of(architecture, more, |config, keys| {
            let mut shape = SHAPE;
            let made = config.recurrents(keys, (&mut shape, &none))?;
            Ok((made, [shape.recurrent_layers.into(), shape.state_bytes]))
        })
    }

    /// Six heads of two elements, by two heads of keys or groups of four elements.
    fn ssm(file: Writer, name: &str) -> Writer {
        let key = |key: &str| format!("{name}.ssm.{key}");
        file.u32(&key("conv_kernel"), 3)
            .u32(&key("inner_size"), 12)
            .u32(&key("time_step_rank"), 6)
            .u32(&key("group_count"), 2)
            .u32(&key("state_size"), 4)
    }

    fn kv_heads_of(file: Writer, name: &str, counts: &[i32]) -> Writer {
        file.i32s(&format!("{name}.attention.head_count_kv"), counts)
    }

    fn want(layers: [bool; 4], taps: u32, rule: RuleShape) -> Option<Recurrents> {
        let layers = layers.to_vec();
        Some(Recurrents { layers, taps, conv_bias: false, biases: false, norm_eps: 0.5, rule })
    }

    #[test]
    fn delta_rules_are_told_by_intervals_or_layers() {
        let rule = |tiled| RuleShape::Delta {
            key_heads: 2,
            value_heads: 6,
            tiled,
            key_dim: 4,
            value_dim: 2,
            steps: 1.0,
        };
        let bytes = |layers: u64| [layers, 4 * layers * (2 * (2 * 8 + 12) + 6 * 4 * 2)];
        let usual = want([true, true, true, false], 3, rule(true));
        for architecture in [Architecture::Qwen35, Architecture::Qwen35Moe] {
            assert_eq!(recurrents(architecture, ssm), Ok((usual.clone(), bytes(3))));
        }
        let by_two = |file: Writer, name: &str| {
            ssm(file, name).u32(&format!("{name}.full_attention_interval"), 2)
        };
        let half = want([true, false, true, false], 3, rule(false));
        assert_eq!(recurrents(Architecture::Qwen3Next, by_two), Ok((half, bytes(2))));
        let listed = |file: Writer, name: &str| {
            ssm(file, name).i32s(&format!("{name}.attention.recurrent_layers"), &[0, 1, 0, 0, 0])
        };
        let one = want([false, true, false, false], 3, rule(false));
        assert_eq!(recurrents(Architecture::Qwen3Next, listed), Ok((one, bytes(1))));
        assert_eq!(recurrents(Architecture::Qwen3, ssm), Ok((None, [0; 2])));
        for (architecture, tiled) in
            [(Architecture::Qwen35, false), (Architecture::Qwen3Next, true)]
        {
            let said = |file: Writer, name: &str| {
                ssm(file, name).bool(&format!("{name}.ssm.v_head_reordered"), tiled)
            };
            let other = want([true, true, true, false], 3, rule(tiled));
            assert_eq!(recurrents(architecture, said), Ok((other, bytes(3))));
        }
    }

    #[test]
    fn others_are_told_by_layers_without_keys() {
        let lfm2 = |file: Writer, name: &str| {
            kv_heads_of(file, name, &[0, 2, 0, 2]).u32(&format!("{name}.shortconv.l_cache"), 3)
        };
        let gated = want([true, false, true, false], 3, RuleShape::Gated);
        let seen = recurrents(Architecture::Lfm2, lfm2);
        assert_eq!(seen, Ok((gated, [2, 4 * 2 * 2 * 32])));
        let granite = |file: Writer, name: &str| ssm(kv_heads_of(file, name, &[0, 0, 2, 0]), name);
        let scan = RuleShape::Scan {
            heads: 6,
            head_dim: 2,
            groups: 2,
            state_dim: 4,
            limits: [0.0, f32::INFINITY],
            norm: true,
        };
        let scan = want([true, true, false, true], 3, scan);
        let bytes = 4 * 3 * (2 * (12 + 2 * 8) + 6 * 2 * 4);
        assert_eq!(recurrents(Architecture::GraniteHybrid, granite), Ok((scan, [3, bytes])));
        let one_number =
            |file: Writer, name: &str| file.u32(&format!("{name}.attention.head_count_kv"), 2);
        assert_eq!(recurrents(Architecture::Lfm2Moe, one_number), Ok((None, [0; 2])));
    }

    #[test]
    fn what_is_not_said_or_makes_no_sense_is_refused() {
        let check = |architecture, more: &dyn Fn(Writer, &str) -> Writer, part: &str| {
            let refused = recurrents(architecture, more).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        };
        check(Architecture::Qwen35, &|file, _| file, "qwen35.ssm.conv_kernel");
        check(Architecture::Lfm2, &|file, name| kv_heads_of(file, name, &[0, 2]), "count = 2");
        let odd = |file: Writer, name: &str| {
            let key = |key: &str| format!("{name}.ssm.{key}");
            let file = file.u32(&key("conv_kernel"), 3).u32(&key("group_count"), 2);
            file.u32(&key("inner_size"), 13)
                .u32(&key("time_step_rank"), 6)
                .u32(&key("state_size"), 4)
        };
        check(Architecture::Qwen3Next, &odd, "ssm.inner_size = 13: must be a multiple of 6");
        let never = |file: Writer, name: &str| {
            ssm(file, name).u32(&format!("{name}.full_attention_interval"), 0)
        };
        check(Architecture::Qwen3Next, &never, "full_attention_interval = 0");
        let part = |rotates: bool, rotary_dim: u32| {
            of(
                Architecture::GraniteHybrid,
                |file, _| file,
                |config, keys| config.refuse_part_of_halves(keys, (&[rotates], rotary_dim, 8)),
            )
        };
        assert!(part(true, 4).unwrap_err().contains("rope.dimension_count = 4"));
        assert_eq!([part(true, 8), part(false, 4)], [Ok(()), Ok(())]);
    }

    #[test]
    fn kv_heads_are_those_of_attention() {
        let seen = |architecture, counts: &[i32]| {
            of(
                architecture,
                |file, name| kv_heads_of(file, name, counts),
                |config, keys| kv_heads(keys).map_err(|err| config.malformed(err)),
            )
        };
        assert_eq!(seen(Architecture::Lfm2, &[0, 2, 0, 2]), Ok(Some(2)));
        assert_eq!(seen(Architecture::Llama, &[2, 2]), Ok(Some(2)));
        for (architecture, counts) in
            [(Architecture::Lfm2, [0, 2, 3]), (Architecture::Llama, [0, 2, 2])]
        {
            assert!(seen(architecture, &counts).unwrap_err().contains("the same integer"));
        }
        assert_eq!(seen(Architecture::Lfm2, &[0, 0]), Ok(Some(0)));
        let windows = of_attention(vec![Some(9); 2], None);
        assert_eq!(windows, [Some(9); 2]);
        let some = want([true, false, false, true], 3, RuleShape::Gated);
        assert_eq!(of_attention(vec![Some(9); 2], some.as_ref()), [None, Some(9)]);
        assert_eq!([first_attention(None), first_attention(some.as_ref())], [0, 1]);
    }
}
