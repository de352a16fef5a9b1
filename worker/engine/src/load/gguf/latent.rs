//! Keys and values of a few numbers in GGUF metadata (multi-head latent attention).

use aqueduct_core::{ModelShape, Refusal};
use aqueduct_gguf::{Field, GgufError};
use aqueduct_kernels::experts::{Groups, Scoring};

use super::config::{Architecture, Config, Keys, YARN_LOG_MULTIPLIER};
use super::rope::{GROWTH, told_scaling};
use crate::error::LoadError;
use crate::load::decoder::{Latents, ManyExperts, Scales};
use crate::rope::yarn_attention_factor;

impl Config<'_, '_> {
    /// What keys and values come of; `None` where that is the stream.
    pub(super) fn latents(
        &self,
        keys: &Keys<'_, '_>,
        (shape, rotary_dim): (&ModelShape, u32),
    ) -> Result<Option<Latents>, LoadError> {
        if !keys.architecture.family().is_latent() {
            return Ok(None);
        }
        let read = || -> Result<Latents, GgufError> {
            let number = |key: &str| keys.get(key, Field::u32);
            let value_dim = match keys.architecture {
                // No converter says it.
                Architecture::MiniCpm3 => Some(shape.width / shape.heads),
                _ => match number("attention.value_length_mla")? {
                    None => number("attention.value_length")?,
                    expanded => expanded,
                },
            };
            Ok(Latents {
                queries: number("attention.q_lora_rank")?.filter(|&rank| rank > 0),
                keys: keys.required("attention.kv_lora_rank")?.u32()?,
                value_dim: value_dim.unwrap_or(shape.head_dim),
            })
        };
        let latents = read().map_err(|err| self.malformed(err))?;
        let checked = latents.checked(shape.head_dim, rotary_dim);
        checked.map(Some).map_err(|refusal| LoadError::refused(self.path, refusal))
    }

    /// Groups of experts, of which a token may go to a few alone.
    pub(super) fn expert_groups(
        &self,
        keys: &Keys<'_, '_>,
        experts: Option<&ManyExperts>,
    ) -> Result<Option<Groups>, LoadError> {
        let is_deepseek = keys.architecture.is_deepseek();
        let Some(experts) = experts.filter(|_| is_deepseek) else { return Ok(None) };
        let number = |key: &str| keys.get(key, Field::u32).map_err(|err| self.malformed(err));
        let said = number("expert_group_count")?.zip(number("expert_group_used_count")?);
        let (count, chosen) = said.unwrap_or_else(|| unsaid_groups(experts));
        let (count, chosen) = (count as usize, chosen as usize);
        // As V2 is trained; llama.cpp adds up two there too. Mistral 4 has V3's groups.
        let is_second =
            keys.architecture == Architecture::DeepSeek2 && experts.scoring == Scoring::Softmax;
        let summed = if is_second { 1 } else { 2 };
        let groups = experts.grouped(Groups { count, chosen, summed });
        groups.map_err(|refusal| LoadError::refused(self.path, refusal))
    }

    /// What yarn makes of the scale of dot products, where files say so. Those of Mistral Large 3
    /// are of this architecture and say it too, but its own params.json has `apply_scale: false`;
    /// they are known by what queries grow by, which no other file of it has.
    pub(super) fn latent_scales(
        &self,
        keys: &Keys<'_, '_>,
        shape: &ModelShape,
    ) -> Result<Scales, LoadError> {
        let usual = Scales::usual(shape.head_dim);
        let grows = keys.get(GROWTH, Field::f64).map_err(|err| self.malformed(err))?;
        if grows.is_some() {
            return Ok(usual);
        }
        let (kind, factor) = told_scaling(keys).map_err(|err| self.malformed(err))?;
        let multiplier = self.yarn_multiplier(keys)?;
        let (Some(factor), Some(multiplier), Some("yarn")) = (factor, multiplier, kind) else {
            return Ok(usual);
        };
        // config.json's `mscale_all_dim`: what these files say of it is a tenth.
        let sharper = yarn_attention_factor(factor, 10.0 * multiplier).powi(2);
        let attention = (f64::from(usual.attention) * sharper) as f32;
        Ok(Scales { attention, ..usual })
    }

    /// What files say of config.json's `mscale_all_dim`; 0 stands for nothing.
    pub(super) fn yarn_multiplier(&self, keys: &Keys<'_, '_>) -> Result<Option<f64>, LoadError> {
        let said = keys.get(YARN_LOG_MULTIPLIER, Field::f64).map_err(|err| self.malformed(err))?;
        let Some(said) = said.filter(|&said| said != 0.0) else { return Ok(None) };
        let said = Refusal::unless_within(YARN_LOG_MULTIPLIER, said, 1e-6, 1e3);
        said.map(Some).map_err(|refusal| LoadError::refused(self.path, refusal))
    }
}

/// Files of before the autumn of 2025 do not say it: of V2 and V3 (and R1) it is known, and no
/// other model of this architecture has as many experts.
fn unsaid_groups(experts: &ManyExperts) -> (u32, u32) {
    match (experts.scoring, experts.count) {
        (Scoring::Softmax, 160) => (8, 3),
        (Scoring::Sigmoid, 256) => (8, 4),
        _ => (1, 1),
    }
}

/// MiniCPM 3's, which no key says.
pub(super) fn minicpm_scales(shape: &ModelShape) -> Scales {
    Scales {
        embed: 12.0,
        residual: 1.4 / (shape.layers as f32).sqrt(),
        logits: shape.width as f32 / 256.0,
        ..Scales::usual(shape.head_dim)
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::{WideHeads, WindowedLayers};
    use aqueduct_gguf::Gguf;
    use aqueduct_gguf::write::Writer;

    use super::*;

    const SHAPE: ModelShape = ModelShape {
        vocab: 32,
        layers: 4,
        width: 32,
        heads: 4,
        kv_heads: 4,
        head_dim: 24,
        ffn: 48,
        max_positions: 64,
        recurrent_layers: 0,
        state_bytes: 0,
        wide: WideHeads::NONE,
        kv_shared_layers: 0,
        windowed: WindowedLayers::NONE,
    };

    /// What `read` makes of a file.
    fn of<T>(
        architecture: Architecture,
        file: Writer,
        read: impl Fn(&Config<'_, '_>, &Keys<'_, '_>) -> Result<T, LoadError>,
    ) -> Result<T, String> {
        let bytes = file.finish();
        let gguf = Gguf::parse(&bytes).unwrap();
        let (config, keys) =
            (Config { path: "file", gguf: &gguf }, Keys { gguf: &gguf, architecture });
        read(&config, &keys).map_err(|error| error.to_string())
    }

    #[test]
    fn both_forms_say_the_same() {
        let latents = |architecture, file| {
            of(architecture, file, |config, keys| config.latents(keys, (&SHAPE, 8)))
        };
        let few = || Writer::new().u32("deepseek2.attention.kv_lora_rank", 16);
        let want = Latents { queries: None, keys: 16, value_dim: 20 };
        let first = few().u32("deepseek2.attention.value_length", 20);
        assert_eq!(latents(Architecture::DeepSeek2, first), Ok(Some(want)));
        let later = few()
            .u32("deepseek2.attention.value_length", 16)
            .u32("deepseek2.attention.value_length_mla", 20)
            .u32("deepseek2.attention.q_lora_rank", 12);
        let with_queries = Latents { queries: Some(12), ..want };
        assert_eq!(latents(Architecture::DeepSeek2, later), Ok(Some(with_queries)));
        let mini = Writer::new().u32("minicpm3.attention.kv_lora_rank", 16);
        let want = Latents { value_dim: 8, ..want };
        assert_eq!(latents(Architecture::MiniCpm3, mini), Ok(Some(want)));
        assert_eq!(latents(Architecture::Llama, Writer::new()), Ok(None));
        let nothing = latents(Architecture::DeepSeek2, Writer::new()).unwrap_err();
        assert!(nothing.contains("kv_lora_rank"), "{nothing}");
        let wide = few().u32("deepseek2.attention.value_length", 25);
        let wide = latents(Architecture::DeepSeek2, wide).unwrap_err();
        assert!(wide.contains("v_head_dim"), "{wide}");
    }

    #[test]
    fn yarn_grows_the_scale_where_files_say_so() {
        let scaled = |architecture: Architecture, file: Writer, multiplier: Option<f32>| {
            let key = |key: &str| format!("{}.rope.scaling.{key}", architecture.name());
            let file = file.str(&key("type"), "yarn").f32(&key("factor"), 40.0);
            let file = match multiplier {
                Some(said) => file.f32(&key("yarn_log_multiplier"), said),
                None => file,
            };
            let read = |config: &Config<'_, '_>, keys: &Keys<'_, '_>| {
                config.scales(architecture, keys, &SHAPE).map(|scales| scales.attention)
            };
            of(architecture, file, read).map(|scale| scale * 24.0_f32.sqrt())
        };
        let scale =
            |multiplier| scaled(Architecture::DeepSeek2, Writer::new(), multiplier).unwrap();
        // (0.1 ln 40 + 1)^2, of DeepSeek V3, and of V2 with 0.0707.
        assert!((scale(Some(0.1)) - 1.873_85).abs() < 1e-4, "{}", scale(Some(0.1)));
        assert!((scale(Some(0.0707)) - 1.589_63).abs() < 1e-4, "{}", scale(Some(0.0707)));
        assert!((scale(None) - 1.0).abs() < 1e-6);
        // Mistral Large 3's and Mistral 4's, which say it and do not mean it.
        let large = Writer::new().f32("deepseek2.attention.temperature_scale", 0.1);
        for (architecture, file) in
            [(Architecture::DeepSeek2, large), (Architecture::Mistral4, Writer::new())]
        {
            let seen = scaled(architecture, file, Some(0.1)).unwrap();
            assert!((seen - 1.0).abs() < 1e-6, "{architecture:?}: {seen}");
        }
        let much = scaled(Architecture::DeepSeek2, Writer::new(), Some(2e3)).unwrap_err();
        assert!(much.contains("rope.scaling.yarn_log_multiplier"), "{much}");
    }

    #[test]
    fn groups_are_of_the_best_or_of_the_best_two() {
        let experts = |scoring| ManyExperts {
            count: 8,
            chosen: 3,
            ffn: 8,
            shared_ffn: None,
            shared_gate: false,
            scoring,
            bias: false,
            normalises: true,
            scale: 1.0,
            layers: vec![true; 4],
        };
        let groups_of = |architecture, scoring, file| {
            let experts = experts(scoring);
            let read = |config: &Config<'_, '_>, keys: &Keys<'_, '_>| {
                config.expert_groups(keys, Some(&experts))
            };
            of(architecture, file, read)
        };
        let groups = |scoring, file| groups_of(Architecture::DeepSeek2, scoring, file);
        let file = |chosen| {
            Writer::new()
                .u32("deepseek2.expert_group_count", 4)
                .u32("deepseek2.expert_group_used_count", chosen)
        };
        for (scoring, summed) in [(Scoring::Softmax, 1), (Scoring::Sigmoid, 2)] {
            let want = Groups { count: 4, chosen: 2, summed };
            assert_eq!(groups(scoring, file(2)), Ok(Some(want)));
            assert_eq!(groups(scoring, Writer::new()), Ok(None));
        }
        let mistral = Writer::new()
            .u32("mistral4.expert_group_count", 4)
            .u32("mistral4.expert_group_used_count", 2);
        let want = Groups { count: 4, chosen: 2, summed: 2 };
        let seen = groups_of(Architecture::Mistral4, Scoring::Softmax, mistral);
        assert_eq!(seen, Ok(Some(want)));
        let few = groups(Scoring::Sigmoid, file(1)).unwrap_err();
        assert!(few.contains("topk_group"), "{few}");
    }
}
