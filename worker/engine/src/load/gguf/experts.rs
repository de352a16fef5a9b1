//! Experts in GGUF metadata.

use aqueduct_core::{ModelShape, Refusal};
use aqueduct_gguf::{Field, GgufError};
use aqueduct_kernels::experts::Scoring;

use super::config::{Architecture, Config, Keys};
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::load::decoder::ManyExperts;

/// What `expert_gating_func` calls the softmax.
const SOFTMAX: u32 = 1;
/// The same of the sigmoid, which is GLM's where nothing is said.
const SIGMOID: u32 = 2;
/// The same of a softmax over those that were chosen, which is the other once it is normalised.
const SOFTMAX_OF_CHOSEN: u32 = 3;
/// What a tensor is called by which experts are chosen.
const BIAS: &str = "exp_probs_b";
/// And the gate of what all tokens go through.
const SHARED_GATE: &str = ".ffn_gate_shexp.weight";
const ARCHITECTURES: &str = "none, but in llama, qwen2moe, qwen3moe, granitemoe, glm4moe, olmoe, \
     exaone-moe, ernie4_5-moe, minimax-m2, gpt-oss, deepseek2, mistral4, \
     dots1, hunyuan-moe, qwen3vlmoe, qwen3next, qwen35moe, lfm2moe, granitehybrid, \
     nemotron_h_moe, gemma4 and llama4";

impl Config<'_, '_> {
    /// `None` where there are no experts.
    pub(super) fn experts(
        &self,
        architecture: Architecture,
        keys: &Keys<'_, '_>,
        (shape, checkpoint): (&ModelShape, &Checkpoint<'_>),
    ) -> Result<Option<ManyExperts>, LoadError> {
        let experts = self.read_experts(architecture, keys, (shape, checkpoint));
        let Some(experts) = experts.map_err(|err| self.malformed(err))? else { return Ok(None) };
        let has_any = matches!(
            architecture,
            Architecture::Llama
                | Architecture::Qwen2Moe
                | Architecture::Qwen3Moe
                | Architecture::GraniteMoe
                | Architecture::Glm4Moe
                | Architecture::Olmoe
                | Architecture::ExaoneMoe
                | Architecture::Ernie45Moe
                | Architecture::MiniMaxM2
                | Architecture::GptOss
                | Architecture::DeepSeek2
                | Architecture::Mistral4
                | Architecture::Dots1
                | Architecture::Afmoe
                | Architecture::HunYuanMoe
                | Architecture::Qwen3VlMoe
                | Architecture::Qwen3Next
                | Architecture::Qwen35Moe
                | Architecture::Lfm2Moe
                | Architecture::GraniteHybrid
                | Architecture::NemotronHMoe
                | Architecture::Gemma4
                | Architecture::Llama4
        );
        if !has_any {
            let name = format!("{} of them", experts.count);
            return Err(self.unsupported("experts", &name, ARCHITECTURES));
        }
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let groups =
            keys.get("expert_group_count", Field::u32).map_err(|err| self.malformed(err))?;
        let groups = groups.filter(|_| !architecture.is_deepseek());
        Refusal::unless_within("expert_group_count", groups.unwrap_or(1), 0, 1).map_err(refused)?;
        let gating =
            keys.get("expert_gating_func", Field::u32).map_err(|err| self.malformed(err))?;
        let most = if architecture == Architecture::GptOss { SOFTMAX_OF_CHOSEN } else { SIGMOID };
        Refusal::unless_within("expert_gating_func", gating.unwrap_or(0), 0, most)
            .map_err(refused)?;
        self.as_nemotron_h(keys, experts)?.checked().map(Some).map_err(refused)
    }

    fn read_experts(
        &self,
        architecture: Architecture,
        keys: &Keys<'_, '_>,
        (shape, checkpoint): (&ModelShape, &Checkpoint<'_>),
    ) -> Result<Option<ManyExperts>, GgufError> {
        let number = |key: &str| keys.get(key, Field::u32);
        let Some(count @ 1..) = number("expert_count")? else { return Ok(None) };
        let chosen = number("expert_used_count")?.unwrap_or(0);
        let is_biased = is_biased(architecture);
        let as_deepseek = architecture.is_deepseek() || architecture == Architecture::Dots1;
        let is_lfm = architecture == Architecture::Lfm2Moe;
        let as_qwen2 = is_as_qwen2(architecture);
        let given_ffn = number("expert_feed_forward_length")?.filter(|&ffn| ffn > 0);
        let ffn = match architecture {
            Architecture::Llama | Architecture::GraniteMoe | Architecture::Olmoe => shape.ffn,
            Architecture::GraniteHybrid => shape.ffn,
            _ => given_ffn.unwrap_or(match has_parts(architecture) {
                true => shape.ffn / chosen.max(1),
                false => shape.ffn,
            }),
        };
        let shared = number("expert_shared_feed_forward_length")?.filter(|&shared| shared > 0);
        let shared_ffn = match architecture {
            _ if as_qwen2 => Some(shared.unwrap_or(shape.ffn)),
            Architecture::HunYuanMoe => Some(shared.unwrap_or(shape.ffn)),
            Architecture::Llama4 => Some(ffn), // whatever a file says
            Architecture::GraniteMoe | Architecture::GraniteHybrid => shared,
            _ if is_biased || as_deepseek => {
                let count = number("expert_shared_count")?.unwrap_or(1);
                Some(count.saturating_mul(ffn)).filter(|&shared| shared > 0)
            }
            // What converters write of it is no length that its tensors have.
            Architecture::Ernie45Moe => shared_rows(checkpoint),
            _ => None,
        };
        let normalises = keys.get("expert_weights_norm", Field::bool)?;
        let scale = keys.get("expert_weights_scale", Field::f32)?.filter(|&scale| scale != 0.0);
        let sigmoid = is_sigmoid(architecture, number("expert_gating_func")?, shape);
        let dense = number("leading_dense_block_count")?.unwrap_or(0) as usize;
        let step = number("interleave_moe_layer_step")?.unwrap_or(1).max(1) as usize;
        let is_step = |idx: usize| (idx + 1).is_multiple_of(step);
        let has = |idx: usize| match architecture {
            _ if is_biased || as_deepseek || is_lfm => idx >= dense,
            Architecture::Ernie45Moe | Architecture::Llama4 => idx >= dense && is_step(idx),
            _ => true,
        };
        Ok(Some(ManyExperts {
            count,
            chosen,
            ffn,
            shared_ffn,
            shared_gate: as_qwen2,
            scoring: if sigmoid { Scoring::Sigmoid } else { Scoring::Softmax },
            bias: match architecture {
                Architecture::Ernie45Moe => checkpoint.has_some(BIAS),
                _ if as_deepseek || is_lfm => checkpoint.has_some(BIAS),
                _ => is_biased || architecture == Architecture::MiniMaxM2,
            },
            normalises: match architecture {
                Architecture::Qwen2Moe | Architecture::Olmoe | Architecture::Llama4 => false,
                _ if as_deepseek => normalises.unwrap_or(false),
                _ if is_biased => normalises.unwrap_or(true),
                _ => true,
            },
            scale: scale.filter(|_| is_biased || as_deepseek || is_lfm).unwrap_or(1.0),
            layers: (0..shape.layers as usize).map(has).collect(),
        }))
    }
}

/// Scores have a bias where experts are chosen, in every file.
fn is_biased(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Glm4Moe | Architecture::ExaoneMoe | Architecture::Afmoe)
}

/// What all tokens go through has a gate, and a size that files say.
fn is_as_qwen2(architecture: Architecture) -> bool {
    matches!(
        architecture,
        Architecture::Qwen2Moe | Architecture::Qwen3Next | Architecture::Qwen35Moe
    )
}

/// Those that a token goes through are together as large as a dense one, unless files say another
/// size.
fn has_parts(architecture: Architecture) -> bool {
    let others = [Architecture::Qwen3Moe, Architecture::Qwen3VlMoe, Architecture::Glm4Moe];
    is_as_qwen2(architecture) || others.contains(&architecture)
}

/// Whether scores are the sigmoid of logits.
fn is_sigmoid(architecture: Architecture, said: Option<u32>, shape: &ModelShape) -> bool {
    match (architecture, said) {
        (Architecture::Glm4Moe | Architecture::ExaoneMoe | Architecture::MiniMaxM2, said)
        | (Architecture::Dots1 | Architecture::Lfm2Moe | Architecture::Afmoe, said) => {
            said != Some(SOFTMAX)
        }
        // The first files do not say it: those of V2, and of GLM 4.7 Flash, which llama.cpp tells
        // by these.
        (Architecture::DeepSeek2, None | Some(0)) => {
            matches!(shape.layers, 47 | 48) && shape.vocab == 154_880
        }
        (Architecture::DeepSeek2 | Architecture::Mistral4, Some(said)) => said == SIGMOID,
        (Architecture::Llama4, _) => true,
        _ => false,
    }
}

/// Rows of the gate that all tokens go through, if there is one.
fn shared_rows(checkpoint: &Checkpoint<'_>) -> Option<u32> {
    let mut gates = checkpoint.tensors.iter().filter(|(name, _)| name.ends_with(SHARED_GATE));
    let (_, gate) = gates.next()?;
    gate.shape.first().and_then(|&rows| u32::try_from(rows).ok())
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
        layers: 3,
        width: 32,
        heads: 4,
        kv_heads: 4,
        head_dim: 8,
        ffn: 96,
        max_positions: 64,
        recurrent_layers: 0,
        state_bytes: 0,
        wide: WideHeads::NONE,
        kv_shared_layers: 0,
        windowed: WindowedLayers::NONE,
    };

    #[test]
    fn experts_are_those_of_each_family() {
        let of = |architecture: Architecture, more: fn(Writer, &str) -> Writer| {
            let key = |key: &str| format!("{}.{key}", architecture.name());
            let file = Writer::new()
                .u32(&key("expert_count"), 8)
                .u32(&key("expert_used_count"), 2)
                .u32(&key("expert_feed_forward_length"), 48);
            let bytes = more(file, architecture.name()).finish();
            let gguf = Gguf::parse(&bytes).unwrap();
            let config = Config { path: "file", gguf: &gguf };
            let keys = Keys { gguf: &gguf, architecture };
            let none = Checkpoint { path: "file".to_owned(), tensors: BTreeMap::new() };
            config.experts(architecture, &keys, (&SHAPE, &none)).unwrap().unwrap()
        };
        let deepseek = |file: Writer, name: &str| {
            file.u32(&format!("{name}.expert_shared_count"), 2)
                .u32(&format!("{name}.leading_dense_block_count"), 1)
                .f32(&format!("{name}.expert_weights_scale"), 2.5)
        };
        let want = ManyExperts {
            count: 8,
            chosen: 2,
            ffn: 48,
            shared_ffn: Some(96),
            shared_gate: false,
            scoring: Scoring::Softmax,
            bias: false,
            normalises: false,
            scale: 2.5,
            layers: vec![false, true, true],
        };
        assert_eq!(of(Architecture::Mistral4, deepseek), want);
        assert_eq!(of(Architecture::DeepSeek2, deepseek), want);
        let dots = ManyExperts { scoring: Scoring::Sigmoid, ..want.clone() };
        assert_eq!(of(Architecture::Dots1, deepseek), dots);
        let layers = vec![true; 3];
        let hunyuan = ManyExperts { normalises: true, scale: 1.0, layers, ..want.clone() };
        let shared = |file: Writer, name: &str| {
            file.u32(&format!("{name}.expert_shared_feed_forward_length"), 96)
        };
        assert_eq!(of(Architecture::HunYuanMoe, shared), hunyuan);
        assert_eq!(of(Architecture::HunYuanMoe, |file, _| file), hunyuan);
        let qwen = ManyExperts { shared_gate: true, ..hunyuan.clone() };
        assert_eq!(of(Architecture::Qwen3Next, shared), qwen);
        assert_eq!(of(Architecture::Qwen35Moe, shared), qwen);
        let granite = ManyExperts { ffn: 96, ..hunyuan.clone() };
        assert_eq!(of(Architecture::GraniteHybrid, shared), granite);
        let alone = ManyExperts { shared_ffn: None, ..granite };
        assert_eq!(of(Architecture::GraniteHybrid, |file, _| file), alone);
        let lfm2 = ManyExperts {
            shared_ffn: None,
            scoring: Scoring::Sigmoid,
            layers: want.layers,
            ..hunyuan
        };
        let leading =
            |file: Writer, name: &str| file.u32(&format!("{name}.leading_dense_block_count"), 1);
        assert_eq!(of(Architecture::Lfm2Moe, leading), lfm2);
        let parts = |file: Writer, name: &str| {
            file.u32(&format!("{name}.block_count"), 4)
                .i32s(&format!("{name}.attention.head_count_kv"), &[0, 0, 4, 0])
                .i32s(&format!("{name}.feed_forward_length"), &[0, 48, 0, 0])
                .u32(&format!("{name}.expert_shared_feed_forward_length"), 40)
                .f32(&format!("{name}.expert_weights_scale"), 2.5)
        };
        let nemotron = ManyExperts {
            shared_ffn: Some(40),
            bias: true,
            normalises: false,
            scale: 2.5,
            layers: vec![true, false, false],
            ..lfm2
        };
        assert_eq!(of(Architecture::NemotronHMoe, parts), nemotron);
    }
}
