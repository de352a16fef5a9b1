//! A decoder's description in GGUF metadata.

use aqueduct_core::{ModelShape, Refusal};
use aqueduct_gguf::{Field, Gguf, GgufError};

use super::rope;
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::load::decoder::{Biases, Decoder, Family, HeadOrder, QkNorm};
use crate::load::names::{self, Names};

/// Architectures that are served, by the name in `general.architecture`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    /// Mistral too.
    Llama,
    /// What reads text of Mistral 3.
    Mistral3,
    Qwen2,
    Qwen3,
    Phi3,
    Granite,
    SmolLm3,
    SeedOss,
    Ernie45,
    /// GLM 4 as it was at first.
    ChatGlm,
    /// GLM 4 with norms behind its layers.
    Glm4,
    Gemma,
    Gemma2,
    Gemma3,
    Qwen2Moe,
    Qwen3Moe,
    GraniteMoe,
    /// GLM 4.5 and 4.6.
    Glm4Moe,
    /// OLMo 2 and 3.
    Olmo2,
    Olmoe,
    Exaone4,
    ExaoneMoe,
    Ernie45Moe,
    MiniMaxM2,
    GptOss,
    CommandR,
    /// Command R7B and what came after it.
    Cohere2,
    /// OLMo 1.
    Olmo,
    StableLm,
}

const ARCHITECTURES: &str = "llama (Mistral too), mistral3, qwen2, qwen3, phi3, granite, smollm3, \
     seed_oss, ernie4_5, chatglm, glm4, gemma, gemma2, gemma3, qwen2moe, qwen3moe, granitemoe, \
     glm4moe, olmo2 (OLMo 3 too), olmoe, exaone4, exaone-moe, ernie4_5-moe, minimax-m2, gpt-oss, \
     command-r, cohere2, olmo, stablelm";

/// What one of Gemma 3's layers with a window turns by, unless a file says otherwise.
const GEMMA3_WINDOW_THETA: f64 = 1e4;

impl Architecture {
    const ALL: [Self; 29] = [
        Self::Llama,
        Self::Mistral3,
        Self::Qwen2,
        Self::Qwen3,
        Self::Phi3,
        Self::Granite,
        Self::SmolLm3,
        Self::SeedOss,
        Self::Ernie45,
        Self::ChatGlm,
        Self::Glm4,
        Self::Gemma,
        Self::Gemma2,
        Self::Gemma3,
        Self::Qwen2Moe,
        Self::Qwen3Moe,
        Self::GraniteMoe,
        Self::Glm4Moe,
        Self::Olmo2,
        Self::Olmoe,
        Self::Exaone4,
        Self::ExaoneMoe,
        Self::Ernie45Moe,
        Self::MiniMaxM2,
        Self::GptOss,
        Self::CommandR,
        Self::Cohere2,
        Self::Olmo,
        Self::StableLm,
    ];

    /// Its name in files, the family that it is, and whether files have query and key rows in the
    /// order that rotates neighbours.
    fn known(self) -> (&'static str, Family, bool) {
        match self {
            Self::Llama => ("llama", Family::Llama, true),
            Self::Mistral3 => ("mistral3", Family::Llama, true),
            Self::Qwen2 => ("qwen2", Family::Qwen2, false),
            Self::Qwen3 => ("qwen3", Family::Qwen3, false),
            Self::Phi3 => ("phi3", Family::Phi3, false),
            Self::Granite => ("granite", Family::Granite, true),
            Self::SmolLm3 => ("smollm3", Family::SmolLm3, true),
            Self::SeedOss => ("seed_oss", Family::SeedOss, false),
            Self::Ernie45 => ("ernie4_5", Family::Ernie45, true),
            Self::ChatGlm => ("chatglm", Family::Glm, true),
            Self::Glm4 => ("glm4", Family::Glm4, true),
            Self::Gemma => ("gemma", Family::Gemma, false),
            Self::Gemma2 => ("gemma2", Family::Gemma2, false),
            Self::Gemma3 => ("gemma3", Family::Gemma3, false),
            Self::Qwen2Moe => ("qwen2moe", Family::Qwen2Moe, false),
            Self::Qwen3Moe => ("qwen3moe", Family::Qwen3Moe, false),
            Self::GraniteMoe => ("granitemoe", Family::GraniteMoe, true),
            Self::Glm4Moe => ("glm4moe", Family::Glm4Moe, false),
            Self::Olmo2 => ("olmo2", Family::Olmo2, false),
            Self::Olmoe => ("olmoe", Family::Olmoe, false),
            Self::Exaone4 => ("exaone4", Family::Exaone4, false),
            Self::ExaoneMoe => ("exaone-moe", Family::ExaoneMoe, false),
            Self::Ernie45Moe => ("ernie4_5-moe", Family::Ernie45Moe, true),
            Self::MiniMaxM2 => ("minimax-m2", Family::MiniMaxM2, false),
            Self::GptOss => ("gpt-oss", Family::GptOss, false),
            Self::CommandR => ("command-r", Family::Cohere, true),
            Self::Cohere2 => ("cohere2", Family::Cohere2, true),
            Self::Olmo => ("olmo", Family::Olmo, true),
            Self::StableLm => ("stablelm", Family::StableLm, false),
        }
    }

    /// What its tensors are called.
    pub(crate) fn names(self) -> &'static Names {
        match self {
            Self::SeedOss | Self::Glm4Moe | Self::GptOss => &names::GGUF_POST_NORM,
            _ => &names::GGUF,
        }
    }

    fn name(self) -> &'static str {
        self.known().0
    }

    fn family(self) -> Family {
        self.known().1
    }

    fn neighbours(self) -> bool {
        self.known().2
    }
}

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

    fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.required(key)?.same_u32()
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
        let rotary_dim = self.rotary_dim(&keys, &shape)?;
        let (rope, positions) = rope::rope(self, &keys, checkpoint, (&shape, rotary_dim))?;
        let is_gemma3 = architecture == Architecture::Gemma3;
        if is_gemma3 {
            // What files without it leave out besides, nobody can tell.
            keys.required("rope.freq_base").map_err(|err| self.malformed(err))?;
        }
        let window_rope = match architecture {
            Architecture::Gemma3 => {
                Some(rope::window_rope(self, &keys, rotary_dim, Some(GEMMA3_WINDOW_THETA))?)
            }
            Architecture::Olmo2 => Some(rope::window_rope(self, &keys, rotary_dim, None)?),
            _ => None,
        };
        // These files tell the positions that scaling has made.
        if !is_gemma3 && architecture != Architecture::GptOss {
            shape.max_positions = positions;
        }
        let windows = self.windows(architecture, &keys, &shape)?;
        let scales = self.scales(architecture, &keys, &shape)?.checked().map_err(refused)?;
        let rotates = self.rotates(architecture, &keys, &windows)?;
        let has = |name: &str| checkpoint.tensors.contains_key(name);
        let family = architecture.family();
        let eps = match family.layer_norms() {
            Some(_) => "attention.layer_norm_epsilon",
            None => "attention.layer_norm_rms_epsilon",
        };
        let norm_eps = keys.required(eps).and_then(Field::f32);
        let norm_eps = norm_eps.map_err(|err| self.malformed(err))?;
        Ok(Decoder {
            family,
            norm_eps: Refusal::unless_within(eps, norm_eps, 0.0, 1.0).map_err(refused)?,
            layer_norms: family.layer_norms(),
            parallel: family.layer_norms().is_some_and(|norms| norms.weights)
                && !has("blk.0.ffn_norm.weight"),
            window_rope: window_rope.filter(|window_rope| *window_rope != rope),
            rope,
            rotates,
            norm_offset: 0.0, // converters have added it
            order: HeadOrder { rotary_dim, neighbours: self.neighbours(architecture, &keys)? },
            scales,
            windows,
            biases: Biases {
                qkv: has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias"),
                out: has("blk.0.attn_output.bias"),
                gate_up: has("blk.0.ffn_up.bias"),
                down: has("blk.0.ffn_down.bias"),
            },
            experts: self.experts(architecture, &keys, (&shape, checkpoint))?,
            expert_biases: architecture == Architecture::GptOss,
            softcaps: self.softcaps(architecture, &keys)?,
            qk_norm: match architecture {
                Architecture::Glm4Moe if has("blk.0.attn_q_norm.weight") => QkNorm::EachHead,
                _ => family.qk_norm(),
            },
            tied: !has("output.weight"),
            shape,
        })
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
        let most =
            keys.get("attention.clamp_kqv", Field::f32).map_err(|err| self.malformed(err))?;
        if let Some(most) = most.filter(|&most| most != 0.0) {
            return refused(Refusal::new("attention.clamp_kqv", most, "absent"));
        }
        // Ministral 3 scales queries by how far they are.
        for key in ["attention.temperature_scale", "rope.scaling.yarn_log_multiplier"] {
            let scale = keys.get(key, Field::f32).map_err(|err| self.malformed(err))?;
            let scale = scale.filter(|&scale| scale != 0.0);
            if let Some(scale) = scale.filter(|_| keys.architecture == Architecture::Mistral3) {
                return refused(Refusal::new(key, scale, "absent"));
            }
        }
        let normed = "blk.0.attn_q_norm.weight";
        let is_normed = checkpoint.tensors.contains_key(normed);
        match keys.architecture.family().layer_norms() {
            Some(_) if is_normed => refused(Refusal::new("tensor", normed, "absent")),
            _ => Ok(()),
        }
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
        let shape = || -> Result<ModelShape, GgufError> {
            let (width, heads) = (keys.u32("embedding_length")?, keys.u32("attention.head_count")?);
            let head_dim = keys.get("attention.key_length", Field::u32)?;
            let kv_heads = keys.get("attention.head_count_kv", Field::same_u32)?;
            // The last ones may predict more tokens at once, and belong to no layer.
            let predicting = keys.get("nextn_predict_layers", Field::u32)?.unwrap_or(0);
            Ok(ModelShape {
                vocab: 0,
                layers: keys.u32("block_count")?.saturating_sub(predicting),
                width,
                heads,
                kv_heads: kv_heads.unwrap_or(heads),
                head_dim: head_dim.unwrap_or_else(|| width.checked_div(heads).unwrap_or(0)),
                ffn: keys.u32("feed_forward_length")?,
                max_positions: keys.get("context_length", Field::u32)?.unwrap_or(0),
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
        let seen = keys.get("attention.value_length", Field::u32);
        let (seen, want) = (seen.map_err(|err| self.malformed(err))?, shape.head_dim);
        Refusal::unless_within("attention.value_length", seen.unwrap_or(want), want, want)
            .map_err(|refusal| LoadError::refused(self.path, refusal))?;
        Ok(shape)
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
