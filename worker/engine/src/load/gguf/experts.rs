//! Experts in GGUF metadata.

use aqueduct_core::{ModelShape, Refusal};
use aqueduct_gguf::{Field, GgufError};
use aqueduct_kernels::experts::Scoring;

use super::config::{Architecture, Config, Keys};
use crate::error::LoadError;
use crate::load::decoder::ManyExperts;

/// What `expert_gating_func` calls the softmax.
const SOFTMAX: u32 = 1;
/// The same of the sigmoid, which is GLM's where nothing is said.
const SIGMOID: u32 = 2;
const ARCHITECTURES: &str = "none, but in llama, qwen2moe, qwen3moe, granitemoe, glm4moe and olmoe";

impl Config<'_, '_> {
    /// `None` where there are no experts.
    pub(super) fn experts(
        &self,
        architecture: Architecture,
        keys: &Keys<'_, '_>,
        shape: &ModelShape,
    ) -> Result<Option<ManyExperts>, LoadError> {
        let experts = self.read_experts(architecture, keys, shape);
        let Some(experts) = experts.map_err(|err| self.malformed(err))? else { return Ok(None) };
        let has_any = matches!(
            architecture,
            Architecture::Llama
                | Architecture::Qwen2Moe
                | Architecture::Qwen3Moe
                | Architecture::GraniteMoe
                | Architecture::Glm4Moe
                | Architecture::Olmoe
        );
        if !has_any {
            let name = format!("{} of them", experts.count);
            return Err(self.unsupported("experts", &name, ARCHITECTURES));
        }
        let refused = |refusal| LoadError::refused(self.path, refusal);
        let groups =
            keys.get("expert_group_count", Field::u32).map_err(|err| self.malformed(err))?;
        Refusal::unless_within("expert_group_count", groups.unwrap_or(1), 0, 1).map_err(refused)?;
        let gating =
            keys.get("expert_gating_func", Field::u32).map_err(|err| self.malformed(err))?;
        Refusal::unless_within("expert_gating_func", gating.unwrap_or(0), 0, SIGMOID)
            .map_err(refused)?;
        experts.checked().map(Some).map_err(refused)
    }

    fn read_experts(
        &self,
        architecture: Architecture,
        keys: &Keys<'_, '_>,
        shape: &ModelShape,
    ) -> Result<Option<ManyExperts>, GgufError> {
        let number = |key: &str| keys.get(key, Field::u32);
        let count = number("expert_count")?.unwrap_or(0);
        if count == 0 {
            return Ok(None);
        }
        let chosen = number("expert_used_count")?.unwrap_or(0);
        let is_glm = architecture == Architecture::Glm4Moe;
        let ffn = match architecture {
            Architecture::Qwen2Moe | Architecture::Qwen3Moe | Architecture::Glm4Moe => {
                let each = shape.ffn / chosen.max(1);
                number("expert_feed_forward_length")?.unwrap_or(each)
            }
            _ => shape.ffn,
        };
        let shared = number("expert_shared_feed_forward_length")?.filter(|&shared| shared > 0);
        let shared_ffn = match architecture {
            Architecture::Qwen2Moe => Some(shared.unwrap_or(shape.ffn)),
            Architecture::GraniteMoe => shared,
            Architecture::Glm4Moe => {
                let count = number("expert_shared_count")?.unwrap_or(1);
                Some(count.saturating_mul(ffn)).filter(|&shared| shared > 0)
            }
            _ => None,
        };
        let normalises = keys.get("expert_weights_norm", Field::bool)?;
        let scale = keys.get("expert_weights_scale", Field::f32)?.filter(|&scale| scale != 0.0);
        let sigmoid = number("expert_gating_func")? != Some(SOFTMAX);
        let dense = number("leading_dense_block_count")?.unwrap_or(0) as usize;
        Ok(Some(ManyExperts {
            count,
            chosen,
            ffn,
            shared_ffn,
            shared_gate: architecture == Architecture::Qwen2Moe,
            scoring: if is_glm && sigmoid { Scoring::Sigmoid } else { Scoring::Softmax },
            bias: is_glm,
            normalises: match architecture {
                Architecture::Qwen2Moe | Architecture::Olmoe => false,
                Architecture::Glm4Moe => normalises.unwrap_or(true),
                _ => true,
            },
            scale: if is_glm { scale.unwrap_or(1.0) } else { 1.0 },
            layers: (0..shape.layers as usize).map(|idx| !is_glm || idx >= dense).collect(),
        }))
    }
}
