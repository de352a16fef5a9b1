//! JSON schemas, narrowed to what a model should write.

use serde_json::{Map, Value, json};

type Fields = Map<String, Value>;

/// Keywords under which there is one schema, a list of them, and schemas by name.
const ONE: [&str; 4] = ["items", "contains", "additionalProperties", "propertyNames"];
const LISTS: [&str; 3] = ["anyOf", "oneOf", "prefixItems"];
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Beside one of these an object's fields are not said in one place.
const ELSEWHERE: [&str; 13] = [
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "minProperties",
    "dependentSchemas",
    "dependencies",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "$ref",
    "$dynamicRef",
];

/// The schema with one way to write what it describes, so that a model cannot fill its budget:
/// one space after commas and colons and none elsewhere, and in objects no fields but those that
/// are named, unless the schema says that there may be others. All that this allows is valid by
/// the schema as it came.
pub fn narrowed(mut schema: Value) -> Value {
    if !has_parts(&schema) {
        close(&mut schema);
    }
    if let Value::Object(fields) = &mut schema {
        let spelling = json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
        });
        fields.insert("x-guidance".to_owned(), spelling);
    }
    schema
}

/// Whether an object is described in parts somewhere, each of which must let the others' fields
/// pass.
fn has_parts(schema: &Value) -> bool {
    let Value::Object(fields) = schema else { return false };
    let has_any = |names: &[&str]| names.iter().any(|name| fields.contains_key(*name));
    let is_joined = has_any(&["allOf", "if", "dependentSchemas", "$dynamicRef"]);
    let refers = has_any(&["anyOf", "oneOf", "$ref"]);
    let says = has_any(&["properties", "required", "additionalProperties"]);
    is_joined || refers && says || inner(fields).any(has_parts)
}

fn inner(fields: &Fields) -> impl Iterator<Item = &Value> {
    let one = ONE.iter().filter_map(|name| fields.get(*name));
    let listed = LISTS.iter().filter_map(|name| fields.get(*name)?.as_array()).flatten();
    let named = NAMED.iter().filter_map(|name| fields.get(*name)?.as_object());
    one.chain(listed).chain(named.flat_map(Map::values))
}

fn close(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    let named = fields.get("properties").and_then(Value::as_object);
    let required = fields.get("required").and_then(Value::as_array);
    let is_named = |name: &Value| {
        name.as_str().zip(named).is_some_and(|(name, named)| named.contains_key(name))
    };
    let all_named = required.is_none_or(|required| required.iter().all(is_named));
    let here = !ELSEWHERE.iter().any(|name| fields.contains_key(*name));
    if named.is_some() && all_named && here {
        fields.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    for (name, value) in fields {
        match value {
            Value::Object(_) if ONE.contains(&name.as_str()) => close(value),
            Value::Array(list) if LISTS.contains(&name.as_str()) => list.iter_mut().for_each(close),
            Value::Object(inner) if NAMED.contains(&name.as_str()) => {
                inner.values_mut().for_each(close);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: &Value, want: &Value) {
        let mut seen = narrowed(schema.clone());
        assert!(seen.as_object_mut().unwrap().remove("x-guidance").is_some());
        assert_eq!(seen, *want);
    }

    #[test]
    fn objects_have_the_fields_that_are_named() {
        let open = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        let mut closed = open.clone();
        closed["additionalProperties"] = json!(false);
        check(&open, &closed);
        check(&closed, &closed);
        let nothing = json!({ "type": "object", "properties": {} });
        let just_that =
            json!({ "type": "object", "properties": {}, "additionalProperties": false });
        check(&nothing, &just_that);
        let within = |it: &Value| {
            json!({
                "type": "array", "items": { "anyOf": [it, { "$ref": "#/$defs/it" }] },
                "$defs": { "it": it, "deep": { "additionalProperties": it } },
            })
        };
        check(&within(&open), &within(&closed));
    }

    #[test]
    fn what_is_open_stays_open() {
        for schema in [
            json!({ "type": "object" }),
            json!({ "type": "object", "required": ["b"], "properties": { "a": true } }),
            json!({ "properties": { "a": true }, "additionalProperties": { "type": "number" } }),
            json!({ "properties": { "a": true }, "patternProperties": { "b": true } }),
            json!({ "properties": { "a": true }, "minProperties": 2 }),
            json!({ "allOf": [{ "properties": { "a": {} } }, { "properties": { "b": {} } }] }),
            json!({ "properties": { "a": {} }, "anyOf": [{ "required": ["a"] }] }),
            json!({
                "properties": { "a": { "$ref": "#/$defs/a", "required": ["x"] } },
                "$defs": { "a": { "properties": { "b": {} } } },
            }),
            json!({ "enum": [{ "properties": { "a": 1 } }] }),
        ] {
            check(&schema, &schema);
        }
    }

    /// A field may be called like a keyword.
    #[test]
    fn names_of_fields_are_no_keywords() {
        let named = json!({ "properties": { "allOf": { "type": "string" }, "properties": {} } });
        let mut want = named.clone();
        want["additionalProperties"] = json!(false);
        check(&named, &want);
    }
}
