//! From gRPC messages to submissions: defaults, bounds and tokens.

use std::time::{Duration, SystemTime};

use aqueduct_core::work::Outputs;
use aqueduct_core::{
    Constraint, Grammar, Refusal, Sampling, Session, SessionUse, StartKey, Telling, ThoughtsTold,
    TokenId, limits,
};
use aqueduct_proto::convert::exchange::{exchange, wire_dtype};
use aqueduct_proto::convert::generate::{policy_or, sampling_or};
use aqueduct_proto::convert::quality::quality;
use aqueduct_proto::v1;
use aqueduct_proto::v1::generate_request::Prompt;
use aqueduct_proto::v1::tokenize_request::Input;
use prost::Message;
use tonic::metadata::MetadataMap;

use crate::config::Config;
use crate::generation::draw_seed;
use crate::request_id::{REQUEST_ID, or_drawn};
use crate::submit::Submission;
use crate::text::{BUDGET, Budget, ChatMessage, Conversation, Ending, Role, TextModel, Wanted};

const MAX_TOKENS_DEFAULT: u32 = 256;

/// What a `Generate` call asks for.
pub(super) fn submission(
    message: v1::GenerateRequest,
    timeout: Option<Duration>,
    text: &TextModel,
    config: &Config,
) -> Result<Submission, Refusal> {
    let once = start_key(&message)?;
    let is_chat = matches!(message.prompt, Some(Prompt::Chat(_)));
    let session: Option<SessionUse> = message.session.map(|session| session.parse()).transpose()?;
    let goes_on = session.as_ref().and_then(SessionUse::goes_on);
    let wanted = wanted(message.grammar, message.thinking_token_budget)?;
    let max_tokens = message.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT);
    let mut answered = None;
    let prompt = match message.prompt.ok_or_else(|| Refusal::new("prompt", "absent", "present"))? {
        Prompt::Text(prompt) => text.encode(&prompt, goes_on.is_none())?,
        Prompt::Tokens(prompt) => checked(prompt.ids, text)?,
        Prompt::Chat(chat) => {
            let ending = wanted.ending(max_tokens);
            let (prompt, tokens) = encode_chat(chat, ending, goes_on, text)?;
            answered = Some(text.form((&prompt, ending), max_tokens, wanted.clone())?);
            tokens
        }
    };
    // Whoever names no seed is told the one that was drawn.
    let usual = Sampling { seed: draw_seed(), ..*text.sampling() };
    let sampling = sampling_or(usual, message.sampling)?;
    let outputs = if message.prompt_logprobs {
        Outputs::Logprobs(sampling.logprobs.unwrap_or(0))
    } else {
        Outputs::None
    };
    let (constraint, thoughts) = answered.map_or_else(|| continued(wanted, text), Ok)?;
    let quality = quality(message.quality)?;
    let warning = is_chat.then(|| text.template().warning()).flatten();
    let telling = Telling {
        resumable: message.resumable || once.is_some(),
        once,
        stop: message.stop,
        continues: !is_chat,
        thoughts,
        warnings: warning.map(str::to_owned).into_iter().collect(),
        ..Telling::default()
    };
    Ok(Submission {
        prompt,
        session,
        policy: policy_or(config.policy, message.policy, quality)?,
        floor: quality.floor(),
        chunk_tokens: message.chunk_tokens.unwrap_or(config.chunk_tokens),
        exchange: exchange(message.exchange)?.unwrap_or_default(),
        wire: wire_dtype(message.wire)?.unwrap_or_default(),
        sampling,
        steering: message.steering.unwrap_or_default().try_into()?,
        constraint,
        choices: message.choices.unwrap_or(1),
        max_tokens,
        eos: text.ends(message.ignore_eos, "stop_tokens", &message.stop_tokens)?,
        outputs,
        priority: message.priority.unwrap_or(0),
        caller_id: String::new(),
        shows: false,
        cache_prompt: message.cache_prompt.unwrap_or(true),
        telling,
        deadline: timeout.unwrap_or(config.request_deadline).min(config.request_deadline),
        waited: Duration::ZERO,
    })
}

/// By what its caller may ask for it again.
fn start_key(message: &v1::GenerateRequest) -> Result<Option<StartKey>, Refusal> {
    let Some(name) = message.idempotency_key.clone() else { return Ok(None) };
    let once = StartKey { name, content: blake3::hash(&message.encode_to_vec()).into() };
    once.validate()?;
    Ok(Some(once))
}

fn wanted(grammar: Option<v1::Grammar>, budget: Option<u32>) -> Result<Wanted, Refusal> {
    let grammar = grammar.map(Grammar::try_from).transpose()?;
    let grammar = grammar.map(|grammar| ("grammar", grammar));
    let most = limits::OUTPUT_TOKENS_MAX;
    Refusal::unless_within(BUDGET, budget.unwrap_or(0), 0, most)?;
    let budget = budget.map_or(Budget::Unsaid, Budget::Most);
    Ok(Wanted { budget, grammar, ..Wanted::default() })
}

/// What makes text go on as is wanted, which nobody thinks about.
fn continued(
    wanted: Wanted,
    text: &TextModel,
) -> Result<(Option<Constraint>, ThoughtsTold), Refusal> {
    if wanted.budget != Budget::Unsaid {
        return Err(Refusal::new(BUDGET, "present", "absent: a text is not thought about"));
    }
    let constrain = |(field, grammar): (_, Grammar)| text.constraint(field, grammar.into());
    Ok((wanted.grammar.map(constrain).transpose()?, ThoughtsTold::AsText))
}

/// What a `Tokenize` call asks for.
pub(super) fn tokenize(
    message: v1::TokenizeRequest,
    text: &TextModel,
) -> Result<v1::TokenizeReply, Refusal> {
    match message.input.ok_or_else(|| Refusal::new("input", "absent", "present"))? {
        Input::Text(input) => {
            let ids = text.encode(&input, true)?;
            Ok(v1::TokenizeReply { ids, text: input })
        }
        Input::Tokens(input) => {
            let ids = checked(input.ids, text)?;
            Ok(v1::TokenizeReply { text: text.decode(&ids), ids })
        }
        Input::Chat(chat) => {
            let (text, ids) = encode_chat(chat, Ending::Asks, None, text)?;
            Ok(v1::TokenizeReply { ids, text })
        }
    }
}

fn checked(ids: Vec<TokenId>, text: &TextModel) -> Result<Vec<TokenId>, Refusal> {
    text.check(&ids)?;
    Ok(ids)
}

fn encode_chat(
    chat: v1::ChatPrompt,
    ending: Ending,
    goes_on: Option<&Session>,
    text: &TextModel,
) -> Result<(String, Vec<TokenId>), Refusal> {
    let message = |(idx, message): (usize, v1::ChatMessage)| {
        let role = Role::named(&format!("chat.messages[{idx}].role"), &message.role)?;
        Ok(ChatMessage::new(role, message.content))
    };
    let messages = chat.messages.into_iter().enumerate().map(message);
    let messages: Vec<ChatMessage> = messages.collect::<Result<_, Refusal>>()?;
    Refusal::unless_within("messages", messages.len(), 1, usize::MAX)?;
    let conversation = Conversation { ending, ..Conversation::of(&messages) };
    text.chat(conversation, goes_on, SystemTime::now())
}

/// How long the caller will wait: gRPC's own header, such as `30S` or `1500m`.
pub(super) fn timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let value: u32 = digits.parse().ok()?;
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * value)
}

/// What the caller calls its call, or a new id.
pub(super) fn caller_id(metadata: &MetadataMap) -> String {
    or_drawn(metadata.get(REQUEST_ID).and_then(|id| id.to_str().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_units() {
        let check = |header: &str, want: Option<u64>| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", header.parse().unwrap());
            assert_eq!(timeout(&metadata), want.map(Duration::from_millis), "{header}");
        };
        check("2S", Some(2000));
        check("1500m", Some(1500));
        check("3000u", Some(3));
        check("1H", Some(3_600_000));
        check("12", None);
        check("S", None);
        check("", None);
        check("-1S", None);
        check("99999999999S", None);
    }
}
