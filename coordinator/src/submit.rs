//! What the API layers (gRPC, HTTP, the embedded CLI) ask of the runtime, and what they get.
//! Token ids in, token ids out: text begins above this line.

mod error;
mod escalation;

use std::time::Duration;

use aqueduct_core::work::{
    Emitted, MergeAudit, Outputs, RetainedMass, Seen, TokenLogprob, Traffic,
};
use aqueduct_core::{
    ChunkGrid, Clamp, Constraint, Exchange, Floor, MemoryPolicy, ModelShape, Refusal, RequestId,
    Sampling, Session, SessionUse, Steering, Telling, TokenId, WireDtype, WorkerId, limits,
};

use crate::config::Config;

pub use aqueduct_plan::Busy;
pub use error::RequestError;
pub use escalation::Escalation;

/// A request, complete and in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// The prompt; at least one token. Where a session goes on, that of this turn: none are needed
    /// where one is pending.
    pub prompt: Vec<TokenId>,
    /// Keep what is remembered at the end, or go on from what was kept and keep it then.
    pub session: Option<SessionUse>,
    /// As the caller wants it, before clamping to the chunk size.
    pub policy: MemoryPolicy,
    /// What its memory must have kept before anything is generated; `None`: anything goes.
    pub floor: Option<Floor>,
    /// C.
    pub chunk_tokens: u32,
    /// How the past reaches a block's queries.
    pub exchange: Exchange,
    /// What queries and outputs are between workers, where they travel, and keys and values of
    /// an f32 cache that are handed off.
    pub wire: WireDtype,
    /// How tokens are drawn; choice i uses seed + i.
    pub sampling: Sampling,
    /// What bends logits before that.
    pub steering: Steering,
    /// What each completion must look like; the grammar has been compiled once.
    pub constraint: Option<Constraint>,
    /// Completions of the one prompt.
    pub choices: u32,
    /// Most tokens of each completion; 0 prefills only.
    pub max_tokens: u32,
    /// Tokens that end a completion.
    pub eos: Vec<TokenId>,
    /// What else to compute for the prompt's own tokens.
    pub outputs: Outputs,
    /// Lower begins earlier and has a larger share of the workers; 0 is what most have.
    pub priority: i32,
    /// What its caller, and the log, know it by; may be empty.
    pub caller_id: String,
    /// Whether it is told what the prompt left, and what the first completion's tokens look at.
    pub shows: bool,
    /// Whether to go on from a prefix that was seen before, and to keep this one's.
    pub cache_prompt: bool,
    /// How its answer is told.
    pub telling: Telling,
    /// After this long the request fails.
    pub deadline: Duration,
    /// Of that, what is over: while it was read and put into tokens, and others before it.
    pub waited: Duration,
}

/// Where a prefill stands.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PrefillProgress {
    /// Chunks whose memory has been given.
    pub chunks_done: u32,
    /// All chunks.
    pub chunk_count: u32,
    /// Prompt tokens done.
    pub tokens_done: u32,
    /// Prompt tokens that need not be done: their memory was kept from another request.
    pub cached_tokens: u32,
    /// Since the request was accepted.
    pub elapsed: Duration,
    /// One entry for each worker that has had a chunk of this request.
    pub workers: Vec<WorkerProgress>,
}

/// What one worker is at.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerProgress {
    /// The worker.
    pub worker: WorkerId,
    /// The chunk it is at, or was at last.
    pub chunk_idx: u32,
    /// Layers of it that are done.
    pub layers_done: u32,
    /// Chunks of this request that it has finished.
    pub chunks_done: u32,
}

/// A whole prompt's figures.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PrefillReport {
    /// Per layer, summed over chunks.
    pub retained: Vec<RetainedMass>,
    /// Bytes remembered at the end.
    pub memory_bytes: u64,
    /// Keys per KV head that a layer remembers at the end, if it remembers keys.
    pub memory_tokens: u32,
    /// As used: [`Exchange::Move`] or [`Exchange::Stay`], the more frequent where both were.
    pub exchange: Exchange,
    /// Bytes between workers for keys that stayed where they were computed.
    pub traffic: Traffic,
    /// Of merged states, per layer that was audited.
    pub audits: Vec<MergeAudit>,
    /// From acceptance to the end of the last chunk.
    pub elapsed: Duration,
    /// Of that, before the first chunk was given to a worker.
    pub queued: Duration,
    /// What its chunks waited for the past, all workers together.
    pub stalled: Duration,
    /// What they computed, all workers together.
    pub computed: Duration,
    /// Tokens of the prompt that were not computed: their memory was kept from another request.
    pub cached_tokens: u32,
    /// Chunks that had to be done again elsewhere.
    pub chunks_retried: u32,
}

/// What happens to a request, in order. The stream ends after every choice is done, after the
/// prefill when `max_tokens` is 0, or with an error.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// Always first.
    Accepted {
        /// Its id.
        request: RequestId,
        /// Chunks of its grid.
        chunk_count: u32,
        /// The policy as used.
        policy: MemoryPolicy,
        /// Budgets that were lowered.
        clamps: Vec<Clamp>,
    },
    /// The prefill went on; at most about ten a second.
    Progress(PrefillProgress),
    /// The memory kept less than the floor: nothing that was said of the prefill holds any more,
    /// and it begins again. Logits and log probabilities of the prompt are told of the last
    /// try alone.
    Escalated(Escalation),
    /// Logits of `rows` prompt tokens from `start` on, `[rows, vocab]`; chunks in any order.
    Logits {
        /// Position of the first row.
        start: u32,
        /// Number of rows.
        rows: u32,
        /// `[rows, vocab]`.
        logits: Vec<f32>,
    },
    /// Log probabilities of prompt tokens from `start` on; chunks in any order.
    PromptLogprobs {
        /// Position of the first entry.
        start: u32,
        /// The token that stands there and its alternatives.
        entries: Vec<(TokenLogprob, Vec<TokenLogprob>)>,
    },
    /// What is remembered at the end is kept: before the end is told.
    Session(Session),
    /// What a layer remembers of the prompt, or what a token looks at in it, where the request
    /// asks to be shown.
    Seen(Box<Seen>),
    /// The whole prompt is in memory.
    Prefilled(Box<PrefillReport>),
    /// A worker was lost while completions went on: what it had was made again elsewhere, and
    /// from there they go on.
    Resumed {
        /// Chunks that had to be done again.
        chunks_retried: u32,
    },
    /// A token was generated.
    Token(Box<Emitted>),
    /// A completion ended: an end token (`eos`), the length, or [`stop_choice`].
    ///
    /// [`stop_choice`]: the handle's method for stop strings
    ChoiceDone {
        /// Which completion.
        choice: u32,
        /// Whether an end token ended it.
        eos: bool,
    },
}

impl Submission {
    /// A prompt that is prefilled, at no temperature if anything is generated, and nothing else
    /// asked for.
    pub fn of(prompt: Vec<TokenId>) -> Self {
        Self {
            prompt,
            session: None,
            policy: MemoryPolicy::default(),
            floor: None,
            chunk_tokens: limits::CHUNK_TOKENS_DEFAULT,
            exchange: Exchange::default(),
            wire: WireDtype::default(),
            sampling: Sampling::greedy(),
            steering: Steering::default(),
            constraint: None,
            choices: 1,
            max_tokens: 0,
            eos: Vec::new(),
            outputs: Outputs::None,
            priority: 0,
            caller_id: String::new(),
            shows: false,
            cache_prompt: true,
            telling: Telling::default(),
            deadline: Duration::from_millis(limits::REQUEST_DEADLINE_MS),
            waited: Duration::ZERO,
        }
    }

    /// Checks the request against the limits, the model and what this coordinator allows.
    /// What is left to the workers is only what depends on their state.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn validate(&self, shape: &ModelShape, config: &Config) -> Result<(), Refusal> {
        let prompt_tokens = self.prompt_tokens();
        self.grid()?;
        Refusal::unless_within("prompt_tokens", prompt_tokens, 1, config.prompt_tokens_max)?;
        Refusal::unless_within("max_tokens", self.max_tokens, 0, limits::OUTPUT_TOKENS_MAX)?;
        if self.shows {
            let (field, most) = ("prompt_tokens beside memory_map", limits::MAP_PROMPT_TOKENS_MAX);
            Refusal::unless_within(field, prompt_tokens, 1, most)?;
        }
        let most = limits::PRIORITY_MAX;
        Refusal::unless_within("priority", self.priority, -most, most)?;
        if config.positions_limited {
            self.fits_positions(prompt_tokens, shape)?;
        }
        if let Some(idx) = self.prompt.iter().position(|token| *token >= shape.vocab) {
            let bound = format!("below vocab = {}", shape.vocab);
            return Err(Refusal::new(format!("prompt[{idx}]"), self.prompt[idx], bound));
        }
        self.policy.validate()?;
        self.exchange.validate(shape)?;
        self.floor.map_or(Ok(()), |floor| floor.validate())?;
        self.sampling.validate()?;
        Refusal::unless_within("min_tokens", self.sampling.min_tokens, 0, self.max_tokens)?;
        self.steering.validate(shape.vocab)?;
        self.telling.validate()?;
        if self.telling.resumable && self.outputs != Outputs::None {
            // They are not written down, nor kept for whoever comes back.
            return Err(Refusal::new("prompt_logprobs", "present", "absent beside resumable"));
        }
        Refusal::unless_within("choices", self.choices, 1, limits::CHOICES_MAX)?;
        if self.deadline.is_zero() {
            return Err(Refusal::new("deadline_ms", 0, "above 0"));
        }
        match self.outputs {
            Outputs::None => Ok(()),
            Outputs::Logprobs(top) => {
                let most = limits::TOP_LOGPROBS_MAX;
                Refusal::unless_within("prompt_logprobs", top, 0, most).map(drop)
            }
            Outputs::Logits => {
                let bytes = u64::from(prompt_tokens) * u64::from(shape.vocab) * 4;
                Refusal::unless_within("logits_bytes", bytes, 0, config.logits_bytes).map(drop)
            }
        }
    }

    /// What it goes on from.
    pub fn goes_on(&self) -> Option<&Session> {
        self.session.as_ref().and_then(SessionUse::goes_on)
    }

    /// The token that was drawn last there, and is not remembered yet.
    pub(crate) fn pending(&self) -> Option<TokenId> {
        self.goes_on().and_then(|session| session.pending)
    }

    /// Tokens before those of the prompt, which are remembered.
    pub fn known_tokens(&self) -> u32 {
        self.goes_on().map_or(0, |session| session.end)
    }

    /// Tokens of all turns up to this one.
    pub fn prompt_tokens(&self) -> u32 {
        let pending = self.pending().is_some();
        let own = u32::try_from(self.prompt.len()).unwrap_or(u32::MAX);
        self.known_tokens().saturating_add(u32::from(pending)).saturating_add(own)
    }

    /// How it is cut.
    ///
    /// # Errors
    /// Too many tokens, or none that are not remembered.
    pub fn grid(&self) -> Result<ChunkGrid, Refusal> {
        ChunkGrid::after(self.known_tokens(), self.prompt_tokens(), self.chunk_tokens)
    }

    fn fits_positions(&self, prompt_tokens: u32, shape: &ModelShape) -> Result<(), Refusal> {
        let end = u64::from(prompt_tokens) + u64::from(self.max_tokens);
        if shape.max_positions == 0 || end <= u64::from(shape.max_positions) {
            return Ok(());
        }
        // Else no prompt is short enough.
        let most = shape.max_positions - 1;
        Refusal::unless_within("max_tokens", self.max_tokens, 0, most)?;
        let most = shape.max_positions - self.max_tokens;
        let bound = format!(
            "at most {most}, which is max_positions = {} less max_tokens = {}",
            shape.max_positions, self.max_tokens
        );
        Err(Refusal::new("prompt_tokens", prompt_tokens, bound))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use aqueduct_core::{WideHeads, WindowedLayers};

    use super::*;

    pub(crate) const SHAPE: ModelShape = ModelShape {
        vocab: 100,
        layers: 2,
        width: 8,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        ffn: 16,
        max_positions: 50,
        recurrent_layers: 0,
        state_bytes: 0,
        wide: WideHeads::NONE,
        kv_shared_layers: 0,
        windowed: WindowedLayers::NONE,
    };

    pub(crate) fn good() -> Submission {
        let (chunk_tokens, max_tokens) = (16, 10);
        Submission { chunk_tokens, max_tokens, eos: vec![2], ..Submission::of(vec![1; 40]) }
    }

    #[test]
    fn refuses_by_field() {
        let config = Config { logits_bytes: 40 * 100 * 4 - 1, ..Config::default() };
        let check = |change: fn(&mut Submission), want: &str| {
            let mut submission = good();
            change(&mut submission);
            let got = submission.validate(&SHAPE, &config).map_err(|refusal| refusal.to_string());
            assert_eq!(got.err().unwrap_or_default(), want);
        };
        check(|_| (), "");
        check(|bad| bad.prompt.clear(), "prompt_tokens = 0: must be between 1 and 16777216");
        check(
            |bad| bad.max_tokens = 11,
            "prompt_tokens = 40: must be at most 39, which is max_positions = 50 less \
             max_tokens = 11",
        );
        check(|bad| bad.max_tokens = 50, "max_tokens = 50: must be between 0 and 49");
        check(|bad| bad.prompt[3] = 100, "prompt[3] = 100: must be below vocab = 100");
        check(|bad| bad.chunk_tokens = 0, "chunk_tokens = 0: must be between 1 and 65536");
        check(|bad| bad.priority = -101, "priority = -101: must be between -100 and 100");
        check(|bad| bad.choices = 0, "choices = 0: must be between 1 and 64");
        check(|bad| bad.deadline = Duration::ZERO, "deadline_ms = 0: must be above 0");
        check(
            |bad| bad.outputs = Outputs::Logprobs(21),
            "prompt_logprobs = 21: must be between 0 and 20",
        );
        check(
            |bad| bad.outputs = Outputs::Logits,
            "logits_bytes = 16000: must be between 0 and 15999",
        );
        check(
            |bad| {
                let below = Default::default();
                bad.floor = Some(Floor { min_retained_mass: 1.5, below });
            },
            "min_retained_mass = 1.5: must be above 0 and at most 1",
        );
        check(
            |bad| bad.steering = Steering::by_bias([(100, 1.0)]),
            "logit_bias = 100: must be tokens below vocab = 100",
        );
        check(
            |bad| {
                bad.telling.resumable = true;
                bad.outputs = Outputs::Logprobs(0);
            },
            "prompt_logprobs = present: must be absent beside resumable",
        );
        check(|bad| bad.sampling.top_p = 0.0, "top_p = 0: must be above 0 and at most 1");
    }

    #[test]
    fn keys_of_a_model_that_has_states_stay_nowhere() {
        let shape = ModelShape { recurrent_layers: 1, state_bytes: 8, ..SHAPE };
        let check = |exchange: Exchange, policy: MemoryPolicy, want: Option<&str>| {
            let asked = Submission { exchange, policy, ..good() };
            let got = asked.validate(&shape, &Config::default()).err();
            assert_eq!(got.map(|refusal| refusal.field).as_deref(), want, "{exchange}");
        };
        check(Exchange::Auto, MemoryPolicy::dense(), None);
        check(Exchange::Move, MemoryPolicy::dense(), None);
        check(Exchange::Stay, MemoryPolicy::dense(), Some("exchange"));
        check(Exchange::Stay, MemoryPolicy::h2o(1, 2, 3), Some("exchange"));
    }

    #[test]
    fn a_model_without_a_position_limit_takes_what_the_coordinator_does() {
        let shape = ModelShape { max_positions: 0, ..SHAPE };
        assert_eq!(good().validate(&shape, &Config::default()), Ok(()));
        let config = Config { prompt_tokens_max: 39, ..Config::default() };
        let refusal = good().validate(&shape, &config).unwrap_err();
        assert_eq!(refusal.to_string(), "prompt_tokens = 40: must be between 1 and 39");
    }
}
