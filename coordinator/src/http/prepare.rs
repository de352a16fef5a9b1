//! Bodies as prompts that are ready to be submitted.

use std::time::SystemTime;

use aqueduct_core::{Constraint, Refusal, SessionUse, StartKey, ThoughtsTold, TokenId};

use super::Shared;
use super::error::ApiError;
use super::format::Kept;
use super::params::Params;
use super::reply::Endpoint;
use super::request::{ChatRequest, Prompt, Usual, parse_chat, parse_completion};
use super::tools::Tools;
use crate::text::{CallNotation, Ending, TextModel, Wanted};

/// A call that is ready to be submitted.
pub(super) struct Prepared {
    pub(super) endpoint: Endpoint,
    pub(super) params: Params,
    pub(super) prompts: Vec<PreparedPrompt>,
    pub(super) echo: bool,
    pub(super) logprobs: Option<u32>,
    /// Whether the answer goes on with the chat's last message.
    pub(super) goes_on: bool,
    pub(super) thoughts: ThoughtsTold,
    pub(super) constraint: Option<Constraint>,
    /// Whether tools may be called.
    pub(super) tools: bool,
    /// Whether but one call of each answer counts.
    pub(super) one_call: bool,
    /// Arguments of tools that are texts, for notations that write no types.
    pub(super) text_arguments: Vec<String>,
    pub(super) warnings: Vec<String>,
    /// By what its caller may make it again.
    pub(super) once: Option<StartKey>,
}

impl Prepared {
    /// The same, for a caller who may make it again with the key `name`.
    pub(super) fn keyed(self, name: Option<String>, body: &[u8]) -> Result<Self, ApiError> {
        let Some(name) = name else { return Ok(self) };
        Refusal::unless_within("prompt entries beside idempotency_key", self.prompts.len(), 1, 1)?;
        if self.echo {
            return Err(ApiError::field("echo", "is not supported beside idempotency_key"));
        }
        let mut content = blake3::Hasher::new();
        content.update(&[self.endpoint as u8]).update(body);
        let once = StartKey { name, content: content.finalize().into() };
        once.validate()?;
        Ok(Self { once: Some(once), ..self })
    }
}

pub(super) struct PreparedPrompt {
    pub(super) tokens: Vec<TokenId>,
    /// The prompt as it is given back.
    pub(super) text: String,
}

/// The prompts of `/v1/completions`.
pub(super) fn completion(shared: &Shared, bytes: &[u8]) -> Result<Prepared, ApiError> {
    let mut request = parse_completion(bytes, &Usual::of(&shared.generator.text))?;
    shared.check_model(request.params.model.as_deref())?;
    let text = &shared.generator.text;
    let session = request.params.memory.session;
    if session.is_some() {
        Refusal::unless_within("prompt entries beside a session", request.prompts.len(), 1, 1)?;
    }
    if request.echo
        && request.logprobs.is_some()
        && session.as_ref().and_then(SessionUse::goes_on).is_some()
    {
        let reason = "is not supported with logprobs where a session goes on: earlier turns are \
            not computed again";
        return Err(ApiError::field("echo", reason));
    }
    let begins =
        request.add_special_tokens && session.as_ref().and_then(SessionUse::goes_on).is_none();
    let prepare = |prompt| match prompt {
        Prompt::Text(prompt) => {
            let tokens = text.encode(&prompt, begins)?;
            Ok(PreparedPrompt { tokens, text: prompt })
        }
        Prompt::Tokens(tokens) => {
            text.check(&tokens)?;
            let text = if request.echo { text.decode(&tokens) } else { String::new() };
            Ok(PreparedPrompt { tokens, text })
        }
    };
    let mut warnings = Vec::new();
    let format = request.params.format.take();
    let format = format.map(|format| format.followed(text, &mut warnings)).transpose()?;
    let prompts = request.prompts.into_iter().map(prepare).collect::<Result<Vec<_>, ApiError>>()?;
    Ok(Prepared {
        endpoint: Endpoint::Completions,
        params: request.params,
        prompts,
        echo: request.echo,
        logprobs: request.logprobs,
        goes_on: false,
        thoughts: ThoughtsTold::AsText,
        constraint: format.map(|format| format.constraint),
        tools: false,
        one_call: false,
        text_arguments: Vec::new(),
        warnings,
        once: None,
    })
}

/// The prompt of `/v1/chat/completions`.
pub(super) fn chat(shared: &Shared, bytes: &[u8]) -> Result<Prepared, ApiError> {
    chat_of(shared, parse_chat(bytes, &Usual::of(&shared.generator.text))?)
}

/// What an answer must look like, by its `format` and by the tools that may be called, if any.
fn wanted(
    text: &TextModel,
    called: Option<(&Tools, CallNotation)>,
    format: Option<Kept>,
    warnings: &mut Vec<String>,
) -> Result<Wanted, ApiError> {
    let schema = format.as_ref().and_then(|format| format.schema.as_ref());
    let has_schema = schema.is_some();
    let calls = called.map(|(tools, notation)| tools.grammar((text, notation), schema, warnings));
    let calls = calls.transpose()?.flatten();
    let has_heads = calls.is_some() && called.is_some_and(|(_, notation)| notation.is_apart());
    let grammar = match (calls, format) {
        // It would leave no room for a call, or is none that calls leave room for.
        (calls, Some(format)) if called.is_some() && (calls.is_none() || !has_schema) => {
            let reason = "is not supported beside tools that may be called";
            return Err(ApiError::field(format.field, reason));
        }
        (Some(calls), _) => Some(("tools", calls)),
        (None, format) => format.and_then(|Kept { field, constraint, .. }| {
            constraint.form.grammar.map(|grammar| (field, grammar))
        }),
    };
    Ok(Wanted { grammar, has_heads, tools: called.is_some(), ..Wanted::default() })
}

/// A chat, as a prompt.
pub(super) fn chat_of(shared: &Shared, mut request: ChatRequest) -> Result<Prepared, ApiError> {
    shared.check_model(request.params.model.as_deref())?;
    let text = &shared.generator.text;
    let template = text.template();
    let warning = template.warning().map(str::to_owned);
    let mut warnings: Vec<String> = warning.into_iter().chain(request.warnings).collect();
    request.chat = request.chat.for_template(template, &mut warnings)?;
    let (tools, notation) = (request.chat.tools.as_ref(), template.notation());
    let goes_on = request.params.memory.session.as_ref().and_then(SessionUse::goes_on);
    let format = request.params.format.take();
    let format = format.map(|format| format.followed(text, &mut warnings)).transpose()?;
    let wanted = Wanted {
        budget: request.chat.budget,
        ..wanted(text, tools.zip(notation), format, &mut warnings)?
    };
    let may_call = wanted.tools;
    let mut conversation = request.chat.conversation();
    if conversation.ending == Ending::Asks {
        let most = request.params.max_tokens.unwrap_or(shared.options.chat_max_tokens);
        conversation.ending = wanted.ending(most);
    }
    let ending = conversation.ending;
    let (prompt, tokens) = text.chat(conversation, goes_on, SystemTime::now())?;
    // Where nothing is asked for, the model's positions are the bound, and not a reason to refuse.
    let before = goes_on.map_or(0, |session| session.end.saturating_add(1));
    let left = text.tokens_left(before.saturating_add(tokens.len() as u32));
    let most = left.clamp(1, shared.options.chat_max_tokens);
    let most = *request.params.max_tokens.get_or_insert(most);
    let (constraint, told) = text.form((&prompt, ending), most, wanted)?;
    let thoughts = match request.chat.shows_thoughts && told != ThoughtsTold::Over {
        true => ThoughtsTold::AsText,
        false => told,
    };
    let text_arguments = tools.zip(notation).map(|(tools, it)| tools.text_arguments(it));
    let text_arguments = text_arguments.transpose()?.unwrap_or_default();
    let one_call = tools.is_some_and(Tools::is_one_call);
    Ok(Prepared {
        endpoint: Endpoint::Chat,
        params: request.params,
        prompts: vec![PreparedPrompt { tokens, text: prompt }],
        echo: false,
        logprobs: request.logprobs,
        goes_on: request.chat.ending == Ending::GoesOn,
        thoughts,
        constraint,
        tools: may_call,
        one_call,
        text_arguments,
        warnings,
        once: None,
    })
}
