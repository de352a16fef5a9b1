//! What reads text of Cohere's models that see: Cohere 2 in which files say what turns.

use aqueduct_core::Refusal;

use super::Config;
use super::layers::slides;

pub(super) const WHOLE: &str = "CohereCompassForConditionalGeneration";
/// What stands inside.
pub(super) const TEXT: &str = "CohereCompassForCausalLM";

impl Config {
    /// Per layer: whether it rotates, which is said for all of a type.
    pub(super) fn compass_turns(&self) -> Result<Vec<bool>, Refusal> {
        let turns = |name: &str| {
            slides(name)?;
            let missing = || {
                let bound = format!("parameters or null for {name}");
                Refusal::new("rope_parameters", "missing", bound)
            };
            self.rope.turns_in(name).ok_or_else(missing)
        };
        match &self.layer_types {
            Some(types) => types.iter().map(|name| turns(name)).collect(),
            None => Ok(vec![turns("full_attention")?; self.num_hidden_layers as usize]),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::load::decoder::Family;
    use crate::load::hf::config::tests::config;

    #[test]
    fn layers_turn_by_their_type() {
        let of = |types: Value, rope: Value| {
            let config = config(json!({ "layer_types": types, "rope_parameters": rope }));
            config.rotates(Family::CohereCompass).map_err(|refusal| refusal.field)
        };
        let turned = json!({ "rope_type": "default", "rope_theta": 1e4 });
        let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
        let local = json!({ "sliding_attention": turned, "full_attention": null });
        assert_eq!(of(types.clone(), local), Ok(vec![true, false, true]));
        let all = json!({ "sliding_attention": turned, "full_attention": turned });
        assert_eq!(of(types.clone(), all.clone()), Ok(vec![true; 3]));
        assert_eq!(of(Value::Null, all), Ok(vec![true; 3]));
        assert_eq!(of(types, turned), Err("rope_parameters".to_owned()));
        let scale = |changes: Value| {
            let config = config(changes);
            let shape = config.shape(Family::CohereCompass).unwrap();
            config.scales(Family::CohereCompass, &shape, 1.0).unwrap().logits
        };
        assert_eq!(scale(json!({})), 1.0);
        assert_eq!(scale(json!({ "logit_scale": 0.5 })), 2.0);
    }
}
