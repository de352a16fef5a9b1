//! Request bodies, parsed and checked without a model at hand.

use aqueduct_core::{Refusal, Sampling, SessionUse, TokenId, limits};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::Fields;
use super::messages::take_messages;
use super::params::{Harmless, Params};
use super::tools::Tools;
use crate::text::{
    BUDGET, Budget, ChatMessage, ChatTemplate, Conversation, EFFORT, Ending, TextModel,
};

/// The same field, as llama.cpp has it.
const BUDGET_TOKENS: &str = "thinking_budget_tokens";

/// Body of `/v1/completions`.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// At least one.
    pub prompts: Vec<Prompt>,
    /// What chat has too.
    pub params: Params,
    /// Whether texts begin as the model's do, with the token for that if there is one.
    pub add_special_tokens: bool,
    /// Give the prompt back before the completion.
    pub echo: bool,
    /// Log probabilities of tokens and of this many alternatives.
    pub logprobs: Option<u32>,
}

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// To be tokenised.
    Text(String),
    /// As it is.
    Tokens(Vec<TokenId>),
}

/// Body of `/v1/chat/completions`.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// What becomes the prompt.
    pub chat: Chat,
    /// What completions have too.
    pub params: Params,
    /// Log probabilities of tokens and of this many alternatives.
    pub logprobs: Option<u32>,
    /// What of it is passed over, for the caller to read.
    pub warnings: Vec<String>,
}

/// What of a chat its prompt is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    /// At least one.
    pub messages: Vec<ChatMessage>,
    /// What the model may call.
    pub tools: Option<Tools>,
    /// What else the chat template is told.
    pub variables: Option<Map<String, Value>>,
    /// How long the model is to think.
    pub effort: Option<Effort>,
    /// Whether what the model thinks between tags stays in the text.
    pub shows_thoughts: bool,
    /// How many tokens the model may think.
    pub(crate) budget: Budget,
    /// Whether it is to think at all, where that is said.
    pub(crate) thinks: Option<bool>,
    /// Where the prompt ends.
    pub ending: Ending,
}

/// How long a model is to think, in OpenAI's words.
#[derive(Debug, Clone, PartialEq)]
pub struct Effort {
    /// The field that said so, for errors.
    field: &'static str,
    word: String,
}

impl Effort {
    const WORDS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    /// What clients say by themselves, whatever the model is.
    const USUAL: [&str; 3] = ["low", "medium", "high"];

    /// # Errors
    /// A word that is none of OpenAI's: templates would put it into the prompt as it stands.
    pub(super) fn of(field: &'static str, word: Option<String>) -> Result<Option<Self>, ApiError> {
        match word {
            Some(word) if !Self::WORDS.contains(&word.as_str()) => {
                let bound = format!("one of {}", Self::WORDS.join(", "));
                Err(Refusal::new(field, word, bound).into())
            }
            word => Ok(word.map(|word| Self { field, word })),
        }
    }

    pub(super) fn word(&self) -> &str {
        &self.word
    }
}

impl Chat {
    pub(super) fn take(fields: &mut Fields<'_>, usual: &Usual) -> Result<Self, ApiError> {
        let tools = Tools::take(fields)?;
        let variables = fields.take("chat_template_kwargs")?;
        let effort = Effort::of(EFFORT, fields.take(EFFORT)?)?;
        let shows_thoughts = take_thoughts(fields)?;
        let budget = take_budget(fields)?;
        let (messages, ending) = take_messages(fields, usual.between_parts)?;
        let thinks = None;
        Ok(Self { messages, tools, variables, effort, shows_thoughts, budget, thinks, ending })
    }

    /// The same for this template, which is told of the effort if it asks for it; `warnings` say
    /// that it does not.
    ///
    /// # Errors
    /// An effort that a template does not ask for, and that nobody names without meaning it.
    pub(super) fn for_template(
        mut self,
        template: &ChatTemplate,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ApiError> {
        const ASKS_FOR_NONE: &str = "this model's chat template asks for none";
        match self.effort.take() {
            Some(effort) if template.takes_effort() => {
                let variables = self.variables.get_or_insert_default();
                variables.entry(EFFORT).or_insert(Value::String(effort.word));
            }
            Some(effort) if Effort::USUAL.contains(&effort.word()) => {
                warnings.push(format!("{} is passed over: {ASKS_FOR_NONE}", effort.field));
            }
            Some(effort) if effort.word != "none" => {
                let reason = format!("is not supported: {ASKS_FOR_NONE}");
                return Err(ApiError::field(effort.field, reason));
            }
            _ => {}
        }
        if let Some(thinks) = self.thinks {
            // Clients ask for thoughts whatever the model is.
            if !template.thinks() {
                self.budget = Budget::Unsaid;
                if thinks {
                    let why = "this model's chat template knows no thoughts";
                    warnings.push(format!("thinking is passed over: {why}"));
                }
            }
            for name in template.thinking_switches() {
                let variables = self.variables.get_or_insert_default();
                variables.entry(name).or_insert(Value::Bool(thinks));
            }
        }
        Ok(self)
    }

    /// As its template is given it.
    pub(super) fn conversation(&self) -> Conversation<'_> {
        Conversation {
            messages: &self.messages,
            tools: self.tools.as_ref().map_or(&[], |tools| tools.list.as_slice()),
            variables: self.variables.as_ref(),
            ending: self.ending,
        }
    }
}

/// What a body means where it does not say.
#[derive(Debug, Clone, Copy)]
pub struct Usual {
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// What stands between the parts of one message that are texts.
    pub between_parts: &'static str,
}

impl Usual {
    /// For this model.
    pub(super) fn of(text: &TextModel) -> Self {
        Self { sampling: *text.sampling(), between_parts: text.template().between_parts() }
    }
}

impl Default for Usual {
    fn default() -> Self {
        Self { sampling: Sampling::default(), between_parts: "\n" }
    }
}

/// Parses the body of `/v1/completions`; what it does not say is as `usual`.
///
/// # Errors
/// 400, naming the field.
pub fn parse_completion(body: &[u8], usual: &Usual) -> Result<CompletionRequest, ApiError> {
    let mut fields = Fields::parse(body)?;
    let params = Params::take(&mut fields, &usual.sampling)?;
    let logprobs = fields.take("logprobs")?;
    Refusal::unless_within("logprobs", logprobs.unwrap_or(0), 0, limits::TOP_LOGPROBS_MAX)?;
    let harmless: [(&str, Harmless); 3] =
        [("tools", is_empty), ("tool_choice", is_none), (EFFORT, is_none)];
    for (name, harmless) in harmless {
        fields.refuse(name, harmless)?;
    }
    if let Budget::Most(_) = take_budget(&mut fields)? {
        return Err(ApiError::field(BUDGET, "is not supported: a text is not thought about"));
    }
    let add_special_tokens = fields.take_or("add_special_tokens", true)?;
    let echo = fields.take_or("echo", false)?;
    let raw = fields.raw("prompt").ok_or_else(|| ApiError::field("prompt", "is missing"))?;
    fields.finish()?;
    let session = params.memory.session.as_ref();
    let prompts = parse_prompts(raw, session.and_then(SessionUse::goes_on).is_some())?;
    let choices_max = limits::CALL_CHOICES_MAX;
    if prompts.len() * params.choices as usize > choices_max {
        let each = format!("{} of each of {} prompts", params.choices, prompts.len());
        let bound = format!("at most {choices_max} completions of all prompts together");
        return Err(Refusal::new("prompt", each, bound).into());
    }
    if params.memory.resumable {
        Refusal::unless_within("prompt entries beside resumable", prompts.len(), 1, 1)?;
        if echo {
            return Err(ApiError::field("echo", "is not supported beside resumable"));
        }
    }
    Ok(CompletionRequest { prompts, params, add_special_tokens, echo, logprobs })
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn is_none(value: &Value) -> bool {
    value == "none" || value == "auto"
}

/// Text, a list of texts, tokens or a list of lists of tokens: told apart by their first
/// characters, so that millions of tokens are read straight into place.
fn parse_prompts(raw: &str, may_be_empty: bool) -> Result<Vec<Prompt>, ApiError> {
    let inner = raw.strip_prefix('[').map(|list| list.trim_start().chars().next());
    let prompts = match inner {
        None => vec![Prompt::Text(parse(raw)?)],
        Some(Some('"')) => parse::<Vec<_>>(raw)?.into_iter().map(Prompt::Text).collect(),
        Some(Some('[')) => parse::<Vec<_>>(raw)?.into_iter().map(Prompt::Tokens).collect(),
        Some(_) => vec![Prompt::Tokens(parse(raw)?)],
    };
    let is_empty = |prompt: &Prompt| matches!(prompt, Prompt::Tokens(tokens) if tokens.is_empty());
    if !may_be_empty && prompts.iter().any(is_empty) {
        return Err(ApiError::field("prompt", "must have at least one token"));
    }
    Ok(prompts)
}

fn parse<'a, T: Deserialize<'a>>(raw: &'a str) -> Result<T, ApiError> {
    serde_json::from_str(raw).map_err(|error| ApiError::field("prompt", error))
}

/// Parses the body of `/v1/chat/completions`; what it does not say is as `usual`.
///
/// # Errors
/// 400, naming the field.
pub fn parse_chat(body: &[u8], usual: &Usual) -> Result<ChatRequest, ApiError> {
    let mut fields = Fields::parse(body)?;
    let params = Params::take(&mut fields, &usual.sampling)?;
    fields.refuse("echo", |value| value == false)?;
    fields.refuse("add_special_tokens", |value| value == false)?;
    let wanted = fields.take_or("logprobs", false)?;
    let top = fields.take_or("top_logprobs", 0)?;
    if top > 0 && !wanted {
        return Err(ApiError::field("top_logprobs", "needs logprobs to be true"));
    }
    let top = Refusal::unless_within("top_logprobs", top, 0, limits::TOP_LOGPROBS_MAX)?;
    let chat = Chat::take(&mut fields, usual)?;
    fields.finish()?;
    Ok(ChatRequest { chat, params, logprobs: wanted.then_some(top), warnings: Vec::new() })
}

/// Whether thoughts stay in the text, in llama.cpp's words.
pub(super) fn take_thoughts(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    const FIELD: &str = "reasoning_format";
    match fields.take::<String>(FIELD)?.as_deref() {
        Some("none") => Ok(true),
        None | Some("auto" | "deepseek") => Ok(false),
        Some(other) => Err(Refusal::new(FIELD, other, "one of none, auto, deepseek").into()),
    }
}

/// How many tokens the model may think: vLLM's word for it, or llama.cpp's; -1 is any number.
pub(super) fn take_budget(fields: &mut Fields<'_>) -> Result<Budget, ApiError> {
    let mut budget = Budget::Unsaid;
    for name in [BUDGET_TOKENS, BUDGET] {
        if let Some(tokens) = fields.take::<i64>(name)? {
            let most = i64::from(limits::OUTPUT_TOKENS_MAX);
            let tokens = Refusal::unless_within(name, tokens, -1, most)?;
            budget = u32::try_from(tokens).map_or(Budget::Any, Budget::Most);
        }
    }
    Ok(budget)
}
