//! Nemotron-H, whose files number parts of layers and have names of their own for what others have
//! too.

use aqueduct_core::Refusal;
use aqueduct_kernels::experts::Scoring;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Config;
use crate::load::decoder::{Family, ManyExperts};
use crate::load::folded::Folded;

pub(super) const NEMOTRON_H: &str = "NemotronHForCausalLM";

const PATTERN: &str = "hybrid_override_pattern";
const PARTS: &str = "M, *, - and E";

/// The fields that no other family has.
#[derive(Deserialize)]
pub(super) struct NemotronHFields {
    /// A letter for every part.
    #[serde(rename = "hybrid_override_pattern")]
    pattern: Option<String>,
    mamba_hidden_act: Option<String>,
    moe_shared_expert_intermediate_size: Option<u32>,
    /// Through how many numbers tokens go to experts.
    moe_latent_size: Option<u32>,
}

/// Gives fields the names that others have, says parts by letters, and counts layers.
///
/// # Errors
/// Parts that are not said, or other ones.
pub(super) fn rename(fields: &mut Map<String, Value>) -> Result<(), String> {
    let letters = letters(fields)?;
    let folded = Folded::of_letters(&letters);
    let folded = folded.map_err(|letter| format!("{PATTERN} has {letter}: must be {PARTS}"))?;
    if fields.get("num_key_value_heads").is_some_and(Value::is_null) {
        let heads = fields.get("num_attention_heads").cloned();
        fields.extend(heads.map(|heads| ("num_key_value_heads".to_owned(), heads)));
    }
    // No head rotates, and null is as if nothing was said.
    fields.retain(|name, value| {
        !value.is_null() && !name.starts_with("rope_") && name != "partial_rotary_factor"
    });
    // What others call so is not read here.
    for (own, name) in [
        ("layer_norm_epsilon", "rms_norm_eps"),
        ("mlp_hidden_act", "hidden_act"),
        ("use_bias", "mamba_proj_bias"),
    ] {
        let given = fields.remove(own);
        fields.remove(name);
        fields.extend(given.map(|given| (name.to_owned(), given)));
    }
    // The second count where both are there.
    for (own, name) in [
        ("mamba_num_heads", "mamba_n_heads"),
        ("mamba_head_dim", "mamba_d_head"),
        ("n_groups", "mamba_n_groups"),
        ("ssm_state_size", "mamba_d_state"),
        ("conv_kernel", "mamba_d_conv"),
        ("use_conv_bias", "mamba_conv_bias"),
        ("attention_head_dim", "head_dim"),
    ] {
        if let Some(given) = fields.remove(own) {
            fields.entry(name).or_insert(given);
        }
    }
    if let Some(limits) = fields.remove("mamba_dt_limit") {
        fields.insert("time_step_limit".to_owned(), limits);
    }
    for name in ["layers_block_type", "layer_types"] {
        fields.remove(name);
    }
    fields.insert(PATTERN.to_owned(), letters.into());
    fields.insert("num_hidden_layers".to_owned(), folded.layers.len().into());
    let unsaid = json!({
        "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 21_504,
        "num_attention_heads": 32,
    });
    for (name, value) in unsaid.as_object().into_iter().flatten() {
        fields.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Ok(())
}

/// Parts by letters; where a file names them one by one, that counts.
fn letters(fields: &Map<String, Value>) -> Result<String, String> {
    let listed = |field: &str| Some((field.to_owned(), fields.get(field)?.as_array()?));
    if let Some((field, types)) = listed("layers_block_type").or_else(|| listed("layer_types")) {
        let letter = |part: &Value| {
            let bound = "must be linear_attention, full_attention, mlp or moe";
            letter_of(part).ok_or_else(|| format!("{field} has {part}: {bound}"))
        };
        return types.iter().map(letter).collect();
    }
    let pattern = fields.get(PATTERN).and_then(Value::as_str);
    pattern.map(str::to_owned).ok_or_else(|| format!("{PATTERN} is missing"))
}

fn letter_of(part: &Value) -> Option<char> {
    Some(match part.as_str()? {
        "linear_attention" | "mamba" => 'M',
        "full_attention" | "attention" => '*',
        "mlp" => '-',
        "moe" => 'E',
        _ => return None,
    })
}

impl Config {
    /// Which parts each layer has, in families whose layers are not those of files.
    pub(super) fn folded(&self, family: Family) -> Result<Option<Folded>, Refusal> {
        match family {
            Family::NemotronH => {}
            Family::FalconH1 => {
                return Ok(Some(Folded::of_sides(self.num_hidden_layers as usize / 2)));
            }
            _ => return Ok(None),
        }
        let letters = self.nemotron_h.pattern.as_deref().unwrap_or_default();
        let folded = Folded::of_letters(letters);
        folded.map(Some).map_err(|letter| Refusal::new(PATTERN, letter, PARTS))
    }

    /// Their size is not said by how many of them tokens share.
    pub(super) fn nemotron_h_experts(
        &self,
        usual: ManyExperts,
    ) -> Result<Option<ManyExperts>, Refusal> {
        let Some(folded) = self.folded(Family::NemotronH)? else { return Ok(None) };
        let layers = folded.experts();
        if !layers.contains(&true) {
            return Ok(None);
        }
        let shared = self.nemotron_h.moe_shared_expert_intermediate_size;
        Ok(Some(ManyExperts {
            count: self.n_routed_experts.or(self.num_local_experts).unwrap_or(8),
            ffn: self.moe_intermediate_size.unwrap_or(7688),
            shared_ffn: Some(shared.unwrap_or(7688)),
            scoring: Scoring::Sigmoid,
            bias: true,
            normalises: self.norm_topk_prob.unwrap_or(true),
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            layers,
            ..usual
        }))
    }

    /// What would load and give wrong answers.
    pub(super) fn refuse_nemotron_h(&self, family: Family) -> Result<(), Refusal> {
        if family != Family::NemotronH {
            return Ok(());
        }
        let Some(folded) = self.folded(family)? else { return Ok(()) };
        let of = &self.nemotron_h;
        if let Some(other) = of.mamba_hidden_act.as_deref().filter(|name| *name != "silu") {
            return Err(Refusal::new("mamba_hidden_act", other, "silu"));
        }
        if self.attention_bias == Some(true) {
            // NVIDIA's class adds them, transformers' leaves them out.
            return Err(Refusal::new("attention_bias", true, "false"));
        }
        if !folded.experts().contains(&true) {
            return Ok(());
        }
        if let Some(size) = of.moe_latent_size {
            return Err(Refusal::new("moe_latent_size", size, "null"));
        }
        if self.mlp_bias == Some(true) {
            return Err(Refusal::new("mlp_bias", true, "false, where there are experts"));
        }
        // Some runtimes make what tokens share so many times as large, and others do not.
        let shared = self.n_shared_experts.unwrap_or(1);
        Refusal::unless_within("n_shared_experts", shared, 1, 1).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::decoder::{Biases, RuleShape};

    /// The least that a file says, and `changes`.
    fn config(changes: Value) -> Result<Config, String> {
        let mut all = json!({
            "architectures": [NEMOTRON_H], "vocab_size": 32, "hidden_size": 32,
            "intermediate_size": 48, "num_attention_heads": 4, "hybrid_override_pattern": "M-*EMM",
            "n_routed_experts": 6, "mamba_num_heads": 16, "num_key_value_heads": 4,
        });
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        Config::from_value(all)
    }

    fn read(changes: Value) -> Config {
        config(changes).unwrap()
    }

    const FAMILY: Family = Family::NemotronH;

    #[test]
    fn layers_are_counted_by_what_mixes() {
        let plain = read(json!({ "num_hidden_layers": 6 }));
        let shape = plain.shape(FAMILY).unwrap();
        assert_eq!((shape.layers, shape.recurrent_layers), (4, 3));
        assert_eq!((shape.ffn, shape.head_dim, shape.kv_heads), (48, 128, 4));
        let experts = plain.experts(FAMILY).unwrap().unwrap();
        assert_eq!(experts.layers, [false, true, false, false]);
        assert_eq!((experts.count, experts.chosen, experts.shared_ffn), (6, 2, Some(7688)));
        assert_eq!(plain.rotates(FAMILY).unwrap(), [false; 4]);
        assert_eq!(plain.windows(FAMILY, &[]).unwrap(), [None; 4]);
        let types = ["mamba", "mlp", "mlp", "full_attention"];
        let named = read(json!({ "layers_block_type": types, "n_groups": 4 }));
        let shape = named.shape(FAMILY).unwrap();
        // The second is a feed-forward part alone, with a state of one number.
        let state = 4 * (3 * (16 * 64 + 2 * 4 * 128) + 16 * 64 * 128);
        let seen = (shape.layers, shape.recurrent_layers, shape.state_bytes);
        assert_eq!(seen, (3, 2, state + 4));
        assert_eq!(named.experts(FAMILY), Ok(None));
    }

    #[test]
    fn fields_have_other_names() {
        let check = |changes: Value, want: (u32, bool, bool, f32), rule: RuleShape| {
            let config = read(changes);
            let seen = config.recurrents(FAMILY).unwrap().unwrap();
            assert_eq!((seen.taps, seen.conv_bias, seen.biases, seen.norm_eps), want);
            assert_eq!(seen.rule, rule);
            assert_eq!(config.norm_eps(FAMILY), Ok(want.3));
        };
        let scan = |head_dim, groups, state_dim, limits| RuleShape::Scan {
            heads: 16,
            head_dim,
            groups,
            state_dim,
            limits,
            norm: true,
        };
        let usual = scan(64, 8, 128, [0.0, f32::INFINITY]);
        let others = json!({ "rms_norm_eps": 0.5, "expand": 9, "time_step_min": 0.1 });
        check(others, (4, true, false, 1e-5), usual);
        let all = json!({
            "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 3,
            "use_conv_bias": false, "use_bias": true, "layer_norm_epsilon": 0.25,
            "time_step_limit": [0.5, 2.0],
        });
        check(all, (3, false, true, 0.25), scan(8, 2, 16, [0.5, 2.0]));
        let older = json!({ "mamba_n_groups": 4, "n_groups": 2, "mamba_d_conv": 2 });
        check(older, (2, true, false, 1e-5), scan(64, 4, 128, [0.0, f32::INFINITY]));
        let heads = read(json!({ "attention_head_dim": 8 }));
        assert_eq!(heads.shape(FAMILY).unwrap().head_dim, 8);
        let biases = read(json!({ "mlp_bias": true })).biases(FAMILY);
        assert_eq!(biases, Biases { gate_up: true, down: true, ..Biases::default() });
    }

    #[test]
    fn what_is_not_served_is_refused() {
        let check = |changes: Value, field: Option<&str>| {
            let refused = read(changes).refuse_nemotron_h(FAMILY);
            assert_eq!(refused.err().as_ref().map(|it| it.field.as_str()), field);
        };
        check(json!({}), None);
        check(json!({ "mamba_hidden_act": "gelu" }), Some("mamba_hidden_act"));
        check(json!({ "attention_bias": true }), Some("attention_bias"));
        check(json!({ "moe_latent_size": 16 }), Some("moe_latent_size"));
        check(json!({ "moe_latent_size": null }), None);
        check(json!({ "mlp_bias": true }), Some("mlp_bias"));
        check(json!({ "n_shared_experts": 2 }), Some("n_shared_experts"));
        let dense = json!({ "hybrid_override_pattern": "M-*-", "mlp_bias": true });
        check(dense, None);
        let activation = read(json!({ "mlp_hidden_act": "silu" }));
        assert_eq!(activation.activation(FAMILY).err().map(|(name, _)| name), Some("silu"));
        let refused = |changes: Value| config(changes).err().unwrap_or_default();
        let odd = refused(json!({ "hybrid_override_pattern": "M|*" }));
        assert_eq!(odd, "hybrid_override_pattern has |: must be M, *, - and E");
        let none = refused(json!({ "hybrid_override_pattern": null }));
        assert_eq!(none, "hybrid_override_pattern is missing");
        let odd = refused(json!({ "layers_block_type": ["mamba", "conv"] }));
        assert!(odd.starts_with("layers_block_type has \"conv\": must be"), "{odd}");
        let other = read(json!({ "attention_bias": true })).refuse_nemotron_h(Family::Llama);
        assert_eq!(other, Ok(()));
    }
}
