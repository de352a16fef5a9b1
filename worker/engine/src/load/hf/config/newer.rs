//! Families of 2025 and 2026 whose layers have parts that others brought.

use aqueduct_core::Refusal;
use aqueduct_kernels::experts::Scoring;
use serde::Deserialize;
use serde_json::{Value, json};

use super::families::Tabled;
use super::{Config, cohere_compass, cohere2_moe, inside};
use crate::load::decoder::{Family, ManyExperts};
use crate::load::hf::rope::RopeFields;

/// The fields that others have not.
#[derive(Deserialize)]
pub(super) struct NewerFields {
    /// HyperCLOVA X: RMS norms behind a layer's parts.
    use_post_norm: Option<bool>,
    /// Granite with windows: each layer's base; 0 where a layer does not turn.
    layer_rope_theta: Option<Vec<f64>>,
    /// Trinity: one layer of so many sees everything.
    pub(super) global_attn_every_n_layers: Option<usize>,
    /// Trinity: its embedding is multiplied by the root of the width.
    pub(super) mup_enabled: Option<bool>,
    /// What the weights of Trinity's experts are multiplied by.
    route_scale: Option<f32>,
    /// The same of Hy 3.
    router_scaling_factor: Option<f32>,
    score_func: Option<String>,
    route_norm: Option<bool>,
    /// Apertus 1.5: for so many of the first tokens there are logits.
    output_vocab_size: Option<u32>,
    /// Command A+: of dense layers.
    pub(super) prefix_dense_intermediate_size: Option<u32>,
    pub(super) prefix_dense_sliding_window_pattern: Option<usize>,
    pub(super) shared_expert_combination_strategy: Option<String>,
    pub(super) expert_selection_fn: Option<String>,
}

pub(super) const NANOCHAT: &str = "NanoChatForCausalLM";

/// Which they are.
pub(super) const FAMILIES: [Tabled; 11] = [
    ("nanochat", NANOCHAT, Family::NanoChat),
    ("vaultgemma", "VaultGemmaForCausalLM", Family::VaultGemma),
    ("hyperclovax", "HyperCLOVAXForCausalLM", Family::HyperClovaX),
    ("granitemoeshared", "GraniteMoeSharedForCausalLM", Family::GraniteMoeShared),
    ("granite_swa", "GraniteSWAForCausalLM", Family::GraniteSwa),
    ("granitemoe_swa", "GraniteMoeSWAForCausalLM", Family::GraniteMoeSwa),
    ("mellum", "MellumForCausalLM", Family::Mellum),
    ("flint", "FlintForCausalLM", Family::Flint),
    ("afmoe", "AfmoeForCausalLM", Family::Afmoe),
    ("hy_v3", "HYV3ForCausalLM", Family::HyV3),
    ("cohere2_moe", cohere2_moe::COHERE2_MOE, Family::Cohere2Moe),
];

/// What transformers takes for fields that are absent, where it is not the family's.
pub(super) fn defaults(architecture: &str) -> Value {
    match architecture {
        cohere2_moe::COHERE2_MOE | cohere_compass::TEXT | cohere_compass::WHOLE => json!({
            "vocab_size": 256_000, "hidden_size": 8192, "intermediate_size": 22_528,
            "num_hidden_layers": 40, "num_attention_heads": 64, "max_position_embeddings": 8192,
        }),
        inside::APERTUS15 | inside::APERTUS15_TEXT => json!({
            "vocab_size": 266_752, "hidden_size": 4096, "intermediate_size": 14_336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 65_536,
        }),
        inside::LARA_MINI => json!({
            "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 1, // of no layer
            "num_hidden_layers": 34, "num_attention_heads": 16,
            "max_position_embeddings": 131_072,
        }),
        NANOCHAT => json!({
            "vocab_size": 50_304, "hidden_size": 768, "intermediate_size": 8192,
            "num_hidden_layers": 12, "num_attention_heads": 6, "max_position_embeddings": 2048,
        }),
        _ => Value::Null,
    }
}

/// What experts share in Granite 4.
const GRANITE4_SHARED: u32 = 1024;

impl Family {
    /// Whose files say by what its numbers are multiplied, as Granite's first did.
    pub(super) fn is_granite(self) -> bool {
        let plain = matches!(self, Self::Granite | Self::Granite4 | Self::GraniteSwa);
        plain || matches!(self, Self::GraniteMoe | Self::GraniteMoeShared | Self::GraniteMoeSwa)
    }
}

impl Config {
    pub(super) fn granite4_shared(&self) -> u32 {
        self.shared_intermediate_size.unwrap_or(GRANITE4_SHARED)
    }

    /// Each layer's base, where a file has them.
    fn layer_thetas(&self) -> Result<Option<&[f64]>, Refusal> {
        let Some(thetas) = self.newer.layer_rope_theta.as_deref() else { return Ok(None) };
        let layers = self.num_hidden_layers as usize;
        Refusal::unless_within("layer_rope_theta count", thetas.len(), layers, layers)?;
        Ok(Some(thetas))
    }

    /// Per layer of a Granite with windows: whether it rotates.
    pub(super) fn turning_layers(&self) -> Result<Vec<bool>, Refusal> {
        Ok(match self.layer_thetas()? {
            Some(thetas) => thetas.iter().map(|&theta| theta != 0.0).collect(),
            None => vec![true; self.num_hidden_layers as usize],
        })
    }

    /// What says how layers that see everything turn, and those with a window.
    pub(super) fn granite_ropes(&self, family: Family) -> Result<[RopeFields; 2], Refusal> {
        let usual = || self.rope.clone();
        let Some(thetas) = self.layer_thetas()? else { return Ok([usual(), usual()]) };
        let windows = self.windows(family, &[])?;
        let of = |slides: bool| {
            let turning = |(&theta, window): (&f64, &Option<u32>)| {
                (window.is_some() == slides && theta != 0.0).then_some(theta)
            };
            let mut all = thetas.iter().zip(&windows).filter_map(turning);
            let Some(first) = all.next() else { return Ok(usual()) };
            match all.find(|&theta| theta != first) {
                Some(other) => {
                    let bound = format!("{first}, as in the first such layer, or 0");
                    Err(Refusal::new("layer_rope_theta", other, bound))
                }
                None => Ok(usual().with_theta(first)),
            }
        };
        Ok([of(false)?, of(true)?])
    }

    pub(super) fn mellum_experts(&self, usual: ManyExperts) -> Result<ManyExperts, Refusal> {
        Ok(ManyExperts {
            count: self.expert_count(64),
            chosen: self.num_experts_per_tok.unwrap_or(8),
            ffn: self.moe_intermediate_size.unwrap_or(896),
            normalises: self.norm_topk_prob.unwrap_or(true),
            layers: self.sparse_named(0)?,
            ..usual
        })
    }

    pub(super) fn flint_experts(&self, usual: ManyExperts) -> Result<ManyExperts, Refusal> {
        let dense = self.mlp_only_layers.as_deref().unwrap_or(&[0, 1]);
        let has = |idx: usize| !dense.contains(&idx);
        Ok(ManyExperts {
            count: self.expert_count(256),
            chosen: self.num_experts_per_tok.unwrap_or(6),
            ffn: self.moe_intermediate_size.unwrap_or(512),
            shared_ffn: Some(self.shared_expert_intermediate_size.unwrap_or(1024)),
            scoring: Scoring::Sigmoid,
            normalises: self.norm_topk_prob.unwrap_or(true),
            layers: (0..usual.layers.len()).map(has).collect(),
            ..usual
        })
    }

    /// Hy 3's and Trinity's.
    pub(super) fn newer_experts(
        &self,
        family: Family,
        usual: ManyExperts,
    ) -> Result<ManyExperts, Refusal> {
        let newer = &self.newer;
        let ((count, chosen, ffn, shared), scale, layers) = match family {
            Family::HyV3 => {
                let scale = newer.router_scaling_factor.unwrap_or(2.826);
                ((192, 8, 1536, 1), scale, self.sparse_named(1)?)
            }
            _ => {
                let dense = self.num_dense_layers.unwrap_or(1);
                let layers = (0..usual.layers.len()).map(|idx| idx >= dense).collect();
                ((64, 6, 1408, 2), newer.route_scale.unwrap_or(1.0), layers)
            }
        };
        let ffn = self.moe_intermediate_size.unwrap_or(ffn);
        let shared = self.num_shared_experts.unwrap_or(shared).saturating_mul(ffn);
        Ok(ManyExperts {
            count: self.expert_count(count),
            chosen: self.num_experts_per_tok.unwrap_or(chosen),
            ffn,
            shared_ffn: Some(shared).filter(|&shared| shared > 0),
            scoring: Scoring::Sigmoid,
            bias: true,
            scale,
            layers,
            ..usual
        })
    }

    /// For how many tokens there are logits, if not for all.
    pub(super) fn head_rows(&self, family: Family) -> Result<Option<u32>, Refusal> {
        const FIELD: &str = "output_vocab_size";
        let given = self.newer.output_vocab_size.filter(|_| family == Family::Apertus);
        let Some(rows) = given else { return Ok(None) };
        let rows = Refusal::unless_within(FIELD, rows, 1, self.vocab_size)?;
        if self.tie_word_embeddings == Some(true) && rows < self.vocab_size {
            return Err(Refusal::new(FIELD, rows, "vocab_size, where the head is the embedding"));
        }
        Ok(Some(rows).filter(|&rows| rows < self.vocab_size))
    }

    /// What would load and give wrong answers.
    pub(super) fn refuse_newer(&self, family: Family) -> Result<(), Refusal> {
        let newer = &self.newer;
        if family == Family::HyperClovaX && newer.use_post_norm == Some(false) {
            return Err(Refusal::new("use_post_norm", false, "true"));
        }
        if family != Family::Afmoe {
            return Ok(());
        }
        if let Some(name) = newer.score_func.as_deref().filter(|name| *name != "sigmoid") {
            return Err(Refusal::new("score_func", name, "sigmoid"));
        }
        if newer.route_norm == Some(false) {
            return Err(Refusal::new("route_norm", false, "true"));
        }
        Refusal::unless_within("n_group", self.n_group.unwrap_or(1), 1, 1)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::hf::config::tests::config;
    use crate::rope::Rope;

    #[test]
    fn layers_of_granite_turn_by_bases_of_their_own() {
        let of = |thetas: Value| {
            let types = json!(["full_attention", "sliding_attention", "sliding_attention"]);
            config(json!({ "layer_rope_theta": thetas, "layer_types": types, "rope_theta": 7.0 }))
        };
        let check = |thetas: Value, rotates: [bool; 3], want: [f64; 2]| {
            let config = of(thetas);
            assert_eq!(config.rotates(Family::GraniteSwa).unwrap(), rotates);
            let shape = config.shape(Family::GraniteSwa).unwrap();
            let Ok((full, local)) = config.ropes(Family::GraniteSwa, &shape) else {
                panic!("no rotation")
            };
            assert_eq!([full.rope, local.unwrap()], want.map(|theta| Rope::unscaled(theta, 8)));
        };
        check(Value::Null, [true; 3], [7.0; 2]);
        check(json!([100, 200.0, 200]), [true; 3], [100.0, 200.0]);
        check(json!([0, 0, 200]), [false, false, true], [7.0, 200.0]);
        let refusal = |thetas| of(thetas).granite_ropes(Family::GraniteSwa).err().unwrap();
        assert_eq!(refusal(json!([100, 200, 300])).field, "layer_rope_theta");
        assert_eq!(refusal(json!([100, 200])).field, "layer_rope_theta count");
    }

    #[test]
    fn windows_are_those_of_each_family() {
        let check = |family, changes: Value, want: &[bool]| {
            let mut fields = json!({ "num_hidden_layers": 6, "sliding_window": 9 });
            fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let windows = config(fields).windows(family, &[]).unwrap();
            let slides: Vec<_> = windows.iter().map(Option::is_some).collect();
            assert_eq!(slides, want, "{family:?}");
        };
        let (no, yes) = (false, true);
        check(Family::VaultGemma, json!({}), &[yes, no, yes, no, yes, no]);
        check(Family::GraniteSwa, json!({}), &[no, yes, yes, yes, no, yes]);
        check(Family::GraniteMoeSwa, json!({}), &[no, yes, yes, yes, no, yes]);
        check(Family::Mellum, json!({}), &[no; 6]);
        check(Family::Flint, json!({}), &[no, no, yes, yes, yes, no]);
        check(Family::Afmoe, json!({}), &[yes, yes, yes, no, yes, yes]);
        let third = json!({ "global_attn_every_n_layers": 3 });
        check(Family::Afmoe, third, &[yes, yes, no, yes, yes, no]);
        let none = config(json!({ "global_attn_every_n_layers": 0 }));
        let refusal = none.windows(Family::Afmoe, &[]).unwrap_err();
        assert_eq!(refusal.field, "global_attn_every_n_layers");
    }

    #[test]
    fn what_is_absent_is_what_transformers_takes() {
        let check = |family, want: (u32, u32, u32, Option<u32>, f32, [bool; 3])| {
            let experts = config(json!({})).experts(family).unwrap().unwrap();
            let ManyExperts { count, chosen, ffn, shared_ffn, scale, layers, .. } = experts;
            let layers: [bool; 3] = layers.try_into().unwrap();
            assert_eq!((count, chosen, ffn, shared_ffn, scale, layers), want, "{family:?}");
        };
        let behind = [false, true, true];
        check(Family::GraniteMoeShared, (8, 2, 48, None, 1.0, [true; 3]));
        check(Family::GraniteMoeSwa, (8, 2, 48, None, 1.0, [true; 3]));
        check(Family::Mellum, (64, 8, 896, None, 1.0, [true; 3]));
        check(Family::Flint, (256, 6, 512, Some(1024), 1.0, [false, false, true]));
        check(Family::HyV3, (192, 8, 1536, Some(1536), 2.826, behind));
        check(Family::Afmoe, (64, 6, 1408, Some(2816), 1.0, behind));
    }

    #[test]
    fn other_models_of_these_families_are_refused() {
        let check = |family, changes: Value, field: Option<&str>| {
            let refused = config(changes).refuse(family).err();
            assert_eq!(refused.as_ref().map(|refusal| refusal.field.as_str()), field);
        };
        check(Family::HyperClovaX, json!({ "use_post_norm": true }), None);
        check(Family::HyperClovaX, json!({ "use_post_norm": false }), Some("use_post_norm"));
        let usual = json!({ "score_func": "sigmoid", "route_norm": true, "n_group": 1 });
        check(Family::Afmoe, usual, None);
        check(Family::Afmoe, json!({ "score_func": "softmax" }), Some("score_func"));
        check(Family::Afmoe, json!({ "route_norm": false }), Some("route_norm"));
        check(Family::Afmoe, json!({ "n_group": 2 }), Some("n_group"));
    }

    #[test]
    fn nanochat_turns_the_other_way_round() {
        let config = config(json!({ "rope_theta": 100.0 }));
        let shape = config.shape(Family::NanoChat).unwrap();
        let Ok((found, None)) = config.ropes(Family::NanoChat, &shape) else {
            panic!("no rotation")
        };
        let usual = Rope::unscaled(100.0, 8).inv_freq;
        assert_eq!(found.rope.inv_freq, usual.iter().map(|freq| -freq).collect::<Vec<_>>());
        assert!(config.unit_norms(Family::NanoChat));
        assert_eq!(config.softcaps(Family::NanoChat).unwrap().tokens, Some(15.0));
    }

    #[test]
    fn apertus_has_logits_of_some_tokens() {
        let of = |changes: Value| {
            config(changes).head_rows(Family::Apertus).map_err(|refusal| refusal.field)
        };
        assert_eq!(of(json!({})), Ok(None));
        assert_eq!(of(json!({ "output_vocab_size": 32 })), Ok(None));
        assert_eq!(of(json!({ "output_vocab_size": 20 })), Ok(Some(20)));
        let field = Err("output_vocab_size".to_owned());
        assert_eq!(of(json!({ "output_vocab_size": 33 })), field);
        assert_eq!(of(json!({ "output_vocab_size": 0 })), field);
        let tied = json!({ "output_vocab_size": 20, "tie_word_embeddings": true });
        assert_eq!(of(tied), field);
    }

    #[test]
    fn hyperclova_multiplies_its_logits() {
        let config = config(json!({ "logits_scaling": 0.5 }));
        let of = |family| config.scales(family, &config.shape(family).unwrap(), 1.0).unwrap();
        assert_eq!(of(Family::HyperClovaX).logits, 2.0);
        assert_eq!(of(Family::Granite).logits, 0.5);
        let [clova, granite] = [Family::HyperClovaX, Family::Granite].map(|it| of(it).attention);
        assert_eq!([clova, granite], [1.0 / 8f32.sqrt(), 1.0]);
    }
}
