//! How a model's makers would have its tokens drawn, where a caller does not say.

use aqueduct_core::{Refusal, Sampling};
use aqueduct_gguf::{Field, Gguf, GgufError};
use serde_json::Value;

use super::TextError;

/// What `generation_config.json` says: the fields that vLLM takes from it. `do_sample` is none of
/// them: who samples greedily says so by a temperature of 0.
///
/// # Errors
/// A field that is no number, or out of bounds.
pub(super) fn of_folder(generation: &Value) -> Result<Sampling, Refusal> {
    let number = |field: &str, unsaid: f32| match &generation[field] {
        Value::Null => Ok(unsaid),
        given => given
            .as_f64()
            .map(|number| number as f32)
            .ok_or_else(|| Refusal::new(field, given, "a number")),
    };
    let usual = Sampling::default();
    // Below 0 is how others write "all", too.
    let top_k = match &generation["top_k"] {
        Value::Null => 0,
        given => given.as_i64().ok_or_else(|| Refusal::new("top_k", given, "a whole number"))?,
    };
    let top_k = u32::try_from(top_k.max(0)).unwrap_or(u32::MAX);
    checked(Sampling {
        temperature: number("temperature", usual.temperature)?,
        top_p: number("top_p", usual.top_p)?,
        top_k,
        min_p: number("min_p", usual.min_p)?,
        repetition_penalty: number("repetition_penalty", usual.repetition_penalty)?,
        ..usual
    })
}

/// The same of a GGUF file's `general.sampling`.
///
/// # Errors
/// A field of another type, or out of bounds.
pub(super) fn of_gguf(gguf: &Gguf<'_>) -> Result<Sampling, TextError> {
    let given = collect(gguf).map_err(|error| TextError::invalid("general.sampling", error))?;
    Ok(checked(given)?)
}

fn collect(gguf: &Gguf<'_>) -> Result<Sampling, GgufError> {
    let field = |name: &str| gguf.get(&format!("general.sampling.{name}"));
    let number = |name: &str, unsaid: f32| {
        field(name).map(Field::f32).transpose().map(|given| given.unwrap_or(unsaid))
    };
    let usual = Sampling::default();
    Ok(Sampling {
        temperature: number("temp", usual.temperature)?,
        top_p: number("top_p", usual.top_p)?,
        top_k: field("top_k").map(Field::u32).transpose()?.unwrap_or(usual.top_k),
        min_p: number("min_p", usual.min_p)?,
        repetition_penalty: number("penalty_repeat", usual.repetition_penalty)?,
        ..usual
    })
}

/// Refuses what no caller could say either.
fn checked(sampling: Sampling) -> Result<Sampling, Refusal> {
    sampling.validate().map_err(|refusal| Refusal {
        field: format!("{} recommended by the model", refusal.field),
        ..refusal
    })?;
    Ok(sampling)
}

#[cfg(test)]
mod tests {
    use aqueduct_gguf::write::Writer;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_said_is_usual() {
        let usual = Sampling::default();
        assert_eq!(of_folder(&Value::Null), Ok(usual));
        assert_eq!(of_folder(&json!({ "do_sample": false, "top_k": null })), Ok(usual));
        let given = json!({
            "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05,
        });
        let want = Sampling {
            temperature: 0.6,
            top_p: 0.95,
            top_k: 20,
            repetition_penalty: 1.05,
            ..usual
        };
        assert_eq!(of_folder(&given), Ok(want));
        assert_eq!(of_folder(&json!({ "top_k": -1 })), Ok(usual));
        let bytes = Writer::new().u32("general.sampling.top_k", 40).finish();
        let seen = of_gguf(&Gguf::parse(&bytes).unwrap()).unwrap();
        assert_eq!(seen, Sampling { top_k: 40, ..usual });
    }

    #[test]
    fn what_no_caller_could_say_is_refused() {
        let check = |given: Value, want: &str| {
            let refusal = of_folder(&given).unwrap_err().to_string();
            assert!(refusal.starts_with(want), "{refusal}: {want}");
        };
        check(json!({ "temperature": 3 }), "temperature recommended by the model = 3: must be ");
        check(json!({ "top_p": "1" }), "top_p = \"1\": must be a number");
        check(json!({ "top_k": 1.5 }), "top_k = 1.5: must be a whole number");
    }
}
