//! `response_format`: what an answer must look like.

use aqueduct_core::{Grammar, Refusal};
use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use crate::text::TextModel;

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub struct Format {
    grammar: Grammar,
    /// Whether it is refused where no grammar can follow all that it says.
    is_strict: bool,
}

/// `None` where any text will do.
pub(super) fn take_format(fields: &mut Fields<'_>) -> Result<Option<Format>, ApiError> {
    let Some(format) = fields.take::<Value>("response_format")? else { return Ok(None) };
    Ok(of("response_format", &format["type"], ("json_schema.", &format["json_schema"]))?)
}

/// What a format of this type stands for, in `field`; a schema is below `path`, in `described`.
pub(super) fn of(
    field: &str,
    kind: &Value,
    (path, described): (&str, &Value),
) -> Result<Option<Format>, Refusal> {
    let (schema, is_strict) = (&described["schema"], described["strict"] == true);
    match kind.as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Format { grammar: Grammar::json_object(), is_strict })),
        Some("json_schema") if schema.is_object() => {
            let grammar = Grammar::JsonSchema(schema.to_string());
            Ok(Some(Format { grammar, is_strict }))
        }
        Some("json_schema") => {
            let bound = "a JSON schema, which is an object";
            Err(Refusal::new(format!("{field}.{path}schema"), schema, bound))
        }
        _ => {
            let bound = "text, json_object or json_schema";
            Err(Refusal::new(format!("{field}.type"), kind, bound))
        }
    }
}

impl Format {
    /// The grammar that is followed, compiled once before anything is prefilled, so that a bad one
    /// is refused at once; `warnings` say what of it is not followed.
    pub(super) fn followed(
        self,
        text: &TextModel,
        warnings: &mut Vec<String>,
    ) -> Result<Grammar, Refusal> {
        let field = "response_format";
        match self.grammar {
            Grammar::JsonSchema(schema) => {
                let schema = serde_json::from_str(&schema)
                    .map_err(|error| Refusal::new(field, error, "JSON"))?;
                let schema = followed(text, field, (schema, self.is_strict), warnings)?;
                Ok(Grammar::JsonSchema(schema.to_string()))
            }
            grammar => text.constraint(field, grammar.clone()).map(|_| grammar),
        }
    }
}

/// The schema in `field` as it can be followed, which is all of it if it `is_strict`.
///
/// # Errors
/// A schema that cannot be followed.
pub(super) fn followed(
    text: &TextModel,
    field: &str,
    (schema, is_strict): (Value, bool),
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    let check = |schema: &Value| text.constraint(field, Grammar::JsonSchema(schema.to_string()));
    let Err(refusal) = check(&schema) else { return Ok(schema) };
    let lenient = aqueduct_grammar::lenient(schema);
    if is_strict || check(&lenient).is_err() {
        return Err(refusal);
    }
    let reason = refusal.bound.rsplit_once("followed: ").map_or("", |(_, reason)| reason);
    warnings.push(format!("{field} is not followed in all that it says: {reason}"));
    Ok(lenient)
}
