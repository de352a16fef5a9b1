//! What transformers' configurations of a family take where a file does not say.

use crate::load::decoder::Family;
use crate::load::hf::rope::RopeDefaults;

impl Family {
    pub(super) fn rope(self) -> RopeDefaults {
        RopeDefaults {
            theta: match self {
                Self::SmolLm3 => 2e6,
                Self::Ernie45 | Self::Ernie45Moe | Self::Olmo3 | Self::FlexOlmo => 5e5,
                Self::Cohere => 5e5,
                Self::MiniMaxM2 => 5e6,
                Self::GptOss => 1.5e5,
                Self::Gemma3 | Self::Mixtral | Self::Cwm | Self::SolarOpen => 1e6,
                Self::Helium => 1e5,
                _ => 1e4,
            },
            partial: match self {
                Self::Glm | Self::Glm4 | Self::Glm4Moe => Some(0.5),
                Self::Phi3 | Self::MiniMaxM2 => Some(1.0),
                Self::StableLm => Some(0.25),
                _ => None,
            },
            original_positions: (self == Self::Phi3).then_some(4096.0),
            only_longrope: self == Self::Phi3,
            positions_scaled: matches!(self, Self::Gemma3 | Self::GptOss),
        }
    }

    /// `None`: as many as there are query heads.
    pub(super) fn kv_heads(self) -> Option<u32> {
        match self {
            Self::Llama | Self::Phi3 | Self::Granite | Self::Granite4 | Self::GraniteMoe => None,
            Self::Olmo2 | Self::Olmo3 | Self::Olmoe | Self::FlexOlmo => None,
            Self::Cohere | Self::Cohere2 | Self::Olmo => None,
            Self::Ernie45 | Self::Glm | Self::Glm4 => Some(2),
            Self::SmolLm3 | Self::Gemma2 | Self::Gemma3 => Some(4),
            Self::Qwen3Moe | Self::Ernie45Moe => Some(4),
            Self::Mistral | Self::SeedOss | Self::Mixtral | Self::Glm4Moe => Some(8),
            Self::Ministral | Self::Cwm | Self::SolarOpen | Self::MiniMaxM2 => Some(8),
            Self::GptOss => Some(8),
            Self::Helium => Some(20),
            Self::Gemma | Self::Qwen2Moe => Some(16),
            Self::Qwen2 | Self::Qwen3 | Self::Dots1 | Self::Exaone4 => Some(32),
            Self::ExaoneMoe | Self::StableLm => Some(32),
        }
    }

    /// `None`: the width divided among the query heads.
    pub(super) fn head_dim(self) -> Option<u32> {
        match self {
            Self::Qwen3 | Self::SeedOss | Self::Ernie45 | Self::Glm | Self::Glm4 => Some(128),
            Self::Cwm | Self::Helium | Self::SolarOpen | Self::MiniMaxM2 => Some(128),
            Self::Gemma | Self::Gemma2 | Self::Gemma3 => Some(256),
            Self::GptOss => Some(64),
            _ => None,
        }
    }

    pub(super) fn norm_eps(self) -> f32 {
        match self {
            Self::Phi3 | Self::Ernie45 | Self::Mixtral | Self::Glm4Moe => 1e-5,
            Self::Cwm | Self::SolarOpen | Self::Olmo2 | Self::Olmo3 | Self::Olmoe => 1e-5,
            Self::Exaone4 | Self::ExaoneMoe | Self::Ernie45Moe | Self::GptOss => 1e-5,
            Self::Cohere | Self::Cohere2 | Self::Olmo | Self::StableLm => 1e-5,
            Self::Helium => 1e-8,
            Self::Glm | Self::Glm4 => 1.5625e-7,
            _ => 1e-6,
        }
    }

    pub(super) fn is_tied(self) -> bool {
        let ernie = matches!(self, Self::Ernie45 | Self::Ernie45Moe);
        let gemma = matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3);
        let cohere = matches!(self, Self::Cohere | Self::Cohere2);
        ernie || gemma || cohere || self == Self::SmolLm3
    }
}
