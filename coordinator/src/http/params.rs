//! The fields that completions and chat share.

use std::str::FromStr;
use std::time::Duration;

use aqueduct_core::{
    Exchange, MemoryPolicy, PolicyKind, Quality, Refusal, Sampling, Scoring, SessionUse, Steering,
    TokenId, WireDtype, limits,
};
use serde::Deserialize;
use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, whole};
use super::format::Format;
use super::{format, sampling};

/// What both endpoints understand.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Must be the served model's name when it is given.
    pub model: Option<String>,
    /// Most tokens of each completion, if given.
    pub max_tokens: Option<u32>,
    /// Completions of each prompt.
    pub choices: u32,
    /// How tokens are drawn; its seed and log probabilities are set later.
    pub sampling: Sampling,
    /// What bends logits before that.
    pub steering: Steering,
    /// What each completion must look like.
    pub format: Option<Format>,
    /// `None`: drawn by the server.
    pub seed: Option<u64>,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// Tokens that end a completion, beside the model's own.
    pub stop_tokens: Vec<TokenId>,
    /// Generate on after an end token.
    pub ignore_eos: bool,
    /// Go on from a prefix that was seen before, and keep this one's.
    pub cache_prompt: bool,
    /// Send events as they come.
    pub stream: bool,
    /// Report token counts at a stream's end.
    pub include_usage: bool,
    /// Report them with each of its chunks.
    pub running_usage: bool,
    /// Lower begins earlier.
    pub priority: i32,
    /// Report how far the prefill is, in a stream.
    pub return_progress: bool,
    /// The `aqueduct` object.
    pub memory: MemoryFields,
}

/// The `aqueduct` object of a request: what differs from the server's defaults.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MemoryFields {
    kind: Option<PolicyKind>,
    sinks: Option<u32>,
    local: Option<u32>,
    heavy: Option<u32>,
    decay: Option<f32>,
    window: Option<u32>,
    age_normalised: Option<bool>,
    max_tokens: Option<u32>,
    /// What the memory must keep.
    pub quality: Quality,
    /// C.
    pub chunk_tokens: Option<u32>,
    /// How the past reaches a block's queries.
    pub exchange: Exchange,
    /// What queries and outputs are between workers, where they travel.
    pub wire: WireDtype,
    /// After this long the request fails.
    pub deadline: Option<Duration>,
    /// A connection that is lost does not cancel it.
    pub resumable: bool,
    /// Keep what is remembered at the end, or go on from what was kept.
    pub session: Option<SessionUse>,
    /// Show on the console what is remembered of the prompt, and what tokens look at.
    pub map: bool,
}

/// Fields that would change the answer and are not supported, each with the values that ask
/// for nothing.
const UNSUPPORTED: [(&str, Harmless); 26] = [
    ("moderation", Value::is_null),
    ("include_reasoning", |value| value == true),
    ("verbosity", is_verbosity),
    ("functions", is_empty),
    ("function_call", |value| value == "none" || value == "auto"),
    ("bad_words", is_empty),
    ("allowed_token_ids", is_empty),
    ("logits_processors", is_empty),
    ("prompt_logprobs", Value::is_null),
    ("truncate_prompt_tokens", Value::is_null),
    ("use_beam_search", |value| value == false),
    ("suffix", is_empty),
    ("modalities", |value| *value == serde_json::json!(["text"])),
    ("audio", Value::is_null),
    ("web_search_options", Value::is_null),
    ("skip_special_tokens", |value| value == true),
    // Of special tokens that are shown, and none are.
    ("spaces_between_special_tokens", Value::is_boolean),
    ("include_stop_str_in_output", |value| value == false),
    ("length_penalty", |value| value.as_f64() == Some(1.0)),
    ("early_stopping", |value| value == false),
    ("detokenize", |value| value == true),
    ("return_tokens_as_token_ids", |value| value == false),
    ("return_token_ids", |value| value == false),
    ("return_token_offsets", |value| value == false),
    ("return_mm_kwargs", Value::is_boolean), // there are none
    ("routed_experts_prompt_start", |value| value == 0),
];

/// How many words an answer is to have, as clients say whatever the model is: none here knows it.
pub(super) fn is_verbosity(value: &Value) -> bool {
    ["low", "medium", "high"].iter().any(|word| value == word)
}

/// Fields that say who asks, how to bill, what to remember of it or what the answer may be like so
/// that it comes sooner, and change no answer. The id of a call is that of its header.
const IGNORED: [&str; 10] = [
    "request_id",
    "prediction",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
];

/// Whether a value asks for nothing.
pub(super) type Harmless = fn(&Value) -> bool;

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a text or a list of texts")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Params {
    /// Tokens are drawn by `usual` where the caller does not say.
    pub(super) fn take(fields: &mut Fields<'_>, usual: &Sampling) -> Result<Self, ApiError> {
        for (name, harmless) in UNSUPPORTED {
            fields.refuse(name, harmless)?;
        }
        IGNORED.iter().for_each(|name| fields.ignore(name));
        let choices = fields.take_or("n", 1)?;
        Refusal::unless_within("n", choices, 1, limits::CHOICES_MAX)?;
        if fields.take("best_of")?.is_some_and(|best: u32| best != choices) {
            return Err(ApiError::field("best_of", "is not supported unless it is n"));
        }
        let mut max_tokens = None;
        for name in ["max_tokens", "max_completion_tokens"] {
            let asked: Option<u32> = fields.take(name)?;
            Refusal::unless_within(name, asked.unwrap_or(0), 0, limits::OUTPUT_TOKENS_MAX)?;
            max_tokens = asked.or(max_tokens);
        }
        // Whoever salts what is remembered of a prompt wants nobody to see whether it is, and here
        // that is all or nothing.
        let is_salted = fields.take::<String>("cache_salt")?.is_some();
        let cache_prompt = fields.take_or("cache_prompt", true)? && !is_salted;
        let stream = fields.take_or("stream", false)?;
        let mut stream_options = fields.object("stream_options")?;
        let return_progress = fields.take_or("return_progress", false)?;
        if return_progress && !stream {
            return Err(ApiError::field("return_progress", "needs stream to be true"));
        }
        let include_usage = stream_options.take_or("include_usage", false)?;
        let running_usage = stream_options.take_or("continuous_usage_stats", false)?;
        // Padding against eavesdroppers, which nobody is promised.
        stream_options.ignore("include_obfuscation");
        stream_options.finish()?;
        let memory = MemoryFields::take(fields.object("aqueduct")?)?;
        if memory.resumable && !stream {
            return Err(ApiError::field("aqueduct.resumable", "needs stream to be true"));
        }
        if memory.resumable && running_usage {
            let field = "stream_options.continuous_usage_stats";
            return Err(ApiError::field(field, "is not supported beside aqueduct.resumable"));
        }
        Ok(Self {
            model: fields.take("model")?,
            max_tokens,
            choices,
            sampling: sampling::take_sampling(fields, *usual)?,
            steering: sampling::take_steering(fields)?,
            format: format::take_format(fields)?,
            seed: take_seed(fields)?,
            stop: take_stop(fields)?,
            stop_tokens: fields.take_or("stop_token_ids", Vec::new())?,
            ignore_eos: fields.take_or("ignore_eos", false)?,
            cache_prompt,
            stream,
            include_usage,
            running_usage: running_usage && include_usage,
            priority: fields.take_or("priority", 0)?,
            return_progress,
            memory,
        })
    }
}

/// Any whole number of 64 bits: with a sign, or as an answer tells it.
fn take_seed(fields: &mut Fields<'_>) -> Result<Option<u64>, ApiError> {
    let Some(seed) = fields.take::<serde_json::Number>("seed")? else { return Ok(None) };
    let bits = seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned));
    let bits = bits.or_else(|| whole(seed.as_f64()?).map(i64::cast_unsigned));
    let refusal = || Refusal::new("seed", &seed, "a whole number of 64 bits");
    Ok(Some(bits.ok_or_else(refusal)?))
}

fn take_stop(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let stop = match fields.take("stop")? {
        None => Vec::new(),
        Some(OneOrMore::One(stop)) => vec![stop],
        Some(OneOrMore::More(stop)) => stop,
    };
    Ok(stops_of("stop", stop)?)
}

/// The strings that `field` has to end a completion; empty ones end none.
pub(super) fn stops_of(field: &str, stops: Vec<String>) -> Result<Vec<String>, Refusal> {
    Refusal::unless_within(field, stops.len(), 0, limits::STOP_STRINGS_MAX)?;
    if let Some(long) = stops.iter().find(|text| text.len() > limits::STOP_BYTES_MAX) {
        let bound = format!("texts of at most {}", limits::STOP_BYTES_MAX);
        return Err(Refusal::new(field, format!("{} bytes", long.len()), bound));
    }
    Ok(stops.into_iter().filter(|text| !text.is_empty()).collect())
}

/// One of the words that users write.
fn take_word<T: FromStr<Err = Refusal>>(
    fields: &mut Fields<'_>,
    name: &str,
) -> Result<Option<T>, ApiError> {
    Ok(fields.take::<String>(name)?.map(|word| word.parse()).transpose()?)
}

fn take_quality(fields: &mut Fields<'_>) -> Result<Quality, ApiError> {
    let kind = take_word(fields, "quality")?;
    let min_retained_mass = fields.take("min_retained_mass")?;
    let below_floor = take_word(fields, "below_floor")?;
    Ok(Quality::of(kind, min_retained_mass, below_floor)?)
}

impl MemoryFields {
    fn take(mut fields: Fields<'_>) -> Result<Self, ApiError> {
        let taken = Self {
            kind: take_word(&mut fields, "policy")?,
            sinks: fields.take("sinks")?,
            local: fields.take("local")?,
            heavy: fields.take("heavy")?,
            decay: fields.take("decay")?,
            window: fields.take("window")?,
            age_normalised: fields.take("age_normalised")?,
            max_tokens: fields.take("max_tokens")?,
            quality: take_quality(&mut fields)?,
            chunk_tokens: fields.take("chunk_tokens")?,
            exchange: take_word(&mut fields, "exchange")?.unwrap_or_default(),
            wire: take_word(&mut fields, "wire")?.unwrap_or_default(),
            deadline: fields.take("deadline_ms")?.map(Duration::from_millis),
            resumable: fields.take_or("resumable", false)?,
            session: take_word(&mut fields, "session")?,
            map: fields.take_or("memory_map", false)?,
        };
        fields.finish()?;
        let chunk_tokens = taken.chunk_tokens.unwrap_or(limits::CHUNK_TOKENS_DEFAULT);
        Refusal::unless_within("chunk_tokens", chunk_tokens, 1, limits::CHUNK_TOKENS_MAX)?;
        taken.policy(MemoryPolicy::default())?;
        Ok(taken)
    }

    /// The policy, with `default` for what the caller did not say.
    ///
    /// # Errors
    /// The field that is out of bounds or contradicts another.
    pub fn policy(&self, default: MemoryPolicy) -> Result<MemoryPolicy, Refusal> {
        self.over(default).map_err(|refusal| match refusal.field.as_str() {
            // There is another field of this name beside the object.
            "max_tokens" => Refusal { field: "aqueduct.max_tokens".to_owned(), ..refusal },
            _ => refusal,
        })
    }

    /// What the caller said, over what is usual.
    fn over(&self, default: MemoryPolicy) -> Result<MemoryPolicy, Refusal> {
        let budget = [
            ("sinks", self.sinks),
            ("local", self.local),
            ("heavy", self.heavy),
            ("max_tokens", self.max_tokens),
        ];
        let kind = self.quality.policy_kind(self.kind, &budget)?.unwrap_or(default.kind);
        let sinks = self.sinks.unwrap_or(default.sinks);
        let base = match self.max_tokens {
            None => MemoryPolicy {
                kind,
                sinks,
                local: self.local.unwrap_or(default.local),
                heavy: self.heavy.unwrap_or(default.heavy),
                scoring: default.scoring,
            },
            Some(max_tokens) => self.preset(kind, max_tokens, sinks)?,
        };
        let scoring = Scoring {
            decay: self.decay.unwrap_or(default.scoring.decay),
            window: self.window.unwrap_or(default.scoring.window),
            age_normalised: self.age_normalised.unwrap_or(default.scoring.age_normalised),
        };
        let policy = MemoryPolicy { scoring, ..base };
        policy.validate()?;
        Ok(policy)
    }

    /// A budget in one number, instead of `local` and `heavy`.
    fn preset(
        &self,
        kind: PolicyKind,
        max_tokens: u32,
        sinks: u32,
    ) -> Result<MemoryPolicy, Refusal> {
        if self.local.or(self.heavy).is_some() {
            return Err(Refusal::new("max_tokens", max_tokens, "given without local and heavy"));
        }
        match kind {
            PolicyKind::H2o => MemoryPolicy::heavy_preset(max_tokens, sinks),
            PolicyKind::Window => {
                let high = limits::MEMORY_TOKENS_MAX;
                Refusal::unless_within("max_tokens", max_tokens, sinks, high)?;
                Ok(MemoryPolicy::window(sinks, max_tokens - sinks))
            }
            PolicyKind::Dense => {
                Err(Refusal::new("max_tokens", max_tokens, "absent: dense keeps every key"))
            }
        }
    }
}
