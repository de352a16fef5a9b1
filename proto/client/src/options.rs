//! What a caller asks for.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use aqueduct_core::{
    Exchange, Grammar, MemoryPolicy, Quality, SessionUse, Steering, TokenId, WireDtype, limits,
};
use aqueduct_proto::v1;

/// One turn of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// A prompt in one of its three forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text, for the server's tokeniser.
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<TokenId>),
    /// Turns, for the model's chat template.
    Chat(Vec<ChatMessage>),
}

/// Options of [`Client::generate`](crate::Client::generate). `None` leaves a field to the
/// server's default.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// What the model is to continue.
    pub prompt: Prompt,
    /// Most tokens of each completion; 0 prefills only.
    pub max_tokens: Option<u32>,
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Probability of the nucleus.
    pub top_p: Option<f32>,
    /// Most likely tokens to draw from; 0 is all.
    pub top_k: Option<u32>,
    /// Least likelihood, as a fraction of the most likely token's.
    pub min_p: Option<f32>,
    /// Taken off the logits of tokens that the completion has.
    pub presence_penalty: Option<f32>,
    /// Taken off the logits of tokens for each time that the completion has them.
    pub frequency_penalty: Option<f32>,
    /// What logits of tokens of the prompt and the completion shrink by.
    pub repetition_penalty: Option<f32>,
    /// Tokens before an end token may be drawn, or a stop string looked for.
    pub min_tokens: Option<u32>,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Seed; the server draws one and reports it otherwise.
    pub seed: Option<u64>,
    /// Alternatives to report for each token.
    pub logprobs: Option<u32>,
    /// What the memory keeps.
    pub policy: Option<MemoryPolicy>,
    /// What the memory must have kept before anything is generated.
    pub quality: Option<Quality>,
    /// Chunk size.
    pub chunk_tokens: Option<u32>,
    /// How the past reaches a block's queries.
    pub exchange: Option<Exchange>,
    /// What queries and outputs are between workers, where they travel, and keys and values of
    /// an f32 cache that are handed off.
    pub wire: Option<WireDtype>,
    /// What each completion must look like.
    pub grammar: Option<Grammar>,
    /// Most tokens that the model thinks before it answers a chat; its thoughts are ended then.
    /// Unless given any number, or beside a grammar half of `max_tokens`.
    pub thinking_token_budget: Option<u32>,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// Tokens that end a completion as the model's own end tokens do.
    pub stop_tokens: Vec<TokenId>,
    /// Completions.
    pub choices: Option<u32>,
    /// Report the log probabilities of the prompt's own tokens.
    pub prompt_logprobs: bool,
    /// Generate on after an end token.
    pub ignore_eos: bool,
    /// Lower begins earlier and has a larger share of the workers; 0 is what most have.
    pub priority: Option<i32>,
    /// What the server's log is to call it; up to 128 visible ASCII characters.
    pub request_id: Option<String>,
    /// Go on from a prefix that was seen before, and keep this one's.
    pub cache_prompt: bool,
    /// Keep what is remembered at the end, so that a later call goes on from there; or go on from
    /// what [`Summary::session`](crate::Summary::session) of an earlier answer stands for: then
    /// the prompt is what follows that answer.
    pub session: Option<SessionUse>,
    /// Whether the request goes on while its connection is lost, so that the stream does, with
    /// every token once. Not beside `prompt_logprobs`.
    pub resumable: bool,
    /// By what the server knows the request if it is asked for twice: the second time is the first
    /// one, told from its beginning, also by another coordinator; with another prompt or other
    /// options it is refused. Up to 255 visible ASCII characters; one is drawn for each call of a
    /// resumable request where there is none, which with one is resumable in any case.
    pub idempotency_key: Option<String>,
    /// How long the whole answer may take.
    pub deadline: Duration,
}

impl GenerateOptions {
    /// Everything at its default.
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            max_tokens: None,
            temperature: None,
            top_p: None,
            top_k: None,
            min_p: None,
            presence_penalty: None,
            frequency_penalty: None,
            repetition_penalty: None,
            min_tokens: None,
            logit_bias: Vec::new(),
            seed: None,
            logprobs: None,
            policy: None,
            quality: None,
            chunk_tokens: None,
            exchange: None,
            wire: None,
            grammar: None,
            thinking_token_budget: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            choices: None,
            prompt_logprobs: false,
            ignore_eos: false,
            priority: None,
            request_id: None,
            cache_prompt: true,
            session: None,
            resumable: true,
            idempotency_key: None,
            deadline: Duration::from_millis(limits::REQUEST_DEADLINE_MS),
        }
    }

    /// A text to continue.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Prompt::Text(text.into()))
    }

    /// Tokens to continue.
    pub fn tokens(tokens: Vec<TokenId>) -> Self {
        Self::new(Prompt::Tokens(tokens))
    }

    /// Log probabilities of the prompt are not kept for who comes back.
    fn is_resumable(&self) -> bool {
        self.resumable && !self.prompt_logprobs
    }

    /// With a key of its own, if a start of it may be made again.
    pub(crate) fn keyed(mut self) -> Self {
        if self.is_resumable() && self.idempotency_key.is_none() {
            let drawn = || RandomState::new().hash_one(());
            self.idempotency_key = Some(format!("{:016x}{:016x}", drawn(), drawn()));
        }
        self
    }

    pub(crate) fn into_message(self) -> v1::GenerateRequest {
        use v1::generate_request::Prompt as Wire;
        let resumable = self.is_resumable();
        v1::GenerateRequest {
            prompt: Some(match self.prompt {
                Prompt::Text(text) => Wire::Text(text),
                Prompt::Tokens(ids) => Wire::Tokens(v1::TokenList { ids }),
                Prompt::Chat(turns) => Wire::Chat(chat_message(turns)),
            }),
            max_tokens: self.max_tokens,
            sampling: Some(v1::Sampling {
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                seed: self.seed,
                logprobs: self.logprobs,
                min_p: self.min_p,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                repetition_penalty: self.repetition_penalty,
                min_tokens: self.min_tokens,
            }),
            steering: Some(Steering::by_bias(self.logit_bias).into()),
            policy: self.policy.map(Into::into),
            quality: self.quality.map(Into::into),
            chunk_tokens: self.chunk_tokens,
            exchange: self.exchange.map_or(v1::Exchange::Unspecified, Into::into).into(),
            wire: self.wire.map_or(v1::WireDtype::Unspecified, Into::into).into(),
            grammar: self.grammar.map(Into::into),
            thinking_token_budget: self.thinking_token_budget,
            stop: self.stop,
            choices: self.choices,
            prompt_logprobs: self.prompt_logprobs,
            ignore_eos: self.ignore_eos,
            priority: self.priority,
            cache_prompt: Some(self.cache_prompt),
            session: self.session.map(|session| session.to_string()),
            resumable,
            idempotency_key: self.idempotency_key,
            stop_tokens: self.stop_tokens,
        }
    }
}

impl Prompt {
    pub(crate) fn into_tokenize(self) -> v1::TokenizeRequest {
        use v1::tokenize_request::Input;
        v1::TokenizeRequest {
            input: Some(match self {
                Self::Text(text) => Input::Text(text),
                Self::Tokens(ids) => Input::Tokens(v1::TokenList { ids }),
                Self::Chat(turns) => Input::Chat(chat_message(turns)),
            }),
        }
    }
}

fn chat_message(turns: Vec<ChatMessage>) -> v1::ChatPrompt {
    let messages = turns
        .into_iter()
        .map(|turn| v1::ChatMessage { role: turn.role, content: turn.content })
        .collect();
    v1::ChatPrompt { messages }
}
