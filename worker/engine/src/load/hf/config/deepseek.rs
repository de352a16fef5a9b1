//! DeepSeek's experts in config.json, which GLM 4.7 Flash has too.

use aqueduct_core::Refusal;
use aqueduct_kernels::experts::{Groups, Scoring};
use serde::Deserialize;
use serde_json::Value;

use super::Config;
use crate::load::decoder::{Family, ManyExperts};

/// The fields that others have not.
#[derive(Deserialize)]
pub(super) struct DeepSeekFields {
    topk_group: Option<usize>,
    topk_method: Option<String>,
    scoring_func: Option<String>,
    moe_layer_freq: Option<Value>,
}

impl Config {
    /// What the family's modelling code makes of the fields.
    pub(super) fn deepseek_experts(
        &self,
        family: Family,
        usual: ManyExperts,
    ) -> Result<ManyExperts, Refusal> {
        // V2's files say how many a token goes through.
        let (count, chosen, ffn, shared, dense) = match family {
            Family::DeepSeekV2 => (64, 0, 1407, 2, 0),
            Family::DeepSeekV3 => (256, 8, 2048, 1, 3),
            Family::AxK1 => (192, 8, 2048, 1, 1),
            Family::Mistral4 => (128, 4, 2048, 1, 0),
            _ => (64, 4, 1536, 1, 1),
        };
        let is_second = family == Family::DeepSeekV2;
        let is_softmax = is_second || family == Family::Mistral4;
        let scale = match family {
            Family::DeepSeekV2 | Family::Mistral4 => 1.0,
            Family::DeepSeekV3 | Family::AxK1 => 2.5,
            _ => 1.8,
        };
        let ffn = self.moe_intermediate_size.unwrap_or(ffn);
        let shared = self.n_shared_experts.unwrap_or(shared).saturating_mul(ffn);
        Ok(ManyExperts {
            count: self.n_routed_experts.or(self.num_local_experts).unwrap_or(count),
            chosen: self.num_experts_per_tok.unwrap_or(chosen),
            ffn,
            shared_ffn: Some(shared).filter(|&shared| shared > 0),
            scoring: if is_softmax { Scoring::Softmax } else { Scoring::Sigmoid },
            bias: !is_softmax,
            normalises: !is_second && self.norm_topk_prob.unwrap_or(true),
            scale: self.routed_scaling_factor.unwrap_or(scale),
            layers: match family {
                Family::Glm4MoeLite | Family::AxK1 => self.sparse_named(dense)?,
                _ => {
                    let dense = self.first_k_dense_replace.unwrap_or(dense);
                    (0..usual.layers.len()).map(|idx| idx >= dense).collect()
                }
            },
            ..usual
        })
    }

    /// Groups of which a token may go to a few alone.
    pub(super) fn expert_groups(
        &self,
        family: Family,
        experts: Option<&ManyExperts>,
    ) -> Result<Option<Groups>, Refusal> {
        let Some(experts) = experts else { return Ok(None) };
        let (count, chosen, summed) = match family {
            Family::DeepSeekV2 if self.deepseek.topk_method.as_deref() == Some("greedy") => {
                return Ok(None);
            }
            Family::DeepSeekV2 if self.deepseek.topk_method.is_none() => return Ok(None),
            Family::DeepSeekV2 => (1, 1, 1),
            Family::DeepSeekV3 | Family::AxK1 => (8, 4, 2),
            Family::Glm4MoeLite | Family::Mistral4 | Family::NemotronH => (1, 1, 2),
            _ => return Ok(None),
        };
        let count = self.n_group.map_or(count, |count| count as usize);
        let chosen = self.deepseek.topk_group.unwrap_or(chosen);
        experts.grouped(Groups { count, chosen, summed })
    }

    /// DeepSeek's experts that would be chosen or weighed otherwise than here.
    pub(super) fn refuse_routing(&self, family: Family) -> Result<(), Refusal> {
        let (methods, scoring): (&[&str], _) = match family {
            Family::DeepSeekV2 => (&["greedy", "group_limited_greedy"], "softmax"),
            Family::DeepSeekV3 | Family::AxK1 | Family::Glm4MoeLite => (&["noaux_tc"], "sigmoid"),
            _ => return Ok(()),
        };
        let fields = &self.deepseek;
        if let Some(method) = fields.topk_method.as_deref().filter(|it| !methods.contains(it)) {
            return Err(Refusal::new("topk_method", method, methods.join(" or ")));
        }
        if let Some(given) = fields.scoring_func.as_deref().filter(|given| *given != scoring) {
            return Err(Refusal::new("scoring_func", given, scoring));
        }
        if let Some(every) = fields.moe_layer_freq.as_ref().filter(|every| **every != 1) {
            return Err(Refusal::new("moe_layer_freq", every, "1"));
        }
        match self.norm_topk_prob {
            // Its first code then leaves the scale out, and transformers does not do it at all.
            Some(true) if family == Family::DeepSeekV2 => {
                Err(Refusal::new("norm_topk_prob", true, "false"))
            }
            _ if family == Family::DeepSeekV2 && self.mlp_bias == Some(true) => {
                Err(Refusal::new("mlp_bias", true, "false"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::load::hf::config::tests::config;

    fn groups(family: Family, changes: Value) -> Result<Option<Groups>, Refusal> {
        let config = config(changes);
        let experts = config.experts(family)?;
        config.expert_groups(family, experts.as_ref())
    }

    #[test]
    fn groups_are_those_of_each_family() {
        let of = |count, chosen, summed| Ok(Some(Groups { count, chosen, summed }));
        assert_eq!(groups(Family::DeepSeekV3, json!({})), of(8, 4, 2));
        assert_eq!(groups(Family::AxK1, json!({})), of(8, 4, 2));
        assert_eq!(groups(Family::DeepSeekV3, json!({ "n_group": 1, "topk_group": 1 })), Ok(None));
        assert_eq!(groups(Family::Glm4MoeLite, json!({})), Ok(None));
        let second = |method: &str| {
            let groups_of = json!({
                "n_group": 8, "topk_group": 3, "topk_method": method, "num_experts_per_tok": 6,
            });
            groups(Family::DeepSeekV2, groups_of)
        };
        assert_eq!(second("group_limited_greedy"), of(8, 3, 1));
        assert_eq!(second("greedy"), Ok(None));
        // Groups of one have no best two, and a token's experts must fit into what is open.
        let check = |changes: Value, field: &str| {
            assert_eq!(groups(Family::DeepSeekV3, changes).unwrap_err().field, field);
        };
        check(json!({ "n_group": 256 }), "n_group");
        check(json!({ "n_group": 7 }), "n_group");
        check(json!({ "n_group": 64, "topk_group": 1 }), "topk_group");
        check(json!({ "topk_group": 9 }), "topk_group");
    }

    #[test]
    fn what_is_absent_is_what_transformers_takes() {
        let check = |family, changes, want: (u32, u32, u32, Option<u32>, bool, f32)| {
            let experts = config(changes).experts(family).unwrap().unwrap();
            let ManyExperts { count, chosen, ffn, shared_ffn, normalises, scale, .. } = experts;
            assert_eq!((count, chosen, ffn, shared_ffn, normalises, scale), want, "{family:?}");
        };
        let chosen = json!({ "num_experts_per_tok": 6 });
        check(Family::DeepSeekV2, chosen, (64, 6, 1407, Some(2814), false, 1.0));
        check(Family::DeepSeekV3, json!({}), (256, 8, 2048, Some(2048), true, 2.5));
        check(Family::AxK1, json!({}), (192, 8, 2048, Some(2048), true, 2.5));
        check(Family::Glm4MoeLite, json!({}), (64, 4, 1536, Some(1536), true, 1.8));
        check(Family::Mistral4, json!({}), (128, 4, 2048, Some(2048), true, 1.0));
        let mistral = config(json!({})).experts(Family::Mistral4).unwrap().unwrap();
        assert_eq!((mistral.scoring, mistral.bias), (Scoring::Softmax, false));
        assert_eq!(mistral.layers, [true; 3]);
        let layers = |family, changes| config(changes).experts(family).unwrap().unwrap().layers;
        assert_eq!(layers(Family::DeepSeekV3, json!({})), [false; 3]);
        let first = json!({ "first_k_dense_replace": 1 });
        assert_eq!(layers(Family::DeepSeekV3, first), [false, true, true]);
        assert_eq!(layers(Family::Glm4MoeLite, json!({})), [false, true, true]);
        let named = json!({ "mlp_layer_types": ["sparse", "dense", "sparse"] });
        assert_eq!(layers(Family::AxK1, named), [true, false, true]);
        assert_eq!(config(json!({})).experts(Family::Youtu), Ok(None));
    }

    #[test]
    fn other_ways_to_choose_are_refused() {
        let check = |family, changes: Value, field: Option<&str>| {
            let refused = config(changes).refuse_variants(family).err();
            assert_eq!(refused.as_ref().map(|it| it.field.as_str()), field, "{family:?}");
        };
        for (family, method, scoring) in [
            (Family::DeepSeekV2, "group_limited_greedy", "softmax"),
            (Family::DeepSeekV3, "noaux_tc", "sigmoid"),
        ] {
            check(family, json!({}), None);
            let said =
                json!({ "topk_method": method, "scoring_func": scoring, "moe_layer_freq": 1 });
            check(family, said, None);
            check(family, json!({ "topk_method": "hash" }), Some("topk_method"));
            check(family, json!({ "scoring_func": "tanh" }), Some("scoring_func"));
            check(family, json!({ "moe_layer_freq": 2 }), Some("moe_layer_freq"));
        }
        check(Family::DeepSeekV2, json!({ "norm_topk_prob": true }), Some("norm_topk_prob"));
        check(Family::DeepSeekV2, json!({ "mlp_bias": true }), Some("mlp_bias"));
        check(Family::DeepSeekV3, json!({ "norm_topk_prob": true }), None);
        check(Family::Youtu, json!({ "topk_method": "hash" }), None);
    }
}
