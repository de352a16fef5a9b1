//! What callers ask, and what they must be answered whatever happens.

use std::sync::Arc;

use aqueduct_core::work::{Begun, DecodeSpec};
use aqueduct_core::{ChunkGrid, MemoryPolicy, RequestId, Sampling, TokenId};
use aqueduct_engine::{Block, EngineError, LocalPort, Model, Sampler, Sequence, Want, prefill};

use crate::dice::Dice;
use crate::model::VOCAB;

/// Tokens of a chunk.
const CHUNK_TOKENS: u32 = 8;

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// When it is sent, in microseconds.
    pub(crate) at_us: u64,
    /// The prompt.
    pub(crate) prompt: Vec<TokenId>,
    /// How that is cut.
    pub(crate) grid: ChunkGrid,
    /// What is remembered of it.
    pub(crate) policy: MemoryPolicy,
    /// How tokens are drawn.
    pub(crate) sampling: Sampling,
    /// Completions.
    pub(crate) choices: u32,
    /// Most tokens of each.
    pub(crate) max_tokens: u32,
    /// Tokens that end a completion.
    pub(crate) eos: Vec<TokenId>,
    /// How long the caller waits, in milliseconds.
    pub(crate) deadline_ms: u64,
    /// When its caller goes away, if that happens.
    pub(crate) cancel_at_us: Option<u64>,
}

/// A token as its caller sees it: with the bits of its log probability.
pub(crate) type Told = (TokenId, u32);

/// A completion, and whether an end token ended it.
pub(crate) type Completion = (Vec<Told>, bool);

impl Asked {
    /// Anything that a caller may ask.
    pub(crate) fn any(dice: &mut Dice) -> Self {
        let at_us = dice.of(0..20_000_000);
        let tokens = match dice.of(0..4) {
            0 => dice.of(1..20),
            _ => dice.of(20..120),
        };
        let prompt: Vec<_> = (0..tokens).map(|_| dice.of(0..VOCAB.into()) as TokenId).collect();
        let policy = match dice.of(0..3) {
            0 => MemoryPolicy::window(1, 6),
            _ => MemoryPolicy::h2o(1, 4, 4),
        };
        let sampling = match dice.of(0..3) {
            0 => Sampling::greedy(),
            1 => Sampling { seed: dice.roll(), ..Sampling::default() },
            _ => Sampling { seed: dice.roll(), repetition_penalty: 1.3, ..Sampling::default() },
        };
        Self {
            at_us,
            grid: ChunkGrid::new(prompt.len() as u32, CHUNK_TOKENS).expect("not empty"),
            prompt,
            policy: policy.clamped(CHUNK_TOKENS).0,
            sampling,
            choices: dice.of(0..4) as u32,
            max_tokens: dice.of(1..25) as u32,
            eos: vec![dice.of(0..VOCAB.into()) as TokenId],
            deadline_ms: if dice.chance(10) { dice.of(1_000..20_000) } else { 3_600_000 },
            cancel_at_us: dice.chance(15).then(|| at_us + dice.of(0..3_000_000)),
        }
    }

    /// What its home decodes, where completions have come so far.
    pub(crate) fn spec(&self, request: RequestId, begun: Vec<Begun>) -> DecodeSpec {
        let repeats = self.sampling.repeats_differ();
        let mut words: Vec<TokenId> = if repeats { self.prompt.clone() } else { Vec::new() };
        words.sort_unstable();
        words.dedup();
        DecodeSpec {
            request,
            sampling: self.sampling,
            steering: Default::default(),
            constraint: None,
            prompt_vocabulary: words,
            choices: self.choices,
            max_tokens: self.max_tokens,
            eos: self.eos.clone(),
            begun,
        }
    }

    /// What one node that nothing happens to answers.
    ///
    /// # Errors
    /// What the engine refuses.
    pub(crate) fn truth(&self, model: &Model) -> Result<Vec<Completion>, EngineError> {
        let mut port = LocalPort::empty(model);
        let mut logits = Vec::new();
        for span in self.grid.chunks() {
            let block = Block { tokens: span.of(&self.prompt), start: span.start };
            let done = prefill(model, block, &self.policy, &mut port, Want::Last)?;
            logits = model.logits(&done.hidden.last_row())?.into_vec();
        }
        let spec = Arc::new(self.spec(RequestId(0), Vec::new()));
        let complete = |choice| {
            let mut sampler = Sampler::new(spec.clone(), choice, None);
            let mut sequence = Sequence::new(model, port.layers().to_vec());
            let (mut logits, mut tokens) = (logits.clone(), Vec::new());
            loop {
                let token = sampler.draw(&logits)?.token;
                tokens.push((token.token, token.logprob.to_bits()));
                let eos = self.eos.contains(&token.token);
                if eos || sampler.token_idx() == self.max_tokens {
                    return Ok((tokens, eos));
                }
                logits = sequence.step(model, token.token, &self.policy)?;
            }
        };
        (0..self.choices).map(complete).collect()
    }
}
