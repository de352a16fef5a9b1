//! Layers that remember in a state, in config.json.

use aqueduct_core::Refusal;
use serde::Deserialize;
use serde_json::Value;

use super::{Config, present};
use crate::load::decoder::{Family, Gate, Recurrents, RuleShape, all_but_every};

/// The fields about them, and others that only their families have.
#[derive(Deserialize)]
pub(super) struct RecurrentFields {
    /// Of so many layers one is attention (Qwen).
    full_attention_interval: Option<usize>,
    /// Which layers are (LFM2).
    full_attn_idxs: Option<Vec<usize>>,
    /// The same (Bamba).
    attn_layer_indices: Option<Vec<usize>>,
    linear_num_key_heads: Option<u32>,
    linear_num_value_heads: Option<u32>,
    linear_key_head_dim: Option<u32>,
    linear_value_head_dim: Option<u32>,
    linear_conv_kernel_dim: Option<u32>,
    /// States may turn over (OLMo).
    linear_allow_neg_eigval: Option<bool>,
    /// What LFM2's convolutions see.
    #[serde(rename = "conv_L_cache")]
    conv_taps: Option<u32>,
    conv_bias: Option<bool>,
    mamba_n_heads: Option<u32>,
    /// A number, or `auto`.
    mamba_d_head: Option<Value>,
    mamba_n_groups: Option<u32>,
    mamba_d_state: Option<u32>,
    mamba_d_conv: Option<u32>,
    mamba_expand: Option<f64>,
    mamba_conv_bias: Option<bool>,
    mamba_proj_bias: Option<bool>,
    time_step_limit: Option<Vec<Value>>,
    /// Whether LFM2's feed-forward parts are as wide as the fields below make them.
    block_auto_adjust_ff_dim: Option<bool>,
    /// Absent: 1; null: nothing is rounded, either.
    #[serde(default, deserialize_with = "present")]
    block_ffn_dim_multiplier: Option<Option<f64>>,
    block_multiple_of: Option<u32>,
    /// No model has these otherwise.
    attn_output_gate: Option<bool>,
    output_gate_type: Option<String>,
    block_use_swiglu: Option<bool>,
    use_pos_enc: Option<bool>,
    use_sandwich_norm: Option<bool>,
    /// LFM3.
    use_attention_gate: Option<bool>,
}

/// Added to the mean square in the norm of OLMo's states, whatever its other norms have.
const OLMO_STATE_EPS: f32 = 1e-5;

impl Family {
    fn is_lfm(self) -> bool {
        matches!(self, Self::Lfm2 | Self::Lfm2Moe | Self::Lfm3)
    }

    fn is_qwen(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe)
    }

    fn is_delta(self) -> bool {
        self.is_qwen() || matches!(self, Self::OlmoHybrid | Self::LaraMini)
    }

    fn is_scan(self) -> bool {
        matches!(self, Self::Granite4 | Self::Bamba | Self::NemotronH | Self::FalconH1)
    }
}

impl Config {
    /// What layers without keys are; `None` where all have them.
    pub(super) fn recurrents(&self, family: Family) -> Result<Option<Recurrents>, Refusal> {
        if !(family.is_lfm() || family.is_delta() || family.is_scan()) {
            return Ok(None);
        }
        let layers = self.recurrent_layers(family)?;
        if !layers.contains(&true) {
            return Ok(None); // what they would be is not said, either
        }
        let of = &self.recurrent;
        let is_biased = of.conv_bias.unwrap_or(false);
        let norm_eps = match family {
            Family::OlmoHybrid => OLMO_STATE_EPS,
            family => self.norm_eps(family)?,
        };
        let recurrents = if family.is_lfm() {
            let taps = of.conv_taps.unwrap_or(if family == Family::Lfm3 { 7 } else { 3 });
            let (conv_bias, biases, rule) = (is_biased, is_biased, RuleShape::Gated);
            Recurrents { layers, taps, conv_bias, biases, norm_eps, rule }
        } else if family.is_delta() {
            let taps = of.linear_conv_kernel_dim.unwrap_or(4);
            let (conv_bias, biases, rule) = (false, false, self.delta(family));
            Recurrents { layers, taps, conv_bias, biases, norm_eps, rule }
        } else {
            let taps = of.mamba_d_conv.unwrap_or(4);
            let conv_bias = of.mamba_conv_bias.unwrap_or(true);
            let (biases, rule) = (of.mamba_proj_bias.unwrap_or(false), self.scan(family)?);
            Recurrents { layers, taps, conv_bias, biases, norm_eps, rule }
        };
        recurrents.checked()
    }

    /// Per layer: whether it has no keys.
    fn recurrent_layers(&self, family: Family) -> Result<Vec<bool>, Refusal> {
        if let Some(folded) = self.folded(family)? {
            return Ok(folded.states());
        }
        let (of, count) = (&self.recurrent, self.num_hidden_layers as usize);
        let all_but =
            |some: &[usize]| -> Vec<bool> { (0..count).map(|idx| !some.contains(&idx)).collect() };
        match (family, &self.layer_types) {
            // Its file may say it in other words, which its class does not read.
            (Family::Bamba, _) => Ok(all_but(of.attn_layer_indices.as_deref().unwrap_or_default())),
            (_, Some(types)) => {
                Refusal::unless_within("layer_types count", types.len(), count, count)?;
                types.iter().map(|name| is_recurrent(family, name)).collect()
            }
            (family, None) if family.is_qwen() => {
                let interval = of.full_attention_interval.unwrap_or(4);
                let most = u32::MAX as usize;
                Refusal::unless_within("full_attention_interval", interval, 1, most)?;
                Ok(all_but_every(interval, self.num_hidden_layers))
            }
            (Family::Lfm2, None) => Ok(match &of.full_attn_idxs {
                Some(some) => all_but(some),
                None => vec![false; count],
            }),
            (Family::Lfm3, None) => {
                Ok((0..count).map(|idx| idx == 0 || !idx.is_multiple_of(2)).collect())
            }
            (Family::LaraMini, None) => {
                Ok((0..count).map(|idx| matches!(idx % 5, 0 | 2)).collect())
            }
            (Family::OlmoHybrid, None) => {
                let is_attention =
                    |layer: usize| layer.is_multiple_of(4) || (count < 4 && layer == count);
                Ok((1..=count).map(|layer| !is_attention(layer)).collect())
            }
            (_, None) => Err(Refusal::new("layer_types", "missing", "there, for every layer")),
        }
    }

    /// Per layer: whether it has a window (LFM3).
    pub(super) fn lfm3_slides(&self) -> Vec<bool> {
        let slides = |idx: usize| match &self.layer_types {
            Some(types) => types.get(idx).is_some_and(|name| name == SLIDING),
            None => idx > 0 && idx.is_multiple_of(4),
        };
        (0..self.num_hidden_layers as usize).map(slides).collect()
    }

    /// The same of Lara's: of every five layers the second and the last.
    pub(super) fn lara_mini_slides(&self) -> Vec<bool> {
        let slides = |idx: usize| match &self.layer_types {
            Some(types) => types.get(idx).is_some_and(|name| name == SLIDING),
            None => matches!(idx % 5, 1 | 4),
        };
        (0..self.num_hidden_layers as usize).map(slides).collect()
    }

    fn delta(&self, family: Family) -> RuleShape {
        let (of, is_olmo) = (&self.recurrent, family == Family::OlmoHybrid);
        let [key_heads, value_heads] = match family {
            Family::OlmoHybrid => [self.num_attention_heads; 2],
            Family::LaraMini => [8, 16],
            _ => [16, 32],
        };
        let key_heads = of.linear_num_key_heads.unwrap_or(key_heads);
        let unsaid = match is_olmo {
            // Cut off as in Python.
            true => (0.75 * f64::from(self.hidden_size) / f64::from(key_heads)) as u32,
            false => 128,
        };
        let key_dim = of.linear_key_head_dim.unwrap_or(unsaid);
        let unsaid = if is_olmo { key_dim.saturating_mul(2) } else { 128 };
        RuleShape::Delta {
            key_heads,
            value_heads: of.linear_num_value_heads.unwrap_or(value_heads),
            tiled: false,
            key_dim,
            value_dim: of.linear_value_head_dim.unwrap_or(unsaid),
            steps: match is_olmo && of.linear_allow_neg_eigval.unwrap_or(true) {
                true => 2.0,
                false => 1.0,
            },
        }
    }

    fn scan(&self, family: Family) -> Result<RuleShape, Refusal> {
        let (of, is_nemotron) = (&self.recurrent, family == Family::NemotronH);
        let heads = of.mamba_n_heads.unwrap_or(128);
        let inner = match family {
            Family::FalconH1 => self.falcon_h1_inner().map(f64::from),
            _ => None,
        };
        let expanded = of.mamba_expand.unwrap_or(2.0) * f64::from(self.hidden_size);
        let inner = inner.unwrap_or(expanded);
        let head_dim = match &of.mamba_d_head {
            Some(Value::Number(given)) => {
                let given = given.as_u64().and_then(|given| u32::try_from(given).ok());
                given.unwrap_or(0) // which is refused below
            }
            Some(other) if other != "auto" => {
                return Err(Refusal::new("mamba_d_head", other, "a number, or auto"));
            }
            _ if is_nemotron => 64,
            _ => (inner / f64::from(heads)) as u32,
        };
        // Nemotron-H has another field for what makes nothing there.
        if !is_nemotron && f64::from(heads) * f64::from(head_dim) != inner {
            let bound = format!("such that mamba_n_heads = {heads} of them make {inner}");
            return Err(Refusal::new("mamba_d_head", head_dim, bound));
        }
        Ok(RuleShape::Scan {
            heads,
            head_dim,
            groups: of.mamba_n_groups.unwrap_or(if is_nemotron { 8 } else { 1 }),
            state_dim: of.mamba_d_state.unwrap_or(if is_nemotron { 128 } else { 256 }),
            limits: self.time_steps()?,
            norm: self.has_scan_norms(family),
        })
    }

    /// Least and greatest.
    fn time_steps(&self) -> Result<[f32; 2], Refusal> {
        const FIELD: &str = "time_step_limit";
        let Some(given) = &self.recurrent.time_step_limit else { return Ok([0.0, f32::INFINITY]) };
        let bound = "a least and a greatest number";
        let [least, most] = &given[..] else {
            return Err(Refusal::new(FIELD, format!("{} numbers", given.len()), bound));
        };
        let number = |value: &Value| match value {
            // A word that JSON does not have, and what transformers writes for it today.
            Value::Null => Ok(f32::INFINITY),
            value if value["__float__"] == "Infinity" => Ok(f32::INFINITY),
            value => {
                let number = value.as_f64().map(|number| number as f32);
                number.ok_or_else(|| Refusal::new(FIELD, value, bound))
            }
        };
        Ok([number(least)?, number(most)?])
    }

    /// What multiplies what attention gives.
    pub(super) fn gate(&self, family: Family) -> Option<Gate> {
        let of_heads = self.recurrent.use_attention_gate.unwrap_or(true);
        match family {
            Family::Lfm3 => of_heads.then_some(Gate::Heads),
            Family::Afmoe => Some(Gate::Elements),
            family => family.is_qwen().then_some(Gate::Elements),
        }
    }

    /// How wide LFM2's feed-forward parts are.
    pub(super) fn lfm2_ffn(&self) -> Result<u32, Refusal> {
        let of = &self.recurrent;
        if !of.block_auto_adjust_ff_dim.unwrap_or(true) {
            return Ok(self.intermediate_size);
        }
        let ffn = (u64::from(self.intermediate_size) * 2 / 3) as f64;
        let Some(multiplier) = of.block_ffn_dim_multiplier.unwrap_or(Some(1.0)) else {
            return Ok(ffn as u32);
        };
        let multiplier = Refusal::unless_within("block_ffn_dim_multiplier", multiplier, 1e-6, 1e6)?;
        let multiple = of.block_multiple_of.unwrap_or(256);
        let multiple = Refusal::unless_within("block_multiple_of", multiple, 1, 1 << 20)?;
        let blocks = ((multiplier * ffn) as u64).div_ceil(u64::from(multiple));
        Ok(u32::try_from(blocks * u64::from(multiple)).unwrap_or(u32::MAX))
    }

    /// What only models of these families say, and none says otherwise.
    pub(super) fn refuse_hybrids(&self, family: Family) -> Result<(), Refusal> {
        let of = &self.recurrent;
        let (is_qwen, is_lfm) = (family.is_qwen(), family.is_lfm());
        for (field, is_its, given) in [
            ("attn_output_gate", is_qwen, of.attn_output_gate),
            ("block_use_swiglu", is_lfm, of.block_use_swiglu),
            ("use_pos_enc", is_lfm, of.use_pos_enc),
            ("use_sandwich_norm", family == Family::Lfm3, of.use_sandwich_norm),
        ] {
            if is_its && given == Some(false) {
                return Err(Refusal::new(field, false, "true"));
            }
        }
        match of.output_gate_type.as_deref().filter(|_| is_qwen) {
            None | Some("swish" | "silu") => Ok(()),
            Some(other) => Err(Refusal::new("output_gate_type", other, "swish")),
        }
    }
}

/// What layers with a window are called.
const SLIDING: &str = "sliding_attention";

/// Whether a layer of such a type has a state instead of keys.
fn is_recurrent(family: Family, layer_type: &str) -> Result<bool, Refusal> {
    match layer_type {
        "full_attention" | "attention" => Ok(false),
        SLIDING if matches!(family, Family::Lfm3 | Family::LaraMini) => Ok(false),
        "conv" if family.is_lfm() => Ok(true),
        "linear_attention" if family.is_delta() => Ok(true),
        "linear_attention" | "mamba" if family.is_scan() => Ok(true),
        name => {
            let bound = "full_attention, or what the family has beside it";
            Err(Refusal::new("layer_types", name, bound))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::load::hf::config::tests::config;

    fn with(changes: Value) -> Config {
        let mut all = json!({ "num_local_experts": 0, "mamba_n_heads": 8, "mamba_d_state": 16 });
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        config(all)
    }

    #[test]
    fn some_layers_have_no_keys() {
        let check = |family, changes: Value, want: Option<[bool; 3]>| {
            let seen = with(changes).recurrents(family).unwrap().map(|seen| seen.layers);
            assert_eq!(seen, want.map(|want| want.to_vec()), "{family:?}");
        };
        check(Family::Llama, json!({}), None);
        check(Family::Qwen3Next, json!({}), Some([true; 3])); // the fourth would have
        let second = json!({ "full_attention_interval": 2 });
        check(Family::Qwen35, second, Some([true, false, true]));
        let named = json!({ "layer_types": ["full_attention", "linear_attention", "attention"] });
        for family in [Family::Qwen35Moe, Family::Granite4] {
            check(family, named.clone(), Some([false, true, false]));
        }
        check(Family::OlmoHybrid, named.clone(), Some([false, true, false]));
        check(Family::OlmoHybrid, json!({}), Some([true, true, false]));
        check(Family::Lfm3, json!({}), Some([true, true, false]));
        check(Family::LaraMini, json!({}), Some([true, false, true]));
        let windows = json!({ "layer_types": ["sliding_attention", "conv", "full_attention"] });
        check(Family::Lfm3, windows.clone(), Some([false, true, false]));
        let slides = |changes| with(changes).windows(Family::Lfm3, &[]).unwrap();
        assert_eq!(slides(windows), [Some(256), None, None]);
        let fifth = slides(json!({ "num_hidden_layers": 5, "sliding_window": 9 }));
        assert_eq!(fifth, [None, None, None, None, Some(9)]);
        check(Family::Bamba, named, Some([true; 3]));
        let listed = json!({ "attn_layer_indices": [1] });
        check(Family::Bamba, listed, Some([true, false, true]));
        check(Family::Lfm2, json!({}), None);
        let listed = json!({ "full_attn_idxs": [0, 2] });
        check(Family::Lfm2, listed, Some([false, true, false]));
        let conv = json!({ "layer_types": ["conv", "full_attention", "conv"] });
        check(Family::Lfm2Moe, conv, Some([true, false, true]));
        let mamba = json!({ "layer_types": ["mamba", "attention", "mamba"] });
        check(Family::Granite4, mamba, Some([true, false, true]));
        let none = json!({ "layer_types": vec!["attention"; 3], "mamba_n_heads": 0 });
        check(Family::Granite4, none, None);
    }

    #[test]
    fn layers_that_make_no_sense_are_refused() {
        let check = |family, changes: Value, field: &str| {
            let refusal = with(changes).recurrents(family).unwrap_err();
            assert_eq!(refusal.field, field, "{family:?}");
        };
        let types = |name: &str| json!({ "layer_types": ["full_attention", "attention", name] });
        check(Family::Lfm2, types("linear_attention"), "layer_types");
        check(Family::Qwen3Next, types("mamba"), "layer_types");
        check(Family::Granite4, types("sliding_attention"), "layer_types");
        check(Family::Granite4, json!({}), "layer_types");
        check(Family::Lfm2Moe, json!({ "layer_types": ["conv"] }), "layer_types count");
        let never = json!({ "full_attention_interval": 0 });
        check(Family::Qwen35, never, "full_attention_interval");
        check(Family::Qwen35, json!({ "linear_num_key_heads": 0 }), "recurrent key heads");
        let odd = json!({ "linear_num_key_heads": 3 });
        check(Family::Qwen35, odd, "recurrent key heads or groups");
        check(Family::Bamba, json!({ "mamba_d_head": 7 }), "mamba_d_head");
        check(Family::Bamba, json!({ "mamba_d_head": "all" }), "mamba_d_head");
        check(Family::Bamba, json!({ "mamba_n_heads": 0 }), "mamba_d_head");
        check(Family::Bamba, json!({ "time_step_limit": [0.0] }), "time_step_limit");
        check(Family::Bamba, json!({ "time_step_limit": [0.0, "x"] }), "time_step_limit");
        check(Family::Bamba, json!({ "time_step_limit": [0.5, 0.1] }), "greatest time step");
        check(Family::Lfm2, json!({ "full_attn_idxs": [], "conv_L_cache": 0 }), "convolution taps");
        let all = json!({ "attn_output_gate": false, "output_gate_type": "sigmoid" });
        let refused = |family| with(all.clone()).refuse_hybrids(family).err().map(|it| it.field);
        assert_eq!(refused(Family::Qwen35).as_deref(), Some("attn_output_gate"));
        assert_eq!(refused(Family::Bamba), None);
        let other = with(json!({ "output_gate_type": "sigmoid" }));
        let refusal = other.refuse_hybrids(Family::Qwen35).unwrap_err();
        assert_eq!(refusal.field, "output_gate_type");
        let other = with(json!({ "use_pos_enc": false }));
        assert_eq!(other.refuse_hybrids(Family::Lfm2).unwrap_err().field, "use_pos_enc");
        let other = with(json!({ "use_sandwich_norm": false }));
        assert_eq!(other.refuse_hybrids(Family::Lfm3).unwrap_err().field, "use_sandwich_norm");
        assert_eq!(other.refuse_hybrids(Family::Lfm2), Ok(()));
    }

    #[test]
    fn what_is_absent_is_what_transformers_takes() {
        let check = |family, want: RuleShape| {
            let mut changes = json!({ "layer_types": null, "full_attn_idxs": [1] });
            changes["full_attention_interval"] = json!(2);
            let recurrents = with(changes).recurrents(family).unwrap().unwrap();
            assert_eq!(recurrents.rule, want, "{family:?}");
        };
        let delta = RuleShape::Delta {
            key_heads: 16,
            value_heads: 32,
            tiled: false,
            key_dim: 128,
            value_dim: 128,
            steps: 1.0,
        };
        check(Family::Qwen3Next, delta);
        check(Family::Lfm2, RuleShape::Gated);
        // 0.75 * 32 / 4, twice that, and states that may turn over.
        let (key_heads, value_heads, key_dim, value_dim) = (4, 4, 6, 12);
        let (tiled, steps) = (false, 2.0);
        let delta = RuleShape::Delta { key_heads, value_heads, tiled, key_dim, value_dim, steps };
        check(Family::OlmoHybrid, delta);
        check(
            Family::Bamba,
            RuleShape::Scan {
                heads: 8,
                head_dim: 8,
                groups: 1,
                state_dim: 16,
                limits: [0.0, f32::INFINITY],
                norm: true,
            },
        );
    }

    #[test]
    fn time_steps_may_be_without_bounds() {
        let check = |limits: Value, want: [f32; 2]| {
            let config = with(json!({ "time_step_limit": limits }));
            assert_eq!(config.time_steps(), Ok(want), "{limits}");
        };
        check(Value::Null, [0.0, f32::INFINITY]);
        check(json!([0.0, null]), [0.0, f32::INFINITY]);
        check(json!([0.25, { "__float__": "Infinity" }]), [0.25, f32::INFINITY]);
        check(json!([0, 0.5]), [0.0, 0.5]);
    }

    #[test]
    fn attention_may_have_gates() {
        let check = |family, changes: Value, want: Option<Gate>| {
            assert_eq!(with(changes).gate(family), want, "{family:?}");
        };
        check(Family::Qwen35, json!({}), Some(Gate::Elements));
        check(Family::Lfm3, json!({}), Some(Gate::Heads));
        check(Family::Lfm3, json!({ "use_attention_gate": false }), None);
        for family in [Family::Lfm2, Family::OlmoHybrid, Family::Llama] {
            check(family, json!({}), None);
        }
    }

    #[test]
    fn olmo_says_whether_heads_turn() {
        let turns = |changes: Value| with(changes).rotates(Family::OlmoHybrid).ok();
        assert_eq!(turns(json!({})), None);
        assert_eq!(turns(json!({ "rope_theta": 5e5 })), Some(vec![true; 3]));
        assert_eq!(turns(json!({ "rope_parameters": { "rope_theta": 5e5 } })), Some(vec![true; 3]));
        let none = json!({ "rope_parameters": { "rope_theta": null } });
        assert_eq!(turns(none), Some(vec![false; 3]));
    }

    #[test]
    fn lfm2_makes_its_feed_forward_parts_narrower() {
        let check = |changes: Value, want: u32| {
            let ffn = with(changes.clone()).lfm2_ffn();
            assert_eq!(ffn, Ok(want), "{changes}");
        };
        check(json!({ "block_auto_adjust_ff_dim": false }), 48);
        check(json!({}), 256);
        check(json!({ "intermediate_size": 12_288 }), 8192);
        check(json!({ "block_multiple_of": 10 }), 40);
        check(json!({ "block_multiple_of": 1, "block_ffn_dim_multiplier": 1.3 }), 41);
        check(json!({ "block_ffn_dim_multiplier": null }), 32);
        let none = with(json!({ "block_multiple_of": 0 })).lfm2_ffn().unwrap_err();
        assert_eq!(none.field, "block_multiple_of");
    }
}
