//! What Gemma 4's config.json has besides.

use std::collections::{BTreeMap, BTreeSet};

use aqueduct_core::{ModelShape, Refusal, WideHeads, limits};
use aqueduct_kernels::experts::Scoring;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::layers::slides;
use super::{Config, present};
use crate::load::decoder::{FULL_LAYER_INTERVAL, Family, ManyExperts, all_but_every};

/// Rows of the table of what layers take of tokens, where a file does not say.
const VOCAB: u32 = 262_144;

/// Of its layers that see everything, where a file does not say otherwise.
const GLOBAL_HEAD_DIM: u32 = 512;

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Gemma4Fields {
    global_head_dim: Option<u32>,
    num_global_key_value_heads: Option<u32>,
    attention_k_eq_v: Option<bool>,
    /// What transformers has made of these by the time it writes a file.
    per_layer_config: Option<BTreeMap<String, OfLayer>>,
    /// Absent it is 256; null and 0 mean none.
    #[serde(default, deserialize_with = "present")]
    hidden_size_per_layer_input: Option<Option<u32>>,
    vocab_size_per_layer_input: Option<u32>,
    num_kv_shared_layers: Option<u32>,
    use_double_wide_mlp: Option<bool>,
    enable_moe_block: Option<bool>,
    top_k_experts: Option<u32>,
}

/// What one layer has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
struct OfLayer {
    head_dim: Option<u32>,
    num_key_value_heads: Option<u32>,
}

impl Config {
    /// How many numbers of a token are a layer's own, if layers take such (E2B, E4B).
    pub(super) fn inputs(&self, family: Family) -> Result<Option<u32>, Refusal> {
        let fields = &self.gemma4;
        let given = fields.hidden_size_per_layer_input.unwrap_or(Some(256)).unwrap_or(0);
        if family != Family::Gemma4 || given == 0 {
            return Ok(None);
        }
        let inputs =
            Refusal::unless_within("hidden_size_per_layer_input", given, 0, limits::WIDTH_MAX)?;
        // Any other is refused where the table is read.
        let (vocab, rows) = (self.vocab_size, fields.vocab_size_per_layer_input);
        let rows = rows.unwrap_or(VOCAB);
        Refusal::unless_within("vocab_size_per_layer_input", rows, vocab, vocab)?;
        Ok(Some(inputs))
    }

    /// Layers that attend to keys of earlier ones.
    pub(super) fn shared_layers(&self) -> u32 {
        self.gemma4.num_kv_shared_layers.unwrap_or(0)
    }

    /// These have feed-forward parts of twice the width.
    pub(super) fn double_ffn(&self, family: Family) -> bool {
        let is_double = family == Family::Gemma4 && self.shared_layers() > 0;
        is_double && self.gemma4.use_double_wide_mlp == Some(true)
    }

    /// Values are keys where a layer sees everything.
    pub(super) fn keys_are_values(&self, family: Family) -> bool {
        family == Family::Gemma4 && self.gemma4.attention_k_eq_v == Some(true)
    }

    /// Per layer: whether it has a window. The last one has none, whatever a file says.
    pub(super) fn gemma4_slides(&self) -> Result<Vec<bool>, Refusal> {
        let layers = self.num_hidden_layers as usize;
        let mut all: Vec<bool> = match &self.layer_types {
            Some(types) => {
                Refusal::unless_within("layer_types count", types.len(), layers, layers)?;
                types.iter().map(|name| slides(name)).collect::<Result<_, _>>()?
            }
            None => all_but_every(FULL_LAYER_INTERVAL, self.num_hidden_layers),
        };
        if let Some(last) = all.last_mut() {
            *last = false;
        }
        Ok(all)
    }

    /// The heads of layers that see everything, where they are not those of the others.
    pub(super) fn wide_heads(&self, shape: &ModelShape) -> Result<WideHeads, Refusal> {
        let fields = &self.gemma4;
        let slides = self.gemma4_slides()?;
        let [kv_heads, head_dim] = match &fields.per_layer_config {
            Some(given) => given_heads(given, &slides, [shape.kv_heads, shape.head_dim])?,
            None => {
                let own = fields.num_global_key_value_heads;
                let own = own.filter(|_| fields.attention_k_eq_v == Some(true));
                [own.unwrap_or(shape.kv_heads), fields.global_head_dim.unwrap_or(GLOBAL_HEAD_DIM)]
            }
        };
        if [kv_heads, head_dim] == [shape.kv_heads, shape.head_dim] {
            return Ok(WideHeads::NONE);
        }
        let own = slides.iter().take(shape.memory_layers() as usize);
        let layers = own.filter(|slides| !**slides).count() as u32;
        Ok(WideHeads { layers, kv_heads, head_dim })
    }

    /// Its experts, if it has any.
    pub(super) fn gemma4_experts(
        &self,
        usual: ManyExperts,
    ) -> Result<Option<ManyExperts>, Refusal> {
        if self.gemma4.enable_moe_block != Some(true) {
            return Ok(None);
        }
        let missing = |field| Refusal::new(field, "missing", "a number, where there are experts");
        Ok(Some(ManyExperts {
            count: self.num_experts.ok_or_else(|| missing("num_experts"))?,
            chosen: self.gemma4.top_k_experts.ok_or_else(|| missing("top_k_experts"))?,
            ffn: self.moe_intermediate_size.ok_or_else(|| missing("moe_intermediate_size"))?,
            scoring: Scoring::Softmax,
            normalises: true,
            ..usual
        }))
    }
}

/// What the file says of layers, which has to be one thing of those that see everything, and
/// nothing of the others, whose heads are the `usual` ones.
fn given_heads(
    given: &BTreeMap<String, OfLayer>,
    slides: &[bool],
    usual: [u32; 2],
) -> Result<[u32; 2], Refusal> {
    let heads_of = |layer: usize| {
        let of = given.get(&layer.to_string()).copied().unwrap_or_default();
        [of.num_key_value_heads.unwrap_or(usual[0]), of.head_dim.unwrap_or(usual[1])]
    };
    let of = |sliding: bool| -> BTreeSet<[u32; 2]> {
        let some = slides.iter().enumerate().filter(|(_, slides)| **slides == sliding);
        some.map(|(layer, _)| heads_of(layer)).collect()
    };
    let (full, others) = (of(false), of(true));
    if full.len() == 1 && others.iter().all(|heads| *heads == usual) {
        return Ok(full.into_iter().next().unwrap_or(usual));
    }
    let bound = "the same in all layers of full_attention, and what all have in the others";
    Err(Refusal::new("per_layer_config", format!("{given:?}"), bound))
}

/// What transformers takes for fields that are absent.
pub(super) fn defaults(fields: &Map<String, Value>) -> Value {
    let mut all = json!({
        "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 30, "num_attention_heads": 8, "max_position_embeddings": 131_072,
    });
    if !fields.contains_key("rope_parameters") {
        all["rope_parameters"] = json!({
            "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 },
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6,
            },
        });
    }
    all
}

/// The same of Gemma 4 12B, whose layers take nothing besides the stream.
pub(super) fn unified_defaults(fields: &Map<String, Value>) -> Value {
    let mut all = defaults(fields);
    all["sliding_window"] = json!(1024);
    all["max_position_embeddings"] = json!(262_144);
    all["hidden_size_per_layer_input"] = Value::Null;
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::hf::config::tests::config;

    fn heads(fields: Value) -> Result<WideHeads, String> {
        let mut all = json!({
            "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 16, "layer_types": ["sliding_attention", "full_attention",
                "sliding_attention", "full_attention"],
        });
        let (Value::Object(to), Value::Object(from)) = (&mut all, fields) else { unreachable!() };
        to.extend(from);
        let config = config(all);
        let shape = config.shape(Family::Gemma4).map_err(|refusal| refusal.field)?;
        Ok(shape.wide)
    }

    #[test]
    fn layers_that_see_everything_have_heads_of_their_own() {
        let check = |fields: Value, layers, kv_heads, head_dim| {
            assert_eq!(heads(fields), Ok(WideHeads { layers, kv_heads, head_dim }));
        };
        check(json!({ "global_head_dim": 32 }), 2, 4, 32);
        let fewer = json!({ "global_head_dim": 32, "num_global_key_value_heads": 2 });
        check(fewer.clone(), 2, 4, 32);
        let Value::Object(mut fewer) = fewer else { unreachable!() };
        fewer.insert("attention_k_eq_v".to_owned(), true.into());
        check(fewer.into(), 2, 2, 32);
        check(json!({ "global_head_dim": 16 }), 0, 0, 0);
        let of = |layer: &str| json!({ layer: { "head_dim": 32, "num_key_value_heads": 1 } });
        let mut both = of("1");
        both["3"] = both["1"].clone();
        check(json!({ "per_layer_config": both }), 2, 1, 32);
        let refused = |fields: Value| heads(fields).unwrap_err();
        assert_eq!(refused(json!({ "per_layer_config": of("1") })), "per_layer_config");
        assert_eq!(refused(json!({ "per_layer_config": of("2") })), "per_layer_config");
        assert_eq!(refused(json!({ "global_head_dim": 24 })), "wide.head_dim");
    }

    #[test]
    fn layers_take_inputs_of_their_own() {
        let check = |fields: Value, want: Result<Option<u32>, &str>| {
            let seen = config(fields).inputs(Family::Gemma4);
            assert_eq!(seen.map_err(|refusal| refusal.field), want.map_err(str::to_owned));
        };
        const INPUTS: &str = "hidden_size_per_layer_input";
        const ROWS: &str = "vocab_size_per_layer_input";
        let vocab = config(json!({})).vocab_size;
        check(json!({}), Err(ROWS)); // the vocabulary is another one than Gemma's
        check(json!({ ROWS: vocab }), Ok(Some(256)));
        check(json!({ INPUTS: 8, ROWS: vocab }), Ok(Some(8)));
        check(json!({ INPUTS: 8, ROWS: vocab + 1 }), Err(ROWS));
        check(json!({ INPUTS: 1 << 30, ROWS: vocab }), Err(INPUTS));
        check(json!({ INPUTS: null }), Ok(None));
        check(json!({ INPUTS: 0 }), Ok(None));
        assert_eq!(config(json!({})).inputs(Family::Gemma3), Ok(None));
    }

    #[test]
    fn layers_of_12b_take_nothing_besides() {
        let all = unified_defaults(&Map::new());
        assert_eq!((&all["sliding_window"], &all["hidden_size"]), (&json!(1024), &json!(2304)));
        let none =
            config(json!({ "hidden_size_per_layer_input": all["hidden_size_per_layer_input"] }));
        assert_eq!(none.inputs(Family::Gemma4), Ok(None));
    }

    #[test]
    fn wide_heads_of_layers_without_keys_are_not_counted() {
        let check = |shared: u32, want| {
            let fields = json!({ "global_head_dim": 32, "num_kv_shared_layers": shared });
            assert_eq!(heads(fields).map(|wide| wide.layers), want, "{shared} layers");
        };
        check(0, Ok(2));
        check(1, Ok(1));
        check(2, Ok(1));
        check(4, Err("kv_shared_layers".to_owned()));
    }
}
