//! What completions are asked for, how far they came, and what they look at.

use crate::{
    ChunkKey, Constraint, Epoch, MemoryPolicy, RequestId, Sampling, Steering, TokenId, TraceParent,
};

/// Decoding of one request at its home, after its last chunk.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeSpec {
    /// The request, whose final memory the worker holds.
    pub request: RequestId,
    /// Sampling of choice i uses `sampling.seed + i`.
    pub sampling: Sampling,
    /// What bends the logits before that.
    pub steering: Steering,
    /// What each completion must look like.
    pub constraint: Option<Constraint>,
    /// The prompt's tokens, ascending, each once, where its repetition is penalised; otherwise
    /// empty.
    pub prompt_vocabulary: Vec<TokenId>,
    /// How many completions.
    pub choices: u32,
    /// Most tokens of each.
    pub max_tokens: u32,
    /// Tokens that end a completion (and are reported as its last).
    pub eos: Vec<TokenId>,
    /// How far completions came elsewhere, ascending; the others begin.
    pub begun: Vec<Begun>,
    /// Whether the memory of a completion that has ended by itself stays until the request is
    /// forgotten, so that it can be made a snapshot.
    pub keeps: bool,
    /// The request's span.
    pub trace: Option<TraceParent>,
    /// Whether it is told what the prompt left, and what the first completion's tokens look at.
    pub shows: bool,
    /// Present: the memory that they go on from has come from their last home.
    pub handed_over: Option<HandedOver>,
    /// Whether the worker's pool has room for the shards of other workers, and for nobody else:
    /// where keys travel, these come there for good before the first step.
    pub gathers: bool,
}

/// Keys of one KV head, and what each weighs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SeenHead {
    /// Ascending.
    pub positions: Vec<u32>,
    /// Of each position: its score where it is remembered, its share of the head's attention where
    /// it is looked at.
    pub weights: Vec<f32>,
    /// Keys that weigh less and are not listed.
    pub left_out: u32,
}

/// What a layer remembers of a prompt, or what a token looks at in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// The request.
    pub request: RequestId,
    /// What this token of the first completion looks at as the next one is made; `None`: what the
    /// prompt left.
    pub token_idx: Option<u32>,
    /// The layer.
    pub layer: u32,
    /// One for each KV head.
    pub heads: Vec<SeenHead>,
}

/// What completions remember that were [handed over](super::Command::HandOver). All that have not
/// ended have begun, with one token at least that their memory does not know of.
#[derive(Debug, Clone, PartialEq)]
pub struct HandedOver {
    /// The prompt's last chunk.
    pub chunk_idx: u32,
    /// The epoch that the sets came with.
    pub epoch: Epoch,
    /// Tokens of the prompt: the position of the first token that was generated.
    pub prompt_tokens: u32,
    /// The policy, clamped to the chunk size.
    pub policy: MemoryPolicy,
    /// Tokens of each chunk but the last, at least 1.
    pub chunk_tokens: u32,
}

impl HandedOver {
    /// What the sets of completion `choice` are called on their way: as if a chunk was given them.
    pub fn key(&self, request: RequestId, choice: u32) -> ChunkKey {
        let chunk_idx = self.chunk_idx.saturating_add(1).saturating_add(choice);
        ChunkKey { request, chunk_idx, epoch: self.epoch }
    }
}

/// How far a completion came before its home, or what that needs, was lost. The steps of these
/// tokens are done again, with the tokens given instead of drawn, and nothing is told of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Begun {
    /// Which completion.
    pub choice: u32,
    /// Its tokens, from the first one on: some, if not all that its caller has.
    pub tokens: Vec<TokenId>,
    /// Whether it has ended: then it has no tokens here, and nothing is left to be done.
    pub ended: bool,
}

impl DecodeSpec {
    /// How far completion `choice` came.
    pub fn begun(&self, choice: u32) -> Option<&Begun> {
        self.begun.iter().find(|begun| begun.choice == choice)
    }
}
