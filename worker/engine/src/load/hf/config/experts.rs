//! Experts in config.json.

use aqueduct_core::Refusal;
use aqueduct_kernels::experts::Scoring;

use super::Config;
use crate::load::decoder::{Family, ManyExperts};

impl Config {
    /// What the family's modelling code makes of the fields; `None` where there are no experts.
    pub(super) fn experts(&self, family: Family) -> Result<Option<ManyExperts>, Refusal> {
        let layers = self.num_hidden_layers as usize;
        let usual = ManyExperts {
            count: self.num_local_experts.unwrap_or(8),
            chosen: self.num_experts_per_tok.unwrap_or(2),
            ffn: self.intermediate_size,
            shared_ffn: None,
            shared_gate: false,
            scoring: Scoring::Softmax,
            bias: false,
            normalises: true,
            scale: 1.0,
            layers: vec![true; layers],
        };
        let experts = match family {
            Family::Mixtral | Family::GraniteMoe => usual,
            Family::Olmoe | Family::FlexOlmo | Family::HunYuanMoe => {
                self.plain_experts(family, usual)
            }
            Family::Phimoe => self.phimoe_experts(usual),
            Family::Dbrx => {
                ManyExperts { normalises: self.norm_topk_prob.unwrap_or(true), ..usual }
            }
            Family::Aria => self.aria_experts(usual),
            Family::Granite4 if self.num_local_experts == Some(0) => return Ok(None),
            Family::Granite4 => ManyExperts { shared_ffn: Some(self.granite4_shared()), ..usual },
            Family::GraniteMoeShared | Family::GraniteMoeSwa => {
                let shared = self.shared_intermediate_size.filter(|&shared| shared > 0);
                ManyExperts { shared_ffn: shared, ..usual }
            }
            Family::Mellum => self.mellum_experts(usual)?,
            Family::Cohere2Moe => self.cohere2_moe_experts(usual)?,
            Family::Flint => self.flint_experts(usual)?,
            Family::HyV3 | Family::Afmoe => self.newer_experts(family, usual)?,
            Family::Qwen2Moe | Family::Qwen3Moe | Family::Qwen3Next | Family::Qwen35Moe => {
                if self.expert_count(1) == 0 {
                    return Ok(None);
                }
                self.qwen_experts(family, usual)?
            }
            Family::LaraMini => self.lara_mini_experts(usual),
            Family::Lfm2Moe => self.lfm2_experts(usual),
            Family::NemotronH => match self.nemotron_h_experts(usual)? {
                Some(experts) => experts,
                None => return Ok(None),
            },
            Family::Glm4Moe | Family::Dots1 | Family::SolarOpen => {
                self.biased_experts(family, usual)?
            }
            Family::DeepSeekV2 | Family::DeepSeekV3 | Family::Glm4MoeLite => {
                self.deepseek_experts(family, usual)?
            }
            Family::AxK1 | Family::Mistral4 => self.deepseek_experts(family, usual)?,
            Family::ExaoneMoe => self.exaone_experts(usual)?,
            Family::Llama4 => self.llama4_experts(usual)?,
            Family::Ernie45Moe => self.ernie_experts(usual)?,
            Family::GptOss => ManyExperts {
                count: self.num_local_experts.or(self.num_experts).unwrap_or(128),
                chosen: self.num_experts_per_tok.unwrap_or(4),
                ..usual
            },
            Family::Gemma4 => match self.gemma4_experts(usual)? {
                Some(experts) => experts,
                None => return Ok(None),
            },
            Family::MiniMaxM2 => self.minimax_experts(usual),
            _ => return Ok(None),
        };
        experts.checked().map(Some)
    }

    /// How many there are, where families call it as most do.
    pub(super) fn expert_count(&self, usual: u32) -> u32 {
        self.num_experts.or(self.num_local_experts).unwrap_or(usual)
    }

    fn qwen_experts(&self, family: Family, usual: ManyExperts) -> Result<ManyExperts, Refusal> {
        let (count, chosen, ffn, shared) = match family {
            Family::Qwen2Moe => (60, 4, 1408, Some(5632)),
            Family::Qwen3Moe => (128, 8, 768, None),
            Family::Qwen3Next => (512, 10, 512, Some(512)),
            _ => (256, 8, 512, Some(512)),
        };
        Ok(ManyExperts {
            count: self.expert_count(count),
            chosen: self.num_experts_per_tok.unwrap_or(chosen),
            ffn: self.moe_intermediate_size.unwrap_or(ffn),
            shared_ffn: shared.map(|ffn| self.shared_expert_intermediate_size.unwrap_or(ffn)),
            shared_gate: shared.is_some(),
            normalises: match family {
                Family::Qwen35Moe => true,
                family => self.norm_topk_prob.unwrap_or(family == Family::Qwen3Next),
            },
            layers: match family {
                Family::Qwen35Moe => usual.layers.clone(),
                _ => self.sparse_layers()?,
            },
            ..usual
        })
    }

    fn aria_experts(&self, usual: ManyExperts) -> ManyExperts {
        let shared = self.moe_num_shared_experts.unwrap_or(2).saturating_mul(usual.ffn);
        ManyExperts { shared_ffn: Some(shared).filter(|&shared| shared > 0), ..usual }
    }

    fn minimax_experts(&self, usual: ManyExperts) -> ManyExperts {
        ManyExperts {
            count: self.num_local_experts.or(self.num_experts).unwrap_or(256),
            chosen: self.num_experts_per_tok.unwrap_or(8),
            scoring: Scoring::Sigmoid,
            bias: true,
            ..usual
        }
    }

    fn lara_mini_experts(&self, usual: ManyExperts) -> ManyExperts {
        ManyExperts {
            count: self.expert_count(128),
            chosen: self.num_experts_per_tok.unwrap_or(4),
            ffn: self.moe_intermediate_size.unwrap_or(512),
            shared_ffn: Some(self.shared_expert_intermediate_size.unwrap_or(512)),
            normalises: self.norm_topk_prob.unwrap_or(true),
            ..usual
        }
    }

    fn lfm2_experts(&self, usual: ManyExperts) -> ManyExperts {
        let dense = self.num_dense_layers.unwrap_or(2);
        ManyExperts {
            count: self.expert_count(32),
            chosen: self.num_experts_per_tok.unwrap_or(4),
            ffn: self.moe_intermediate_size.unwrap_or(1792),
            scoring: Scoring::Sigmoid,
            bias: self.use_expert_bias.unwrap_or(true),
            normalises: self.norm_topk_prob.unwrap_or(true),
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            layers: (0..usual.layers.len()).map(|idx| idx >= dense).collect(),
            ..usual
        }
    }

    /// Those that are as wide as a feed-forward part without experts would be.
    fn plain_experts(&self, family: Family, usual: ManyExperts) -> ManyExperts {
        let (count, chosen) = match family {
            Family::Olmoe => (64, 8),
            Family::FlexOlmo => (7, 5),
            _ => (1, 1),
        };
        let is_hunyuan = family == Family::HunYuanMoe;
        ManyExperts {
            count: self.expert_count(count),
            chosen: self.num_experts_per_tok.unwrap_or(chosen),
            shared_ffn: is_hunyuan.then_some(self.intermediate_size),
            normalises: is_hunyuan || self.norm_topk_prob.unwrap_or(false),
            ..usual
        }
    }

    /// Those whose scores have a bias where experts are chosen.
    fn biased_experts(&self, family: Family, usual: ManyExperts) -> Result<ManyExperts, Refusal> {
        let layers = self.num_hidden_layers as usize;
        // Experts of which only those of the best groups are chosen are other models'.
        Refusal::unless_within("n_group", self.n_group.unwrap_or(1), 1, 1)?;
        let solar = family == Family::SolarOpen;
        // dots.llm1's files say all of it, but for two.
        let (count, chosen, shared) = if family == Family::Dots1 { (0, 0, 0) } else { (128, 8, 1) };
        let ffn = self.moe_intermediate_size.unwrap_or(if solar { 1280 } else { 1408 });
        let shared = self.n_shared_experts.unwrap_or(shared).checked_mul(ffn);
        let dense = match family {
            Family::Glm4Moe => self.first_k_dense_replace.unwrap_or(1),
            Family::Dots1 => self.first_k_dense_replace.unwrap_or(0),
            _ => 0,
        };
        Ok(ManyExperts {
            count: self.n_routed_experts.or(self.num_local_experts).unwrap_or(count),
            chosen: self.num_experts_per_tok.unwrap_or(chosen),
            ffn,
            shared_ffn: Some(shared.unwrap_or(u32::MAX)),
            scoring: Scoring::Sigmoid,
            bias: true,
            normalises: self.norm_topk_prob.unwrap_or(family != Family::Dots1),
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            layers: (0..layers).map(|idx| idx >= dense).collect(),
            ..usual
        })
    }

    fn exaone_experts(&self, usual: ManyExperts) -> Result<ManyExperts, Refusal> {
        Refusal::unless_within("n_group", self.n_group.unwrap_or(1), 1, 1)?;
        let ffn = self.moe_intermediate_size.unwrap_or(1024);
        let shared = self.num_shared_experts.unwrap_or(1).saturating_mul(ffn);
        Ok(ManyExperts {
            count: self.expert_count(64),
            chosen: self.num_experts_per_tok.unwrap_or(8),
            ffn,
            shared_ffn: Some(shared),
            scoring: Scoring::Sigmoid,
            bias: true,
            normalises: self.norm_topk_prob.unwrap_or(true),
            scale: self.routed_scaling_factor.unwrap_or(2.5),
            layers: self.sparse_named(1)?,
            ..usual
        })
    }

    /// Which layers have experts, by their names; else all but the first, so many unless the file
    /// says how many.
    pub(super) fn sparse_named(&self, dense: usize) -> Result<Vec<bool>, Refusal> {
        let count = self.num_hidden_layers as usize;
        let Some(types) = &self.mlp_layer_types else {
            let dense = self.first_k_dense_replace.unwrap_or(dense);
            return Ok((0..count).map(|idx| idx >= dense).collect());
        };
        Refusal::unless_within("mlp_layer_types count", types.len(), count, count)?;
        let has = |name: &String| match name.as_str() {
            "sparse" => Ok(true),
            "dense" => Ok(false),
            name => Err(Refusal::new("mlp_layer_types", name, "sparse or dense")),
        };
        types.iter().map(has).collect()
    }

    fn ernie_experts(&self, usual: ManyExperts) -> Result<ManyExperts, Refusal> {
        let ffn = self.moe_intermediate_size.unwrap_or(1536);
        let shared = self.moe_num_shared_experts.unwrap_or(2).saturating_mul(ffn);
        let interval = self.moe_layer_interval.unwrap_or(1);
        Refusal::unless_within("moe_layer_interval", interval, 1, u32::MAX as usize)?;
        let first = self.moe_layer_start_index.unwrap_or(1);
        // -1 is the last one.
        let last = self.moe_layer_end_index.and_then(|idx| usize::try_from(idx).ok());
        let last = last.unwrap_or(usize::MAX);
        let has = |idx: usize| (first..=last).contains(&idx) && (idx + 1).is_multiple_of(interval);
        Ok(ManyExperts {
            count: self.moe_num_experts.or(self.num_experts).unwrap_or(64),
            chosen: self.moe_k.or(self.num_experts_per_tok).unwrap_or(6),
            ffn,
            shared_ffn: Some(shared).filter(|&shared| shared > 0),
            bias: true,
            layers: (0..usual.layers.len()).map(has).collect(),
            ..usual
        })
    }

    fn sparse_layers(&self) -> Result<Vec<bool>, Refusal> {
        let step = self.decoder_sparse_step.unwrap_or(1);
        Refusal::unless_within("decoder_sparse_step", step, 1, u32::MAX as usize)?;
        let dense = self.mlp_only_layers.as_deref().unwrap_or_default();
        let has = |idx: usize| (idx + 1).is_multiple_of(step) && !dense.contains(&idx);
        Ok((0..self.num_hidden_layers as usize).map(has).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::load::hf::config::tests::config;

    #[test]
    fn only_some_layers_have_experts() {
        let check = |family, changes: Value, want: [bool; 3]| {
            let experts = config(changes).experts(family).unwrap().unwrap();
            assert_eq!(experts.layers, want, "{family:?}");
        };
        check(Family::Mixtral, json!({}), [true; 3]);
        check(Family::Qwen3Moe, json!({}), [true; 3]);
        check(Family::Qwen3Moe, json!({ "decoder_sparse_step": 2 }), [false, true, false]);
        check(Family::Qwen2Moe, json!({ "mlp_only_layers": [0, 7] }), [false, true, true]);
        check(Family::Qwen3Next, json!({ "mlp_only_layers": [0, 7] }), [false, true, true]);
        check(Family::Qwen35Moe, json!({ "mlp_only_layers": [0, 7] }), [true; 3]);
        check(Family::Lfm2Moe, json!({}), [false, false, true]);
        check(Family::Lfm2Moe, json!({ "num_dense_layers": 1 }), [false, true, true]);
        check(Family::Glm4Moe, json!({}), [false, true, true]);
        check(Family::Glm4Moe, json!({ "first_k_dense_replace": 5 }), [false; 3]);
        check(Family::ExaoneMoe, json!({}), [false, true, true]);
        let named = json!({ "mlp_layer_types": ["sparse", "dense", "sparse"] });
        check(Family::ExaoneMoe, named, [true, false, true]);
        check(Family::Ernie45Moe, json!({}), [false, true, true]);
        check(Family::Ernie45Moe, json!({ "moe_layer_interval": 2 }), [false, true, false]);
        let until = json!({ "moe_layer_start_index": 0, "moe_layer_end_index": 1 });
        check(Family::Ernie45Moe, until, [true, true, false]);
        let all = json!({ "moe_layer_start_index": 0, "moe_layer_end_index": -1 });
        check(Family::Ernie45Moe, all, [true; 3]);
        assert_eq!(config(json!({ "num_experts": 4 })).experts(Family::Llama), Ok(None));
        assert_eq!(config(json!({ "num_experts": 0 })).experts(Family::Qwen3Moe), Ok(None));
    }

    #[test]
    fn what_is_absent_is_what_transformers_takes() {
        let check = |family, want: (u32, u32, u32, Option<u32>, bool)| {
            let experts = config(json!({})).experts(family).unwrap().unwrap();
            let ManyExperts { count, chosen, ffn, shared_ffn, normalises, .. } = experts;
            assert_eq!((count, chosen, ffn, shared_ffn, normalises), want, "{family:?}");
        };
        check(Family::Mixtral, (8, 2, 48, None, true));
        check(Family::GraniteMoe, (8, 2, 48, None, true));
        check(Family::Aria, (8, 2, 48, Some(96), true));
        check(Family::Qwen2Moe, (60, 4, 1408, Some(5632), false));
        check(Family::Qwen3Moe, (128, 8, 768, None, false));
        check(Family::Qwen3Next, (512, 10, 512, Some(512), true));
        check(Family::Qwen35Moe, (256, 8, 512, Some(512), true));
        check(Family::LaraMini, (128, 4, 512, Some(512), true));
        check(Family::Lfm2Moe, (32, 4, 1792, None, true));
        check(Family::Granite4, (8, 2, 48, Some(1024), true));
        check(Family::Glm4Moe, (128, 8, 1408, Some(1408), true));
        check(Family::Olmoe, (64, 8, 48, None, false));
        check(Family::ExaoneMoe, (64, 8, 1024, Some(1024), true));
        check(Family::Ernie45Moe, (64, 6, 1536, Some(3072), true));
        check(Family::MiniMaxM2, (256, 8, 48, None, true));
        check(Family::GptOss, (128, 4, 48, None, true));
        check(Family::FlexOlmo, (7, 5, 48, None, false));
        check(Family::SolarOpen, (128, 8, 1280, Some(1280), true));
        let dots = config(json!({})).experts(Family::Dots1).unwrap_err();
        assert_eq!(dots.field, "experts", "its files say how many");
    }

    #[test]
    fn experts_that_make_no_sense_are_refused() {
        let check = |family, changes: Value, field: &str| {
            assert_eq!(config(changes).experts(family).unwrap_err().field, field);
        };
        check(Family::Mixtral, json!({ "num_local_experts": 0 }), "experts");
        check(Family::Mixtral, json!({ "num_experts_per_tok": 9 }), "experts per token");
        check(Family::Mixtral, json!({ "num_experts_per_tok": 0 }), "experts per token");
        check(Family::Qwen3Moe, json!({ "decoder_sparse_step": 0 }), "decoder_sparse_step");
        let field = "expert feed-forward size";
        check(Family::Qwen3Moe, json!({ "moe_intermediate_size": 0 }), field);
        check(Family::Glm4Moe, json!({ "n_group": 8 }), "n_group");
        check(Family::ExaoneMoe, json!({ "n_group": 8 }), "n_group");
        check(Family::ExaoneMoe, json!({ "mlp_layer_types": [] }), "mlp_layer_types count");
        let odd = json!({ "mlp_layer_types": ["sparse", "dense", "mamba"] });
        check(Family::ExaoneMoe, odd, "mlp_layer_types");
        check(Family::Ernie45Moe, json!({ "moe_layer_interval": 0 }), "moe_layer_interval");
        check(Family::Glm4Moe, json!({ "routed_scaling_factor": 0.0 }), "experts' scale");
        let most = u32::MAX;
        let shared = "shared expert feed-forward size";
        check(Family::Glm4Moe, json!({ "n_shared_experts": most }), shared);
    }
}
