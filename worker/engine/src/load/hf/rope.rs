//! Rotary embedding in config.json: `rope_theta` and `rope_scaling` of transformers 4, or
//! `rope_parameters` of transformers 5, which may be nested by layer type.

use aqueduct_core::{ModelShape, Refusal};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::rope::{Rope, Scaling, Yarn, yarn_attention_factor};

/// Rope types that are computed.
pub(crate) const TYPES: &str = "default, linear, llama3, yarn";

const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// The fields of config.json about rotation.
#[derive(Deserialize)]
pub(crate) struct RopeFields {
    rope_theta: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    rope_parameters: Option<Map<String, Value>>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

/// Why no rotation can be made.
pub(crate) enum RopeError {
    /// A rope type that is not computed.
    Type(String),
    /// The fields are not what they should be.
    Malformed(String),
    /// A parameter is out of bounds.
    Refused(Refusal),
}

impl From<Refusal> for RopeError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The parameters of one rotation, as both layouts have them.
#[derive(Deserialize)]
struct Parameters {
    rope_type: Option<String>,
    /// What `rope_type` was called before; some files have both.
    #[serde(rename = "type")]
    old_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    partial_rotary_factor: Option<f64>,
}

/// The rotation that all layers of the model share, and how many positions it is for.
pub(crate) fn rope(fields: &RopeFields, shape: &ModelShape) -> Result<(Rope, u32), RopeError> {
    let given = fields.rope_parameters.as_ref().or(fields.rope_scaling.as_ref());
    let given = given.cloned().unwrap_or_default();
    let nested: Vec<Value> = LAYER_TYPES
        .iter()
        .filter_map(|name| given.get(*name))
        .filter(|value| !value.is_null())
        .cloned()
        .collect();
    let all = if nested.is_empty() { vec![Value::Object(given)] } else { nested };
    let mut ropes = all.into_iter().map(|one| one_rope(one, fields, shape));
    let first = ropes.next().unwrap_or_else(|| Err(RopeError::Malformed("no rope".to_owned())))?;
    for other in ropes {
        if other? != first {
            let what = "rope_parameters differ between layer types, which is not supported";
            return Err(RopeError::Malformed(what.to_owned()));
        }
    }
    Ok(first)
}

fn one_rope(
    parameters: Value,
    fields: &RopeFields,
    shape: &ModelShape,
) -> Result<(Rope, u32), RopeError> {
    let parameters: Parameters = serde_json::from_value(parameters)
        .map_err(|err| RopeError::Malformed(format!("rope_parameters: {err}")))?;
    let partial = parameters.partial_rotary_factor.or(fields.partial_rotary_factor);
    if let Some(partial) = partial.filter(|&partial| partial != 1.0) {
        return Err(Refusal::new("partial_rotary_factor", partial, "1").into());
    }
    let theta = parameters.rope_theta.or(fields.rope_theta).unwrap_or(10_000.0);
    let original_positions = fields
        .original_max_position_embeddings
        .or(parameters.original_max_position_embeddings)
        .unwrap_or(f64::from(shape.max_positions));
    let positions = shape.max_positions;
    let scaling = parameters.scaling(original_positions, f64::from(positions))?;
    let rope = Rope::scaled(theta, shape.head_dim as usize, &scaling)?;
    Ok((rope, scaling.positions(positions)))
}

impl Parameters {
    fn scaling(&self, original_positions: f64, positions: f64) -> Result<Scaling, RopeError> {
        let rope_type = self.rope_type.as_ref().or(self.old_type.as_ref());
        match rope_type.map_or("default", String::as_str) {
            "default" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear { factor: required("factor", self.factor)? }),
            "llama3" => Ok(Scaling::Llama3 {
                factor: required("factor", self.factor)?,
                low_freq_factor: required("low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: required("high_freq_factor", self.high_freq_factor)?,
                original_positions,
            }),
            "yarn" => Ok(Scaling::Yarn(self.yarn(original_positions, positions))),
            name => Err(RopeError::Type(name.to_owned())),
        }
    }

    fn yarn(&self, original_positions: f64, positions: f64) -> Yarn {
        let factor = self.factor.unwrap_or(positions / original_positions);
        let inferred = match (self.mscale, self.mscale_all_dim) {
            (Some(mscale), Some(all_dim)) if mscale != 0.0 && all_dim != 0.0 => {
                yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, all_dim)
            }
            _ => yarn_attention_factor(factor, 1.0),
        };
        Yarn {
            factor,
            original_positions,
            beta_fast: self.beta_fast.unwrap_or(32.0),
            beta_slow: self.beta_slow.unwrap_or(1.0),
            attention_factor: self.attention_factor.unwrap_or(inferred),
            truncate: self.truncate.unwrap_or(true),
        }
    }
}

fn required(field: &'static str, value: Option<f64>) -> Result<f64, RopeError> {
    value.ok_or_else(|| RopeError::Malformed(format!("rope_parameters: {field} is missing")))
}
