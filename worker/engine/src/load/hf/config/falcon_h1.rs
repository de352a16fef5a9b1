//! Falcon H1: attention and what remembers in a state side by side in each layer, and numbers by
//! which what goes in and out of them is multiplied.

use aqueduct_core::{ModelShape, Refusal, limits};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::older::{fill, must_be};
use super::{Config, present};
use crate::load::decoder::{Family, Multipliers, Scales};

pub(super) const FALCON_H1: &str = "FalconH1ForCausalLM";

/// The fields that no other family has.
#[derive(Deserialize)]
pub(super) struct FalconH1Fields {
    /// Absent: as below; null: as `mamba_expand` says.
    #[serde(default, deserialize_with = "present")]
    mamba_d_ssm: Option<Option<u32>>,
    mamba_rms_norm: Option<bool>,
    mamba_norm_before_gate: Option<bool>,
    lm_head_multiplier: Option<f32>,
    attention_in_multiplier: Option<f32>,
    attention_out_multiplier: Option<f32>,
    key_multiplier: Option<f32>,
    ssm_in_multiplier: Option<f32>,
    ssm_out_multiplier: Option<f32>,
    /// Of z, x, B, C and dt.
    ssm_multipliers: Option<Vec<f32>>,
    /// Of gates, and of what feed-forward parts give.
    mlp_multipliers: Option<Vec<f32>>,
}

/// Counts what mixes tokens as layers, of which each has one.
///
/// # Errors
/// A variant that is not served.
pub(super) fn rename(fields: &mut Map<String, Value>) -> Result<(), String> {
    must_be(
        fields,
        [
            // They would be multiplied too.
            ("attention_bias", false),
            ("mamba_proj_bias", false),
            ("mlp_bias", false),
            ("projectors_bias", false),
        ],
    )?;
    fill(
        fields,
        json!({
            "vocab_size": 128_000, "hidden_size": 4096, "intermediate_size": 14_336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 8192,
        }),
    );
    if fields.get("num_key_value_heads").is_some_and(Value::is_null) {
        fields.extend([("num_key_value_heads".to_owned(), fields["num_attention_heads"].clone())]);
    }
    // All are the same.
    for name in ["layers_block_type", "layer_types"] {
        fields.remove(name);
    }
    let layers = fields.get("num_hidden_layers").and_then(Value::as_u64);
    let most = u64::from(limits::LAYERS_MAX / 2);
    let layers = layers.filter(|layers| (1..=most).contains(layers)).ok_or_else(|| {
        format!("num_hidden_layers = {}: must be 1 to {most}", fields["num_hidden_layers"])
    })?;
    fields.insert("num_hidden_layers".to_owned(), (2 * layers).into());
    Ok(())
}

impl Config {
    /// Elements of what Falcon H1's scans give.
    pub(super) fn falcon_h1_inner(&self) -> Option<u32> {
        self.falcon_h1.mamba_d_ssm.unwrap_or(Some(1024))
    }

    /// Its scans have norms.
    pub(super) fn has_scan_norms(&self, family: Family) -> bool {
        family != Family::FalconH1 || self.falcon_h1.mamba_rms_norm.unwrap_or(false)
    }

    /// What multiplies numbers inside of its layers.
    pub(super) fn multipliers(&self, family: Family) -> Result<Option<Multipliers>, Refusal> {
        match family {
            Family::FalconH1 => self.falcon_h1_numbers()?.inside().map(Some),
            _ => Ok(None),
        }
    }

    /// The same of what stands between them.
    pub(super) fn falcon_h1_scales(&self, shape: &ModelShape) -> Result<Scales, Refusal> {
        let numbers = self.falcon_h1_numbers()?;
        let of_attention = f64::from(numbers.key) / numbers.values().powi(2);
        Scales {
            embed: self.embedding_multiplier,
            residual: numbers.residual() as f32,
            attention: (of_attention / f64::from(shape.head_dim).sqrt()) as f32,
            logits: 1.0 / numbers.logits,
        }
        .checked()
    }

    fn falcon_h1_numbers(&self) -> Result<Numbers, Refusal> {
        let of = &self.falcon_h1;
        let one = |field: &str, given: Option<f32>| {
            Refusal::unless_within(field, given.unwrap_or(1.0), 1e-6, 1e6)
        };
        Ok(Numbers {
            logits: one("lm_head_multiplier", of.lm_head_multiplier)?,
            attention: [
                one("attention_in_multiplier", of.attention_in_multiplier)?,
                one("attention_out_multiplier", of.attention_out_multiplier)?,
            ],
            key: one("key_multiplier", of.key_multiplier)?,
            scan: [
                one("ssm_in_multiplier", of.ssm_in_multiplier)?,
                one("ssm_out_multiplier", of.ssm_out_multiplier)?,
            ],
            columns: several("ssm_multipliers", of.ssm_multipliers.as_deref())?,
            feed: several("mlp_multipliers", of.mlp_multipliers.as_deref())?,
        })
    }

    /// What would load and give wrong answers.
    pub(super) fn refuse_falcon_h1(&self, family: Family) -> Result<(), Refusal> {
        let of = &self.falcon_h1;
        let is_before = of.mamba_norm_before_gate.unwrap_or(true);
        if family == Family::FalconH1 && of.mamba_rms_norm == Some(true) && is_before {
            return Err(Refusal::new(
                "mamba_norm_before_gate",
                true,
                "false, where there are norms",
            ));
        }
        Ok(())
    }
}

/// As many numbers, which are all 1 where a file does not say.
fn several<const N: usize>(field: &str, given: Option<&[f32]>) -> Result<[f32; N], Refusal> {
    let Some(given) = given else { return Ok([1.0; N]) };
    Refusal::unless_within(&format!("{field} count"), given.len(), N, N)?;
    given
        .iter()
        .try_for_each(|&number| Refusal::unless_within(field, number, 1e-6, 1e6).map(drop))?;
    Ok(std::array::from_fn(|idx| given[idx]))
}

/// What files have.
struct Numbers {
    logits: f32,
    /// What it takes, and what it gives.
    attention: [f32; 2],
    key: f32,
    scan: [f32; 2],
    columns: [f32; 5],
    feed: [f32; 2],
}

impl Numbers {
    /// What the stream is divided by: what feed-forward parts give is to be multiplied by it, once
    /// all that they take is multiplied by what their gates are.
    fn residual(&self) -> f64 {
        let [gate, given] = self.feed.map(f64::from);
        given / gate
    }

    /// What values are multiplied by instead of what comes of them, and queries and keys too.
    fn values(&self) -> f64 {
        f64::from(self.attention[1]) / self.residual()
    }

    fn inside(&self) -> Result<Multipliers, Refusal> {
        let [z, x, b, c, dt] = self.columns.map(f64::from);
        let [taken, given] = self.scan.map(f64::from);
        Multipliers {
            attention: (f64::from(self.attention[0]) * self.values()) as f32,
            scan: (taken * z) as f32,
            channels: [x, b, c].map(|of| (of / z) as f32),
            dt: (dt / z) as f32,
            scanned: (given / self.residual()) as f32,
            feed: self.feed[0],
        }
        .checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::decoder::RuleShape;

    const FAMILY: Family = Family::FalconH1;

    fn config(changes: Value) -> Result<Config, String> {
        let mut all = json!({
            "architectures": [FALCON_H1], "vocab_size": 32, "hidden_size": 32,
            "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3,
            "num_key_value_heads": 2, "mamba_n_heads": 4, "mamba_d_ssm": 48, "mamba_d_state": 16,
        });
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        Config::from_value(all)
    }

    #[test]
    fn a_layer_of_a_file_is_two() {
        let config = config(json!({ "num_key_value_heads": null })).unwrap();
        let shape = config.shape(FAMILY).unwrap();
        assert_eq!((shape.layers, shape.recurrent_layers, shape.kv_heads), (6, 3, 4));
        let recurrents = config.recurrents(FAMILY).unwrap().unwrap();
        assert_eq!(recurrents.layers, [true, false, true, false, true, false]);
        let RuleShape::Scan { head_dim, norm, .. } = recurrents.rule else { panic!("a scan") };
        assert_eq!((head_dim, norm, recurrents.conv_bias), (12, false, true));
    }

    #[test]
    fn scans_are_as_wide_as_files_say() {
        let head_dim = |changes: Value| match config(changes).unwrap().recurrents(FAMILY) {
            Ok(Some(seen)) => match seen.rule {
                RuleShape::Scan { head_dim, .. } => Ok(head_dim),
                other => panic!("{other:?}"),
            },
            Ok(None) => panic!("no scan"),
            Err(refusal) => Err(refusal.field),
        };
        assert_eq!(head_dim(json!({ "mamba_d_ssm": null })), Ok(16));
        assert_eq!(head_dim(json!({ "mamba_d_ssm": 24, "mamba_d_head": 6 })), Ok(6));
        let odd = head_dim(json!({ "mamba_d_head": 6 }));
        assert_eq!(odd.unwrap_err(), "mamba_d_head");
    }

    #[test]
    fn products_of_what_multiplies_are_what_files_say() {
        let config = config(json!({
            "attention_in_multiplier": 0.5, "attention_out_multiplier": 3.0,
            "key_multiplier": 0.25, "ssm_in_multiplier": 5.0, "ssm_out_multiplier": 7.0,
            "ssm_multipliers": [2.0, 6.0, 8.0, 10.0, 12.0], "mlp_multipliers": [4.0, 8.0],
            "lm_head_multiplier": 0.125, "embedding_multiplier": 9.0,
        }));
        let config = config.unwrap();
        let by = config.multipliers(FAMILY).unwrap().unwrap();
        let scales = config.scales(FAMILY, &config.shape(FAMILY).unwrap(), 1.0).unwrap();
        // Gates; what is behind them is multiplied by what they are multiplied by.
        assert_eq!((by.feed, by.feed * scales.residual), (4.0, 8.0));
        // Values, and dot products without what both sides are multiplied by.
        let values = by.attention * scales.residual;
        assert_eq!(values, 0.5 * 3.0);
        let by_both = (by.attention / 0.5).powi(2);
        let dot_product = scales.attention * by_both * 8f32.sqrt();
        assert!((dot_product - 0.25).abs() < 1e-6, "{dot_product}");
        assert_eq!(by.scan, 5.0 * 2.0);
        assert_eq!(by.channels.map(|of| of * 2.0), [6.0, 8.0, 10.0]);
        assert_eq!((by.dt * 2.0, by.scanned * scales.residual), (12.0, 7.0));
        assert_eq!((scales.embed, scales.logits), (9.0, 8.0));
    }

    #[test]
    fn other_models_are_refused() {
        for field in ["attention_bias", "mamba_proj_bias", "mlp_bias", "projectors_bias"] {
            let refused = config(json!({ field: true })).err().unwrap_or_default();
            assert_eq!(refused, format!("{field} = true: must be false"));
        }
        let none = config(json!({ "num_hidden_layers": 0 })).err().unwrap_or_default();
        assert!(none.starts_with("num_hidden_layers = 0: must be 1 to"), "{none}");
        let check = |changes: Value, want: Option<&str>| {
            let config = config(changes).unwrap();
            let refused = config.refuse(FAMILY).and_then(|()| config.multipliers(FAMILY));
            assert_eq!(refused.err().as_ref().map(|it| it.field.as_str()), want);
        };
        check(json!({ "mamba_rms_norm": true }), Some("mamba_norm_before_gate"));
        check(json!({ "mamba_rms_norm": true, "mamba_norm_before_gate": false }), None);
        check(json!({ "mlp_multipliers": [1.0] }), Some("mlp_multipliers count"));
        check(json!({ "ssm_multipliers": [1, 1, 0, 1, 1] }), Some("ssm_multipliers"));
        check(json!({ "key_multiplier": -1.0 }), Some("key_multiplier"));
    }
}
