//! Rotary embedding in GGUF metadata, and the `rope_freqs` tensor of Llama 3.1.

use aqueduct_core::{ModelShape, Refusal};
use aqueduct_gguf::{Field, GgufError};

use super::config::{Architecture, Config, Keys};
use super::layers::LLAMA4_BLOCK;
use crate::error::LoadError;
use crate::load::checkpoint::Checkpoint;
use crate::rope::{Rope, Scaling, Temperature, Yarn, yarn_attention_factor};

/// One factor per frequency: what the converter makes of llama3 scaling.
const FACTORS: &str = "rope_freqs.weight";
/// The same for longrope: of a model for as many positions as before, and for more.
const SHORT_FACTORS: &str = "rope_factors_short.weight";
const LONG_FACTORS: &str = "rope_factors_long.weight";
/// Where a file does not say.
const THETA: f64 = 10_000.0;
/// What one of Gemma 3's layers with a window turns by, unless a file says otherwise.
const GEMMA3_WINDOW_THETA: f64 = 1e4;
/// By how much queries grow with their position.
pub(super) const GROWTH: &str = "attention.temperature_scale";
/// By how much Mistral 4's queries grow: no converter says it, and every model has it.
/// By how much Llama 4's queries grow.
const LLAMA4_BETA: f64 = 0.1;
const MISTRAL4_BETA: f64 = 0.1;
const TYPES: &str = "none, linear, longrope, yarn (and llama3 as rope_freqs.weight)";

/// The rotation of the first `rotary_dim` elements of heads, and how many positions it is for.
pub(super) fn rope(
    config: &Config<'_, '_>,
    keys: &Keys<'_, '_>,
    checkpoint: &Checkpoint<'_>,
    (shape, rotary_dim): (&ModelShape, u32),
) -> Result<(Rope, u32), LoadError> {
    let theta = keys.get("rope.freq_base", Field::f64).map_err(|err| config.malformed(err))?;
    let (name, told) = told_scaling(keys).map_err(|err| config.malformed(err))?;
    // 0 stands for "not scaled" in files.
    let factor = told.filter(|&factor| factor != 0.0).unwrap_or(1.0);
    // A file with a factor and no type means linear, as llama.cpp reads it.
    let scaling = match name.unwrap_or("linear") {
        "none" | "longrope" => Scaling::None, // whose factors are tensors
        "linear" if factor == 1.0 => Scaling::None,
        "linear" => Scaling::Linear { factor },
        "yarn" => {
            // Without it nothing is stretched, which nobody means who writes the type down.
            if told.is_none() {
                keys.required("rope.scaling.factor").map_err(|err| config.malformed(err))?;
            }
            if told == Some(0.0) {
                let refusal = Refusal::new("rope.scaling.factor", 0, "above 0 for yarn");
                return Err(LoadError::refused(config.path, refusal));
            }
            let multiplier = config.yarn_multiplier(keys)?;
            let yarn = yarn(keys, (factor, multiplier), shape);
            yarn.map_err(|err| config.malformed(err))?
        }
        name => return Err(config.unsupported("rope type", name, TYPES)),
    };
    let positions = scaling.positions(shape.max_positions);
    let original = original_positions(keys, shape).map_err(|err| config.malformed(err))?;
    let longrope = if shape.max_positions > original { LONG_FACTORS } else { SHORT_FACTORS };
    let factors = [FACTORS, longrope].into_iter().find_map(|name| {
        let is_there = checkpoint.tensors.contains_key(name);
        is_there.then(|| (name, per_frequency(checkpoint, name, rotary_dim)))
    });
    let scaling = match factors {
        None => scaling,
        Some((_, factors)) if scaling == Scaling::None => {
            Scaling::PerFrequency { factors: factors?, attention_factor: 1.0 }
        }
        Some((tensor, _)) => {
            let name = format!("{} with {tensor}", name.unwrap_or("linear"));
            return Err(config.unsupported("rope type", &name, TYPES));
        }
    };
    let theta = theta.unwrap_or(THETA);
    let mut rope = Rope::scaled(theta, rotary_dim as usize, &scaling)
        .map_err(|refusal| LoadError::refused(config.path, refusal))?;
    rope.attention_factor = attention_factor(config, keys, (&scaling, rope.attention_factor))?;
    Ok((rope, positions))
}

/// What cosine and sine are multiplied by, where `scaling` alone would have `inferred`.
fn attention_factor(
    config: &Config<'_, '_>,
    keys: &Keys<'_, '_>,
    (scaling, inferred): (&Scaling, f64),
) -> Result<f64, LoadError> {
    let given = keys.get("rope.scaling.attn_factor", Field::f64);
    let Some(given) = given.map_err(|err| config.malformed(err))? else { return Ok(inferred) };
    let given = Refusal::unless_within("rope.scaling.attn_factor", given, 1e-3, 1e3)
        .map_err(|refusal| LoadError::refused(config.path, refusal))?;
    // Of OLMo 3 the converter writes what config.json has, which is all of it; of others what
    // comes on top.
    let is_all = keys.architecture == Architecture::Olmo2 && matches!(scaling, Scaling::Yarn(_));
    Ok(if is_all { given } else { inferred * given })
}

/// The rotation of layers that have a window, where it is not stretched (Gemma 3 and 4, OLMo 3);
/// `None` where it is that of the others.
pub(super) fn window_rope(
    config: &Config<'_, '_>,
    keys: &Keys<'_, '_>,
    rotary_dim: u32,
) -> Result<Option<Rope>, LoadError> {
    let theta = match keys.architecture {
        Architecture::Gemma3 => {
            // What files without it leave out besides, nobody can tell.
            keys.required("rope.freq_base").map_err(|err| config.malformed(err))?;
            Some(GEMMA3_WINDOW_THETA)
        }
        Architecture::Gemma4 => Some(GEMMA3_WINDOW_THETA),
        Architecture::Olmo2 => None, // as the others
        _ => return Ok(None),
    };
    let get = |key| keys.get(key, Field::f64).map_err(|err| config.malformed(err));
    let (own, others) = (get("rope.freq_base_swa")?, get("rope.freq_base")?);
    let theta = own.or(theta).or(others).unwrap_or(THETA);
    Rope::scaled(theta, rotary_dim as usize, &Scaling::None)
        .map(Some)
        .map_err(|refusal| LoadError::refused(config.path, refusal))
}

/// What queries are multiplied by where they stand (Ministral 3, Mistral Large 3); 0 stands for
/// nothing.
pub(super) fn temperature(
    config: &Config<'_, '_>,
    keys: &Keys<'_, '_>,
    shape: &ModelShape,
) -> Result<Option<Temperature>, LoadError> {
    let malformed = |err| config.malformed(err);
    let beta = keys.get(GROWTH, Field::f64).map_err(malformed)?;
    let every = match keys.architecture {
        Architecture::Mistral3 | Architecture::Mistral4 => {
            Some(original_positions(keys, shape).map_err(malformed)?)
        }
        Architecture::DeepSeek2 => {
            keys.get("attention.temperature_length", Field::u32).map_err(malformed)?
        }
        _ => return Ok(None),
    };
    let unsaid = (keys.architecture == Architecture::Mistral4).then_some(MISTRAL4_BETA);
    let Some(beta) = beta.or(unsaid).filter(|&beta| beta != 0.0) else { return Ok(None) };
    let temperature = Temperature { beta, every: every.unwrap_or(0) }.checked();
    temperature.map(Some).map_err(|refusal| LoadError::refused(config.path, refusal))
}

/// The same in layers that do not rotate (Llama 4), if there are such; no key says it.
pub(super) fn still_temperature(keys: &Keys<'_, '_>, rotates: &[bool]) -> Option<Temperature> {
    let is_one = keys.architecture == Architecture::Llama4 && rotates.contains(&false);
    is_one.then_some(Temperature { beta: LLAMA4_BETA, every: LLAMA4_BLOCK })
}

/// Positions that the model was trained for before it was stretched.
fn original_positions(keys: &Keys<'_, '_>, shape: &ModelShape) -> Result<u32, GgufError> {
    let original = keys.get("rope.scaling.original_context_length", Field::u32)?;
    Ok(original.unwrap_or(shape.max_positions))
}

/// How the file says that positions are stretched, and by how much; `scale_linear` is what older
/// ones say.
pub(super) fn told_scaling<'a>(
    keys: &Keys<'_, 'a>,
) -> Result<(Option<&'a str>, Option<f64>), GgufError> {
    let factor = match keys.get("rope.scaling.factor", Field::f64)? {
        None => keys.get("rope.scale_linear", Field::f64)?,
        factor => factor,
    };
    Ok((keys.get("rope.scaling.type", Field::str)?, factor))
}

fn yarn(
    keys: &Keys<'_, '_>,
    (factor, multiplier): (f64, Option<f64>),
    shape: &ModelShape,
) -> Result<Scaling, GgufError> {
    let or = |key: &str, default: f64| {
        Ok(keys.get(&format!("rope.scaling.{key}"), Field::f64)?.unwrap_or(default))
    };
    let sharper = match (keys.architecture, multiplier) {
        // Where the scale of dot products grows, cosine and sine do not; of Mistral 4 none does.
        (Architecture::DeepSeek2, Some(_)) | (Architecture::Mistral4, _) => 1.0,
        // What these files say is config.json's `mscale_all_dim`, beside an `mscale` of 1.
        (Architecture::Mistral3, Some(weight)) => {
            yarn_attention_factor(factor, 1.0) / yarn_attention_factor(factor, weight)
        }
        _ => yarn_attention_factor(factor, 1.0),
    };
    Ok(Scaling::Yarn(Yarn {
        factor,
        original_positions: original_positions(keys, shape)?.into(),
        beta_fast: or("yarn_beta_fast", 32.0)?,
        beta_slow: or("yarn_beta_slow", 1.0)?,
        attention_factor: sharper,
        // No key says what gpt-oss' models are trained with.
        truncate: keys.architecture != Architecture::GptOss,
    }))
}

fn per_frequency(
    checkpoint: &Checkpoint<'_>,
    name: &str,
    rotary_dim: u32,
) -> Result<Vec<f64>, LoadError> {
    let stored = checkpoint.find(name, &[rotary_dim as usize / 2])?;
    Ok(stored.f32(name)?.into_iter().map(f64::from).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aqueduct_core::{WideHeads, WindowedLayers};
    use aqueduct_gguf::Gguf;
    use aqueduct_gguf::write::Writer;

    use super::*;

    const SHAPE: ModelShape = ModelShape {
        vocab: 32,
        layers: 4,
        width: 32,
        heads: 4,
        kv_heads: 4,
        head_dim: 8,
        ffn: 48,
        max_positions: 65_536,
        recurrent_layers: 0,
        state_bytes: 0,
        wide: WideHeads::NONE,
        kv_shared_layers: 0,
        windowed: WindowedLayers::NONE,
    };

    #[test]
    fn yarn_says_by_how_much_it_stretches() {
        let made = |factor: Option<(&str, f32)>| {
            let file = Writer::new().str("qwen3.rope.scaling.type", "yarn");
            let bytes = match factor {
                Some((key, factor)) => file.f32(&format!("qwen3.rope.{key}"), factor).finish(),
                None => file.finish(),
            };
            let gguf = Gguf::parse(&bytes).unwrap();
            let config = Config { path: "file", gguf: &gguf };
            let keys = Keys { gguf: &gguf, architecture: Architecture::Qwen3 };
            let none = Checkpoint { path: "file".to_owned(), tensors: BTreeMap::new() };
            let made = rope(&config, &keys, &none, (&SHAPE, 8));
            made.map(|(rope, _)| rope.attention_factor).map_err(|error| error.to_string())
        };
        for without in [None, Some(("scaling.factor", 0.0)), Some(("scale_linear", 0.0))] {
            let refused = made(without).unwrap_err();
            assert!(refused.contains("rope.scaling.factor"), "{refused}");
        }
        let inferred = yarn_attention_factor(8.0, 1.0);
        for key in ["scaling.factor", "scale_linear"] {
            let seen = made(Some((key, 8.0))).unwrap();
            assert!((seen - inferred).abs() < 1e-6, "{key}: {seen}");
        }
    }

    #[test]
    fn ministral_3_says_by_how_much_queries_grow() {
        let made = |architecture, file: Writer| {
            let bytes = file.finish();
            let gguf = Gguf::parse(&bytes).unwrap();
            let config = Config { path: "file", gguf: &gguf };
            let keys = Keys { gguf: &gguf, architecture };
            let none = Checkpoint { path: "file".to_owned(), tensors: BTreeMap::new() };
            let (rope, _) = rope(&config, &keys, &none, (&SHAPE, 8)).unwrap();
            let temperature = temperature(&config, &keys, &SHAPE);
            (rope.attention_factor, temperature.map_err(|error| error.to_string()))
        };
        let yarn = |name: &str| {
            Writer::new()
                .str(&format!("{name}.rope.scaling.type"), "yarn")
                .f32(&format!("{name}.rope.scaling.factor"), 16.0)
                .f32(&format!("{name}.attention.temperature_scale"), 0.5)
        };
        let original = "mistral3.rope.scaling.original_context_length";
        let weight = "mistral3.rope.scaling.yarn_log_multiplier";
        let published = yarn("mistral3").f32(weight, 1.0).u32(original, 16_384);
        let (factor, seen) = made(Architecture::Mistral3, published);
        assert_eq!((factor, seen), (1.0, Ok(Some(Temperature { beta: 0.5, every: 16_384 }))));
        let (factor, seen) = made(Architecture::Mistral3, yarn("mistral3"));
        assert!((factor - yarn_attention_factor(16.0, 1.0)).abs() < 1e-9, "{factor}");
        assert_eq!(seen, Ok(Some(Temperature { beta: 0.5, every: 65_536 })));
        let large = yarn("deepseek2").u32("deepseek2.attention.temperature_length", 8192);
        let (_, seen) = made(Architecture::DeepSeek2, large);
        assert_eq!(seen, Ok(Some(Temperature { beta: 0.5, every: 8192 })));
        let (_, nothing) = made(Architecture::DeepSeek2, yarn("deepseek2"));
        let nothing = nothing.unwrap_err();
        assert!(nothing.contains("attention temperature positions"), "{nothing}");
        assert_eq!(made(Architecture::Qwen3, yarn("qwen3")).1, Ok(None));
        let fourth = |beta: Option<f32>| {
            let file = Writer::new().u32("mistral4.rope.scaling.original_context_length", 8192);
            let file = match beta {
                Some(beta) => file.f32("mistral4.attention.temperature_scale", beta),
                None => file,
            };
            made(Architecture::Mistral4, file).1
        };
        let of = |beta| Ok(Some(Temperature { beta, every: 8192 }));
        assert_eq!([fourth(Some(0.5)), fourth(None)], [of(0.5), of(0.1)]);
        assert_eq!(fourth(Some(0.0)), Ok(None));
    }

    #[test]
    fn multipliers_of_yarn_are_within_bounds() {
        let made = |architecture: Architecture, multiplier: f32| {
            let key = |key: &str| format!("{}.rope.scaling.{key}", architecture.name());
            let bytes = Writer::new()
                .str(&key("type"), "yarn")
                .f32(&key("factor"), 16.0)
                .f32(&key("yarn_log_multiplier"), multiplier)
                .finish();
            let gguf = Gguf::parse(&bytes).unwrap();
            let config = Config { path: "file", gguf: &gguf };
            let keys = Keys { gguf: &gguf, architecture };
            let none = Checkpoint { path: "file".to_owned(), tensors: BTreeMap::new() };
            let made = rope(&config, &keys, &none, (&SHAPE, 8));
            made.map(|(rope, _)| rope.attention_factor).map_err(|error| error.to_string())
        };
        for architecture in
            [Architecture::Mistral3, Architecture::DeepSeek2, Architecture::Mistral4]
        {
            for odd in [-1.0, 1e-7, 2e3, f32::INFINITY, f32::NAN] {
                let refused = made(architecture, odd).unwrap_err();
                assert!(refused.contains("rope.scaling.yarn_log_multiplier"), "{refused}");
            }
            assert_eq!(made(architecture, 1.0), Ok(1.0), "{architecture:?}");
        }
        for architecture in [Architecture::Mistral3, Architecture::DeepSeek2] {
            let unsaid = made(architecture, 0.0).unwrap();
            assert_eq!(unsaid, yarn_attention_factor(16.0, 1.0), "{architecture:?}");
        }
        assert_eq!(made(Architecture::Mistral4, 0.0), Ok(1.0));
    }

    #[test]
    fn olmo_3_says_all_of_its_attention_factor_and_others_what_comes_on_top() {
        let check = |(architecture, name): (Architecture, &str),
                     (scaling, given): (&str, Option<f32>),
                     want: f64| {
            let key = |key: &str| format!("{name}.rope.{key}");
            let file = Writer::new()
                .str(&key("scaling.type"), scaling)
                .f32(&key("scaling.factor"), 8.0)
                .u32(&key("scaling.original_context_length"), 8192);
            let file = match given {
                Some(given) => file.f32(&key("scaling.attn_factor"), given),
                None => file,
            };
            let bytes = file.finish();
            let gguf = Gguf::parse(&bytes).unwrap();
            let config = Config { path: "file", gguf: &gguf };
            let keys = Keys { gguf: &gguf, architecture };
            let none = Checkpoint { path: "file".to_owned(), tensors: BTreeMap::new() };
            let (rope, positions) = rope(&config, &keys, &none, (&SHAPE, 8)).unwrap();
            assert_eq!(positions, if scaling == "yarn" { 65_536 } else { 8 * 65_536 });
            let seen = rope.attention_factor;
            assert!((seen - want).abs() < 1e-6, "{name} {scaling} {given:?}: {seen}, not {want}");
        };
        let (olmo, qwen) = ((Architecture::Olmo2, "olmo2"), (Architecture::Qwen3, "qwen3"));
        // 0.1 ln 8 + 1, which OLMo 3 is published with.
        let published = 1.207_944_2;
        let inferred = yarn_attention_factor(8.0, 1.0);
        check(olmo, ("yarn", Some(published)), inferred);
        check(olmo, ("yarn", Some(1.5)), 1.5);
        check(olmo, ("yarn", None), inferred);
        check(olmo, ("linear", Some(1.5)), 1.5);
        check(qwen, ("yarn", Some(1.5)), 1.5 * inferred);
        check(qwen, ("yarn", None), inferred);
    }
}
