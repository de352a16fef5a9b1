//! What differs between layers, and between the maps of one.

use aqueduct_core::Refusal;

use serde::Deserialize;

use super::Config;
use crate::load::decoder::{
    ALTERNATE_LAYERS, Biases, FULL_LAYER_INTERVAL, Family, OLMO3_FULL_LAYER_INTERVAL, all_but_every,
};

impl Config {
    /// Per layer: whether it rotates.
    pub(super) fn rotates(&self, family: Family) -> Result<Vec<bool>, Refusal> {
        let layers = self.num_hidden_layers as usize;
        if family.first_position().is_some() || self.alibi(family).is_some() {
            return Ok(vec![false; layers]);
        }
        match (family, self.no_rope_layers.as_deref()) {
            (Family::SmolLm3, Some(rotates)) | (Family::Llama4, Some(rotates @ [_, ..])) => {
                let count = rotates.len();
                Refusal::unless_within("no_rope_layers count", count, layers, usize::MAX)?;
                Ok(rotates.iter().take(layers).map(|&rotates| rotates != 0).collect())
            }
            (Family::SmolLm3 | Family::Llama4, _) => {
                let most = u32::MAX as usize;
                let interval = self.no_rope_layer_interval;
                Refusal::unless_within("no_rope_layer_interval", interval, 1, most)?;
                Ok(all_but_every(interval, self.num_hidden_layers))
            }
            // Layers that see all positions do not, if there are any with a window.
            (Family::Exaone4 | Family::ExaoneMoe, _) if self.sliding_window != Some(None) => {
                let windows = self.windows(family, &[])?;
                Ok(windows.iter().map(Option::is_some).collect())
            }
            // The same, and without a window none does.
            (Family::Cohere2 | Family::Afmoe | Family::Flint, _) => {
                let windows = self.windows(family, &[])?;
                Ok(windows.iter().map(Option::is_some).collect())
            }
            (Family::Cohere2Moe, _) => self.cohere2_moe_turns(),
            (Family::CohereCompass, _) => self.compass_turns(),
            (Family::LaraMini, _) => Ok(self.lara_mini_slides()),
            (Family::Granite4, _) => {
                let rotates = self.position_embedding_type.as_deref() == Some("rope");
                Ok(vec![rotates; layers])
            }
            (Family::NemotronH, _) => Ok(vec![false; layers]),
            (Family::GraniteSwa | Family::GraniteMoeSwa, _) => self.turning_layers(),
            (Family::OlmoHybrid, _) => {
                let rotates = self.rope.turns();
                // Whether a model without it does has not always been the same.
                let missing =
                    || Refusal::new("rope_theta", "missing", "a number, or null: no rotation");
                Ok(vec![rotates.ok_or_else(missing)?; layers])
            }
            _ => Ok(vec![true; layers]),
        }
    }

    /// Whether feed-forward parts take what attention takes.
    pub(super) fn is_parallel(&self, family: Family) -> bool {
        match family {
            Family::Cohere | Family::Cohere2 | Family::Cohere2Moe | Family::Phi => true,
            Family::CohereCompass => true,
            Family::StableLm => self.use_parallel_residual.unwrap_or(false),
            Family::GptNeoX | Family::Falcon => self.use_parallel_residual.unwrap_or(true),
            Family::GptJ => true,
            _ => false,
        }
    }

    pub(super) fn biases(&self, family: Family) -> Biases {
        let attention = self.attention_bias;
        let is_biased = attention.unwrap_or(false);
        let mlp_bias = self.mlp_bias.unwrap_or(false);
        let both =
            |attention, mlp| Biases { qkv: attention, out: attention, gate_up: mlp, down: mlp };
        match family {
            Family::Llama | Family::Granite | Family::SmolLm3 => both(is_biased, mlp_bias),
            Family::InternLm2 | Family::MiniCpm | Family::Aria => both(is_biased, false),
            Family::HyperClovaX | Family::GraniteSwa | Family::HyV3 => both(is_biased, mlp_bias),
            Family::Granite4 | Family::GraniteMoe => both(is_biased, false),
            Family::GraniteMoeShared | Family::GraniteMoeSwa => both(is_biased, false),
            Family::Mellum | Family::Flint | Family::Afmoe => both(is_biased, false),
            Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe => both(is_biased, false),
            Family::Exaone | Family::Lfm2 | Family::Lfm2Moe | Family::FalconH1 => Biases::default(),
            Family::Bamba | Family::NemotronH => both(is_biased, mlp_bias),
            Family::Lfm3 | Family::OlmoHybrid | Family::LaraMini => both(is_biased, false),
            Family::HunYuan | Family::HunYuanMoe | Family::NanoChat => both(is_biased, false),
            Family::Mistral | Family::Mixtral | Family::Phi3 => Biases::default(),
            Family::Ministral | Family::Ministral3 | Family::Exaone4 => Biases::default(),
            Family::ExaoneMoe | Family::Mpt | Family::Dbrx => Biases::default(),
            Family::Ernie45Moe | Family::MiniMaxM2 => Biases::default(),
            Family::Cohere | Family::Cohere2 | Family::Olmo => both(is_biased, false),
            Family::StableLm => Biases { qkv: self.use_qkv_bias, ..Biases::default() },
            Family::StarCoder2 => {
                let is_biased = self.use_bias.unwrap_or(true);
                both(is_biased, is_biased)
            }
            Family::GptNeoX => both(attention.unwrap_or(true), true),
            Family::Phi | Family::Gpt2 | Family::GptBigCode | Family::Bloom => both(true, true),
            Family::Falcon => both(self.use_bias == Some(true), self.use_bias == Some(true)),
            Family::GptJ => both(false, true),
            Family::GptNeo => Biases { qkv: false, ..both(true, true) },
            Family::Opt => both(attention.unwrap_or(true), attention.unwrap_or(true)),
            Family::Llama4 | Family::Phimoe | Family::BitNet => both(is_biased, false),
            Family::Nemotron | Family::Arcee => both(is_biased, mlp_bias),
            Family::Jais2 => both(attention.unwrap_or(true), self.mlp_bias.unwrap_or(true)),
            Family::Apertus | Family::Cohere2Moe | Family::CohereCompass => both(is_biased, false),
            // Youtu and DeepSeek V3 have no biases, whatever a file says.
            Family::DeepSeekV3 | Family::Glm4MoeLite | Family::Youtu => Biases::default(),
            Family::Mistral4 | Family::AxK1 => Biases::default(),
            Family::DeepSeekV2 | Family::MiniCpm3 => both(false, mlp_bias),
            Family::Cwm => both(false, mlp_bias),
            Family::Helium => Biases { qkv: is_biased, ..both(false, mlp_bias) },
            Family::Dots1 => both(is_biased, false),
            Family::Olmo2 | Family::Olmo3 | Family::Olmoe | Family::FlexOlmo => {
                both(is_biased, false)
            }
            Family::Qwen2Moe => Biases { qkv: self.qkv_bias.unwrap_or(true), ..Biases::default() },
            Family::Glm4Moe | Family::SolarOpen => Biases { qkv: is_biased, ..Biases::default() },
            Family::Qwen2 => Biases { qkv: true, ..Biases::default() },
            Family::Qwen3 | Family::Qwen3Moe => both(is_biased, false),
            Family::Gemma | Family::Gemma2 | Family::Gemma3 => both(is_biased, false),
            Family::VaultGemma => both(is_biased, false),
            Family::Gemma4 => both(is_biased, false),
            Family::GptOss => both(attention.unwrap_or(true), false),
            Family::SeedOss => Biases {
                qkv: attention.unwrap_or(true),
                out: self.attention_out_bias,
                ..both(false, mlp_bias)
            },
            Family::Ernie45 => {
                let is_biased = self.use_bias.unwrap_or(false);
                both(is_biased, is_biased)
            }
            Family::Glm | Family::Glm4 => {
                Biases { qkv: attention.unwrap_or(true), ..Biases::default() }
            }
        }
    }

    /// Per layer, as each family's modelling code decides it.
    pub(super) fn windows(
        &self,
        family: Family,
        rotates: &[bool],
    ) -> Result<Vec<Option<u32>>, Refusal> {
        let window = self.window(family);
        if window == Some(0) {
            return Err(Refusal::new("sliding_window", 0, "null or at least 1"));
        }
        let layers = self.num_hidden_layers as usize;
        let slides = match (family, &self.layer_types) {
            (Family::SmolLm3, None) => rotates.iter().map(|rotates| !rotates).collect(),
            (Family::Qwen2Moe, None) => {
                let most = self.max_window_layers.unwrap_or(28) as usize;
                (0..layers).map(|idx| idx.is_multiple_of(2) && idx < most).collect()
            }
            (Family::Qwen2 | Family::Qwen3, None) => (0..layers)
                .map(|idx| idx >= self.max_window_layers.unwrap_or(28) as usize)
                .collect(),
            (Family::Gemma2 | Family::VaultGemma | Family::GptOss, None) => {
                all_but_every(ALTERNATE_LAYERS, self.num_hidden_layers)
            }
            (Family::Gemma3, None) => self.patterned(FULL_LAYER_INTERVAL)?,
            (Family::Gemma4, _) => self.gemma4_slides()?,
            (Family::Llama4, _) => self.llama4_blocks(rotates)?,
            (Family::Exaone4 | Family::ExaoneMoe | Family::Cohere2, None) => {
                self.patterned(OLMO3_FULL_LAYER_INTERVAL)?
            }
            (Family::Cohere2Moe, None) => self.cohere2_moe_slides()?,
            (Family::Afmoe, None) => {
                let interval =
                    self.newer.global_attn_every_n_layers.unwrap_or(OLMO3_FULL_LAYER_INTERVAL);
                const FIELD: &str = "global_attn_every_n_layers";
                Refusal::unless_within(FIELD, interval, 1, u32::MAX as usize)?;
                all_but_every(interval, self.num_hidden_layers)
            }
            (Family::Flint, None) => {
                let sees_all = |idx: usize| idx < 2 || idx % 4 == 1 || idx + 1 == layers;
                (0..layers).map(|idx| !sees_all(idx)).collect()
            }
            (Family::Mellum | Family::CohereCompass, None) => vec![false; layers],
            (Family::Olmo3, None) => {
                all_but_every(OLMO3_FULL_LAYER_INTERVAL, self.num_hidden_layers)
            }
            (Family::Dots1, None) => {
                let first = self.max_window_layers.unwrap_or(62) as usize;
                (0..layers).map(|idx| idx >= first).collect()
            }
            (Family::Lfm3, _) => self.lfm3_slides(),
            (Family::LaraMini, _) => self.lara_mini_slides(),
            (Family::Cwm | Family::GraniteSwa | Family::GraniteMoeSwa, None) => {
                (0..layers).map(|idx| !idx.is_multiple_of(4)).collect()
            }
            (family, Some(types)) if family.names_layers() => {
                Refusal::unless_within("layer_types count", types.len(), layers, layers)?;
                types.iter().map(|name| slides(name)).collect::<Result<_, _>>()?
            }
            _ => vec![true; layers],
        };
        Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
    }

    /// That of layers which have one, as each family's modelling code takes it.
    fn window(&self, family: Family) -> Option<u32> {
        let given = self.sliding_window;
        match family {
            Family::Mistral | Family::Ministral | Family::Dots1 => given.unwrap_or(Some(4096)),
            Family::Cwm => given.unwrap_or(Some(8192)).filter(|window| *window != 0),
            Family::Phi3 | Family::Mixtral | Family::StarCoder2 => given.flatten(),
            Family::Ministral3 | Family::Phimoe => given.flatten(),
            Family::Gemma2 | Family::Gemma3 | Family::Olmo3 | Family::Exaone4 => {
                given.unwrap_or(Some(4096))
            }
            Family::ExaoneMoe | Family::Cohere2 => given.unwrap_or(Some(4096)),
            Family::Cohere2Moe | Family::CohereCompass => given.unwrap_or(Some(4096)),
            Family::GptOss => given.unwrap_or(Some(128)),
            Family::GraniteSwa | Family::GraniteMoeSwa => given.unwrap_or(Some(128)),
            Family::VaultGemma => given.unwrap_or(Some(4096)),
            Family::Mellum | Family::Afmoe => given.unwrap_or(Some(1024)),
            Family::Flint => given.unwrap_or(Some(513)),
            Family::Gemma4 | Family::LaraMini => given.unwrap_or(Some(512)),
            Family::Llama4 => self.llama4_block(),
            Family::Lfm3 => given.unwrap_or(Some(256)),
            Family::Qwen2 | Family::Qwen3 | Family::Qwen2Moe | Family::Qwen3Moe => {
                given.unwrap_or(Some(4096)).filter(|_| self.use_sliding_window)
            }
            // Named layers slide whether the window is used or not.
            Family::SmolLm3 => {
                given.flatten().filter(|_| self.use_sliding_window || self.layer_types.is_some())
            }
            Family::Llama | Family::Granite | Family::Granite4 => None,
            Family::Exaone | Family::InternLm2 | Family::MiniCpm | Family::Aria => None,
            Family::GptNeo => given.unwrap_or(Some(256)),
            Family::Gpt2 | Family::GptBigCode | Family::Opt => None,
            Family::Bloom | Family::Mpt => None,
            Family::SeedOss | Family::Ernie45 | Family::Glm | Family::Glm4 | Family::Gemma => None,
            Family::GraniteMoe | Family::Glm4Moe | Family::Helium | Family::SolarOpen => None,
            Family::Olmo2 | Family::Olmoe | Family::FlexOlmo => None,
            Family::Ernie45Moe | Family::MiniMaxM2 => None,
            Family::Dbrx | Family::BitNet => None,
            Family::Cohere | Family::Olmo | Family::StableLm | Family::GptNeoX => None,
            Family::Phi | Family::Nemotron | Family::Arcee | Family::Apertus => None,
            Family::Jais2 => None,
            Family::DeepSeekV2 | Family::DeepSeekV3 | Family::AxK1 | Family::Glm4MoeLite => None,
            Family::Youtu | Family::MiniCpm3 | Family::HunYuan | Family::HunYuanMoe => None,
            Family::Falcon | Family::GptJ | Family::Mistral4 | Family::HyV3 => None,
            Family::HyperClovaX | Family::GraniteMoeShared | Family::NanoChat => None,
            Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe => None,
            Family::Lfm2 | Family::Lfm2Moe | Family::Bamba | Family::OlmoHybrid => None,
            Family::NemotronH | Family::FalconH1 => None,
        }
    }
}

impl Config {
    /// Per layer: whether it has a window, as `sliding_window_pattern` has it: all layers but one
    /// of so many, or by letters, which come again and again (`LLLG`).
    pub(super) fn patterned(&self, interval: usize) -> Result<Vec<bool>, Refusal> {
        const FIELD: &str = "sliding_window_pattern";
        let layers = self.num_hidden_layers;
        let interval = match &self.sliding_window_pattern {
            None => interval,
            Some(Pattern::Interval(interval)) => *interval,
            Some(Pattern::Letters(letters)) => {
                let is_known = |letter: char| matches!(letter, 'L' | 'G');
                if letters.is_empty() || !letters.chars().all(is_known) {
                    return Err(Refusal::new(FIELD, letters, "letters L and G, at least one"));
                }
                let slides = letters.chars().map(|letter| letter == 'L').cycle();
                return Ok(slides.take(layers as usize).collect());
            }
        };
        Refusal::unless_within(FIELD, interval, 1, u32::MAX as usize)?;
        Ok(all_but_every(interval, layers))
    }
}

/// Which layers have a window.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Pattern {
    /// All but every so manieth.
    Interval(usize),
    /// L for each that has one, G for the others.
    Letters(String),
}

impl Family {
    /// Whether files may say for each layer whether it has a window.
    fn names_layers(self) -> bool {
        let qwen = matches!(self, Self::Qwen2 | Self::Qwen3 | Self::Qwen2Moe);
        let others = matches!(self, Self::SmolLm3 | Self::Ministral | Self::Cwm | Self::GptOss);
        let gemma = matches!(self, Self::Gemma2 | Self::Gemma3);
        let exaone = matches!(self, Self::Exaone4 | Self::ExaoneMoe);
        let cohere = matches!(self, Self::Cohere2 | Self::Cohere2Moe | Self::CohereCompass);
        // Mistral's with names are Ministral's to transformers, which is the same model else.
        let more = matches!(self, Self::Mistral | Self::Dots1 | Self::Olmo3);
        let granite = matches!(self, Self::GraniteSwa | Self::GraniteMoeSwa);
        let newer = matches!(self, Self::VaultGemma | Self::Mellum | Self::Flint | Self::Afmoe);
        qwen || others
            || gemma
            || exaone
            || cohere
            || more
            || granite
            || newer
            || self == Self::GptNeo
    }
}

pub(super) fn slides(layer_type: &str) -> Result<bool, Refusal> {
    match layer_type {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        name => Err(Refusal::new("layer_types", name, "full_attention or sliding_attention")),
    }
}
