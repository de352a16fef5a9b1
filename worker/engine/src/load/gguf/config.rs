//! A decoder's description in GGUF metadata.

use aqueduct_core::{ModelShape, Refusal, WideHeads, WindowedLayers};
use aqueduct_gguf::{Field, Gguf, GgufError};

use super::architecture::ARCHITECTURES;
pub(super) use super::architecture::Architecture;
use super::{gemma4, nemotron_h, recurrent, rope};
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::load::decoder::{Biases, Decoder, Family, HeadOrder, ManyExperts, QkNorm, Recurrents};

/// Elements of a value.
pub(super) const VALUES: &str = "attention.value_length";

/// What is multiplied by the logarithm of yarn's factor for attention's dot products.
pub(super) const YARN_LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

/// There where queries have norms.
const NORM_OF_QUERIES: &str = "blk.0.attn_q_norm.weight";

/// Metadata and where it came from.
pub(crate) struct Config<'g, 'a> {
    pub(crate) path: &'g str,
    pub(crate) gguf: &'g Gguf<'a>,
}

/// Metadata of one architecture: keys are written after its name.
pub(super) struct Keys<'g, 'a> {
    pub(super) gguf: &'g Gguf<'a>,
    pub(super) architecture: Architecture,
}

impl<'g, 'a> Keys<'g, 'a> {
    /// The value of `key` as `read` makes it; `None` where the file does not say.
    pub(super) fn get<T>(
        &self,
        key: &str,
        read: impl Fn(Field<'g, 'a>) -> Result<T, GgufError>,
    ) -> Result<Option<T>, GgufError> {
        self.gguf.get(&format!("{}.{key}", self.architecture.name())).map(read).transpose()
    }

    pub(super) fn required(&self, key: &str) -> Result<Field<'g, 'a>, GgufError> {
        self.gguf.field(&format!("{}.{key}", self.architecture.name()))
    }

    pub(super) fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.required(key)?.same_u32()
    }
}

/// Which tensors a layer has that is attention.
fn biases(checkpoint: &Checkpoint<'_>, is_folded: bool, recurrents: Option<&Recurrents>) -> Biases {
    if is_folded {
        return nemotron_h::biases(checkpoint);
    }
    let layer = recurrent::first_attention(recurrents);
    let has = |name: &str| checkpoint.tensors.contains_key(&format!("blk.{layer}.{name}.bias"));
    Biases {
        qkv: has("attn_q") || has("attn_qkv"),
        out: has("attn_output"),
        gate_up: has("ffn_up"),
        down: has("ffn_down"),
    }
}

/// Norms of queries and keys, which a file has or has not where some members of a family have them.
fn qk_norm(family: Family, is_there: bool) -> QkNorm {
    match (is_there, family) {
        (true, Family::Glm4Moe) => QkNorm::EachHead,
        (true, Family::Cohere | Family::StableLm) => QkNorm::HeadByHead,
        _ => family.qk_norm(),
    }
}

impl Config<'_, '_> {
    pub(crate) fn architecture(&self) -> Result<Architecture, LoadError> {
        let name = self.gguf.field("general.architecture").and_then(Field::str);
        let name = name.map_err(|err| self.malformed(err))?;
        Architecture::ALL
            .into_iter()
            .find(|architecture| architecture.name() == name)
            .ok_or_else(|| self.unsupported("architecture", name, ARCHITECTURES))
    }

    /// The description, checked; biases and tying are told by which tensors there are.
    pub(crate) fn decoder(
        &self,
        architecture: Architecture,
        checkpoint: &Checkpoint<'_>,
    ) -> Result<Decoder, LoadError> {
        let keys = Keys { gguf: self.gguf, architecture };
        self.refuse_variants(&keys, checkpoint)?;
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let mut shape = self.shape(&keys, checkpoint)?;
        let recurrent = self.recurrents(&keys, (&mut shape, checkpoint))?;
        let folded = self.counted(&keys, &mut shape)?;
        let windows = self.windows(architecture, &keys, &shape)?;
        let of_gemma4 = self.layers_of_gemma4(&keys, (&mut shape, &windows), checkpoint)?;
        let rotary_dim = self.rotary_dim(&keys, &shape)?;
        let of_rest = if shape.wide.layers > 0 { shape.wide.head_dim } else { rotary_dim };
        let (rope, positions) = rope::rope(self, &keys, checkpoint, (&shape, of_rest))?;
        let window_rope = rope::window_rope(self, &keys, rotary_dim)?;
        // These files tell the positions that scaling has made.
        if !matches!(architecture, Architecture::Gemma3 | Architecture::GptOss) {
            shape.max_positions = positions;
        }
        let windows = recurrent::of_attention(windows, recurrent.as_ref());
        let scales = self.scales(architecture, &keys, &shape)?.checked().map_err(refused)?;
        let rotates = self.rotates(architecture, &keys, &windows)?;
        self.refuse_part_of_halves(&keys, (&rotates, rotary_dim, shape.head_dim))?;
        let has = |name: &str| checkpoint.tensors.contains_key(name);
        let family = architecture.family();
        let experts = self.experts(architecture, &keys, (&shape, checkpoint))?;
        let decoder = Decoder {
            family,
            norm_eps: self.norm_eps(&keys)?,
            layer_norms: family.layer_norms(),
            parallel: self.is_parallel(&keys, checkpoint)?,
            two_norms: family == Family::GptNeoX || has("blk.0.attn_norm_2.weight"),
            activations: self.activations(&keys, &shape)?,
            window_rope: window_rope.filter(|window_rope| *window_rope != rope),
            rope,
            temperature: rope::temperature(self, &keys, &shape)?,
            still_temperature: rope::still_temperature(&keys, &rotates),
            in_blocks: architecture == Architecture::Llama4,
            unit_norms: self.unit_norms(architecture, experts.as_ref()),
            rotates,
            norm_offset: 0.0, // converters have added it
            order: self.order(&keys, rotary_dim)?,
            scales,
            multipliers: None, // converters have multiplied weights
            windows,
            biases: biases(checkpoint, folded.is_some(), recurrent.as_ref()),
            recurrent,
            folded,
            gate: architecture.gate(),
            expert_groups: self.expert_groups(&keys, experts.as_ref())?,
            experts,
            latent: self.latents(&keys, (&shape, rotary_dim))?,
            shared_half: false,
            expert_biases: architecture == Architecture::GptOss,
            softcaps: self.softcaps(architecture, &keys)?,
            alibi: self.alibi(&keys, checkpoint)?,
            keys_are_values: of_gemma4.keys_are_values,
            inputs: of_gemma4.inputs,
            double_ffn: of_gemma4.double_ffn,
            qk_norm: qk_norm(family, has(NORM_OF_QUERIES)),
            clip: self.clip(&keys)?,
            tied: !has("output.weight"),
            head_bias: family == Family::Phi,
            head_rows: None,
            shape,
        };
        decoder.checked().map_err(refused)
    }

    /// Whether layers that rotate norm queries and keys: Llama 4's, but for the model of so many
    /// experts, by which llama.cpp tells it.
    fn unit_norms(&self, architecture: Architecture, experts: Option<&ManyExperts>) -> bool {
        const MAVERICK_EXPERTS: u32 = 128;
        let is_maverick = experts.is_some_and(|experts| experts.count == MAVERICK_EXPERTS);
        architecture == Architecture::Llama4 && !is_maverick
    }

    pub(super) fn norm_eps(&self, keys: &Keys<'_, '_>) -> Result<f32, LoadError> {
        let key = match keys.architecture.family().layer_norms() {
            Some(_) => "attention.layer_norm_epsilon",
            None => "attention.layer_norm_rms_epsilon",
        };
        let given = keys.required(key).and_then(Field::f32).map_err(|err| self.malformed(err))?;
        Refusal::unless_within(key, given, 0.0, 1.0)
            .map_err(|refusal| LoadError::refused(self.path, refusal))
    }

    /// Whether feed-forward parts take what attention takes: as files say, or where they have no
    /// norm of their own.
    fn is_parallel(
        &self,
        keys: &Keys<'_, '_>,
        checkpoint: &Checkpoint<'_>,
    ) -> Result<bool, LoadError> {
        if keys.architecture == Architecture::GptNeoX {
            let said = keys.required("use_parallel_residual").and_then(Field::bool);
            return said.map_err(|err| self.malformed(err));
        }
        let norms = keys.architecture.family().layer_norms();
        Ok(norms.is_some_and(|norms| norms.weights)
            && !checkpoint.tensors.contains_key("blk.0.ffn_norm.weight"))
    }

    /// What would load and give wrong answers.
    fn refuse_variants(
        &self,
        keys: &Keys<'_, '_>,
        checkpoint: &Checkpoint<'_>,
    ) -> Result<(), LoadError> {
        let refused = |refusal| Err(LoadError::refused(self.path, refusal));
        let causal =
            keys.get("attention.causal", Field::bool).map_err(|err| self.malformed(err))?;
        if causal == Some(false) {
            return refused(Refusal::new("attention.causal", false, "true"));
        }
        // Of what makes vectors of texts, and no tokens.
        if checkpoint.has_some("dense_2.") {
            return refused(Refusal::new("tensor", "dense_2.weight", "absent"));
        }
        let is_normed = checkpoint.tensors.contains_key(NORM_OF_QUERIES);
        match keys.architecture.family() {
            Family::Cohere | Family::StableLm => Ok(()),
            family if family.layer_norms().is_some() && is_normed => {
                refused(Refusal::new("tensor", NORM_OF_QUERIES, "absent"))
            }
            _ => Ok(()),
        }
    }

    /// How far from 0 queries, keys and values are at most; 0 stands for no bound.
    fn clip(&self, keys: &Keys<'_, '_>) -> Result<Option<f32>, LoadError> {
        const KEY: &str = "attention.clamp_kqv";
        let most = keys.get(KEY, Field::f32).map_err(|err| self.malformed(err))?;
        let refused = |most, bound| LoadError::refused(self.path, Refusal::new(KEY, most, bound));
        match most.filter(|&most| most != 0.0) {
            Some(most) if !keys.architecture.family().clips() => Err(refused(most, "absent")),
            Some(most) if !(most > 0.0 && most.is_finite()) => Err(refused(most, "0 or above")),
            most => Ok(most),
        }
    }

    fn order(&self, keys: &Keys<'_, '_>, rotary_dim: u32) -> Result<HeadOrder, LoadError> {
        let neighbours = self.neighbours(keys.architecture, keys)?;
        Ok(HeadOrder { rotary_dim, neighbours, by_head: false }) // converters take it apart
    }

    /// Whether query and key rows stand as they rotate neighbours. Text models of GLM 4 that see
    /// pictures turn by three positions, which for text are one; their rows stand in halves.
    fn neighbours(
        &self,
        architecture: Architecture,
        keys: &Keys<'_, '_>,
    ) -> Result<bool, LoadError> {
        let sections = keys.get("rope.dimension_sections", Field::i32s);
        let sections = sections.map_err(|err| self.malformed(err))?.unwrap_or_default();
        let by_three = matches!(*sections, [first, second, ..] if first > 0 && second > 0);
        Ok(architecture.neighbours() && !(architecture == Architecture::Glm4 && by_three))
    }

    /// How many of a head's elements are rotated.
    fn rotary_dim(&self, keys: &Keys<'_, '_>, shape: &ModelShape) -> Result<u32, LoadError> {
        if keys.architecture.numbers_parts() {
            return Ok(shape.head_dim); // whatever a file says of what does not rotate
        }
        if keys.architecture == Architecture::Gemma4 {
            return Ok(shape.head_dim); // of wide heads factors say which elements do not
        }
        let given = keys.get("rope.dimension_count", Field::u32);
        let rotary_dim = given.map_err(|err| self.malformed(err))?.unwrap_or(shape.head_dim);
        if (2..=shape.head_dim).contains(&rotary_dim) && rotary_dim.is_multiple_of(2) {
            return Ok(rotary_dim);
        }
        let bound = format!("an even number from 2 to the head size {}", shape.head_dim);
        let refusal = Refusal::new("rope.dimension_count", rotary_dim, bound);
        Err(LoadError::refused(self.path, refusal))
    }

    fn shape(
        &self,
        keys: &Keys<'_, '_>,
        checkpoint: &Checkpoint<'_>,
    ) -> Result<ModelShape, LoadError> {
        let layers = self.folded(keys)?.map(|folded| folded.layers.len() as u32);
        let shape = || -> Result<ModelShape, GgufError> {
            let (width, heads) = (keys.u32("embedding_length")?, keys.u32("attention.head_count")?);
            let is_latent = keys.architecture.family().is_latent();
            // What files of attention in the other form say, if they say both.
            let expanded = keys.get("attention.key_length_mla", Field::u32)?;
            let head_dim = keys.get("attention.key_length", Field::u32)?;
            let head_dim = expanded.filter(|_| is_latent).or(head_dim);
            let head_dim = gemma4::head_dim(keys)?.or(head_dim);
            let kv_heads = match keys.architecture {
                Architecture::Gemma4 => gemma4::kv_heads(keys)?,
                _ => recurrent::kv_heads(keys)?.filter(|_| !is_latent),
            };
            // The last ones may predict more tokens at once, and belong to no layer.
            let predicting = keys.get("nextn_predict_layers", Field::u32)?.unwrap_or(0);
            Ok(ModelShape {
                vocab: 0,
                layers: match layers {
                    Some(layers) => layers,
                    None => keys.u32("block_count")?.saturating_sub(predicting),
                },
                width,
                heads,
                kv_heads: kv_heads.unwrap_or(heads),
                head_dim: head_dim.unwrap_or_else(|| width.checked_div(heads).unwrap_or(0)),
                ffn: match keys.get(nemotron_h::FEEDS, Field::same_u32) {
                    _ if keys.architecture.numbers_parts() => {
                        let mut all = keys.required(nemotron_h::FEEDS)?.u32s()?.into_iter();
                        all.find(|&width| width > 0).unwrap_or(1)
                    }
                    // All its layers have experts, and its files say nothing of any other.
                    Ok(None) if keys.architecture == Architecture::Qwen35Moe => {
                        keys.u32("expert_feed_forward_length")?
                    }
                    _ if keys.architecture == Architecture::Gemma4 => gemma4::ffn(keys)?,
                    _ => keys.u32(nemotron_h::FEEDS)?,
                },
                max_positions: keys.get("context_length", Field::u32)?.unwrap_or(0),
                recurrent_layers: 0,
                state_bytes: 0,
                wide: WideHeads::NONE,
                kv_shared_layers: 0,
                windowed: WindowedLayers::NONE,
            })
        };
        let positions = keys.get("context_length", Field::u32);
        let positions = positions.map_err(|err| self.malformed(err))?.unwrap_or(1);
        Refusal::unless_within("context_length", positions, 1, u32::MAX)
            .map_err(|refusal| LoadError::refused(self.path, refusal))?;
        let mut shape = shape().map_err(|err| self.malformed(err))?;
        let embed = checkpoint.tensors.get("token_embd.weight");
        let rows = embed.and_then(|tensor| tensor.shape.first().copied());
        let rows = rows.ok_or_else(|| LoadError::tensor(self.path, "token_embd.weight", "missing"));
        shape.vocab = u32::try_from(rows?).unwrap_or(u32::MAX);
        shape.validate().map_err(|refusal| LoadError::refused(self.path, refusal))?;
        if keys.architecture.family().is_latent() {
            return Ok(shape);
        }
        let key = match keys.architecture {
            Architecture::Gemma4 => gemma4::WINDOWED_VALUES,
            _ => VALUES,
        };
        self.same_length(keys, key, shape.head_dim)?;
        Ok(shape)
    }

    /// Values are as long as keys, `want` elements, if the file says how long they are.
    pub(super) fn same_length(
        &self,
        keys: &Keys<'_, '_>,
        key: &str,
        want: u32,
    ) -> Result<(), LoadError> {
        let seen = keys.get(key, Field::u32).map_err(|err| self.malformed(err))?.unwrap_or(want);
        Refusal::unless_within(key, seen, want, want)
            .map(drop)
            .map_err(|refusal| LoadError::refused(self.path, refusal))
    }

    pub(super) fn malformed(&self, err: GgufError) -> LoadError {
        LoadError::Malformed { path: self.path.to_owned(), what: err.to_string() }
    }

    pub(super) fn unsupported(
        &self,
        what: &'static str,
        name: &str,
        supported: &'static str,
    ) -> LoadError {
        let (path, name) = (self.path.to_owned(), name.to_owned());
        LoadError::Unsupported { path, what, name, supported }
    }
}
