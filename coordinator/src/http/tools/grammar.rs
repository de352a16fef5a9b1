//! Grammars of calls, as each notation has them: Lark in llguidance's dialect.

use aqueduct_grammar::narrowed;
use serde_json::{Map, Value, json};

use crate::text::{ArgumentTags, CallNotation, text_of, words_of};

/// What a schema of arguments may say that calls between tags follow, or that asks for nothing.
const FOLLOWED: [&str; 12] = [
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
/// What a text's schema may say that no text between tags follows.
const UNFOLLOWED_OF_TEXTS: [&str; 4] = ["pattern", "format", "contentEncoding", "not"];
/// Characters that texts may be made to have, at most: a grammar grows with them.
const TEXT_CHARS_MAX: u64 = 1000;

/// Calls of `functions`, by name and schema of their arguments, `most` of them, or an `answer` of
/// this schema. `None` where calls are no text.
pub(super) fn grammar_of(
    functions: &[(&String, Value)],
    notation: CallNotation,
    most: usize,
    answer: Option<&Value>,
) -> Option<String> {
    let (between, most) = match notation {
        CallNotation::Tagged | CallNotation::ArgumentTags(_) => (r#""\n""#, most),
        CallNotation::Listed => (r#"", ""#, most),
        CallNotation::Bare => ("", 1),
        CallNotation::InChannels | CallNotation::Marked => return None,
    };
    let more =
        if most > 1 { format!(" ({between} call){{0,{}}}", most - 1) } else { String::new() };
    let all = match notation {
        CallNotation::Listed => format!(r#""[" call{more} "]""#),
        _ => format!("call{more}"),
    };
    let any: Vec<String> = (0..functions.len()).map(|idx| format!("call_{idx}")).collect();
    let answer = answer.map(|schema| narrowed(schema.clone()));
    let (or, answer) = match answer {
        Some(schema) => (" | answer", format!("answer: %json {schema}\n")),
        None => ("", String::new()),
    };
    let start = format!("start: calls{or}\n{answer}calls: {all}\ncall: {}\n", any.join(" | "));
    let rules = functions.iter().enumerate().map(|(idx, (name, schema))| match notation {
        CallNotation::ArgumentTags(tags) => between_tags(idx, tags, name, schema),
        CallNotation::Tagged => {
            of_object(idx, notation, ("<tool_call>\n", "\n</tool_call>"), (name, schema))
        }
        _ => of_object(idx, notation, ("", ""), (name, schema)),
    });
    Some(start + &rules.collect::<String>())
}

/// A call that is an object between `tags`.
fn of_object(
    idx: usize,
    notation: CallNotation,
    (open, close): (&str, &str),
    (name, schema): (&String, &Value),
) -> String {
    let head = format!("{open}{{\"name\": {}, \"{}\": ", json!(name), notation.arguments_name());
    let (head, tail) = (json!(head), json!(format!("}}{close}")));
    let schema = narrowed(schema.clone());
    format!("call_{idx}: {head} args_{idx} {tail}\nargs_{idx}: %json {schema}\n")
}

/// A call whose arguments are texts of their own, in the order in which the schema has them.
fn between_tags(idx: usize, tags: ArgumentTags, name: &str, schema: &Value) -> String {
    let required = |key: &str| {
        schema["required"].as_array().is_some_and(|list| list.iter().any(|name| name == key))
    };
    let (mut body, mut rules) = (String::new(), String::new());
    for (at, (key, property)) in properties(schema).iter().enumerate() {
        let argument = format!("arg_{idx}_{at}");
        body += &format!(" {argument}{}", if required(key) { "" } else { "?" });
        let (head, tail) = tags.around_argument(key);
        let (head, end) = (json!(head), json!(tail));
        let text = text_of(schema, property);
        rules += &match (text.and_then(words_of), text) {
            (Some(words), _) => {
                let words: Vec<String> = words.iter().map(|word| json!(word).to_string()).collect();
                format!("{argument}: {head} ({}) {end}\n", words.join(" | "))
            }
            (None, Some(text)) => format!(
                "{argument}: {head} {argument}_text\n\
                 {argument}_text[suffix={end}]: /(?s:.{})/\n",
                length_of(text)
            ),
            (None, None) => {
                let property = narrowed(with_definitions(schema, property));
                format!(
                    "{argument}: {head} {argument}_json {end}\n{argument}_json: %json {property}\n"
                )
            }
        };
    }
    let (head, tail) = tags.around_call(name);
    format!("call_{idx}: {}{body} {}\n{rules}", json!(head), json!(tail))
}

/// How many characters a text has, as expressions say it.
fn length_of(text: &Value) -> String {
    let bound = |name: &str| text[name].as_u64().filter(|bound| *bound <= TEXT_CHARS_MAX);
    match (bound("minLength"), bound("maxLength")) {
        (None, None) => "*".to_owned(),
        (least, None) => format!("{{{},}}", least.unwrap_or(0)),
        (least, Some(most)) => format!("{{{},{most}}}", least.unwrap_or(0)),
    }
}

/// The arguments of a schema, those too that it only requires.
fn properties(schema: &Value) -> Map<String, Value> {
    let mut all = schema["properties"].as_object().cloned().unwrap_or_default();
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        all.entry(name).or_insert_with(|| json!({}));
    }
    all
}

/// A part of a schema, with what it may refer to.
fn with_definitions(root: &Value, part: &Value) -> Value {
    let mut part = part.clone();
    if let Value::Object(fields) = &mut part {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(name) {
                fields.entry(name).or_insert_with(|| definitions.clone());
            }
        }
    }
    part
}

/// What of a schema of arguments no call between tags follows, if anything.
pub(super) fn unfollowed(schema: &Value) -> Option<String> {
    let of_all = schema.as_object()?.keys().find(|key| !FOLLOWED.contains(&key.as_str()));
    if let Some(key) = of_all {
        return Some(key.clone());
    }
    properties(schema).iter().find_map(|(name, property)| {
        let text = text_of(schema, property).filter(|text| words_of(text).is_none())?;
        let is_long = |key: &&str| text[*key].as_u64().is_some_and(|most| most > TEXT_CHARS_MAX);
        let other = UNFOLLOWED_OF_TEXTS.into_iter().find(|key| text.get(key).is_some());
        let key = other.or_else(|| ["minLength", "maxLength"].into_iter().find(is_long))?;
        Some(format!("properties.{name}.{key}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_followed_is_named() {
        let check = |schema: Value, want: Option<&str>| {
            assert_eq!(unfollowed(&schema).as_deref(), want, "{schema}");
        };
        let of = |property: Value| json!({ "type": "object", "properties": { "x": property } });
        check(of(json!({ "type": "string", "description": "A path." })), None);
        check(of(json!({ "type": "string", "pattern": "^a" })), Some("properties.x.pattern"));
        check(of(json!({ "type": "string", "enum": ["a"], "maxLength": 1 })), None);
        check(of(json!({ "type": "string", "minLength": 1, "maxLength": 1000 })), None);
        check(of(json!({ "type": "string", "maxLength": 1001 })), Some("properties.x.maxLength"));
        let optional =
            json!({ "anyOf": [{ "type": "string", "format": "uri" }, { "type": "null" }] });
        check(of(optional), Some("properties.x.format"));
        check(of(json!({ "type": "integer", "not": { "const": 3 } })), None);
        check(json!({ "type": "object", "minProperties": 1 }), Some("minProperties"));
        check(json!({ "type": "object", "required": ["y"] }), None);
    }
}
