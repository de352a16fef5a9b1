//! What coordinators write down, so that no crash loses it: what was accepted, what was emitted,
//! how it ended. Nothing of the plan: chunks, snapshots and epochs follow from a request and
//! from what workers say of themselves.

use crate::work::{FailureKind, Outputs, TokenLogprob};
use crate::{
    Exchange, Floor, Form, MemoryPolicy, Refusal, RequestId, Sampling, SessionUse, Steering,
    Telling, TokenId, WireDtype, limits,
};

/// One thing that happened to one request, or to a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The request; 0 where it is a worker's.
    pub request: RequestId,
    /// When, by the journal's own time, in milliseconds since 1970 as whoever wrote first had it.
    pub at_ms: u64,
    /// What.
    pub kind: RecordKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordKind {
    /// It was accepted; first of all its records.
    Accepted(Box<Accepted>),
    /// A completion went on.
    Tokens(Batch),
    /// A completion came to its end.
    ChoiceEnded {
        /// Which.
        choice: u32,
        /// Whether an end token ended it.
        eos: bool,
    },
    /// The request came to its end; last of all its records.
    Ended(Outcome),
    /// An operator has a worker left, or not any more.
    Drained {
        /// Its name, as [`worker_name`] takes it.
        worker: String,
        /// Whether it is given nothing new.
        draining: bool,
    },
}

/// A name under which a journal keeps a worker.
///
/// # Errors
/// One that is empty or too long.
pub fn worker_name(name: String) -> Result<String, Refusal> {
    Refusal::unless_within("worker bytes", name.len(), 1, limits::ADDRESS_BYTES_MAX)?;
    Ok(name)
}

/// All that is needed to run a request again with the same bits.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// Fingerprint of the model that answers it: another one would give other tokens.
    pub model: String,
    /// Tokens of the prompt; at least one.
    pub prompt: Vec<TokenId>,
    /// What is kept at the end, and gone on from.
    pub session: Option<SessionUse>,
    /// Before clamping to the chunk size.
    pub policy: MemoryPolicy,
    /// What its memory must have kept.
    pub floor: Option<Floor>,
    /// C.
    pub chunk_tokens: u32,
    /// How the past reaches a block's queries.
    pub exchange: Exchange,
    /// What queries and outputs are between workers.
    pub wire: WireDtype,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// What bends logits before that.
    pub steering: Steering,
    /// What each completion must be like; its vocabulary is the model's.
    pub form: Form,
    /// Completions of the one prompt.
    pub choices: u32,
    /// Most tokens of each; 0 prefills only.
    pub max_tokens: u32,
    /// Tokens that end a completion.
    pub eos: Vec<TokenId>,
    /// What else is computed for the prompt's own tokens.
    pub outputs: Outputs,
    /// Lower begins earlier.
    pub priority: i32,
    /// What its caller knows it by; may be empty.
    pub caller_id: String,
    /// Whether to go on from a prefix that was seen before, and to keep this one's.
    pub cache_prompt: bool,
    /// How its answer is told.
    pub telling: Telling,
    /// When it fails, on the clock of its record: time does not stop while nobody serves it.
    pub deadline_at_ms: u64,
}

/// Tokens of one completion, one after another.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Which completion.
    pub choice: u32,
    /// Index of the first of them in it.
    pub first_idx: u32,
    /// At least one.
    pub tokens: Vec<Drawn>,
}

/// A token as it was drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The token and its log probability.
    pub token: TokenLogprob,
    /// The most likely ones, best first, if they were asked for.
    pub top: Vec<TokenLogprob>,
}

/// How a request ended. There is one for each that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every completion came to its end.
    Finished,
    /// Its caller went away.
    Cancelled,
    /// It could not be finished.
    Failed {
        /// Kind.
        kind: FailureKind,
        /// For a person.
        message: String,
    },
}

/// What the records of one request come to.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// How it was accepted; without its prompt once it has ended.
    pub accepted: Accepted,
    /// One for each completion.
    pub choices: Vec<Completion>,
    /// How it ended, if it did.
    pub ended: Option<Ended>,
}

/// What one completion has come to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    /// Its tokens from the first one on.
    pub tokens: Vec<Drawn>,
    /// Whether an end token ended it; `None` while it goes on.
    pub eos: Option<bool>,
}

/// The end of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub outcome: Outcome,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

impl Kept {
    /// Of a request that has just been accepted.
    pub fn new(accepted: Accepted) -> Self {
        let choices = vec![Completion::default(); accepted.choices as usize];
        Self { accepted, choices, ended: None }
    }

    /// About how much memory it takes; the same wherever it is kept.
    pub fn bytes(&self) -> u64 {
        let Accepted { prompt, steering, form, eos, telling, .. } = &self.accepted;
        let grammar = form.grammar.as_ref().map_or(0, |grammar| grammar.text().len());
        let tokens = self.choices.iter().flat_map(|choice| &choice.tokens);
        let drawn: u64 = tokens.map(Drawn::bytes).sum();
        let words = prompt.len() + eos.len() + 2 * steering.bias.len();
        512 + 4 * words as u64 + grammar as u64 + telling.bytes() + drawn
    }
}

impl Drawn {
    /// About how much memory it takes.
    pub fn bytes(&self) -> u64 {
        size_of::<Self>() as u64 + size_of_val(self.top.as_slice()) as u64
    }
}

impl Accepted {
    /// One completion of `prompt` by `model`, at no temperature, and nothing else asked for.
    pub fn of(model: impl Into<String>, prompt: Vec<TokenId>) -> Self {
        Self {
            model: model.into(),
            prompt,
            session: None,
            policy: MemoryPolicy::default(),
            floor: None,
            chunk_tokens: limits::CHUNK_TOKENS_DEFAULT,
            exchange: Exchange::default(),
            wire: WireDtype::default(),
            sampling: Sampling::greedy(),
            steering: Steering::default(),
            form: Form::default(),
            choices: 1,
            max_tokens: 0,
            eos: Vec::new(),
            outputs: Outputs::None,
            priority: 0,
            caller_id: String::new(),
            cache_prompt: true,
            telling: Telling::default(),
            deadline_at_ms: u64::MAX,
        }
    }

    /// Checks what can be checked without the model; whether it fits that, whoever accepted it
    /// has found out.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn validate(&self) -> Result<(), Refusal> {
        let most = limits::PROMPT_TOKENS_MAX as usize;
        // A session that goes on may have a token that waits.
        let goes_on = self.session.as_ref().is_some_and(|session| session.goes_on().is_some());
        let least = usize::from(!goes_on);
        Refusal::unless_within("prompt tokens", self.prompt.len(), least, most)?;
        tokens("prompt", &self.prompt)?;
        self.validate_options()
    }

    /// The same of all but the prompt, which is not kept of a request that has ended.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn validate_options(&self) -> Result<(), Refusal> {
        let most = limits::CHUNK_TOKENS_MAX;
        Refusal::unless_within("chunk_tokens", self.chunk_tokens, 1, most)?;
        Refusal::unless_within("choices", self.choices, 1, limits::CHOICES_MAX)?;
        Refusal::unless_within("max_tokens", self.max_tokens, 0, limits::OUTPUT_TOKENS_MAX)?;
        Refusal::unless_within("eos tokens", self.eos.len(), 0, limits::EOS_TOKENS_MAX)?;
        tokens("eos", &self.eos)?;
        let most = limits::PRIORITY_MAX;
        Refusal::unless_within("priority", self.priority, -most, most)?;
        let bytes = self.model.len();
        Refusal::unless_within("model bytes", bytes, 0, limits::FINGERPRINT_BYTES_MAX)?;
        let bytes = self.caller_id.len();
        Refusal::unless_within("caller_id bytes", bytes, 0, limits::REQUEST_ID_BYTES_MAX)?;
        self.policy.validate()?;
        self.floor.map_or(Ok(()), |floor| floor.validate())?;
        self.sampling.validate()?;
        self.steering.validate(limits::VOCAB_MAX)?;
        self.telling.validate()?;
        self.form.validate()
    }
}

/// Refuses ids that no vocabulary has.
fn tokens(field: &str, ids: &[TokenId]) -> Result<(), Refusal> {
    match ids.iter().position(|id| *id >= limits::VOCAB_MAX) {
        Some(idx) => {
            let bound = format!("below {}", limits::VOCAB_MAX);
            Err(Refusal::new(format!("{field}[{idx}]"), ids[idx], bound))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::Grammar;

    use super::*;

    #[test]
    fn refuses_by_field() {
        let good = Accepted { max_tokens: 4, eos: vec![2], ..Accepted::of("m", vec![1, 2]) };
        let check = |change: fn(&mut Accepted), want: &str| {
            let mut bad = good.clone();
            change(&mut bad);
            let got = bad.validate().map_err(|refusal| refusal.to_string()).err();
            assert_eq!(got.unwrap_or_default(), want);
        };
        check(|_| (), "");
        check(|bad| bad.prompt.clear(), "prompt tokens = 0: must be between 1 and 16777216");
        check(|bad| bad.prompt[1] = 1 << 22, "prompt[1] = 4194304: must be below 4194304");
        check(|bad| bad.eos[0] = u32::MAX, "eos[0] = 4294967295: must be below 4194304");
        check(|bad| bad.eos = vec![0; 65], "eos tokens = 65: must be between 0 and 64");
        check(|bad| bad.chunk_tokens = 0, "chunk_tokens = 0: must be between 1 and 65536");
        check(|bad| bad.choices = 65, "choices = 65: must be between 1 and 64");
        check(|bad| bad.priority = 101, "priority = 101: must be between -100 and 100");
        check(|bad| bad.model = "a".repeat(257), "model bytes = 257: must be between 0 and 256");
        let long = "caller_id bytes = 129: must be between 0 and 128";
        check(|bad| bad.caller_id = "a".repeat(129), long);
        let empty = "grammar bytes = 0: must be between 1 and 131072";
        check(|bad| bad.form = Grammar::Regex(String::new()).into(), empty);
    }
}
