//! The body of a call, as the chat that it stands for.

use std::collections::BTreeSet;

use aqueduct_core::{Refusal, limits};
use serde_json::{Map, Value, json};

use super::super::error::ApiError;
use super::super::fields::Fields;
use super::super::format::{self, Format};
use super::super::named;
use super::super::params::{Harmless, Params, stops_of};
use super::super::request::{Chat, ChatRequest, Effort, Usual, take_thoughts};
use super::super::responses::passed_over;
use super::super::tools::{RawChoice, Tools};
use super::blocks::messages_of;
use crate::text::Budget;

/// Fields that would change the answer and are not supported, each with the values that ask for
/// nothing.
const UNSUPPORTED: [(&str, Harmless); 2] = [
    ("container", Value::is_null),
    ("mcp_servers", |value| value.as_array().is_some_and(Vec::is_empty)),
];
/// Fields that change nothing here: where and how fast it is answered, and what of the prompt is to
/// be remembered, which all of it is.
const IGNORED: [&str; 4] = ["betas", "cache_control", "inference_geo", "speed"];

/// What a tool has, and what a function calls it.
const FIELDS: [(&str, &str); 4] = [
    ("name", "name"),
    ("description", "description"),
    ("strict", "strict"),
    ("input_schema", "parameters"),
];

/// Parses the body of `/v1/messages`; what it does not say is as `usual`.
///
/// # Errors
/// 400, naming the field.
pub fn parse_message(body: &[u8], usual: &Usual) -> Result<ChatRequest, ApiError> {
    let mut fields = Fields::parse(body)?;
    for (name, harmless) in UNSUPPORTED {
        fields.refuse(name, harmless)?;
    }
    IGNORED.iter().for_each(|name| fields.ignore(name));
    let mut warnings = Vec::new();
    if let Some(edits) = fields.take::<Map<String, Value>>("context_management")?
        && edits.get("edits").and_then(Value::as_array).is_some_and(|edits| !edits.is_empty())
    {
        warnings.push("context_management is passed over: nothing is cleared".to_owned());
    }
    let (thinks, budget) = take_thinking(&mut fields)?;
    let (effort, format) = take_output(&mut fields)?;
    let shows_thoughts = take_thoughts(&mut fields)?;
    let variables = fields.take("chat_template_kwargs")?;
    let stops: Option<Vec<String>> = fields.take("stop_sequences")?;
    let tools: Vec<Value> = fields.take_or("tools", Vec::new())?;
    let (choice, parallel) = take_choice(&mut fields)?;
    let system = fields.take_or("system", Value::Null)?;
    let messages: Vec<Value> =
        fields.take("messages")?.ok_or_else(|| ApiError::field("messages", "is missing"))?;
    let mut params = Params::take(&mut fields, &usual.sampling)?;
    fields.finish()?;
    named::check(&params)?;
    let most = limits::OUTPUT_TOKENS_MAX;
    Refusal::unless_within("max_tokens", params.max_tokens.unwrap_or(1), 1, most)?;
    if let Some(stops) = stops {
        params.stop = stops_of("stop_sequences", stops)?;
    }
    params.format = format::one_of(format, params.format)?;
    let (tools, others) = functions_of(tools);
    let tools = Tools::of(tools, choice, parallel)?;
    let (messages, ending, hosted) = messages_of(system, messages, usual.between_parts)?;
    warnings.extend(passed_over(
        "tools",
        others,
        "the model is offered those with an input_schema",
    ));
    warnings.extend(passed_over("content blocks", hosted, "the model is shown none"));
    let chat = Chat { messages, tools, variables, effort, shows_thoughts, budget, thinks, ending };
    Ok(ChatRequest { chat, params, logprobs: None, warnings })
}

/// Whether the model is to think, where that is said, and how long.
fn take_thinking(fields: &mut Fields<'_>) -> Result<(Option<bool>, Budget), ApiError> {
    let mut thinking = fields.object("thinking")?;
    let kind: Option<String> = thinking.take("type")?;
    let budget: Option<u32> = thinking.take("budget_tokens")?;
    // What is thought is told in full.
    thinking.ignore("display");
    thinking.finish()?;
    Refusal::unless_within(
        "thinking.budget_tokens",
        budget.unwrap_or(0),
        0,
        limits::OUTPUT_TOKENS_MAX,
    )?;
    let most = budget.map_or(Budget::Unsaid, Budget::Most);
    match kind.as_deref() {
        None => Ok((None, most)),
        Some("enabled" | "adaptive") => Ok((Some(true), most)),
        Some("disabled") => Ok((Some(false), Budget::Unsaid)),
        Some(other) => {
            Err(Refusal::new("thinking.type", other, "one of enabled, adaptive, disabled").into())
        }
    }
}

/// How long the model is to think, in words, and what its answer must look like.
fn take_output(fields: &mut Fields<'_>) -> Result<(Option<Effort>, Option<Format>), ApiError> {
    let mut output = fields.object("output_config")?;
    let effort = Effort::of("output_config.effort", output.take("effort")?)?;
    let format: Option<Value> = output.take("format")?;
    output.finish()?;
    let of = |field, kind: Option<Value>| match kind {
        Some(kind) => format::of(field, &kind["type"], ("", &kind)),
        None => Ok(None),
    };
    let format = of("output_config.format", format)?;
    // Its name before.
    let before = of("output_format", fields.take("output_format")?)?;
    Ok((effort, format::one_of(format, before)?))
}

/// Which tool must be called, if any, and whether there may be several calls.
fn take_choice(fields: &mut Fields<'_>) -> Result<(Option<RawChoice>, bool), ApiError> {
    let mut asked = fields.object("tool_choice")?;
    let kind: Option<String> = asked.take("type")?;
    let name: Option<String> = asked.take("name")?;
    let is_single = asked.take_or("disable_parallel_tool_use", false)?;
    asked.finish()?;
    let choice = match (kind.as_deref(), name) {
        (None, _) => None,
        (Some("any"), _) => Some(RawChoice::Word("required".to_owned())),
        (Some(word @ ("auto" | "none")), _) => Some(RawChoice::Word(word.to_owned())),
        (Some("tool"), Some(name)) => Some(RawChoice::Named(name)),
        (Some("tool"), None) => return Err(ApiError::field("tool_choice.name", "is missing")),
        (Some(other), _) => {
            let bound = "one of auto, any, tool, none";
            return Err(Refusal::new("tool_choice.type", other, bound).into());
        }
    };
    Ok((choice, !is_single))
}

/// Tools as chat templates are given them, and the types of those that have no schema here, as
/// clients know it by heart: no model but their maker's does.
fn functions_of(tools: Vec<Value>) -> (Vec<Value>, BTreeSet<String>) {
    let (mut functions, mut others) = (Vec::new(), BTreeSet::new());
    for mut tool in tools {
        match tool["type"].as_str().filter(|kind| *kind != "custom") {
            Some(kind) if !tool["input_schema"].is_object() => {
                others.insert(kind.to_owned());
            }
            _ => {
                let mut function = Map::new();
                for (from, to) in FIELDS {
                    let value =
                        tool.get_mut(from).map(Value::take).filter(|value| !value.is_null());
                    function.extend(value.map(|value| (to.to_owned(), value)));
                }
                functions.push(json!({ "type": "function", "function": function }));
            }
        }
    }
    (functions, others)
}
