//! What an answer must look like, in the words of vLLM (`structured_outputs`, and `guided_json` and
//! its like before that) and of llama.cpp (`json_schema`, `grammar`).

use aqueduct_core::Grammar;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Fields;
use super::format::{Format, Shape};

/// What a value stands for, nothing for one that asks for none; or what it must be.
type Read = fn(Value) -> Result<Option<Shape>, &'static str>;

/// Fields of the body.
const BESIDE: [(&str, Read); 6] = [
    ("guided_json", schema),
    ("guided_regex", regex),
    ("guided_choice", choice),
    ("guided_grammar", lark),
    ("json_schema", schema),
    ("grammar", lark),
];
const STRUCTURED: &str = "structured_outputs";
/// Fields of that object, each behind its full name.
const WITHIN: [(&str, &str, Read); 5] = [
    ("structured_outputs.json", "json", schema),
    ("structured_outputs.regex", "regex", regex),
    ("structured_outputs.choice", "choice", choice),
    ("structured_outputs.grammar", "grammar", lark),
    ("structured_outputs.json_object", "json_object", object),
];
/// What else it may say of vLLM's backends: there is one here, which writes no more space than it
/// must, and no fields that a schema with `properties` does not allow.
const OF_BACKENDS: [&str; 3] =
    ["disable_fallback", "disable_any_whitespace", "disable_additional_properties"];

/// `None` where any text will do.
pub(super) fn take_guided(fields: &mut Fields<'_>) -> Result<Option<Format>, ApiError> {
    let mut formats = Vec::new();
    for (field, read) in BESIDE {
        formats.extend(format(field, fields.take(field)?, read)?);
    }
    let mut within = fields.object(STRUCTURED)?;
    for (field, name, read) in WITHIN {
        formats.extend(format(field, within.take(name)?, read)?);
    }
    OF_BACKENDS.iter().for_each(|name| within.ignore(name));
    within.refuse("whitespace_pattern", Value::is_null)?;
    within.refuse("structural_tag", Value::is_null)?;
    within.finish()?;
    fields.ignore("guided_decoding_backend");
    fields.refuse("guided_whitespace_pattern", Value::is_null)?;
    if let [first, second, ..] = formats.as_slice() {
        let reason = format!("is not supported beside {}", first.field);
        return Err(ApiError::field(second.field, reason));
    }
    Ok(formats.pop())
}

fn format(
    field: &'static str,
    value: Option<Value>,
    read: Read,
) -> Result<Option<Format>, ApiError> {
    let shape = value.map_or(Ok(None), read);
    let shape = shape.map_err(|bound| ApiError::field(field, format!("must be {bound}")))?;
    Ok(shape.map(|shape| Format { field, shape }))
}

/// A schema, or its text.
fn schema(value: Value) -> Result<Option<Shape>, &'static str> {
    let schema = match value {
        Value::String(text) => serde_json::from_str(&text).unwrap_or_default(),
        other => other,
    };
    match schema.is_object() {
        true => Ok(Some(Shape::Schema { schema, is_strict: false })),
        false => Err("a JSON schema, which is an object, or its text"),
    }
}

fn object(value: Value) -> Result<Option<Shape>, &'static str> {
    let is_asked = value.as_bool().ok_or("true or false")?;
    is_asked.then(|| schema(json!({ "type": "object" }))).transpose().map(Option::flatten)
}

/// Whoever has none says so with an empty one.
fn regex(value: Value) -> Result<Option<Shape>, &'static str> {
    match value {
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) => Ok(Some(Shape::Text(Grammar::Regex(text)))),
        _ => Err("a regular expression, as text"),
    }
}

/// Whoever has none says so with an empty one.
fn lark(value: Value) -> Result<Option<Shape>, &'static str> {
    match value {
        Value::String(text) => {
            Ok((!text.trim().is_empty()).then_some(Shape::Text(Grammar::Lark(text))))
        }
        _ => Err("a grammar, as text"),
    }
}

/// One of several texts: a word of a lexer's, so that one of them may begin like another.
fn choice(value: Value) -> Result<Option<Shape>, &'static str> {
    const TEXTS: &str = "a list of texts that are not empty";
    let Value::Array(list) = value else { return Err(TEXTS) };
    let is_text = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
    if list.is_empty() || !list.iter().all(is_text) {
        return Err(TEXTS);
    }
    // As JSON has it, a text is one of Lark's.
    let texts: Vec<String> = list.iter().map(Value::to_string).collect();
    let lark = format!("start: CHOICE\nCHOICE: {}\n", texts.join(" | "));
    Ok(Some(Shape::Text(Grammar::Lark(lark))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a body asks for, or the field that is wrong.
    fn taken(body: &Value) -> Result<Option<(&'static str, Shape)>, String> {
        let body = body.to_string();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let taken = take_guided(&mut fields).and_then(|taken| fields.finish().map(|()| taken));
        let taken = taken.map_err(|error| error.param.unwrap_or_default())?;
        Ok(taken.map(|Format { field, shape }| (field, shape)))
    }

    #[test]
    fn forms_in_other_words() {
        let check = |body: Value, field: &'static str, shape: Shape| {
            assert_eq!(taken(&body), Ok(Some((field, shape))), "{body}");
        };
        let schema = json!({ "type": "integer" });
        let by = |schema: &Value| Shape::Schema { schema: schema.clone(), is_strict: false };
        let regex = || Shape::Text(Grammar::Regex("a+".to_owned()));
        let lark = |text: &str| Shape::Text(Grammar::Lark(text.to_owned()));
        let within = |name: &str, value: Value| json!({ STRUCTURED: { name: value } });
        check(within("json", schema.clone()), "structured_outputs.json", by(&schema));
        let text = json!(schema.to_string());
        check(within("json", text.clone()), "structured_outputs.json", by(&schema));
        check(json!({ "guided_json": text }), "guided_json", by(&schema));
        check(json!({ "json_schema": schema }), "json_schema", by(&schema));
        let any = json!({ "type": "object" });
        check(within("json_object", json!(true)), "structured_outputs.json_object", by(&any));
        check(within("regex", json!("a+")), "structured_outputs.regex", regex());
        check(json!({ "guided_regex": "a+" }), "guided_regex", regex());
        let choices = lark("start: CHOICE\nCHOICE: \"a\" | \"b\\\"\"\n");
        let words = json!(["a", "b\""]);
        check(within("choice", words.clone()), "structured_outputs.choice", choices.clone());
        check(json!({ "guided_choice": words }), "guided_choice", choices);
        let grammar = "start: \"a\"";
        check(within("grammar", json!(grammar)), "structured_outputs.grammar", lark(grammar));
        check(json!({ "guided_grammar": grammar }), "guided_grammar", lark(grammar));
        check(json!({ "grammar": grammar }), "grammar", lark(grammar));
    }

    #[test]
    fn what_asks_for_nothing_is_none() {
        for body in [
            json!({}),
            json!({ "guided_json": null, "grammar": "", STRUCTURED: null }),
            json!({ STRUCTURED: {} }),
            json!({ "guided_regex": "", STRUCTURED: { "regex": "" } }),
            json!({ STRUCTURED: { "json_object": false, "structural_tag": null } }),
            json!({ STRUCTURED: { "disable_fallback": true }, "guided_decoding_backend": "x" }),
        ] {
            assert_eq!(taken(&body), Ok(None), "{body}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |body: Value, field: &str| {
            assert_eq!(taken(&body), Err(field.to_owned()), "{body}");
        };
        check(json!({ "guided_json": "{" }), "guided_json");
        check(json!({ "json_schema": [] }), "json_schema");
        check(json!({ "guided_regex": 5 }), "guided_regex");
        check(json!({ "guided_choice": [] }), "guided_choice");
        check(json!({ "guided_choice": ["a", ""] }), "guided_choice");
        check(json!({ "grammar": {} }), "grammar");
        check(json!({ "guided_regex": "a", "guided_choice": ["a"] }), "guided_choice");
        check(json!({ "grammar": "a", STRUCTURED: { "regex": "a" } }), "structured_outputs.regex");
        let two = json!({ STRUCTURED: { "json": {}, "choice": ["a"] } });
        check(two, "structured_outputs.choice");
        let tag = json!({ STRUCTURED: { "structural_tag": "{}" } });
        check(tag, "structured_outputs.structural_tag");
        check(json!({ STRUCTURED: { "json_object": 1 } }), "structured_outputs.json_object");
        check(json!({ STRUCTURED: { "typo": 1 } }), "structured_outputs.typo");
        check(json!({ STRUCTURED: "json" }), STRUCTURED);
    }
}
