//! What callers ask, and what they must be answered whatever happens.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use aqueduct_core::work::{Assignment, Begun, DecodeSpec, Outputs};
use aqueduct_core::{
    Carry, ChunkGrid, ChunkKey, ChunkSpan, Directory, Epoch, MemoryPolicy, RequestId, Sampling,
    SnapshotKey, TokenId, WireDtype,
};
use aqueduct_engine::{
    Block, EngineError, LocalPort, Model, Past, Sampler, Sequence, ShardStore, Want, prefill,
    prefill_sharded,
};
use aqueduct_kernels::Leaves;

use crate::dice::Dice;
use crate::model::VOCAB;
use crate::shards::{Asker, Door, Holders, Reach, ShardedSequence, Ways};
use crate::worker::{Continuation, HANDOFF_US, peer};

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
    /// Whether keys stay in shards.
    pub(crate) sharded: bool,
    /// Whether it may go on from what others left, and they from what it leaves.
    pub(crate) caches: bool,
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
        let any_token = |dice: &mut Dice| dice.of(0..VOCAB.into()) as TokenId;
        // Many begin as the same text does.
        let shared = if dice.chance(50) { dice.of(0..tokens + 1) } else { 0 };
        let mut text = Dice::new(0);
        let mut prompt: Vec<_> = (0..shared).map(|_| any_token(&mut text)).collect();
        prompt.extend((shared..tokens).map(|_| any_token(dice)));
        let policy = match dice.of(0..4) {
            0 => MemoryPolicy::window(1, 6),
            1 => MemoryPolicy::dense(),
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
            sharded: policy.keeps_all() || dice.chance(25),
            caches: dice.chance(75),
            policy: policy.clamped(CHUNK_TOKENS).0,
            sampling,
            choices: dice.of(0..4) as u32,
            max_tokens: dice.of(1..25) as u32,
            eos: vec![dice.of(0..VOCAB.into()) as TokenId],
            deadline_ms: if dice.chance(10) { dice.of(1_000..20_000) } else { 3_600_000 },
            cancel_at_us: dice.chance(15).then(|| at_us + dice.of(0..3_000_000)),
        }
    }

    /// What the memory behind each full chunk is called, or its keys where these stay in shards, if
    /// it is the same for all that begin alike.
    pub(crate) fn names(&self) -> Vec<SnapshotKey> {
        let is_own = !self.sharded || self.policy.keeps_all();
        let mut hasher = DefaultHasher::new();
        format!("{:?} {}", self.policy, self.sharded).hash(&mut hasher);
        let name = |tokens: &[TokenId]| {
            tokens.hash(&mut hasher);
            let mut name = [0; 32];
            name[..8].copy_from_slice(&hasher.finish().to_le_bytes());
            SnapshotKey(name)
        };
        let chunks = self.prompt.chunks_exact(CHUNK_TOKENS as usize);
        chunks.filter(|_| self.caches && is_own).map(name).collect()
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
            keeps: false,
            trace: None,
            shows: false,
            handed_over: None,
            gathers: false,
        }
    }

    /// One chunk, but for where its memory comes from and goes to.
    pub(crate) fn work(&self, key: ChunkKey, span: ChunkSpan) -> Assignment {
        Assignment {
            key,
            span,
            chunk_count: self.grid.chunk_count(),
            chunk_tokens: self.grid.chunk_tokens(),
            policy: self.policy,
            tokens: span.of(&self.prompt, 0).to_vec(),
            next_token: None,
            outputs: Outputs::None,
            next: None,
            shards: None,
            wire: WireDtype::F32,
            deadline_ms: HANDOFF_US / 1000,
            trace: None,
        }
    }

    /// What one node that nothing happens to answers; where keys are given up, or a layer has a
    /// state, from memory sets, whether keys stay in shards or not.
    ///
    /// # Errors
    /// What the engine refuses.
    pub(crate) fn truth(&self, model: &Model) -> Result<Vec<Completion>, EngineError> {
        let stores = vec![Some(Arc::new(ShardStore::default()))];
        let ways = Rc::new(RefCell::new(Reach { stores, ..Reach::default() }));
        let (logits, begin) = match self.policy.keeps_all() && self.sharded {
            true => self.truth_in_shards(model, &ways)?,
            false => self.truth_in_sets(model)?,
        };
        let spec = Arc::new(self.spec(RequestId(0), Vec::new()));
        let complete = |choice| {
            let mut sampler = Sampler::new(spec.clone(), choice, None);
            let (mut logits, mut tokens) = (logits.clone(), Vec::new());
            let mut sequence = begin(choice);
            loop {
                let token = sampler.draw(&logits)?.token;
                tokens.push((token.token, token.logprob.to_bits()));
                let eos = self.eos.contains(&token.token);
                if eos || sampler.token_idx() == self.max_tokens {
                    return Ok((tokens, eos));
                }
                logits = sequence.step(model, &ways, token.token, &self.policy)?;
            }
        };
        (0..self.choices).map(complete).collect()
    }

    fn truth_in_sets<'a>(&'a self, model: &'a Model) -> Result<Beginning<'a>, EngineError> {
        let (mut port, mut logits) = (LocalPort::empty(model), Vec::new());
        let leaves = Leaves::of_chunks(self.grid.chunk_tokens());
        for span in self.grid.chunks() {
            let block = Block { tokens: span.of(&self.prompt, 0), start: span.start, leaves };
            let done = prefill(model, block, &self.policy, &mut port, Want::Last)?;
            logits = model.logits(&done.hidden.last_row())?.into_vec();
        }
        let leaves = leaves.going_on_behind(self.grid.prompt_tokens());
        let begin =
            move |_| Continuation::Sets(Sequence::new(model, port.layers().to_vec(), leaves));
        Ok((logits, Box::new(begin)))
    }

    fn truth_in_shards<'a>(
        &'a self,
        model: &'a Model,
        ways: &Ways,
    ) -> Result<Beginning<'a>, EngineError> {
        let mut last = None;
        for span in self.grid.chunks() {
            let key = ChunkKey { request: RequestId(0), chunk_idx: span.idx, epoch: Epoch(0) };
            let work = self.work(key, span);
            let shards = vec![(0, Epoch(0)); span.idx as usize];
            let (holders, carry, wire) = (vec![peer(0)], Carry::Queries, WireDtype::F32);
            let directory = Directory { holders, shards, carry, wire };
            let holders = Holders::before(&work, &directory);
            let mut door = Door::new(model, ways, &holders, Asker::of(0, &work));
            let leaves = Leaves::of_chunks(work.chunk_tokens);
            let block = Block { tokens: &work.tokens, start: span.start, leaves };
            let past = Past { chunks: span.idx, port: &mut door };
            let done = prefill_sharded(model, block, &self.policy, past, Want::Last)?;
            let logits = model.logits(&done.hidden.last_row())?.into_vec();
            last = Some((logits, work, holders));
        }
        let (logits, work, holders) = last.expect("a prompt has a chunk");
        let begin =
            move |choice| Continuation::Shards(ShardedSequence::new(0, &work, &holders, choice));
        Ok((logits, Box::new(begin)))
    }
}

/// The logits after a prompt, and what makes a completion of it.
type Beginning<'a> = (Vec<f32>, Box<dyn Fn(u32) -> Continuation + 'a>);
