//! `response_format`: what an answer must look like.

use aqueduct_core::{Grammar, Refusal};
use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;

/// `None` where any text will do.
pub(super) fn take_format(fields: &mut Fields<'_>) -> Result<Option<Grammar>, ApiError> {
    let Some(format) = fields.take::<Value>("response_format")? else { return Ok(None) };
    let schema = ("json_schema.schema", &format["json_schema"]["schema"]);
    Ok(grammar("response_format", &format["type"], schema)?)
}

/// What a format of this type stands for, in `field`; the schema is in a field of its own.
pub(super) fn grammar(
    field: &str,
    kind: &Value,
    (schema_field, schema): (&str, &Value),
) -> Result<Option<Grammar>, Refusal> {
    match kind.as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::json_object())),
        Some("json_schema") if schema.is_object() => {
            Ok(Some(Grammar::JsonSchema(schema.to_string())))
        }
        Some("json_schema") => {
            let bound = "a JSON schema, which is an object";
            Err(Refusal::new(format!("{field}.{schema_field}"), schema, bound))
        }
        _ => {
            let bound = "text, json_object or json_schema";
            Err(Refusal::new(format!("{field}.type"), kind, bound))
        }
    }
}
