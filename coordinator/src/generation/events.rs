//! What a caller sees of a request: events, and figures at the end.

use std::time::Duration;

use aqueduct_core::work::{Emitted, RetainedMass, TokenLogprob};
use aqueduct_core::{BelowFloor, Floor, MemoryPolicy, RequestId, Session, WireDtype};

use crate::submit::{Escalation, PrefillProgress, PrefillReport};
use crate::text::Heard;

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// An end token or a stop string.
    Stop,
    /// As many tokens as were asked for.
    Length,
}

/// What a caller sees of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum TextEvent {
    /// Always first.
    Accepted {
        /// Its id.
        request: RequestId,
        /// Chunks of its grid.
        chunk_count: u32,
    },
    /// The prefill went on.
    Progress(PrefillProgress),
    /// The memory kept too little; the prefill begins again.
    Escalated(Escalation),
    /// Log probabilities of prompt tokens from `start` on; chunks in any order.
    PromptLogprobs {
        /// Position of the first entry.
        start: u32,
        /// The token that stands there and its alternatives.
        entries: Vec<(TokenLogprob, Vec<TokenLogprob>)>,
    },
    /// The whole prompt is in memory.
    Prefilled,
    /// A token was generated.
    Token(TextToken),
    /// A completion ended.
    ChoiceDone {
        /// Which completion.
        choice: u32,
        /// Why.
        finish: Finish,
        /// Tokens it has, an end token included.
        tokens: u32,
        /// What was held back, for a stop string that did not come or until it was whole.
        heard: Heard,
        /// The stop string that ended it.
        stop: Option<String>,
    },
}

impl TextEvent {
    /// About how much memory it takes.
    pub(crate) fn bytes(&self) -> u64 {
        let beside = match self {
            Self::Token(token) => token.heard.bytes() + size_of_val(token.emitted.top.as_slice()),
            Self::ChoiceDone { heard, .. } => heard.bytes(),
            _ => 0,
        };
        (size_of::<Self>() + beside) as u64
    }
}

/// Where a token stands in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stands {
    /// Where text for the caller does.
    InText,
    /// In a thought, a call or a head.
    Apart,
    /// It is no text and says nothing: what was held back before it still is.
    Nowhere,
    /// Where text does if what follows does, and nothing else before: at the beginning of what may
    /// be the mark that thoughts begin with.
    Either,
}

/// A generated token and the text that it completes.
#[derive(Debug, Clone, PartialEq)]
pub struct TextToken {
    /// The token.
    pub emitted: Emitted,
    /// What can be shown now; may be nothing.
    pub heard: Heard,
    /// Where it stands.
    pub stands: Stands,
    /// Whether it is an end token, which is no part of the answer.
    pub is_end: bool,
}

/// A request's figures, complete when its events have ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated, over all completions.
    pub output_tokens: u32,
    /// Those of them in which the model thought, where that is told apart.
    pub reasoning_tokens: u32,
    /// Whether a prefix that was seen before was looked for.
    pub cache_prompt: bool,
    /// The policy as used.
    pub policy: MemoryPolicy,
    /// What the memory was to keep.
    pub floor: Option<Floor>,
    /// How often the prompt was prefilled again because the memory kept less.
    pub escalations: u32,
    /// C.
    pub chunk_tokens: u32,
    /// Chunks of the grid.
    pub chunk_count: u32,
    /// What queries and outputs were between workers, where they travelled.
    pub wire: WireDtype,
    /// Seed of the first completion.
    pub seed: u64,
    /// For a person to read: budgets that were lowered and the like.
    pub warnings: Vec<String>,
    /// To go on from, if that was asked for.
    pub session: Option<Session>,
    /// Of the prefill.
    pub prefill: PrefillReport,
    /// From the end of the prefill to the last event.
    pub decode_elapsed: Duration,
    /// Bytes that a full KV cache of the prompt and one completion's tokens would hold, with the
    /// states that are beside it.
    pub dense_bytes: u64,
}

impl Report {
    /// Share of attention mass that the memory kept, over all layers.
    pub fn retained_mass(&self) -> f64 {
        self.prefill.retained.iter().copied().sum::<RetainedMass>().share()
    }

    /// The same of the layer that kept least.
    pub fn lowest_retained_mass(&self) -> f64 {
        RetainedMass::lowest_share(&self.prefill.retained)
    }

    /// What a caller is to be told who wants to hear of a memory below its floor.
    pub(super) fn shortfall(&self) -> Option<String> {
        let floor = self.floor.filter(|floor| floor.below == BelowFloor::Report)?;
        let (lowest, floor) = (self.lowest_retained_mass(), floor.min_retained_mass);
        let policy = self.policy;
        (lowest < floor).then(|| {
            format!(
                "{policy} kept {lowest:.4} of the attention mass in the layer that kept least, \
                 below min_retained_mass = {floor}"
            )
        })
    }
}
