//! JSON schemas, narrowed to what a model should write.

use serde_json::{Map, Value, json};

use crate::numbers::{self, Decimal};
use crate::patterns;
use crate::work::{self, Kept};

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
const MORE_ONE: [&str; 7] =
    ["not", "if", "then", "else", "additionalItems", "unevaluatedItems", "unevaluatedProperties"];
const MORE_LISTS: [&str; 2] = ["allOf", "items"];
const MORE_NAMED: [&str; 1] = ["dependentSchemas"];
/// Formats of strings that grammars know. Another one is a remark: JSON Schema lets it be.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Beside one of these a schema need not say its type.
const TYPED: [&str; 9] =
    ["type", "enum", "const", "$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "not"];
/// What asks for something by other schemas or by values, what else may hold schemas that ask for
/// it of numbers, and what asks for nothing.
const APPLIED: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];
const VALUES: [&str; 2] = ["const", "enum"];
const HOLDS_MULTIPLES: [&str; 7] = [
    "multipleOf",
    "properties",
    "patternProperties",
    "additionalProperties",
    "items",
    "additionalItems",
    "prefixItems",
];
const REMARKS: [&str; 16] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
    OPTIONS,
];
const CUT_OFF: (&str, &str) = ("pattern", "ends in a backslash that stands before nothing");
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

/// Why `schema`, which was narrowed, cannot be compiled as it is: that would cost too much, or
/// mean something else. What the compiler says for itself is not looked for.
pub(crate) fn unfollowed(schema: &Value) -> Option<String> {
    let mut found = None;
    each_of(schema, &mut |fields| {
        if found.is_none() {
            let number = numbers::unfollowed(fields);
            let why = number.or_else(|| is_cut_off(fields).then_some(CUT_OFF));
            found = why.map(|(name, why)| format!("{name} {why}"));
        }
    });
    found.or_else(|| work::over(schema))
}

/// The schema as far as a grammar can follow it: what else it says is passed over.
pub fn lenient(mut schema: Value) -> Value {
    let mut kept = Kept::of(&schema);
    let costs = work::pairs(&schema) > work::PAIRS_MOST;
    let mut known = patterns::Known::default();
    each(&mut schema, &mut |fields| {
        let mut mended = fields.clone();
        numbers::mend(&mut mended);
        while let Some((name, _)) = numbers::unfollowed(&mended) {
            mended.remove(name);
            fields.remove(name);
        }
        if Decimal::of_multiple(&mended).is_some_and(|multiple| !kept.keeps(multiple)) {
            fields.remove("multipleOf");
        }
        known.keep(fields, !costs);
    });
    if let Value::Object(fields) = &mut schema {
        fields.insert(OPTIONS.to_owned(), json!({ "lenient": true }));
    }
    schema
}

/// Has `change` change the schema, and every schema in it.
pub(crate) fn each(schema: &mut Value, change: &mut impl FnMut(&mut Fields)) {
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

/// Has `look` look at the schema, and at every schema in it.
pub(crate) fn each_of(schema: &Value, look: &mut impl FnMut(&Fields)) {
    let Value::Object(fields) = schema else { return };
    look(fields);
    for (name, value) in fields {
        let is_any =
            |some: &[&str], more: &[&str]| some.iter().chain(more).any(|keyword| keyword == name);
        match value {
            Value::Object(_) if is_any(&ONE, &MORE_ONE) => each_of(value, look),
            Value::Array(list) if is_any(&LISTS, &MORE_LISTS) => {
                list.iter().for_each(|one| each_of(one, look));
            }
            Value::Object(inner) if is_any(&NAMED, &MORE_NAMED) => {
                inner.values().for_each(|one| each_of(one, look));
            }
            _ => {}
        }
    }
}

/// Whether objects by `schema` may have to be what several parts of it say at once, which compares
/// their patterns again.
pub(crate) fn is_joined(schema: &Value) -> bool {
    is_any_joined(schema, |fields| {
        let values = VALUES.iter().any(|name| fields.contains_key(*name));
        let applies = APPLIED.iter().any(|name| fields.contains_key(*name));
        applies && has_siblings(fields) || values && fields.contains_key("patternProperties")
    })
}

/// Whether numbers in `schema` may have to be multiples of several things at once.
pub(crate) fn joins_multiples(schema: &Value) -> bool {
    is_any_joined(schema, |fields| {
        let count =
            |names: &[&str]| names.iter().filter(|name| fields.contains_key(**name)).count();
        let applied = count(&APPLIED);
        applied > 1 || applied == 1 && count(&HOLDS_MULTIPLES) > 0
    })
}

/// Whether these fields ask for more than one thing.
fn has_siblings(fields: &Fields) -> bool {
    fields.keys().filter(|name| !REMARKS.contains(&name.as_str())).count() > 1
}

fn is_any_joined(schema: &Value, is_joined: impl Fn(&Fields) -> bool) -> bool {
    let mut is_any = false;
    each_of(schema, &mut |fields| {
        let of_several = fields.get("allOf").and_then(Value::as_array).is_some_and(|l| l.len() > 1);
        let named = ["properties", "patternProperties"];
        let by_name = named.iter().all(|name| fields.contains_key(*name));
        is_any |= of_several || by_name || is_joined(fields);
    });
    is_any
}

/// Whether `format` is one that grammars do not know; what is no word is no format.
pub(crate) fn is_remark(format: &Value) -> bool {
    !format.is_number() && !format.as_str().is_some_and(|name| FORMATS.contains(&name))
}

/// Says in other words what grammars do not read in these, and leaves out what asks for nothing.
fn plain(fields: &mut Fields) {
    if fields.get("format").is_some_and(is_remark) {
        fields.remove("format");
    }
    if fields.get("uniqueItems") == Some(&Value::Bool(false)) {
        fields.remove("uniqueItems");
    }
    if fields.contains_key("properties") && !TYPED.iter().any(|name| fields.contains_key(*name)) {
        fields.insert("type".to_owned(), json!("object"));
    }
    name_fields(fields);
    numbers::mend(fields);
    point(fields);
}

/// Has references find what they name: the compiler looks for names as they stand in a reference,
/// where `~1` is a slash, `~0` a tilde and `%20` a space.
fn point(fields: &mut Fields) {
    for name in ["$defs", "definitions"] {
        let Some(Value::Object(defined)) = fields.get_mut(name) else { continue };
        if defined.keys().any(|name| name.contains(['~', '/'])) {
            let escaped = |name: String| name.replace('~', "~0").replace('/', "~1");
            let all = std::mem::take(defined).into_iter();
            *defined = all.map(|(name, schema)| (escaped(name), schema)).collect();
        }
    }
    let Some(Value::String(target)) = fields.get_mut("$ref") else { return };
    if let Some(path) = target.strip_prefix("#/").and_then(unescaped) {
        *target = format!("#/{path}");
    }
}

/// The path with names as they stand in the schema, but of definitions as [`point`] has them.
fn unescaped(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.filter(|_| *first == b'%' && !digits.is_some_and(|d| d.contains('+')));
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &behind[2..] } else { behind };
    }
    let path = String::from_utf8(bytes).ok()?;
    let mut is_definition = false;
    let names = path.split('/').map(|name| {
        let plain = name.replace("~1", "/").replace("~0", "~");
        let is_defined =
            std::mem::replace(&mut is_definition, ["$defs", "definitions"].contains(&name));
        if is_defined { plain.replace('~', "~0").replace('/', "~1") } else { plain }
    });
    Some(names.collect::<Vec<_>>().join("/"))
}

/// Whether a pattern ends in a backslash that stands for nothing, which the compiler drops.
pub(crate) fn is_cut_off(fields: &Fields) -> bool {
    let named = fields.get("patternProperties").and_then(Value::as_object);
    let names = named.into_iter().flat_map(Map::keys).map(String::as_str);
    let pattern = fields.get("pattern").and_then(Value::as_str);
    pattern
        .into_iter()
        .chain(names)
        .any(|text| (text.len() - text.trim_end_matches('\\').len()) % 2 == 1)
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
            "c": { "type": "integer", "minimum": -9_223_372_036_854_774_784i64, "maximum": 9 },
        });
        assert_eq!(seen["properties"], want);
    }

    #[test]
    fn a_schema_that_costs_too_much_keeps_what_does_not() {
        let multiple = |of: i64| json!({ "type": "integer", "multipleOf": of });
        let of = |multiples: &[i64]| {
            let each: Vec<Value> = multiples.iter().map(|of| multiple(*of)).collect();
            let seen = lenient(json!({ "prefixItems": each }));
            let list = seen["prefixItems"].as_array().unwrap().clone();
            list.iter().filter_map(|one| one["multipleOf"].as_i64()).collect::<Vec<_>>()
        };
        assert_eq!(of(&[3, 3_000_017, 5]), [3, 5]);
        assert_eq!(of(&[2003, 2001, 1996, 1_000_000]), [2003, 1996, 1_000_000]);
        let seen = lenient(json!({ "allOf": [multiple(997), multiple(991), multiple(3)] }));
        assert_eq!(seen["allOf"], json!([multiple(997), { "type": "integer" }, multiple(3)]));
        let named: Fields = (0..50).map(|idx| (format!("^a{idx}$"), json!({}))).collect();
        let seen = lenient(json!({ "patternProperties": named, "maxProperties": 2 }));
        assert!(seen.get("patternProperties").is_none() && seen["maxProperties"] == 2);
    }

    #[test]
    fn patterns_that_no_grammar_follows_are_passed_over() {
        for pattern in ["a\\", r"(a)\1", r"^.\b.$", "^(?!x)", "(", "a{2,1}"] {
            let seen = lenient(json!({
                "properties": { "a": { "pattern": pattern, "maxLength": 3.0 } },
                "patternProperties": { pattern: {}, "^b": { "type": "string" } },
            }));
            assert_eq!(seen["properties"]["a"], json!({ "maxLength": 3.0 }), "{pattern}");
            assert_eq!(seen["patternProperties"], json!({ "^b": { "type": "string" } }));
        }
        let kept = json!({ "pattern": r"^a\\$", "minLength": 1, "format": "nanoid" });
        let mut seen = lenient(kept.clone());
        seen.as_object_mut().unwrap().remove(OPTIONS);
        assert_eq!(seen, kept);
        // No string is that long and short: that is not left out.
        let nothing = json!({ "pattern": "^aaa$", "maxLength": 2 });
        assert_eq!(lenient(nothing)["pattern"], "^aaa$");
    }

    #[test]
    fn no_more_patterns_are_tried_than_there_is_time_for() {
        let pattern = |idx: usize| json!({ "pattern": format!("^a{idx}$") });
        let each = (0..250).map(|idx| (format!("x{idx}"), pattern(idx)));
        let seen = lenient(json!({ "properties": each.collect::<Fields>() }));
        let kept = seen["properties"].as_object().unwrap().values();
        assert_eq!(kept.filter(|one| one.get("pattern").is_some()).count(), 200);
        // What was tried once is known, however often it comes.
        let same = lenient(json!({ "prefixItems": vec![json!({ "pattern": "^a$" }); 250] }));
        let kept = same["prefixItems"].as_array().unwrap().iter();
        assert!(kept.clone().all(|one| one["pattern"] == "^a$") && kept.count() == 250);
    }

    #[test]
    fn references_find_names_with_slashes_and_spaces() {
        let number = json!({ "type": "number" });
        check(
            &json!({
                "prefixItems": [
                    { "$ref": "#/$defs/a~1b" }, { "$ref": "#/$defs/a%20b" },
                    { "$ref": "#/$defs/c~0d" }, { "$ref": "#/%24defs/a%2Fb" },
                    { "$ref": "#/$defs/e%" }, { "$ref": "#/$defs/c~d" },
                ],
                "$defs": { "a/b": number, "a b": number, "c~d": number, "e%": number },
            }),
            &json!({
                "prefixItems": [
                    { "$ref": "#/$defs/a~1b" }, { "$ref": "#/$defs/a b" },
                    { "$ref": "#/$defs/c~0d" }, { "$ref": "#/$defs/a/b" },
                    { "$ref": "#/$defs/e%" }, { "$ref": "#/$defs/c~0d" },
                ],
                "$defs": { "a~1b": number, "a b": number, "c~0d": number, "e%": number },
            }),
        );
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
