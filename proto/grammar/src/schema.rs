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

/// Where else schemas stand than in what a closed object may be described by.
const MORE_ONE: [&str; 6] =
    ["not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"];
const MORE_LISTS: [&str; 1] = ["allOf"];
const MORE_NAMED: [&str; 1] = ["dependentSchemas"];
/// Formats of strings that grammars know. Another one is a remark: JSON Schema lets it be.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Beside one of these a schema need not say its type.
const TYPED: [&str; 9] =
    ["type", "enum", "const", "$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "not"];
/// Patterns that look around themselves, which no automaton does.
const LOOKAROUND: [&str; 4] = ["(?=", "(?!", "(?<=", "(?<!"];
/// What bounds a number, and from where on that is more than grammars count.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
const BOUND_MOST: f64 = (1u64 << 62) as f64;
/// Where llguidance's own options stand.
const OPTIONS: &str = "x-guidance";

/// The schema with one way to write what it describes, so that a model cannot fill its budget:
/// one space after commas and colons and none elsewhere, and in objects no fields but those that
/// are named, unless the schema says that there may be others. All that this allows is valid by
/// the schema as it came, unless that was made [`lenient`].
pub fn narrowed(mut schema: Value) -> Value {
    let is_lenient = schema[OPTIONS]["lenient"] == true;
    each(&mut schema, &mut plain);
    if !has_parts(&schema) {
        close(&mut schema);
    }
    if let Value::Object(fields) = &mut schema {
        let spelling = json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            "lenient": is_lenient,
        });
        fields.insert(OPTIONS.to_owned(), spelling);
    }
    schema
}

/// The schema as far as a grammar can follow it: what else it says is passed over.
pub fn lenient(mut schema: Value) -> Value {
    let looks_around = |value: &Value| {
        value.as_str().is_some_and(|text| LOOKAROUND.iter().any(|part| text.contains(part)))
    };
    // As long as 64 bits are, a bound of whole numbers says what type somebody keeps them in.
    let is_type = |value: &Value| value.as_f64().is_some_and(|bound| bound.abs() >= BOUND_MOST);
    each(&mut schema, &mut |fields| {
        if fields.get("pattern").is_some_and(looks_around) {
            fields.remove("pattern");
        }
        for name in BOUNDS {
            if fields.get(name).is_some_and(is_type) {
                fields.remove(name);
            }
        }
    });
    if let Value::Object(fields) = &mut schema {
        fields.insert(OPTIONS.to_owned(), json!({ "lenient": true }));
    }
    schema
}

/// Has `change` change the schema, and every schema in it.
fn each(schema: &mut Value, change: &mut impl FnMut(&mut Fields)) {
    let Value::Object(fields) = schema else { return };
    change(fields);
    for (name, value) in fields {
        let is_any =
            |some: &[&str], more: &[&str]| some.iter().chain(more).any(|keyword| keyword == name);
        match value {
            Value::Object(_) if is_any(&ONE, &MORE_ONE) => each(value, change),
            Value::Array(list) if is_any(&LISTS, &MORE_LISTS) => {
                list.iter_mut().for_each(|one| each(one, change));
            }
            Value::Object(inner) if is_any(&NAMED, &MORE_NAMED) => {
                inner.values_mut().for_each(|one| each(one, change));
            }
            _ => {}
        }
    }
}

/// Says in other words what grammars do not read in these, and leaves out what asks for nothing.
fn plain(fields: &mut Fields) {
    let is_known = |format: &Value| format.as_str().is_some_and(|name| FORMATS.contains(&name));
    if fields.get("format").is_some_and(|format| !is_known(format)) {
        fields.remove("format");
    }
    if fields.get("uniqueItems") == Some(&Value::Bool(false)) {
        fields.remove("uniqueItems");
    }
    if fields.contains_key("properties") && !TYPED.iter().any(|name| fields.contains_key(*name)) {
        fields.insert("type".to_owned(), json!("object"));
    }
    name_fields(fields);
}

/// What `propertyNames` says of the names of fields that are not listed, as fields or patterns.
fn name_fields(fields: &mut Fields) {
    let Some(names) = fields.get("propertyNames") else { return };
    let named = |name: &str| names.get(name).cloned();
    let (listed, pattern) = (named("enum"), named("pattern"));
    let is_any = names == &Value::Bool(true)
        || names.as_object().is_some_and(|names| {
            names.iter().all(|(name, value)| name == "type" && value == "string")
        });
    let is_else = ["properties", "patternProperties"].iter().any(|name| fields.contains_key(*name));
    let others = fields.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let (name, inner) = match (listed, pattern) {
        _ if is_any => return drop(fields.remove("propertyNames")),
        (Some(Value::Array(names)), None) if !is_else => {
            let names = names.iter().filter_map(Value::as_str);
            let each = names.map(|name| (name.to_owned(), others.clone()));
            ("properties", Value::Object(each.collect()))
        }
        (None, Some(Value::String(pattern))) if !is_else => {
            ("patternProperties", json!({ pattern: others }))
        }
        _ => return,
    };
    fields.remove("propertyNames");
    fields.insert(name.to_owned(), inner);
    fields.insert("additionalProperties".to_owned(), Value::Bool(false));
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
        let options = seen.as_object_mut().unwrap().remove(OPTIONS);
        assert_eq!(options.unwrap()["lenient"], false);
        assert_eq!(seen, *want);
    }

    #[test]
    fn what_no_grammar_reads_is_said_otherwise_or_left_out() {
        check(&json!({ "type": "string", "format": "nanoid" }), &json!({ "type": "string" }));
        let known = json!({ "type": "string", "format": "uuid" });
        check(&known, &known);
        let text = json!({ "type": "string" });
        check(
            &json!({ "type": "object", "propertyNames": text, "additionalProperties": text }),
            &json!({ "type": "object", "additionalProperties": text }),
        );
        check(
            &json!({ "propertyNames": { "enum": ["a", "b"] }, "additionalProperties": text }),
            &json!({ "properties": { "a": text, "b": text }, "additionalProperties": false }),
        );
        check(
            &json!({ "type": "object", "propertyNames": { "type": "string", "pattern": "^x" } }),
            &json!({
                "type": "object", "patternProperties": { "^x": true },
                "additionalProperties": false,
            }),
        );
        let of_both = json!({ "propertyNames": { "minLength": 2 } });
        check(&of_both, &of_both);
        let list = |more: Value| {
            let mut list = json!({ "type": "array", "items": { "allOf": [{ "format": "x" }] } });
            list.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            list
        };
        let mut want = list(json!({}));
        want["items"]["allOf"] = json!([{}]);
        check(&list(json!({ "uniqueItems": false })), &want);
    }

    #[test]
    fn what_no_grammar_can_follow_is_passed_over_if_it_may_be() {
        let schema = json!({
            "type": "object",
            "properties": {
                "a": { "type": "string", "pattern": "^(?!x)" }, "b": { "pattern": "y" },
                "c": { "type": "integer", "minimum": i64::MIN, "maximum": 9 },
            },
        });
        let seen = narrowed(lenient(schema));
        assert_eq!(seen[OPTIONS]["lenient"], true);
        let want = json!({
            "a": { "type": "string" }, "b": { "pattern": "y" },
            "c": { "type": "integer", "maximum": 9 },
        });
        assert_eq!(seen["properties"], want);
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
            // Said to be objects, and no more.
            let mut want = schema.clone();
            each(&mut want, &mut plain);
            check(&schema, &want);
            assert_ne!(want["additionalProperties"], json!(false));
        }
    }

    /// A field may be called like a keyword.
    #[test]
    fn names_of_fields_are_no_keywords() {
        let named = json!({ "properties": { "allOf": { "type": "string" }, "properties": {} } });
        let mut want = named.clone();
        (want["type"], want["additionalProperties"]) = (json!("object"), json!(false));
        check(&named, &want);
    }
}
