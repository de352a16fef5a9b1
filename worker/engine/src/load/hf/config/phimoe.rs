//! Phi 3.5 MoE: layer norms, and experts that are weighed one after the other.

use aqueduct_core::Refusal;
use aqueduct_kernels::experts::Scoring;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Config;
use super::older::fill;
use crate::load::decoder::{Family, ManyExperts};

pub(super) const PHIMOE: &str = "PhimoeForCausalLM";

/// The fields that no other family has.
#[derive(Deserialize)]
pub(super) struct PhimoeFields {
    /// Half of by how much experts may be below the best and count.
    router_jitter_noise: Option<f64>,
    pub(super) lm_head_bias: Option<bool>,
}

/// Says what rows are multiplied by as others say it, and what its class takes where a file does
/// not.
pub(super) fn rename(fields: &mut Map<String, Value>) {
    fill(
        fields,
        json!({
            "vocab_size": 32_064, "hidden_size": 4096, "intermediate_size": 6400,
            "num_hidden_layers": 32, "num_attention_heads": 32,
            "max_position_embeddings": 131_072, "num_local_experts": 16,
        }),
    );
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    let positions = number(fields.get("max_position_embeddings"));
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(Value::Object(scaling)) = fields.get_mut(name) else { continue };
        // Which factors are used for all positions, and so which of the two goes with them.
        let before = number(scaling.get("original_max_position_embeddings"));
        let own = if positions > before { "long_mscale" } else { "short_mscale" };
        if let Some(factor) = scaling.get(own).cloned() {
            scaling.insert("attention_factor".to_owned(), factor);
        }
    }
}

impl Config {
    pub(super) fn phimoe_experts(&self, usual: ManyExperts) -> ManyExperts {
        ManyExperts { scoring: Scoring::Mixed, normalises: false, ..usual }
    }

    /// What would load and give wrong answers.
    pub(super) fn refuse_phimoe(&self, family: Family) -> Result<(), Refusal> {
        if family != Family::Phimoe {
            return Ok(());
        }
        let (jitter, want) = (self.phimoe.router_jitter_noise, Scoring::CLOSE / 2.0);
        Refusal::unless_within("router_jitter_noise", jitter.unwrap_or(want), want, want)?;
        Refusal::unless_within("num_experts_per_tok", self.num_experts_per_tok.unwrap_or(2), 2, 2)
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: Family = Family::Phimoe;

    fn config(changes: Value) -> Config {
        let mut all = json!({ "architectures": [PHIMOE], "num_hidden_layers": 3 });
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        Config::from_value(all).unwrap()
    }

    #[test]
    fn one_of_two_factors_is_used_for_all_positions() {
        let check = |positions: u32, want: f64| {
            let scaling = json!({
                "type": "longrope", "original_max_position_embeddings": 64,
                "short_factor": vec![1.0; 64], "long_factor": vec![2.0; 64],
                "short_mscale": 1.25, "long_mscale": 1.5,
            });
            let config = config(json!({
                "rope_scaling": scaling, "max_position_embeddings": positions,
            }));
            let shape = config.shape(FAMILY).unwrap();
            let Ok((found, None)) = config.ropes(FAMILY, &shape) else { panic!("no rotation") };
            assert_eq!(found.rope.attention_factor, want, "{positions}");
            let first = f64::from(want == 1.5) + 1.0;
            assert_eq!(found.rope.inv_freq[0], 1.0 / first);
        };
        check(64, 1.25);
        check(128, 1.5);
    }

    #[test]
    fn experts_are_a_mix_of_two() {
        let experts = config(json!({})).experts(FAMILY).unwrap().unwrap();
        assert_eq!((experts.count, experts.chosen, experts.ffn), (16, 2, 6400));
        assert_eq!((experts.scoring, experts.normalises), (Scoring::Mixed, false));
        let check = |changes: Value, want: Option<&str>| {
            let refused = config(changes).refuse(FAMILY);
            assert_eq!(refused.err().as_ref().map(|it| it.field.as_str()), want);
        };
        check(json!({ "router_jitter_noise": 0.01, "sliding_window": 131_072 }), None);
        check(json!({ "router_jitter_noise": 0.1 }), Some("router_jitter_noise"));
        check(json!({ "num_experts_per_tok": 1 }), Some("num_experts_per_tok"));
    }
}
