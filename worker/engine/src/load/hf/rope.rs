//! Rotary embedding in config.json: `rope_theta` and `rope_scaling` of transformers 4, or
//! `rope_parameters` of transformers 5, which may be nested by layer type.

use aqueduct_core::{ModelShape, Refusal};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::rope::{
    Rope, Scaling, Temperature, Yarn, longrope_attention_factor, yarn_attention_factor,
};

/// Rope types that are computed.
pub(crate) const TYPES: &str = "default, linear, dynamic, llama3, longrope, yarn, proportional";

const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// The fields of config.json about rotation.
#[derive(Clone, Deserialize)]
pub(crate) struct RopeFields {
    rope_theta: Option<f64>,
    /// Of layers with a window (Gemma 3).
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<Map<String, Value>>,
    rope_parameters: Option<Map<String, Value>>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
    /// How many of a head's elements that makes (MiniMax M2).
    rotary_dim: Option<f64>,
    /// What `rope_theta` and `partial_rotary_factor` were called in GPT-NeoX.
    rotary_emb_base: Option<f64>,
    rotary_pct: Option<f64>,
}

/// What a family's models have where their files do not say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeDefaults {
    pub(crate) theta: f64,
    /// The share of a head's elements that are rotated; `None` where files have no say in it.
    pub(crate) partial: Option<f64>,
    /// Positions before longrope.
    pub(crate) original_positions: Option<f64>,
    /// Every scaling is longrope, whatever it is called.
    pub(crate) only_longrope: bool,
    /// The positions that files tell are those that scaling has made.
    pub(crate) positions_scaled: bool,
    /// Files may have GPT-NeoX' own names.
    pub(crate) neox: bool,
    /// Queries grow with their position, and files say by how much.
    pub(crate) temperature: bool,
    /// Scaling that is called dynamic may be one that stretches `theta` once for all.
    pub(crate) alpha: bool,
}

/// A rotation that was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) rope: Rope,
    /// How many of a head's elements it is for.
    pub(crate) rotary_dim: u32,
    /// For how many positions the model is.
    pub(crate) positions: u32,
    /// What `mscale_all_dim` multiplies attention's dot products by, in families that do it.
    pub(crate) sharper: f64,
    pub(crate) temperature: Option<Temperature>,
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
    llama_4_scaling_beta: Option<f64>,
    alpha: Option<f64>,
    #[serde(default = "yes")]
    truncate: Option<bool>,
    partial_rotary_factor: Option<f64>,
    short_factor: Option<Vec<f64>>,
    long_factor: Option<Vec<f64>>,
}

/// Where a file does not say; null is no.
fn yes() -> Option<bool> {
    Some(true)
}

/// The rotation that the model's layers share.
pub(crate) fn rope(
    fields: &RopeFields,
    shape: &ModelShape,
    defaults: RopeDefaults,
) -> Result<Found, RopeError> {
    let given = fields.given();
    let nested: Vec<Value> = LAYER_TYPES
        .iter()
        .filter_map(|name| given.get(*name))
        .filter(|value| !value.is_null())
        .cloned()
        .collect();
    let all = if nested.is_empty() { vec![Value::Object(given)] } else { nested };
    let mut ropes = all.into_iter().map(|one| one_rope(one, fields, shape, defaults));
    let first = ropes.next().unwrap_or_else(|| Err(RopeError::Malformed("no rope".to_owned())))?;
    for other in ropes {
        if other? != first {
            let what = "rope_parameters differ between layer types, which is not supported";
            return Err(RopeError::Malformed(what.to_owned()));
        }
    }
    Ok(first)
}

impl RopeFields {
    /// The same with another base.
    pub(crate) fn with_theta(mut self, theta: f64) -> Self {
        self.rope_theta = Some(theta);
        for layout in [&mut self.rope_parameters, &mut self.rope_scaling].into_iter().flatten() {
            layout.insert("rope_theta".to_owned(), theta.into());
        }
        self
    }

    /// Neither layout is there.
    pub(crate) fn says_nothing(&self) -> bool {
        self.rope_parameters.is_none() && self.rope_scaling.is_none()
    }

    /// Whether heads of layers of such a type turn, where the file says it.
    pub(crate) fn turns_in(&self, layer_type: &str) -> Option<bool> {
        let given = self.rope_parameters.as_ref()?.get(layer_type)?;
        Some(!given.is_null())
    }

    /// Whether heads turn: one layout has no base, and says that it has none, or neither is there.
    pub(crate) fn turns(&self) -> Option<bool> {
        let given = self.rope_parameters.as_ref().and_then(|given| given.get("rope_theta"));
        given.map(|theta| !theta.is_null()).or(self.rope_theta.map(|_| true))
    }

    /// The parameters of whichever layout is there. As in transformers, what was added by hand in
    /// the words of 4 counts where both are. It need not say what scaling leaves as it is: that is
    /// then as before, though transformers forgets it and turns by what the family has.
    fn given(&self) -> Map<String, Value> {
        let parameters = self.rope_parameters.as_ref();
        let scaling = self.rope_scaling.as_ref().filter(|scaling| !scaling.is_empty());
        let Some(scaling) = scaling else { return parameters.cloned().unwrap_or_default() };
        let mut given = scaling.clone();
        let said = [
            ("rope_theta", self.rope_theta),
            ("partial_rotary_factor", self.partial_rotary_factor),
        ];
        for (name, beside) in said {
            let is_said = beside.is_some() || given.get(name).is_some_and(|value| !value.is_null());
            if let Some(value) = parameters.and_then(|given| given.get(name)).filter(|_| !is_said) {
                given.insert(name.to_owned(), value.clone());
            }
        }
        given
    }
}

/// The rotations of layers that see all positions and of those that have a window (Gemma 3, OLMo
/// 3). Parameters and scaling that do not say for which layers are for the former. The latter turn
/// by `local_theta`, if the file does not say otherwise, or else as the former would without
/// scaling.
pub(crate) fn ropes_by_layer_type(
    fields: &RopeFields,
    [full_shape, shape]: [&ModelShape; 2],
    defaults: RopeDefaults,
    local_theta: Option<f64>,
) -> Result<(Found, Rope), RopeError> {
    let given = fields.rope_parameters.as_ref();
    let of_type = |layer_type: &str| {
        let parameters = given.and_then(|given| given.get(layer_type));
        parameters.filter(|value| !value.is_null()).cloned()
    };
    let [full, local] = LAYER_TYPES.map(of_type);
    let flat = given.filter(|_| full.is_none() && local.is_none());
    let flat_theta = flat.and_then(|flat| flat.get("rope_theta")).and_then(Value::as_f64);
    let mut full = full.unwrap_or_else(|| flat.cloned().unwrap_or_default().into());
    if let (Value::Object(full), Some(scaling)) = (&mut full, &fields.rope_scaling) {
        full.extend(scaling.clone());
    }
    let local = local.unwrap_or_else(|| Map::new().into());
    let unsaid = flat_theta.or(fields.rope_theta).filter(|_| local_theta.is_none());
    let rope_theta = fields.rope_local_base_freq.or(unsaid);
    let local_fields = RopeFields { rope_theta, ..fields.clone() };
    let local_defaults = RopeDefaults { theta: local_theta.unwrap_or(defaults.theta), ..defaults };
    let local = one_rope(local, &local_fields, shape, local_defaults)?;
    Ok((one_rope(full, fields, full_shape, defaults)?, local.rope))
}

fn one_rope(
    parameters: Value,
    fields: &RopeFields,
    shape: &ModelShape,
    defaults: RopeDefaults,
) -> Result<Found, RopeError> {
    let mut parameters: Parameters = serde_json::from_value(parameters)
        .map_err(|err| RopeError::Malformed(format!("rope_parameters: {err}")))?;
    parameters.name(defaults);
    let counted = defaults.partial.and(fields.rotary_dim);
    if let Some(elements) = counted {
        Refusal::unless_within("rotary_dim", elements, 2.0, f64::from(shape.head_dim))?;
    }
    let counted = counted.map(|elements| elements / f64::from(shape.head_dim));
    let [neox_theta, neox_partial] = match defaults.neox {
        true => [fields.rotary_emb_base, fields.rotary_pct],
        false => [None; 2],
    };
    let partial = parameters.partial_rotary_factor.or(fields.partial_rotary_factor);
    let partial = partial.or(counted).or(neox_partial);
    parameters.partial_rotary_factor = partial;
    let rotary_dim = match parameters.rope_type.as_deref() {
        Some("proportional") => shape.head_dim, // of which some do not turn
        _ => rotary_dim(partial, defaults.partial, shape.head_dim)?,
    };
    let theta = parameters.rope_theta.or(fields.rope_theta).or(neox_theta);
    let theta = parameters.stretched(theta.unwrap_or(defaults.theta), shape.head_dim)?;
    let told_positions = fields
        .original_max_position_embeddings
        .or(parameters.original_max_position_embeddings)
        .or(defaults.original_positions);
    let temperature = match defaults.temperature {
        true => Some(parameters.temperature(told_positions)?),
        false => None,
    };
    let original_positions = told_positions.unwrap_or(f64::from(shape.max_positions));
    let positions = shape.max_positions;
    parameters.refuse_unsaid(original_positions, positions)?;
    let scaling = parameters.scaling(original_positions, f64::from(positions))?;
    let rope = Rope::scaled(theta, rotary_dim as usize, &scaling)?;
    let positions =
        if defaults.positions_scaled { positions } else { scaling.positions(positions) };
    let sharper = parameters.sharper(original_positions, f64::from(shape.max_positions));
    Ok(Found { rope, rotary_dim, positions, sharper, temperature })
}

fn rotary_dim(partial: Option<f64>, default: Option<f64>, head_dim: u32) -> Result<u32, Refusal> {
    let partial = partial.or(default).unwrap_or(1.0);
    if default.is_none() && partial != 1.0 {
        let bound = "1: models of this architecture rotate whole heads";
        return Err(Refusal::new("partial_rotary_factor", partial, bound));
    }
    let rotary_dim = (f64::from(head_dim) * partial) as u32; // as transformers cuts it off
    if partial <= 1.0 && rotary_dim > 0 && rotary_dim.is_multiple_of(2) {
        return Ok(rotary_dim);
    }
    let bound =
        format!("at most 1, and such that it makes an even number of head_dim = {head_dim}");
    Err(Refusal::new("partial_rotary_factor", partial, bound))
}

impl Parameters {
    /// Calls the rope type what it is called today.
    fn name(&mut self, defaults: RopeDefaults) {
        let name = self.rope_type.take().or(self.old_type.take());
        let name = name.unwrap_or_else(|| "default".to_owned());
        let is_by_alpha = defaults.alpha && name == "dynamic";
        self.alpha = self.alpha.filter(|&alpha| is_by_alpha && alpha != 0.0);
        // Text has one position where pictures have three, and so the default one of these.
        let is_default = name == "mrope" || self.alpha.is_some();
        let name = if is_default { "default".to_owned() } else { name };
        let is_longrope = name == "su" || (defaults.only_longrope && name == "yarn");
        self.rope_type = Some(if is_longrope { "longrope".to_owned() } else { name });
    }

    /// `theta`, times alpha^(d / (d - 2)) of heads of d elements where there is an alpha.
    fn stretched(&self, theta: f64, head_dim: u32) -> Result<f64, Refusal> {
        let Some(alpha) = self.alpha else { return Ok(theta) };
        let alpha = Refusal::unless_within("alpha", alpha, 1.0, 1e9)?;
        let dim = f64::from(head_dim);
        Ok(theta * alpha.powf(dim / (dim - 2.0)))
    }

    /// What scales by the positions that a model was made for cannot do without them. Where a file
    /// does not say, transformers takes its classes' defaults, which are hardly the model's.
    fn refuse_unsaid(&self, original_positions: f64, positions: u32) -> Result<(), Refusal> {
        let is_unsaid = match self.rope_type.as_deref() {
            Some("yarn" | "llama3") => original_positions == 0.0,
            Some("longrope" | "dynamic") => positions == 0,
            _ => false,
        };
        match is_unsaid {
            true => Err(Refusal::new("max_position_embeddings", "missing", "there, to scale by")),
            false => Ok(()),
        }
    }

    fn scaling(&self, original_positions: f64, positions: f64) -> Result<Scaling, RopeError> {
        match self.rope_type.as_deref().unwrap_or("default") {
            // It stretches what is longer than the positions of the model, which is refused.
            "default" | "dynamic" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear { factor: required("factor", self.factor)? }),
            "llama3" => Ok(Scaling::Llama3 {
                factor: required("factor", self.factor)?,
                low_freq_factor: required("low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: required("high_freq_factor", self.high_freq_factor)?,
                original_positions,
            }),
            "longrope" => self.longrope(original_positions, positions),
            "yarn" => self.yarn(original_positions, positions).map(Scaling::Yarn),
            "proportional" => {
                let (field, share) = ("partial_rotary_factor", self.partial_rotary_factor);
                let share = Refusal::unless_within(field, share.unwrap_or(1.0), 0.0, 1.0)?;
                Ok(Scaling::Proportional { share, factor: self.factor.unwrap_or(1.0) })
            }
            name => Err(RopeError::Type(name.to_owned())),
        }
    }

    /// A model that is made for more positions than before uses the long factors for all of them,
    /// as in vLLM: what is remembered of a prompt was rotated before its length was known.
    fn longrope(&self, original_positions: f64, positions: f64) -> Result<Scaling, RopeError> {
        let (field, factors) = match positions > original_positions {
            true => ("long_factor", &self.long_factor),
            false => ("short_factor", &self.short_factor),
        };
        let factors = required(field, factors.clone())?;
        let factor = self.factor.unwrap_or(positions / original_positions);
        let inferred = longrope_attention_factor(factor, original_positions);
        let attention_factor = self.attention_factor.unwrap_or(inferred);
        Ok(Scaling::PerFrequency { factors, attention_factor })
    }

    /// By how much queries grow with their position; transformers has no default for either.
    fn temperature(&self, original_positions: Option<f64>) -> Result<Temperature, RopeError> {
        let beta = required("llama_4_scaling_beta", self.llama_4_scaling_beta)?;
        let every = required("original_max_position_embeddings", original_positions)?;
        let field = "original_max_position_embeddings";
        let every = Refusal::unless_within(field, every, 1.0, f64::from(u32::MAX))?;
        Ok(Temperature { beta, every: every as u32 }.checked()?)
    }

    /// Of every scaling, as transformers has it.
    fn sharper(&self, original_positions: f64, positions: f64) -> f64 {
        let factor = self.factor.unwrap_or(positions / original_positions);
        match (self.rope_type.as_deref(), self.mscale_all_dim) {
            (None | Some("default"), _) | (_, None | Some(0.0)) => 1.0,
            (_, Some(weight)) => yarn_attention_factor(factor, weight).powi(2),
        }
    }

    fn yarn(&self, original_positions: f64, positions: f64) -> Result<Yarn, RopeError> {
        // As in transformers, positions from before say as much. Where they do not, either,
        // nothing would be stretched, which nobody means who writes the type down.
        let grown = (positions > original_positions).then(|| positions / original_positions);
        let factor = required("factor", self.factor.or(grown))?;
        let inferred = match (self.mscale, self.mscale_all_dim) {
            (Some(mscale), Some(all_dim)) if mscale != 0.0 && all_dim != 0.0 => {
                yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, all_dim)
            }
            _ => yarn_attention_factor(factor, 1.0),
        };
        // None is what 0 is in Python, too.
        let said = |beta: Option<f64>| beta.filter(|&beta| beta != 0.0);
        Ok(Yarn {
            factor,
            original_positions,
            beta_fast: said(self.beta_fast).unwrap_or(32.0),
            beta_slow: said(self.beta_slow).unwrap_or(1.0),
            attention_factor: self.attention_factor.unwrap_or(inferred),
            truncate: self.truncate.unwrap_or(false),
        })
    }
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, RopeError> {
    value.ok_or_else(|| RopeError::Malformed(format!("rope_parameters: {field} is missing")))
}
