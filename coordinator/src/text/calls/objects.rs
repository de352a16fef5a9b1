//! Calls as JSON has them: read from objects, and from what stands around them.

use serde_json::{Map, Value};

use super::blocks::NamedCall;

/// The function of a call that is named `functions.f:0`.
pub(super) fn function_of(name: &str) -> &str {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = name.rsplit_once(':').filter(|(_, number)| is_number(number));
    let name = numbered.map_or(name, |(name, _)| name);
    name.strip_prefix("functions.").unwrap_or(name)
}

/// The object that `text` begins with, which may stand in a fence or be missing, and what follows
/// it. The object itself says where it ends.
pub(super) fn object_in_fence(text: &str) -> Option<(Map<String, Value>, &str)> {
    let text = text.trim_start();
    let fenced = text.strip_prefix("```");
    let inside = fenced.map_or(text, |text| text.strip_prefix("json").unwrap_or(text));
    let mut values = serde_json::Deserializer::from_str(inside).into_iter::<Map<String, Value>>();
    let (object, bytes) = match inside.trim_start().starts_with('{') {
        true => (values.next()?.ok()?, values.byte_offset()),
        false => (Map::new(), 0),
    };
    let rest = inside[bytes..].trim_start();
    let rest = match fenced {
        Some(_) => rest.strip_prefix("```").unwrap_or(rest).trim_start(),
        None => rest,
    };
    Some((object, rest))
}

/// The values of a list, or those that stand after each other.
pub(super) fn objects(text: &str) -> Option<Vec<Value>> {
    let text = text.trim();
    let with_commas = || serde_json::from_str::<Value>(&format!("[{text}]")).ok();
    match serde_json::from_str::<Value>(text).ok().or_else(with_commas) {
        Some(Value::Array(list)) => Some(list),
        Some(one) => Some(vec![one]),
        None => {
            let each = serde_json::Deserializer::from_str(text).into_iter::<Value>();
            each.collect::<Result<Vec<_>, _>>().ok()
        }
    }
}

/// The call that an object is, if it is one.
pub(super) fn of_object(mut call: Value, names: [&str; 2]) -> Option<NamedCall> {
    // Some write it as OpenAI's API has it.
    if call["function"].is_object() {
        call = call["function"].take();
    }
    let name = call[names[0]].as_str()?.to_owned();
    let arguments = match call.get_mut(names[1]).map(Value::take) {
        Some(field) => arguments_of(field)?,
        // What else holds something may be the arguments by another name.
        None if call.as_object()?.values().any(|it| it.is_object() || it.is_array()) => {
            return None;
        }
        None => Map::new(),
    };
    Some((name, arguments))
}

/// The arguments that a field has: an object, which some write as text, or nothing.
fn arguments_of(field: Value) -> Option<Map<String, Value>> {
    match field {
        Value::Object(fields) => Some(fields),
        Value::Null => Some(Map::new()),
        Value::String(text) if text.trim().is_empty() => Some(Map::new()),
        Value::String(text) => serde_json::from_str(&text).ok(),
        _ => None,
    }
}

/// The same of one whose only field is named as what is called.
pub(super) fn of_field(call: Value) -> Option<NamedCall> {
    let Value::Object(fields) = call else { return None };
    let mut fields = fields.into_iter();
    match (fields.next(), fields.next()) {
        (Some((name, arguments)), None) => Some((name, arguments_of(arguments)?)),
        _ => None,
    }
}
