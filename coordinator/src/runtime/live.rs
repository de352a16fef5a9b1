//! One accepted request as the runtime carries it: its tokens, which the plan never sees, and
//! what has been told of it so far.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::work::{
    Assignment, ChunkReport, DecodeSpec, Emitted, NextHop, Outputs, RetainedMass, TokenLogprob,
};
use aqueduct_core::{ChunkGrid, ChunkKey, ChunkSpan, MemoryPolicy, RequestId, WorkerId};

use super::mailbox::Mailbox;
use crate::submit::{PrefillProgress, PrefillReport, Submission, Update, WorkerProgress};

/// At most ten progress updates a second.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) submission: Submission,
    pub(crate) mailbox: Arc<Mailbox>,
    request: RequestId,
    grid: ChunkGrid,
    /// Clamped to the chunk size.
    policy: MemoryPolicy,
    handoff_deadline: Duration,
    accepted: Instant,
    told: Option<Instant>,
    workers: BTreeMap<WorkerId, WorkerProgress>,
    tokens_done: u32,
    reports: BTreeMap<u32, ChunkReport>,
    /// Per chunk, the position up to which its logits or log probabilities were told: a chunk
    /// that is done again makes the same ones again.
    outputs_end: BTreeMap<u32, u32>,
    choices: Vec<Choice>,
}

#[derive(Debug, Clone, Default)]
struct Choice {
    tokens: u32,
    ended: bool,
}

impl Live {
    pub(crate) fn new(
        request: RequestId,
        submission: Submission,
        grid: ChunkGrid,
        mailbox: Arc<Mailbox>,
        handoff_deadline: Duration,
    ) -> Self {
        let (policy, clamps) = submission.policy.clamped(grid.chunk_tokens());
        let chunk_count = grid.chunk_count();
        clamps.iter().for_each(|clamp| tracing::warn!(%request, %clamp, "memory budget lowered"));
        mailbox.push(Update::Accepted { request, chunk_count, policy, clamps });
        Self {
            choices: vec![Choice::default(); submission.choices as usize],
            submission,
            mailbox,
            request,
            grid,
            policy,
            handoff_deadline,
            accepted: Instant::now(),
            told: None,
            workers: BTreeMap::new(),
            tokens_done: 0,
            reports: BTreeMap::new(),
            outputs_end: BTreeMap::new(),
        }
    }

    pub(crate) fn job(&self, now_ms: u64) -> aqueduct_plan::Job {
        let deadline_ms = u64::try_from(self.submission.deadline.as_millis()).unwrap_or(u64::MAX);
        let decodes = self.submission.max_tokens > 0;
        aqueduct_plan::Job {
            grid: self.grid,
            choices: if decodes { self.submission.choices } else { 0 },
            deadline_at_ms: now_ms.saturating_add(deadline_ms.max(1)),
        }
    }

    pub(crate) fn assignment(
        &self,
        key: ChunkKey,
        span: ChunkSpan,
        next: Option<NextHop>,
    ) -> Assignment {
        let outputs = self.submission.outputs;
        let wants_next = matches!(outputs, Outputs::Logprobs(_));
        let next_token = self.submission.prompt.get(span.positions().end as usize).copied();
        Assignment {
            key,
            span,
            chunk_count: self.grid.chunk_count(),
            policy: self.policy,
            tokens: span.of(&self.submission.prompt).to_vec(),
            next_token: next_token.filter(|_| wants_next),
            outputs,
            next,
            shards: None,
            deadline_ms: self.handoff_deadline.as_millis() as u64,
        }
    }

    pub(crate) fn decode_spec(&self) -> DecodeSpec {
        DecodeSpec {
            request: self.request,
            sampling: self.submission.sampling,
            choices: self.submission.choices,
            max_tokens: self.submission.max_tokens,
            eos: self.submission.eos.clone(),
        }
    }

    pub(crate) fn layer_done(&mut self, worker: WorkerId, key: ChunkKey, layers_done: u32) {
        let at = self.worker(worker);
        (at.chunk_idx, at.layers_done) = (key.chunk_idx, layers_done);
        self.tell_progress();
    }

    /// True when the chunk was not done before.
    pub(crate) fn chunk_done(
        &mut self,
        worker: WorkerId,
        key: ChunkKey,
        report: ChunkReport,
    ) -> bool {
        let Some(span) = self.grid.chunk(key.chunk_idx) else { return false };
        if self.reports.contains_key(&key.chunk_idx) {
            return false;
        }
        self.reports.insert(key.chunk_idx, report);
        self.tokens_done += span.tokens;
        let at = self.worker(worker);
        at.chunk_idx = key.chunk_idx;
        at.chunks_done += 1;
        self.tell_progress();
        true
    }

    fn worker(&mut self, worker: WorkerId) -> &mut WorkerProgress {
        let at = WorkerProgress { worker, chunk_idx: 0, layers_done: 0, chunks_done: 0 };
        self.workers.entry(worker).or_insert(at)
    }

    fn tell_progress(&mut self) {
        let all_done = self.reports.len() == self.grid.chunk_count() as usize;
        if !all_done && self.told.is_some_and(|told| told.elapsed() < PROGRESS_INTERVAL) {
            return;
        }
        self.told = Some(Instant::now());
        self.mailbox.push(Update::Progress(PrefillProgress {
            chunks_done: self.reports.len() as u32,
            chunk_count: self.grid.chunk_count(),
            tokens_done: self.tokens_done,
            elapsed: self.accepted.elapsed(),
            workers: self.workers.values().cloned().collect(),
        }));
    }

    /// Logits of `rows` positions from `start` on, `[rows, vocab]`.
    pub(crate) fn logits(&mut self, chunk_idx: u32, start: u32, rows: u32, mut logits: Vec<f32>) {
        let vocab = logits.len() / rows.max(1) as usize;
        let Some(skip) = self.told_already(chunk_idx, start, rows) else { return };
        logits.drain(..skip as usize * vocab);
        self.mailbox.push(Update::Logits { start: start + skip, rows: rows - skip, logits });
    }

    /// Log probabilities of positions from `start` on.
    pub(crate) fn prompt_logprobs(
        &mut self,
        chunk_idx: u32,
        start: u32,
        mut entries: Vec<(TokenLogprob, Vec<TokenLogprob>)>,
    ) {
        let rows = entries.len() as u32;
        let Some(skip) = self.told_already(chunk_idx, start, rows) else { return };
        entries.drain(..skip as usize);
        self.mailbox.push(Update::PromptLogprobs { start: start + skip, entries });
    }

    /// How many of these rows were told before; `None` when all of them were, or when they are
    /// none of the prompt's. Remembers that they are told now.
    fn told_already(&mut self, chunk_idx: u32, start: u32, rows: u32) -> Option<u32> {
        let end = start.checked_add(rows)?;
        // The last log probability of a chunk is about the first token after it.
        if self.grid.chunk(chunk_idx).is_none() || end > self.grid.prompt_tokens() {
            return None;
        }
        let told = self.outputs_end.entry(chunk_idx).or_insert(0);
        let skip = told.saturating_sub(start).min(rows);
        *told = end.max(*told);
        (skip < rows).then_some(skip)
    }

    pub(crate) fn prefilled(&mut self, chunks_retried: u32) {
        let mut retained: Vec<RetainedMass> = Vec::new();
        for report in self.reports.values() {
            retained.resize(retained.len().max(report.retained.len()), RetainedMass::default());
            retained.iter_mut().zip(&report.retained).for_each(|(sum, layer)| sum.add(*layer));
        }
        let last = self.reports.pop_last().map(|(_, report)| report).unwrap_or_default();
        let elapsed = self.accepted.elapsed();
        let report = PrefillReport { retained, last, elapsed, chunks_retried };
        self.mailbox.push(Update::Prefilled(Box::new(report)));
    }

    /// True when the token was the next one of a completion that goes on.
    pub(crate) fn token(&mut self, emitted: Emitted) -> bool {
        let max_tokens = self.submission.max_tokens;
        let Some(choice) = self.choices.get_mut(emitted.choice as usize) else { return false };
        let is_next = emitted.token_idx == choice.tokens && choice.tokens < max_tokens;
        if choice.ended || !is_next {
            return false;
        }
        choice.tokens += 1;
        self.mailbox.push(Update::Token(Box::new(emitted)));
        true
    }

    pub(crate) fn choice_ended(&mut self, choice: u32, eos: bool) {
        if let Some(choice) = self.choices.get_mut(choice as usize) {
            choice.ended = true;
        }
        self.mailbox.push(Update::ChoiceDone { choice, eos });
    }
}
