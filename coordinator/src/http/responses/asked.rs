//! The body of a call, as the chat that it stands for.

use std::collections::BTreeSet;

use aqueduct_core::{Refusal, limits};
use serde_json::{Map, Value, json};

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::super::format::{self, Format};
use super::super::named;
use super::super::params::{Harmless, Params, is_verbosity};
use super::super::reply::as_written;
use super::super::request::{Chat, ChatRequest, Effort, Usual, take_budget, take_thoughts};
use super::super::tools::{Tools, raw_choice_of};
use super::items::messages_of;
use crate::text::Ending;

/// Fields that would change the answer and are not supported, each with the values that ask for
/// nothing.
const UNSUPPORTED: [(&str, Harmless); 7] = [
    ("enable_response_messages", |value| value == false),
    ("context_management", |value| value.as_array().is_some_and(Vec::is_empty)),
    ("background", |value| value == false),
    ("conversation", Value::is_null),
    ("previous_response_id", Value::is_null),
    ("prompt", Value::is_null),
    // A prompt that fits is the same under both; one that does not is refused in any case.
    ("truncation", |value| value == "disabled" || value == "auto"),
];
/// Fields that change nothing here: what is kept and who asked, and a bound on calls of tools that
/// OpenAI runs itself, of which there are none.
const IGNORED: [&str; 2] = ["client_metadata", "max_tool_calls"];
/// What of an answer may be asked for besides; what it does not have is not told.
const LOGPROBS: &str = "message.output_text.logprobs";
const INCLUDED: [&str; 8] = [
    LOGPROBS,
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
];

/// Types of what is passed over which are named, and how long each name may be.
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
/// back. What it does not say is as `usual`.
///
/// # Errors
/// 400, naming the field.
pub fn parse_response(
    body: &[u8],
    usual: &Usual,
) -> Result<(ChatRequest, Map<String, Value>), ApiError> {
    let mut fields = Fields::parse(body)?;
    for (name, harmless) in UNSUPPORTED {
        fields.refuse(name, harmless)?;
    }
    IGNORED.iter().for_each(|name| fields.ignore(name));
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
    let mut params = Params::take(&mut fields, &usual.sampling)?;
    fields.finish()?;
    named::check(&params)?;
    let most = limits::OUTPUT_TOKENS_MAX;
    Refusal::unless_within("max_output_tokens", max_output_tokens.unwrap_or(1), 1, most)?;
    params.max_tokens = max_output_tokens.or(params.max_tokens);
    params.format = format::one_of(format, params.format)?;
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
    let (tools, others) = take_functions(&tools);
    let tools = Tools::of(tools, Some(raw_choice_of(&tool_choice, "")?), parallel)?;
    let (messages, hosted) = messages_of(instructions, &input, usual.between_parts)?;
    let warnings = [
        passed_over("tools", others, "the model is offered functions only"),
        passed_over("input items", hosted, "the model is shown none"),
    ];
    let warnings = warnings.into_iter().flatten().collect();
    let (thinks, ending) = (None, Ending::Asks);
    let chat = Chat { messages, tools, variables, effort, shows_thoughts, budget, thinks, ending };
    Ok((ChatRequest { chat, params, logprobs, warnings }, echo))
}

fn take_logprobs(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let include: Vec<String> = fields.take_or("include", Vec::new())?;
    let top: Option<u32> = fields.take("top_logprobs")?;
    if let Some(other) = include.iter().find(|name| !INCLUDED.contains(&name.as_str())) {
        let bound = format!("one of {}", INCLUDED.join(", "));
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
    text.refuse("verbosity", is_verbosity)?;
    text.finish()?;
    let format = format::of("text.format", &kind["type"], ("", &kind))?;
    Ok((format, json!({ "format": kind })))
}

/// Functions as chat templates are given them, each in an object of its own, and the types of the
/// other tools. Clients that offer what OpenAI would run itself do without where a model knows
/// nothing of it: that is passed over, and the caller told so.
fn take_functions(tools: &[Value]) -> (Vec<Value>, BTreeSet<String>) {
    let (functions, others): (Vec<&Value>, Vec<&Value>) =
        tools.iter().partition(|tool| tool["type"] == "function");
    let nested = |tool: &Value| {
        let mut function = tool.as_object().cloned().unwrap_or_default();
        let kind = function.remove("type");
        json!({ "type": kind, "function": function })
    };
    let kind = |tool: &Value| tool["type"].as_str().unwrap_or("none").to_owned();
    (functions.into_iter().map(nested).collect(), others.into_iter().map(kind).collect())
}

/// What the caller is told where things of these `kinds` are passed over.
pub(in crate::http) fn passed_over(
    what: &str,
    kinds: BTreeSet<String>,
    so: &str,
) -> Option<String> {
    let short = |kind: &String| kind.chars().take(KIND_CHARS_MAX).collect::<String>();
    let named: Vec<String> = kinds.iter().take(KINDS_MAX).map(short).collect();
    (!kinds.is_empty()).then(|| format!("{what} of type {}: {so}", named.join(", ")))
}
