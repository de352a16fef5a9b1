//! What Llama 4's config.json has besides.

use aqueduct_core::Refusal;
use aqueduct_kernels::experts::Scoring;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Config, present};
use crate::load::decoder::{Family, ManyExperts};
use crate::rope::Temperature;

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Llama4Fields {
    /// Of layers without experts; `intermediate_size` is that of experts.
    intermediate_size_mlp: Option<u32>,
    moe_layers: Option<Vec<usize>>,
    interleave_moe_layer_step: Option<usize>,
    /// Null means none.
    #[serde(default, deserialize_with = "present")]
    attention_chunk_size: Option<Option<u32>>,
    /// Its files have a number where it is a switch.
    attn_temperature_tuning: Option<Value>,
    floor_scale: Option<f64>,
    attn_scale: Option<f64>,
}

impl Config {
    /// How wide feed-forward parts without experts are.
    pub(super) fn llama4_ffn(&self) -> u32 {
        self.llama4.intermediate_size_mlp.unwrap_or(16_384)
    }

    /// Whether layers that rotate norm queries and keys.
    pub(super) fn unit_norms(&self, family: Family) -> bool {
        let are_llamas = family == Family::Llama4 && self.use_qk_norm.unwrap_or(true);
        are_llamas || family == Family::NanoChat
    }

    /// Positions of a block, beyond which rows of some layers do not see.
    pub(super) fn llama4_block(&self) -> Option<u32> {
        self.llama4.attention_chunk_size.unwrap_or(Some(8192))
    }

    /// Per layer: whether rows see their block alone. Those that rotate do, if no names say it.
    pub(super) fn llama4_blocks(&self, rotates: &[bool]) -> Result<Vec<bool>, Refusal> {
        let layers = self.num_hidden_layers as usize;
        let blocks: Vec<bool> = match &self.layer_types {
            None => rotates.to_vec(),
            Some(types) => {
                Refusal::unless_within("layer_types count", types.len(), layers, layers)?;
                let is_block = |name: &String| match name.as_str() {
                    "full_attention" => Ok(false),
                    "chunked_attention" => Ok(true),
                    name => {
                        let bound = "full_attention or chunked_attention";
                        Err(Refusal::new("layer_types", name, bound))
                    }
                };
                types.iter().map(is_block).collect::<Result<_, _>>()?
            }
        };
        match self.llama4_block() {
            None if blocks.contains(&true) => {
                Err(Refusal::new("attention_chunk_size", "null", "a number of positions"))
            }
            _ => Ok(blocks),
        }
    }

    /// What multiplies queries of layers that do not rotate, if anything does.
    pub(super) fn still_temperature(&self, family: Family) -> Result<Option<Temperature>, Refusal> {
        let fields = &self.llama4;
        let is_off = match &fields.attn_temperature_tuning {
            None => false,
            Some(Value::Number(number)) => number.as_f64() == Some(0.0),
            Some(switch) => matches!(switch, Value::Bool(false) | Value::Null),
        };
        if family != Family::Llama4 || is_off {
            return Ok(None);
        }
        let every = fields.floor_scale.unwrap_or(8192.0);
        if every.fract() != 0.0 {
            return Err(Refusal::new("floor_scale", every, "a whole number"));
        }
        Temperature { beta: fields.attn_scale.unwrap_or(0.1), every: every as u32 }
            .checked()
            .map(Some)
    }

    pub(super) fn llama4_experts(&self, usual: ManyExperts) -> Result<ManyExperts, Refusal> {
        let (layers, fields) = (usual.layers.len(), &self.llama4);
        let step = fields.interleave_moe_layer_step.unwrap_or(1);
        let has: Vec<bool> = match &fields.moe_layers {
            Some(some) => (0..layers).map(|idx| some.contains(&idx)).collect(),
            None => {
                let most = u32::MAX as usize;
                Refusal::unless_within("interleave_moe_layer_step", step, 1, most)?;
                (1..=layers).map(|layer| layer.is_multiple_of(step)).collect()
            }
        };
        Ok(ManyExperts {
            count: self.num_local_experts.unwrap_or(16),
            chosen: self.num_experts_per_tok.unwrap_or(1),
            shared_ffn: Some(self.intermediate_size),
            scoring: Scoring::Sigmoid,
            normalises: false,
            layers: has,
            ..usual
        })
    }
}

/// What transformers takes for fields that are absent.
pub(super) fn defaults() -> Value {
    json!({
        "vocab_size": 202_048, "hidden_size": 5120, "intermediate_size": 8192,
        "num_hidden_layers": 48, "num_attention_heads": 40, "max_position_embeddings": 131_072,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::hf::config::tests::config;

    #[test]
    fn which_layers_see_their_block() {
        let check = |fields: Value, want: Result<[bool; 3], &str>| {
            let config = config(fields);
            let rotates = config.rotates(Family::Llama4).unwrap();
            let seen = config.llama4_blocks(&rotates).map_err(|refusal| refusal.field);
            assert_eq!(seen, want.map(|want| want.to_vec()).map_err(str::to_owned));
        };
        check(json!({}), Ok([true; 3]));
        check(json!({ "no_rope_layer_interval": 2 }), Ok([true, false, true]));
        check(json!({ "no_rope_layers": [] }), Ok([true; 3]));
        check(json!({ "no_rope_layers": [0, 1, 0] }), Ok([false, true, false]));
        let named = |name: &str| json!({ "layer_types": [name, "full_attention", name] });
        check(named("chunked_attention"), Ok([true, false, true]));
        check(named("sliding_attention"), Err("layer_types"));
        check(json!({ "attention_chunk_size": null }), Err("attention_chunk_size"));
        let none = json!({ "attention_chunk_size": null, "no_rope_layers": [0, 0, 0] });
        check(none, Ok([false; 3]));
    }

    #[test]
    fn queries_grow_in_layers_that_do_not_rotate() {
        let check = |fields: Value, want: Result<Option<(f64, u32)>, &str>| {
            let seen = config(fields).still_temperature(Family::Llama4);
            let seen = seen.map(|seen| seen.map(|it| (it.beta, it.every)));
            assert_eq!(seen.map_err(|refusal| refusal.field), want.map_err(str::to_owned));
        };
        const SWITCH: &str = "attn_temperature_tuning";
        check(json!({}), Ok(Some((0.1, 8192))));
        for on in [json!(true), json!(4)] {
            check(json!({ SWITCH: on, "floor_scale": 16, "attn_scale": 0.5 }), Ok(Some((0.5, 16))));
        }
        for off in [json!(false), json!(0), json!(null)] {
            check(json!({ SWITCH: off }), Ok(if off.is_null() { Some((0.1, 8192)) } else { None }));
        }
        check(json!({ "floor_scale": 0.5 }), Err("floor_scale"));
        check(json!({ "floor_scale": 0 }), Err("attention temperature positions"));
        assert_eq!(config(json!({})).still_temperature(Family::Llama), Ok(None));
    }
}
