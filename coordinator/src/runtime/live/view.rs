//! A request as those see it who look after the cluster.

use aqueduct_core::work::ChunkReport;
use aqueduct_core::{ChunkKey, MemoryPolicy, TokenId, WorkerId, limits};
use aqueduct_proto::v1;

use super::super::status::Cluster;
use super::super::trail::Trail;
use super::Live;

/// Where a chunk is, or was last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    worker: WorkerId,
    epoch: u32,
    layers_done: u32,
    is_restored: bool,
    /// Whether that has come to its end: a chunk that is done again is not done until it is.
    is_done: bool,
}

impl Live {
    /// A chunk was given to a worker: to be computed or, if `is_restored`, brought back. Whether
    /// it had been before.
    pub(in crate::runtime) fn placed(
        &mut self,
        worker: WorkerId,
        key: ChunkKey,
        is_restored: bool,
    ) -> bool {
        let ChunkKey { chunk_idx, epoch, .. } = key;
        let (layers_done, is_done) = (0, false);
        let placed = Placed { worker, epoch: epoch.0, layers_done, is_restored, is_done };
        let earlier = self.placed.insert(chunk_idx, placed);
        let what = if is_restored { "restores" } else { "assigned" };
        self.trail.note(what, Some(worker), format_args!("chunk {chunk_idx} {epoch}"));
        earlier.is_some()
    }

    pub(super) fn placed_layer(&mut self, worker: WorkerId, key: ChunkKey, layers_done: u32) {
        let placed = self.placed.get_mut(&key.chunk_idx);
        let at = |placed: &&mut Placed| (placed.worker, placed.epoch) == (worker, key.epoch.0);
        if let Some(placed) = placed.filter(at) {
            placed.layers_done = layers_done;
        }
    }

    pub(super) fn chunk_reported(&mut self, worker: WorkerId, key: ChunkKey, of: &ChunkReport) {
        let (busy_ms, wait_ms) = (of.busy_us / 1000, of.wait_us / 1000);
        let about =
            format_args!("chunk {}, {busy_ms} ms at work, {wait_ms} ms waiting", key.chunk_idx);
        self.trail.note("chunk done", Some(worker), about);
        if let Some(placed) = self.placed.get_mut(&key.chunk_idx) {
            // Of two who were at it, the one that was not given it last may be the first.
            (placed.worker, placed.epoch, placed.is_done) = (worker, key.epoch.0, true);
        }
    }

    pub(in crate::runtime) fn chunk_failed(&mut self, worker: WorkerId, key: ChunkKey, why: &str) {
        let about = format_args!("chunk {} {}: {why}", key.chunk_idx, key.epoch);
        self.trail.note("chunk failed", Some(worker), about);
    }

    /// `worker` was lost, with whatever of this request it had.
    pub(in crate::runtime) fn lost(&mut self, worker: WorkerId, reason: &str) {
        if self.prefill.workers.contains_key(&worker) || self.home == Some(worker) {
            self.trail.note("worker lost", Some(worker), reason);
        }
    }

    /// What happened to it.
    pub(in crate::runtime) fn trail(&mut self) -> &mut Trail {
        &mut self.trail
    }

    pub(in crate::runtime) fn is_named(&self, name: &str) -> bool {
        self.submission.caller_id == name || self.request.to_string() == name
    }

    /// As the plan and the workers know it at this moment.
    pub(in crate::runtime) fn run(&self) -> aqueduct_core::RequestId {
        self.run
    }

    /// What `worker` is to it, if anything.
    pub(in crate::runtime) fn work_of(&self, worker: WorkerId) -> Option<v1::NodeWork> {
        let is_home = self.home == Some(worker);
        let at = self.prefill.workers.get(&worker);
        let role = match (is_home, at) {
            (true, _) => "home",
            (false, Some(_)) => "prefill",
            (false, None) => return None,
        };
        Some(v1::NodeWork {
            request: self.request.to_string(),
            role: role.into(),
            chunk_idx: at.map_or(0, |at| at.chunk_idx),
            layers_done: at.map_or(0, |at| at.layers_done),
            chunks_done: at.map_or(0, |at| at.chunks_done),
            output_tokens: if is_home { self.output_tokens() } else { 0 },
        })
    }

    /// Who has its memory, as far as there is any, and under which policy.
    pub(in crate::runtime) fn rememberer(&self) -> (Option<WorkerId>, MemoryPolicy) {
        let last = self.prefill.reports.last_key_value().map(|(_, (worker, _))| *worker);
        (self.home.or(last), self.policy)
    }

    /// The token at a position, unless it is of an earlier turn or not there yet.
    pub(in crate::runtime) fn token_at(&self, choice: u32, position: u32) -> Option<TokenId> {
        let own = position.checked_sub(self.grid.known_tokens())? as usize;
        let prompt = &self.submission.prompt;
        let drawn = || self.choices.get(choice as usize)?.tokens.get(own - prompt.len());
        prompt.get(own).copied().or_else(|| drawn().map(|drawn| drawn.token.token))
    }

    /// Position of the first token that is known, and how many are: of the prompt and the first
    /// completion, from which a session goes on.
    pub(in crate::runtime) fn tokens_known(&self) -> (u32, usize) {
        let drawn = self.choices.first().map_or(0, |choice| choice.tokens.len());
        (self.grid.known_tokens(), self.submission.prompt.len() + drawn)
    }

    /// Those tokens.
    pub(in crate::runtime) fn tokens(&self) -> Vec<TokenId> {
        let drawn = self.choices.iter().take(1).flat_map(|choice| &choice.tokens);
        let drawn = drawn.map(|drawn| drawn.token.token);
        self.submission.prompt.iter().copied().chain(drawn).collect()
    }

    /// In a line. Workers are called as `cluster` calls them.
    pub(in crate::runtime) fn entry(&self, cluster: &Cluster) -> v1::RequestEntry {
        let submission = &self.submission;
        let queued = self.began.map_or(self.accepted.elapsed(), |began| began - self.accepted);
        let state = match (self.home, self.placed.is_empty()) {
            (Some(_), _) => "decode",
            (None, false) => "prefill",
            (None, true) => "queued",
        };
        v1::RequestEntry {
            id: self.request.to_string(),
            caller_id: submission.caller_id.clone(),
            state: state.into(),
            error: String::new(),
            priority: submission.priority,
            prompt_tokens: self.grid.prompt_tokens(),
            cached_tokens: self.cached_tokens(),
            chunk_count: self.grid.chunk_count(),
            chunks_done: self.done().0,
            chunks_retried: self.retried,
            choices: submission.choices,
            max_tokens: submission.max_tokens,
            output_tokens: self.output_tokens(),
            policy: self.policy.to_string(),
            exchange: submission.exchange.to_string(),
            home: self.home.map_or_else(String::new, |home| cluster.name_of(home)),
            workers: self.prefill.workers.keys().map(|worker| cluster.name_of(*worker)).collect(),
            age_seconds: self.accepted.elapsed().as_secs_f64(),
            queue_seconds: queued.as_secs_f64(),
            deadline_seconds: submission.deadline.as_secs_f64(),
        }
    }

    /// With its chunks and completions.
    pub(in crate::runtime) fn view(&self, cluster: &Cluster) -> v1::RequestView {
        let hidden = self.placed.len().saturating_sub(limits::OPERATOR_CHUNKS_MAX);
        let chunks = self.placed.iter().skip(hidden);
        v1::RequestView {
            request: Some(self.entry(cluster)),
            run: self.run.to_string(),
            chunk_tokens: self.grid.chunk_tokens(),
            layers: self.model.shape.memory_layers(),
            chunks: chunks.map(|(idx, placed)| self.chunk(*idx, placed, cluster)).collect(),
            retained: self.retained().into_iter().map(Into::into).collect(),
            completions: (0..).zip(&self.choices).map(completion).collect(),
        }
    }

    fn chunk(&self, chunk_idx: u32, placed: &Placed, cluster: &Cluster) -> v1::ChunkView {
        let report = self.prefill.reports.get(&chunk_idx).filter(|_| placed.is_done);
        let report = report.map(|(_, report)| report);
        let (state, layers_done) = match (report, placed.is_restored) {
            (None, _) => ("assigned", placed.layers_done),
            (Some(_), true) => ("restored", self.model.shape.memory_layers()),
            (Some(_), false) => ("done", self.model.shape.memory_layers()),
        };
        let seconds = |us: Option<u64>| us.unwrap_or(0) as f64 / 1e6;
        v1::ChunkView {
            chunk_idx,
            epoch: placed.epoch,
            worker: cluster.name_of(placed.worker),
            state: state.into(),
            layers_done,
            busy_seconds: seconds(report.map(|report| report.busy_us)),
            wait_seconds: seconds(report.map(|report| report.wait_us)),
        }
    }

    fn output_tokens(&self) -> u32 {
        self.choices.iter().map(|choice| choice.tokens.len() as u32).sum()
    }
}

fn completion((choice, of): (u32, &aqueduct_core::journal::Completion)) -> v1::ChoiceView {
    let state = match of.eos {
        None => "open",
        Some(true) => "stop",
        Some(false) => "length",
    };
    v1::ChoiceView { choice, state: state.into(), tokens: of.tokens.len() as u32 }
}
