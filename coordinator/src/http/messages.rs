//! The messages of a chat, each parsed by itself.

use aqueduct_core::Refusal;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::fields::Fields;
use crate::text::{ChatMessage, Ending, Role, ToolCall};

/// A chat, and where the prompt that is made of it ends. The parts of a message are one text, with
/// `between_parts` between them.
pub(super) fn take_messages(
    fields: &mut Fields<'_>,
    between_parts: &str,
) -> Result<(Vec<ChatMessage>, Ending), ApiError> {
    let asks = fields.take("add_generation_prompt")?;
    let goes_on = fields.take_or("continue_final_message", false)?;
    let messages: Vec<&RawValue> =
        fields.take("messages")?.ok_or_else(|| ApiError::field("messages", "is missing"))?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "must have at least one message"));
    }
    // One by one, so that an error says which it is in.
    let messages = (0..).zip(messages).map(|(idx, raw)| {
        let at = format!("messages[{idx}]");
        part::<RawMessage<'_>>(&at, raw)?.parse(&at, between_parts)
    });
    let messages: Vec<ChatMessage> = messages.collect::<Result<_, _>>()?;
    let ending = match (goes_on, asks) {
        (true, Some(true)) => {
            let reason = "is not supported beside add_generation_prompt";
            return Err(ApiError::field("continue_final_message", reason));
        }
        (true, _) => Ending::GoesOn,
        (false, Some(false)) => Ending::Stands,
        (false, _) => Ending::Asks,
    };
    let last = messages.last().filter(|last| last.role == Role::Assistant);
    if goes_on && last.is_none_or(|last| !last.tool_calls.is_empty()) {
        let reason = "needs the last message to be words of the assistant";
        return Err(ApiError::field("continue_final_message", reason));
    }
    Ok((messages, ending))
}

/// What stands at `at`.
fn part<'a, T: Deserialize<'a>>(at: &str, raw: &'a RawValue) -> Result<T, ApiError> {
    serde_json::from_str(raw.get()).map_err(|error| ApiError::field(at, error))
}

#[derive(Deserialize)]
#[serde(rename = "message")]
struct RawMessage<'a> {
    role: String,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default, borrow)]
    tool_calls: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    tool_call_id: Option<String>,
    /// A text for templates; servers also send other things under these names, and get them back.
    #[serde(default)]
    reasoning_content: Value,
    #[serde(default)]
    reasoning: Value,
    #[serde(default)]
    name: Value,
    /// What the assistant said instead, in a message without content.
    #[serde(default)]
    refusal: Value,
    /// How a call was told before there were several.
    #[serde(default)]
    function_call: Value,
}

#[derive(Deserialize)]
#[serde(rename = "call")]
struct RawCall {
    #[serde(default)]
    id: String,
    function: Option<RawFunction>,
    /// Of a tool that takes a text; shown as that of a function whose one argument is `input`, as
    /// `/v1/responses` shows it.
    custom: Option<RawCustom>,
}

#[derive(Deserialize)]
#[serde(rename = "custom", expecting = "must be an object with a name and an input")]
struct RawCustom {
    name: String,
    input: String,
}

#[derive(Deserialize)]
#[serde(rename = "function", expecting = "must be an object with a name and arguments")]
struct RawFunction {
    name: String,
    /// JSON, as text, or as it is.
    #[serde(default)]
    arguments: Value,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "content must be a text or a list of parts, each with a type")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A text by itself is one of a type, as in vLLM.
#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Text(String),
    Typed(TypedPart),
}

#[derive(Deserialize)]
struct TypedPart {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
}

impl Part {
    /// What it says, which stands at `at`; nothing is no text.
    fn words(self, at: &str, role: Role) -> Result<Option<String>, Refusal> {
        let part = match self {
            Self::Text(text) => return Ok(Some(text)),
            Self::Typed(part) => part,
        };
        match part.kind.as_str() {
            // The latter two are what `/v1/responses` calls them.
            "text" | "input_text" | "output_text" => Ok(part.text),
            // Words of the assistant like others.
            "refusal" if role == Role::Assistant => Ok(part.refusal),
            other => {
                let bound = "parts of type text, or of the assistant refusal";
                Err(Refusal::new(at, other, bound))
            }
        }
    }
}

impl RawMessage<'_> {
    fn parse(self, at: &str, between_parts: &str) -> Result<ChatMessage, ApiError> {
        let at = |field: &str| format!("{at}.{field}");
        let role = Role::named(&at("role"), &self.role)?;
        if !self.function_call.is_null() {
            let field = at("function_call");
            return Err(ApiError::field(&field, "is not supported: say it in tool_calls"));
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let content = match self.content {
            None if role == Role::Assistant => text(&self.refusal).unwrap_or_default(),
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                let texts = parts.into_iter().map(|part| part.words(&at("content"), role));
                let texts = texts.filter_map(Result::transpose);
                texts.collect::<Result<Vec<_>, _>>()?.join(between_parts)
            }
        };
        let tool_calls = (0..).zip(self.tool_calls.unwrap_or_default()).map(|(idx, raw)| {
            let at = at(&format!("tool_calls[{idx}]"));
            part::<RawCall>(&at, raw)?.parse(&at)
        });
        let tool_calls = tool_calls.collect::<Result<Vec<_>, ApiError>>()?;
        if role != Role::Assistant && !tool_calls.is_empty() {
            return Err(Refusal::new(at("tool_calls"), "present", "the assistant's alone").into());
        }
        let reasoning = text(&self.reasoning_content).or_else(|| text(&self.reasoning));
        let (tool_call_id, name) = (self.tool_call_id, text(&self.name));
        Ok(ChatMessage { role, content, tool_calls, tool_call_id, reasoning, name })
    }
}

impl RawCall {
    fn parse(self, at: &str) -> Result<ToolCall, ApiError> {
        let Self { id, function, custom } = self;
        let (name, arguments) = match (function, custom) {
            (Some(RawFunction { name, arguments }), _) => {
                (name, arguments_of(&format!("{at}.function.arguments"), &arguments)?)
            }
            (None, Some(RawCustom { name, input })) => (name, json!({ "input": input })),
            (None, None) => {
                return Err(ApiError::field(&format!("{at}.function"), "must be there"));
            }
        };
        Ok(ToolCall { id, name, arguments })
    }
}

/// The arguments of a call that was made before: a text, or as vLLM takes them too, the object
/// itself. A text that is no object stands in one: models write such, their callers were told of
/// it, and the conversation must go on.
pub(super) fn arguments_of(field: &str, asked: &Value) -> Result<Value, Refusal> {
    let parsed = match asked {
        // Of a function without parameters.
        Value::Null => Some(Value::Object(Map::new())),
        Value::String(text) if text.trim().is_empty() => Some(Value::Object(Map::new())),
        Value::String(text) => {
            let parsed = serde_json::from_str::<Value>(text).ok().filter(Value::is_object);
            Some(parsed.unwrap_or_else(|| json!({ "arguments": text })))
        }
        other => Some(other.clone()),
    };
    let parsed = parsed.filter(Value::is_object);
    parsed.ok_or_else(|| Refusal::new(field, asked, "a JSON object, as text"))
}
