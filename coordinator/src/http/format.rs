//! `response_format`: what an answer must look like.

use aqueduct_core::{Constraint, Grammar, Refusal, limits};
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Fields;
use super::guided::take_guided;
use crate::text::TextModel;

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub struct Format {
    /// The field that says so.
    pub(super) field: &'static str,
    pub(super) shape: Shape,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Schema {
        schema: Value,
        /// Whether it is refused where no grammar can follow all that it says.
        is_strict: bool,
    },
    /// A text that is no JSON, or not by a schema.
    Text(Grammar),
}

/// `None` where any text will do.
pub(super) fn take_format(fields: &mut Fields<'_>) -> Result<Option<Format>, ApiError> {
    one_of(take_response_format(fields)?, take_guided(fields)?)
}

/// Whichever of two fields says what an answer must look like.
///
/// # Errors
/// They ask for different answers.
pub(super) fn one_of(
    first: Option<Format>,
    second: Option<Format>,
) -> Result<Option<Format>, ApiError> {
    match (&first, &second) {
        (Some(Format { field, shape }), Some(other)) if *shape != other.shape => {
            let reason = format!("is not supported beside {field}, which asks for another answer");
            Err(ApiError::field(other.field, reason))
        }
        _ => Ok(first.or(second)),
    }
}

fn take_response_format(fields: &mut Fields<'_>) -> Result<Option<Format>, ApiError> {
    let Some(format) = fields.take::<Value>("response_format")? else { return Ok(None) };
    let (field, described) = ("response_format", &format["json_schema"]);
    let is_object = format["type"] == "json_object";
    // A schema beside the type is llama.cpp's way to say it; Hugging Face's client has a value.
    let beside = ["schema", "value"].into_iter().find(|name| !format[*name].is_null());
    if let (false, Some(name)) = (is_object, beside) {
        let path = format!("{field}.{name}");
        return Err(ApiError::field(&path, "is known beside the type json_object alone"));
    }
    let (path, described) = match beside {
        Some(name) => ("", json!({ "schema": format[name], "strict": format["strict"] })),
        None => ("json_schema.", described.clone()),
    };
    let has_schema = is_object && !described.is_null();
    let kind = if has_schema { json!("json_schema") } else { format["type"].clone() };
    Ok(of(field, &kind, (path, &described))?)
}

/// What a format of this type stands for, in `field`; a schema is below `path`, in `described`.
pub(super) fn of(
    field: &'static str,
    kind: &Value,
    (path, described): (&str, &Value),
) -> Result<Option<Format>, Refusal> {
    let (schema, is_strict) = (&described["schema"], described["strict"] == true);
    let by = |schema| Ok(Some(Format { field, shape: Shape::Schema { schema, is_strict } }));
    match kind.as_str() {
        Some("text") => Ok(None),
        Some("json_object") => by(json!({ "type": "object" })),
        Some("json_schema") if schema.is_object() => by(schema.clone()),
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
    /// The format as it is followed; `warnings` say what of it is not.
    ///
    /// # Errors
    /// One that cannot be followed.
    pub(super) fn followed(
        self,
        text: &TextModel,
        warnings: &mut Vec<String>,
    ) -> Result<Kept, Refusal> {
        let field = self.field;
        match self.shape {
            Shape::Schema { schema, is_strict } => {
                let followed = followed(text, field, (schema, is_strict), warnings)?;
                let Followed { schema, constraint } = followed;
                Ok(Kept { field, schema: Some(schema), constraint })
            }
            Shape::Text(grammar) => {
                let is_gbnf = is_gbnf(&grammar);
                let constraint = text.constraint(field, grammar.into());
                let constraint = constraint.map_err(|refusal| match is_gbnf {
                    true => Refusal { bound: IN_LARK.to_owned(), ..refusal },
                    false => refusal,
                })?;
                Ok(Kept { field, schema: None, constraint })
            }
        }
    }
}

/// What a grammar must be, said where it is one of vLLM's other dialects and llama.cpp's: what a
/// parser of Lark says of that helps nobody.
const IN_LARK: &str = "in llguidance's dialect of Lark, which begins with `start:`, and not in \
                       GBNF or EBNF, which has `::=`";

fn is_gbnf(grammar: &Grammar) -> bool {
    matches!(grammar, Grammar::Lark(text) if text.contains("::="))
}

/// A format that can be followed.
pub(super) struct Kept {
    pub(super) field: &'static str,
    /// `None`: it is no JSON by a schema.
    pub(super) schema: Option<Value>,
    /// What makes an answer follow it.
    pub(super) constraint: Constraint,
}

/// A schema that can be followed.
pub(super) struct Followed {
    pub(super) schema: Value,
    /// What makes an answer follow it.
    pub(super) constraint: Constraint,
}

/// The schema in `field` as it can be followed, which is all of it if it `is_strict`: compiled
/// before anything is prefilled, so that a bad one is refused at once.
///
/// # Errors
/// A schema that cannot be followed.
pub(super) fn followed(
    text: &TextModel,
    field: &str,
    (schema, is_strict): (Value, bool),
    warnings: &mut Vec<String>,
) -> Result<Followed, Refusal> {
    // What is left out to make a schema one that can be followed is found by compiling, too.
    text.may_compile(field)?;
    let compile = |words: String| text.constraint(field, Grammar::JsonSchema(words).into());
    let words = schema.to_string();
    let bytes = words.len();
    let refusal = match compile(words) {
        Ok(constraint) => return Ok(Followed { schema, constraint }),
        Err(refusal) => refusal,
    };
    // Patterns are tried one by one, so what is too long must not come that far.
    if is_strict || bytes > limits::GRAMMAR_BYTES_MAX {
        return Err(refusal);
    }
    let schema = aqueduct_grammar::lenient(schema);
    let Ok(constraint) = compile(schema.to_string()) else { return Err(refusal) };
    let reason = aqueduct_grammar::reason(&refusal);
    warnings.push(format!("{field} is not followed in all that it says: {reason}"));
    Ok(Followed { schema, constraint })
}
