//! The body of a call, as the chat that it stands for.

use std::collections::BTreeSet;

use aqueduct_core::{Refusal, limits};
use serde_json::{Map, Value, json};

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::super::format::{self, Format};
use super::super::params::{Harmless, Params};
use super::super::reply::as_written;
use super::super::request::{Chat, ChatRequest, Effort, arguments_of, take_budget, take_thoughts};
use super::super::tools::{Tools, raw_choice_of};
use crate::text::{ChatMessage, Ending, Role, ToolCall};

/// Fields that would change the answer and are not supported, each with the values that ask for
/// nothing.
const UNSUPPORTED: [(&str, Harmless); 6] = [
    ("background", |value| value == false),
    ("conversation", Value::is_null),
    ("max_tool_calls", Value::is_null),
    ("previous_response_id", Value::is_null),
    ("prompt", Value::is_null),
    ("truncation", |value| value == "disabled"),
];
/// What of an answer may be asked for besides; what it does not have is not told.
const LOGPROBS: &str = "message.output_text.logprobs";
const REASONING: &str = "reasoning.encrypted_content";

/// Types of tools that are passed over which are named, and how long each name may be.
const KINDS_MAX: usize = 8;
const KIND_CHARS_MAX: usize = 32;

/// How long the model is to think. There is nothing to be summarised.
fn take_effort(fields: &mut Fields<'_>) -> Result<Option<Effort>, ApiError> {
    let mut reasoning = fields.object("reasoning")?;
    let effort = Effort::of("reasoning.effort", reasoning.take("effort")?)?;
    reasoning.ignore("summary");
    reasoning.ignore("generate_summary");
    reasoning.finish()?;
    Ok(effort)
}

/// Parses the body of `/v1/responses`: the chat that it stands for, and what of the call is given
/// back.
///
/// # Errors
/// 400, naming the field.
pub fn parse_response(body: &[u8]) -> Result<(ChatRequest, Map<String, Value>), ApiError> {
    let mut fields = Fields::parse(body)?;
    for (name, harmless) in UNSUPPORTED {
        fields.refuse(name, harmless)?;
    }
    fields.ignore("prompt_cache_options");
    fields.ignore("client_metadata");
    let metadata: Option<Map<String, Value>> = fields.take("metadata")?;
    let instructions: Option<String> = fields.take("instructions")?;
    let max_output_tokens: Option<u32> = fields.take("max_output_tokens")?;
    let logprobs = take_logprobs(&mut fields)?;
    let (format, text) = take_text(&mut fields)?;
    let tools: Vec<Value> = fields.take_or("tools", Vec::new())?;
    let tool_choice: Value = fields.take_or("tool_choice", json!("auto"))?;
    let parallel = fields.take_or("parallel_tool_calls", true)?;
    let variables = fields.take("chat_template_kwargs")?;
    let effort = take_effort(&mut fields)?;
    let shows_thoughts = take_thoughts(&mut fields)?;
    let budget = take_budget(&mut fields)?;
    let input: Value =
        fields.take("input")?.ok_or_else(|| ApiError::field("input", "is missing"))?;
    let mut params = Params::take(&mut fields)?;
    fields.finish()?;
    check(&params)?;
    let most = limits::OUTPUT_TOKENS_MAX;
    Refusal::unless_within("max_output_tokens", max_output_tokens.unwrap_or(1), 1, most)?;
    params.max_tokens = max_output_tokens.or(params.max_tokens);
    params.format = format.or(params.format);
    let echo = json!({
        "background": false,
        "instructions": instructions,
        "max_output_tokens": params.max_tokens,
        "metadata": metadata.unwrap_or_default(),
        "parallel_tool_calls": parallel,
        "previous_response_id": null,
        "reasoning": { "effort": effort.as_ref().map(Effort::word), "summary": null },
        "store": false,
        "temperature": as_written(params.sampling.temperature),
        "text": text,
        "tool_choice": tool_choice,
        "tools": tools,
        "top_logprobs": logprobs.unwrap_or(0),
        "top_p": as_written(params.sampling.top_p),
        "truncation": "disabled",
    });
    let Value::Object(echo) = echo else { return Err(ApiError::field("input", "is missing")) };
    let (tools, warning) = take_functions(&tools);
    let tools = Tools::of(tools, Some(raw_choice_of(&tool_choice, "")?), parallel)?;
    let mut messages: Vec<ChatMessage> =
        instructions.map(|words| ChatMessage::new(Role::System, words)).into_iter().collect();
    add_input(&input, &mut messages)?;
    if messages.is_empty() {
        return Err(ApiError::field("input", "must have at least one message"));
    }
    let ending = Ending::Asks;
    let chat = Chat { messages, tools, variables, effort, shows_thoughts, budget, ending };
    Ok((ChatRequest { chat, params, logprobs, warning }, echo))
}

/// What has no place in an answer that is one and is not come back to.
fn check(params: &Params) -> Result<(), ApiError> {
    Refusal::unless_within("n", params.choices, 1, 1)?;
    let unsupported = [
        ("return_progress", params.return_progress),
        ("aqueduct.resumable", params.memory.resumable),
    ];
    match unsupported.iter().find(|(_, is_asked)| *is_asked) {
        Some((field, _)) => Err(ApiError::field(field, "is not supported here")),
        None => Ok(()),
    }
}

fn take_logprobs(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let include: Vec<String> = fields.take_or("include", Vec::new())?;
    let top: Option<u32> = fields.take("top_logprobs")?;
    if let Some(other) = include.iter().find(|name| *name != LOGPROBS && *name != REASONING) {
        let bound = format!("{LOGPROBS} or {REASONING}");
        return Err(Refusal::new("include", other, bound).into());
    }
    let top =
        Refusal::unless_within("top_logprobs", top.unwrap_or(0), 0, limits::TOP_LOGPROBS_MAX)?;
    let is_asked = top > 0 || include.iter().any(|name| name == LOGPROBS);
    Ok(is_asked.then_some(top))
}

/// What the answer must look like, and how that is given back.
fn take_text(fields: &mut Fields<'_>) -> Result<(Option<Format>, Value), ApiError> {
    let mut text = fields.object("text")?;
    let kind: Value = text.take_or("format", json!({ "type": "text" }))?;
    text.refuse("verbosity", |value| value == "medium")?;
    text.finish()?;
    let format = format::of("text.format", &kind["type"], ("", &kind))?;
    Ok((format, json!({ "format": kind })))
}

/// Functions as chat templates are given them, each in an object of its own. Clients that offer
/// what OpenAI would run itself do without where a model knows nothing of it: that is passed over,
/// and the caller told so.
fn take_functions(tools: &[Value]) -> (Vec<Value>, Option<String>) {
    let (functions, others): (Vec<&Value>, Vec<&Value>) =
        tools.iter().partition(|tool| tool["type"] == "function");
    let nested = |tool: &Value| {
        let mut function = tool.as_object().cloned().unwrap_or_default();
        let kind = function.remove("type");
        json!({ "type": kind, "function": function })
    };
    let kinds: BTreeSet<String> = others.iter().map(|tool| kind_of(tool)).collect();
    let kinds: Vec<_> = kinds.into_iter().take(KINDS_MAX).collect();
    let warning =
        format!("tools of type {}: the model is offered functions only", kinds.join(", "));
    (functions.into_iter().map(nested).collect(), (!others.is_empty()).then_some(warning))
}

/// As it is, if it is short.
fn kind_of(tool: &Value) -> String {
    tool["type"].as_str().unwrap_or("none").chars().take(KIND_CHARS_MAX).collect()
}

/// A text, which the user says, or a list of what was said and called before.
fn add_input(input: &Value, messages: &mut Vec<ChatMessage>) -> Result<(), Refusal> {
    match input {
        Value::String(words) => messages.push(ChatMessage::new(Role::User, words)),
        Value::Array(items) if !items.is_empty() => {
            let mut thought = None;
            for (idx, item) in items.iter().enumerate() {
                add_item(&format!("input[{idx}]"), item, (&mut *messages, &mut thought))?;
            }
        }
        other => return Err(Refusal::new("input", other, "a text, or a list of items")),
    }
    Ok(())
}

/// `thought` is what the assistant has thought before it says or calls something.
fn add_item(
    at: &str,
    item: &Value,
    (messages, thought): (&mut Vec<ChatMessage>, &mut Option<String>),
) -> Result<(), Refusal> {
    let text = |field: &str| {
        let value = &item[field];
        let bound = "a text";
        value.as_str().ok_or_else(|| Refusal::new(format!("{at}.{field}"), value, bound))
    };
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let role = Role::named(&format!("{at}.role"), text("role")?)?;
            let message = ChatMessage::new(role, words(at, "content", &item["content"])?);
            let reasoning = thought.take().filter(|_| role == Role::Assistant);
            messages.push(ChatMessage { reasoning, ..message });
        }
        "function_call" => {
            let arguments = arguments_of(&format!("{at}.arguments"), text("arguments")?)?;
            let (id, name) = (text("call_id")?.to_owned(), text("name")?.to_owned());
            let call = ToolCall { id, name, arguments };
            // Calls, and what was said before them, are one message of the assistant.
            match messages.last_mut().filter(|last| last.role == Role::Assistant) {
                Some(last) => {
                    last.tool_calls.push(call);
                    last.reasoning = last.reasoning.take().or(thought.take());
                }
                None => {
                    let (tool_calls, reasoning) = (vec![call], thought.take());
                    let message = ChatMessage::new(Role::Assistant, "");
                    messages.push(ChatMessage { tool_calls, reasoning, ..message });
                }
            }
        }
        "function_call_output" => {
            let message = ChatMessage::new(Role::Tool, words(at, "output", &item["output"])?);
            let tool_call_id = Some(text("call_id")?.to_owned());
            messages.push(ChatMessage { tool_call_id, ..message });
        }
        // A summary, or what only its model's maker can read, is not for this one.
        "reasoning" => {
            let parts = item["content"].as_array().into_iter().flatten();
            let texts = parts.filter(|part| part["type"] == "reasoning_text");
            let text: String = texts.filter_map(|part| part["text"].as_str()).collect();
            *thought = Some(text).filter(|text| !text.is_empty());
        }
        "item_reference" => {
            let bound = "the item itself: nothing is kept here, and clients that are told so \
                         (`store: false`) send it";
            return Err(Refusal::new(format!("{at}.type"), "item_reference", bound));
        }
        other => {
            let bound = "message, function_call, function_call_output or reasoning";
            return Err(Refusal::new(format!("{at}.type"), other, bound));
        }
    }
    Ok(())
}

/// A text, or a list of parts that are texts.
fn words(at: &str, field: &str, content: &Value) -> Result<String, Refusal> {
    let part = |part: &Value| {
        let text = part["text"].as_str().filter(|_| {
            matches!(part["type"].as_str(), Some("input_text" | "output_text" | "text"))
        });
        text.map(str::to_owned).ok_or_else(|| {
            let bound = "parts of type input_text or output_text";
            Refusal::new(format!("{at}.{field}"), &part["type"], bound)
        })
    };
    match content {
        Value::String(words) => Ok(words.clone()),
        Value::Array(parts) => parts.iter().map(part).collect(),
        other => Err(Refusal::new(format!("{at}.{field}"), other, "a text, or a list of parts")),
    }
}
