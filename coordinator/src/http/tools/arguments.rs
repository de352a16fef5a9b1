//! What a schema of arguments says, as far as calls between tags can say it: there an argument is
//! a text of its own, without a type.

use serde_json::{Map, Value, json};

/// What schemas of arguments may say that is followed, or that asks for nothing.
pub(super) const FOLLOWED: [&str; 12] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "title",
    "description",
    "examples",
    "default",
];
/// What may stand in schemas beside what they refer to, or have parts of, and asks for something.
const OF_TEXTS: [&str; 11] = [
    "pattern",
    "format",
    "contentEncoding",
    "not",
    "minLength",
    "maxLength",
    "enum",
    "const",
    "allOf",
    "anyOf",
    "oneOf",
];
/// Of these, what no text between tags follows.
const UNFOLLOWED: [&str; 5] = ["pattern", "format", "contentEncoding", "not", "allOf"];
/// Of these, what names several.
const CHOICES: [&str; 2] = ["anyOf", "oneOf"];
/// Where schemas have what their parts refer to, and how they are compiled.
const BESIDE: [&str; 3] = ["$defs", "definitions", "x-guidance"];
/// Characters that texts may be made to have, at most: a grammar grows with them.
const TEXT_CHARS_MAX: u64 = 1000;
/// Schemas that are looked at for one argument, or for all: they may name each other.
const SCHEMAS_MAX: usize = 64;

/// A function's arguments.
pub(super) struct Arguments {
    /// In the order of the schema.
    pub(super) list: Vec<Argument>,
    /// Something of the schema that is not followed.
    pub(super) unfollowed: Option<String>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Argument {
    pub(super) name: String,
    pub(super) is_required: bool,
    pub(super) kind: Kind,
}

/// What an argument is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// One of these texts.
    Words(Vec<String>),
    /// Any text of so many characters.
    Text { least: u64, most: Option<u64> },
    /// What a schema describes, as JSON.
    Json(Value),
}

impl Arguments {
    /// Those that `schema` describes.
    pub(super) fn of(schema: &Value) -> Self {
        let mut all = Self { list: Vec::new(), unfollowed: None };
        let whole = all.flattened(schema);
        let required = |name: &str| {
            whole
                .get("required")
                .and_then(Value::as_array)
                .is_some_and(|list| list.iter().any(|required| required == name))
        };
        for (name, property) in properties(&whole) {
            let kind = all.kind(schema, &name, &property);
            all.list.push(Argument { is_required: required(&name), name, kind });
        }
        all
    }

    /// A schema with what it refers to and what all of it must be in one.
    pub(super) fn whole(schema: &Value) -> Map<String, Value> {
        Self { list: Vec::new(), unfollowed: None }.flattened(schema)
    }

    fn miss(&mut self, what: impl FnOnce() -> String) {
        self.unfollowed.get_or_insert_with(what);
    }

    /// The schema with what it refers to and what all of it must be in one.
    fn flattened(&mut self, schema: &Value) -> Map<String, Value> {
        let (mut whole, mut parts, mut seen) = (Map::new(), vec![schema], 0);
        while let Some(part) = parts.pop() {
            seen += 1;
            let fields = part.as_object().filter(|_| seen <= SCHEMAS_MAX);
            let Some(fields) = fields else {
                self.miss(|| "allOf".to_owned());
                continue;
            };
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("$ref", Value::String(to)) => match target(schema, to) {
                        Some(target) => parts.push(target),
                        None => self.miss(|| key.clone()),
                    },
                    ("allOf", Value::Array(all)) => parts.extend(all),
                    ("properties", Value::Object(some)) => self.add_properties(&mut whole, some),
                    ("required", Value::Array(some)) => {
                        let list = whole.entry("required").or_insert_with(|| json!([]));
                        list.as_array_mut().into_iter().for_each(|list| list.extend(some.clone()));
                    }
                    (key, value) => {
                        let followed = FOLLOWED.contains(&key) || BESIDE.contains(&key);
                        let known = whole.entry(key).or_insert_with(|| value.clone());
                        let differs = key == "additionalProperties" && known != value;
                        if !followed || differs {
                            self.miss(|| key.to_owned());
                        }
                    }
                }
            }
        }
        whole
    }

    fn add_properties(&mut self, whole: &mut Map<String, Value>, some: &Map<String, Value>) {
        let all = whole.entry("properties").or_insert_with(|| json!({}));
        for (name, property) in some {
            let Some(all) = all.as_object_mut() else { continue };
            let known = all.entry(name).or_insert_with(|| property.clone());
            if known != property {
                self.miss(|| format!("properties.{name}"));
            }
        }
    }

    /// What argument `name` is.
    fn kind(&mut self, root: &Value, name: &str, property: &Value) -> Kind {
        let (mut texts, mut left) = (Vec::new(), SCHEMAS_MAX);
        let is_text = add_texts(root, property, &mut texts, &mut left) && !texts.is_empty();
        if !is_text {
            return Kind::Json(with_definitions(root, property));
        }
        let mut miss = |key: &str| self.miss(|| format!("properties.{name}.{key}"));
        for &Text { schema, .. } in &texts {
            UNFOLLOWED.into_iter().filter(|key| schema.get(key).is_some()).for_each(&mut miss);
        }
        if let Some(beside) = texts.iter().find_map(|text| text.beside) {
            miss(beside);
        }
        let words: Option<Vec<Vec<String>>> = texts.iter().map(Text::words).collect();
        match (words, texts.as_slice()) {
            (Some(words), _) if words.iter().any(|some| !some.is_empty()) => {
                Kind::Words(words.concat())
            }
            (None, [Text { schema, .. }]) => {
                let mut bound = |key: &str| {
                    let bound = schema[key].as_u64()?;
                    if bound > TEXT_CHARS_MAX {
                        miss(key);
                        return None;
                    }
                    Some(bound)
                };
                Kind::Text { least: bound("minLength").unwrap_or(0), most: bound("maxLength") }
            }
            (_, texts) => {
                let asks =
                    |text: &Text<'_>| OF_TEXTS.iter().any(|key| text.schema.get(key).is_some());
                if texts.iter().any(asks) {
                    miss("anyOf");
                }
                Kind::Text { least: 0, most: None }
            }
        }
    }
}

/// Something that a text may be.
struct Text<'a> {
    schema: &'a Value,
    /// What stands beside a reference to it, or beside a choice of which it is one.
    beside: Option<&'static str>,
}

impl Text<'_> {
    /// The texts that it names, if it does, of lengths that it allows.
    fn words(&self) -> Option<Vec<String>> {
        let Self { schema, .. } = self;
        let one = || Some(vec![schema.get("const")?.clone()]);
        let words = schema["enum"].as_array().cloned().or_else(one)?;
        let least = schema["minLength"].as_u64().unwrap_or(0);
        let most = schema["maxLength"].as_u64().unwrap_or(u64::MAX);
        let words = words.iter().filter_map(Value::as_str);
        let fits = |word: &&str| (least..=most).contains(&(word.chars().count() as u64));
        Some(words.filter(fits).map(str::to_owned).collect())
    }
}

/// Adds what a value that `schema` describes may be, if that is a text, or null, in any case.
/// `left` schemas may be looked at.
fn add_texts<'a>(
    root: &'a Value,
    schema: &'a Value,
    texts: &mut Vec<Text<'a>>,
    left: &mut usize,
) -> bool {
    let Some(fewer) = left.checked_sub(1) else { return false };
    *left = fewer;
    let others =
        |own: &str| OF_TEXTS.into_iter().find(|key| *key != own && schema.get(key).is_some());
    let first = texts.len();
    let beside = |texts: &mut Vec<Text<'a>>, own: &str| {
        if let Some(other) = others(own) {
            texts[first..].iter_mut().for_each(|text| text.beside = Some(other));
        }
    };
    if let Some(to) = schema["$ref"].as_str() {
        let is_text = target(root, to).is_some_and(|it| add_texts(root, it, texts, left));
        beside(texts, "$ref");
        return is_text;
    }
    let is_text = match (&schema["type"], &schema["enum"]) {
        (Value::String(kind), _) => kind == "string",
        (Value::Array(kinds), _) => {
            kinds.iter().all(|kind| kind == "string" || kind == "null")
                && kinds.iter().any(|kind| kind == "string")
        }
        (_, Value::Array(values)) => values.iter().all(Value::is_string),
        _ if schema["const"].is_string() => true,
        _ => {
            let either = |key| Some((key, schema[key].as_array()?));
            let Some((key, any)) = CHOICES.into_iter().find_map(either) else { return false };
            let mut some = any.iter().filter(|one| one["type"] != "null");
            let is_text = some.all(|one| add_texts(root, one, texts, left));
            beside(texts, key);
            return is_text;
        }
    };
    if is_text {
        let beside = CHOICES.into_iter().find(|key| schema.get(key).is_some());
        texts.push(Text { schema, beside });
    }
    is_text
}

/// What `#/..` refers to.
fn target<'a>(root: &'a Value, to: &str) -> Option<&'a Value> {
    root.pointer(to.strip_prefix('#')?)
}

/// The arguments that a schema describes, those too that it only requires.
fn properties(schema: &Map<String, Value>) -> Map<String, Value> {
    let of = |name: &str| schema.get(name);
    let mut all = of("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let other = of("additionalProperties").filter(|other| other.is_object());
    let other = other.cloned().unwrap_or_else(|| json!({}));
    for name in of("required").and_then(Value::as_array).into_iter().flatten() {
        if let Some(name) = name.as_str() {
            all.entry(name).or_insert_with(|| other.clone());
        }
    }
    all
}

/// A part of a schema, with what it may refer to.
pub(super) fn with_definitions(root: &Value, part: &Value) -> Value {
    let mut part = part.clone();
    if let Value::Object(fields) = &mut part {
        for name in BESIDE {
            if let Some(beside) = root.get(name) {
                fields.entry(name).or_insert_with(|| beside.clone());
            }
        }
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one property of a schema.
    fn check(property: Value, want: Kind, unfollowed: Option<&str>) {
        let defs = json!({ "unit": { "enum": ["c", "fff"] }, "loop": { "$ref": "#/$defs/loop" } });
        let schema = json!({ "type": "object", "properties": { "x": property }, "$defs": defs });
        let all = Arguments::of(&schema);
        let got = match &all.list[0].kind {
            Kind::Json(_) => Kind::Json(Value::Null),
            other => other.clone(),
        };
        assert_eq!(got, want, "{schema}");
        assert_eq!(all.unfollowed.as_deref(), unfollowed, "{schema}");
    }

    fn words(words: &[&str]) -> Kind {
        Kind::Words(words.iter().map(|word| (*word).to_owned()).collect())
    }

    const ANY: Kind = Kind::Text { least: 0, most: None };
    const JSON: Kind = Kind::Json(Value::Null);

    #[test]
    fn what_is_a_text_is_told_from_what_is_not() {
        check(json!({ "type": "string", "description": "A path." }), ANY, None);
        check(json!({ "type": ["string", "null"] }), ANY, None);
        check(json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }), ANY, None);
        check(json!({ "type": "integer", "not": { "const": 3 } }), JSON, None);
        check(json!({ "type": ["string", "integer"] }), JSON, None);
        check(json!({ "anyOf": [{ "type": "string" }, { "type": "integer" }] }), JSON, None);
        check(json!({ "anyOf": [{ "type": "null" }] }), JSON, None);
        check(json!({ "$ref": "#/$defs/loop" }), JSON, None);
        check(json!({ "$ref": "elsewhere" }), JSON, None);
        check(json!({}), JSON, None);
        check(json!(true), JSON, None);
    }

    #[test]
    fn words_are_those_of_a_schema() {
        check(json!({ "enum": ["a", "b"] }), words(&["a", "b"]), None);
        check(json!({ "const": "a" }), words(&["a"]), None);
        check(json!({ "$ref": "#/$defs/unit" }), words(&["c", "fff"]), None);
        let either = json!({ "anyOf": [{ "enum": ["a"] }, { "$ref": "#/$defs/unit" }] });
        check(either, words(&["a", "c", "fff"]), None);
        let short = json!({ "type": "string", "enum": ["a", "bbb"], "minLength": 2 });
        check(short, words(&["bbb"]), None);
        let like = json!({ "enum": ["aa", "bb"], "pattern": "^a" });
        check(like, words(&["aa", "bb"]), Some("properties.x.pattern"));
        let beside = json!({ "$ref": "#/$defs/unit", "maxLength": 1 });
        check(beside, words(&["c", "fff"]), Some("properties.x.maxLength"));
    }

    #[test]
    fn what_is_not_followed_is_named() {
        let of = |least, most| Kind::Text { least, most };
        let sized = |most: u64| json!({ "type": "string", "minLength": 1, "maxLength": most });
        check(sized(1000), of(1, Some(1000)), None);
        check(sized(1001), of(1, None), Some("properties.x.maxLength"));
        let like = json!({ "type": "string", "pattern": "^a" });
        check(like, ANY, Some("properties.x.pattern"));
        let optional =
            json!({ "anyOf": [{ "type": "string", "format": "uri" }, { "type": "null" }] });
        check(optional, ANY, Some("properties.x.format"));
        let either =
            json!({ "anyOf": [{ "type": "string", "maxLength": 2 }, { "enum": ["xyz"] }] });
        check(either, ANY, Some("properties.x.anyOf"));
    }

    #[test]
    fn parts_of_a_schema_are_one() {
        let of = |schema: Value| {
            let all = Arguments::of(&schema);
            let names: Vec<_> =
                all.list.iter().map(|it| (it.name.clone(), it.is_required)).collect();
            (names, all.unfollowed)
        };
        let named = |names: &[(&str, bool)]| -> Vec<(String, bool)> {
            names.iter().map(|(name, required)| ((*name).to_owned(), *required)).collect()
        };
        let part = json!({ "properties": { "a": { "type": "integer" } }, "required": ["a"] });
        let referred = json!({ "$ref": "#/$defs/R", "$defs": { "R": part } });
        assert_eq!(of(referred), (named(&[("a", true)]), None));
        let both = json!({
            "type": "object", "properties": { "b": {} }, "allOf": [part, { "required": ["c"] }],
        });
        assert_eq!(of(both), (named(&[("b", false), ("a", true), ("c", true)]), None));
        let apart = json!({ "properties": { "a": { "type": "string" } }, "allOf": [part] });
        assert_eq!(of(apart).1.as_deref(), Some("properties.a"));
        let endless = json!({ "$ref": "#" });
        assert_eq!(of(endless).1.as_deref(), Some("allOf"));
        let others = json!({ "type": "object", "minProperties": 1 });
        assert_eq!(of(others).1.as_deref(), Some("minProperties"));
        let typed = json!({ "required": ["z"], "additionalProperties": { "type": "integer" } });
        let all = Arguments::of(&typed);
        assert_eq!(all.list[0].kind, Kind::Json(json!({ "type": "integer" })));
        assert!(all.list[0].is_required && all.unfollowed.is_none());
    }
}
