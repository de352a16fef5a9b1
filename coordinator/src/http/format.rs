//! `response_format`: what an answer must look like.

use aqueduct_core::{Grammar, Refusal};
use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;

/// `None` where any text will do.
pub(super) fn take_format(fields: &mut Fields<'_>) -> Result<Option<Grammar>, ApiError> {
    let Some(format) = fields.take::<Value>("response_format")? else { return Ok(None) };
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::json_object())),
        Some("json_schema") => {
            let schema = &format["json_schema"]["schema"];
            if !schema.is_object() {
                let bound = "a JSON schema, which is an object";
                let field = "response_format.json_schema.schema";
                return Err(Refusal::new(field, schema, bound).into());
            }
            Ok(Some(Grammar::JsonSchema(schema.to_string())))
        }
        _ => {
            let bound = "text, json_object or json_schema";
            Err(Refusal::new("response_format.type", &format["type"], bound).into())
        }
    }
}
