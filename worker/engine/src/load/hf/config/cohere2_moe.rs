//! Command A+: Cohere 2 with experts.

use aqueduct_core::Refusal;
use aqueduct_kernels::experts::Scoring;

use super::Config;
use crate::load::decoder::{
    Family, LayerNorms, ManyExperts, OLMO3_FULL_LAYER_INTERVAL, all_but_every,
};

pub(super) const COHERE2_MOE: &str = "Cohere2MoeForCausalLM";

impl Config {
    /// What the stream's norms are, which a file of these may say.
    pub(super) fn layer_norms(&self, family: Family) -> Option<LayerNorms> {
        let are_plain = family == Family::Cohere2Moe && self.rms_norm_eps.is_some();
        family.layer_norms().filter(|_| !are_plain)
    }

    /// Rows of the gate of layers without experts.
    pub(super) fn cohere2_moe_ffn(&self) -> u32 {
        self.newer.prefix_dense_intermediate_size.unwrap_or(self.intermediate_size)
    }

    /// How many of the first layers have no experts, where the file names none.
    fn prefix(&self) -> usize {
        self.first_k_dense_replace.unwrap_or(0).min(self.num_hidden_layers as usize)
    }

    fn prefix_interval(&self) -> usize {
        self.newer.prefix_dense_sliding_window_pattern.unwrap_or(1)
    }

    /// Per layer: whether it has a window, where the file does not name them. The first layers have
    /// a pattern of their own, and with the others another one begins.
    pub(super) fn cohere2_moe_slides(&self) -> Result<Vec<bool>, Refusal> {
        const FIELD: &str = "prefix_dense_sliding_window_pattern";
        let interval = Refusal::unless_within(FIELD, self.prefix_interval(), 1, 1 << 31)?;
        let prefix = self.prefix();
        let mut slides = all_but_every(interval, prefix as u32);
        let others = self.patterned(OLMO3_FULL_LAYER_INTERVAL)?;
        slides.extend(&others[..others.len() - prefix]);
        Ok(slides)
    }

    /// Per layer: whether it rotates, which those with a window do. Layers without experts do it
    /// too, if none of these is meant to have one.
    pub(super) fn cohere2_moe_turns(&self) -> Result<Vec<bool>, Refusal> {
        let (windows, sparse) = (self.windows(Family::Cohere2Moe, &[])?, self.sparse_named(0)?);
        let all_dense = self.prefix_interval() == 1;
        let turns =
            |(window, sparse): (&Option<u32>, &bool)| window.is_some() || (!sparse && all_dense);
        Ok(windows.iter().zip(&sparse).map(turns).collect())
    }

    /// What experts give, and what they share, is their mean, and not their sum.
    pub(super) fn shares_half(&self, family: Family) -> bool {
        let strategy = self.newer.shared_expert_combination_strategy.as_deref();
        family == Family::Cohere2Moe && strategy != Some("sum")
    }

    pub(super) fn cohere2_moe_experts(&self, usual: ManyExperts) -> Result<ManyExperts, Refusal> {
        let shared = self.num_shared_experts.unwrap_or(0).saturating_mul(usual.ffn);
        let shared_ffn = Some(shared).filter(|&shared| shared > 0);
        let is_mean = shared_ffn.is_some() && self.shares_half(Family::Cohere2Moe);
        // The softmax of those that are chosen is that of all, divided by their sum.
        let scoring = match self.newer.expert_selection_fn.as_deref() {
            Some("sigmoid") => Scoring::Sigmoid,
            _ => Scoring::Softmax,
        };
        Ok(ManyExperts {
            count: self.expert_count(8),
            shared_ffn,
            normalises: scoring == Scoring::Softmax || self.norm_topk_prob.unwrap_or(true),
            scoring,
            scale: if is_mean { 0.5 } else { 1.0 },
            layers: self.sparse_named(0)?,
            ..usual
        })
    }

    /// What transformers knows nothing of, either.
    pub(super) fn refuse_cohere2_moe(&self, family: Family) -> Result<(), Refusal> {
        if family != Family::Cohere2Moe {
            return Ok(());
        }
        let newer = &self.newer;
        for (field, given, served) in [
            ("expert_selection_fn", &newer.expert_selection_fn, ["softmax", "sigmoid"]),
            (
                "shared_expert_combination_strategy",
                &newer.shared_expert_combination_strategy,
                ["average", "sum"],
            ),
        ] {
            if let Some(given) = given.as_deref().filter(|given| !served.contains(given)) {
                return Err(Refusal::new(field, given, served.join(" or ")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::load::hf::config::tests::config;

    #[test]
    fn first_layers_turn_and_see_as_they_are_told() {
        let check = |changes: Value, slides: [u8; 5], turns: [u8; 5]| {
            let mut fields = json!({ "num_hidden_layers": 5, "sliding_window": 9 });
            fields.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let config = config(fields);
            let windows = config.windows(Family::Cohere2Moe, &[]).unwrap();
            let seen: Vec<_> = windows.iter().map(|window| u8::from(window.is_some())).collect();
            assert_eq!(seen, slides, "{changes}");
            let rotates = config.rotates(Family::Cohere2Moe).unwrap();
            assert_eq!(rotates.into_iter().map(u8::from).collect::<Vec<_>>(), turns, "{changes}");
        };
        check(json!({}), [1, 1, 1, 0, 1], [1, 1, 1, 0, 1]);
        let two = json!({ "first_k_dense_replace": 2, "sliding_window_pattern": 3 });
        check(two, [0, 0, 1, 1, 0], [1, 1, 1, 1, 0]);
        let own = json!({ "first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2 });
        check(own, [1, 0, 1, 1, 1], [1, 0, 1, 1, 1]);
        let all = json!({ "first_k_dense_replace": 9 });
        check(all, [0; 5], [1; 5]);
        let none = config(json!({ "prefix_dense_sliding_window_pattern": 0 }));
        let refusal = none.windows(Family::Cohere2Moe, &[]).unwrap_err();
        assert_eq!(refusal.field, "prefix_dense_sliding_window_pattern");
    }

    #[test]
    fn experts_are_weighed_as_the_file_has_it() {
        let of = |changes: Value| {
            let config = config(changes);
            let experts = config.experts(Family::Cohere2Moe).unwrap().unwrap();
            let ManyExperts { shared_ffn, normalises, scale, .. } = experts;
            (shared_ffn, config.shares_half(Family::Cohere2Moe), normalises, scale)
        };
        assert_eq!(of(json!({ "norm_topk_prob": false })), (None, true, true, 1.0));
        assert_eq!(of(json!({ "num_shared_experts": 2 })), (Some(96), true, true, 0.5));
        let sum = json!({
            "num_shared_experts": 1, "shared_expert_combination_strategy": "sum",
            "expert_selection_fn": "sigmoid", "norm_topk_prob": false,
        });
        assert_eq!(of(sum), (Some(48), false, false, 1.0));
    }

    #[test]
    fn other_models_of_the_family_are_refused() {
        let check = |family, changes: Value, field: Option<&str>| {
            let refused = config(changes).refuse(family).err();
            assert_eq!(refused.as_ref().map(|refusal| refusal.field.as_str()), field);
        };
        check(Family::Cohere2Moe, json!({ "expert_selection_fn": "sigmoid" }), None);
        let tanh = json!({ "expert_selection_fn": "tanh" });
        check(Family::Cohere2Moe, tanh.clone(), Some("expert_selection_fn"));
        check(Family::Cohere2, tanh, None);
        let field = "shared_expert_combination_strategy";
        check(Family::Cohere2Moe, json!({ field: "product" }), Some(field));
    }

    #[test]
    fn norms_are_those_whose_epsilon_is_there() {
        let of = |changes: Value| {
            let config = config(changes);
            let norms = config.layer_norms(Family::Cohere2Moe);
            (norms.is_some(), config.norm_eps(Family::Cohere2Moe).unwrap())
        };
        assert_eq!(of(json!({ "layer_norm_eps": 0.1 })), (true, 0.1));
        assert_eq!(of(json!({ "layer_norm_eps": 0.1, "rms_norm_eps": 0.2 })), (false, 0.2));
        assert_eq!(of(json!({ "rms_norm_eps": null })), (true, 1e-5));
    }
}
