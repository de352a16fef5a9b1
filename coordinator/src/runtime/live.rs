//! One accepted request as the runtime carries it: its tokens, which the plan never sees, and
//! what has been told of it so far.

mod asked;
mod attach;
mod completions;
mod escalating;
mod job;
mod prefixes;
mod trace;
mod turns;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::journal::Completion;
use aqueduct_core::work::{
    Assignment, ChunkReport, MergeAudit, NextHop, Outputs, RetainedMass, TokenLogprob, Traffic,
};
use aqueduct_core::{
    Carry, ChunkGrid, ChunkKey, ChunkSpan, Directory, Exchange, MemoryPolicy, RequestId, Session,
    TokenId, WorkerId,
};
use aqueduct_plan::Shards;

use self::trace::RequestTrace;
use super::ModelInfo;
use super::mailbox::Mailbox;
use super::prefix::Prefix;
use super::trail::Trail;
use crate::keys::Permit;
use crate::submit::{
    Escalation, PrefillProgress, PrefillReport, Submission, Update, WorkerProgress,
};
pub(crate) use asked::Asked;
pub(crate) use attach::told;

/// At most ten progress updates a second.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) submission: Submission,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Whether it is, or may still be refused.
    pub(crate) is_accepted: bool,
    /// Whether the journal has it, or will.
    pub(crate) is_kept: bool,
    /// Its place among the requests of its key, if its caller's connection does not hold that.
    pub(crate) permit: Option<Permit>,
    /// As its caller knows it.
    request: RequestId,
    /// As the plan and the workers know this try of it.
    run: RequestId,
    grid: ChunkGrid,
    model: ModelInfo,
    /// Clamped to the chunk size.
    policy: MemoryPolicy,
    timing: Timing,
    accepted: Instant,
    /// When its first chunk was given to a worker.
    began: Option<Instant>,
    prefill: Prefill,
    /// The prompt's tokens, ascending and each once, where what is drawn depends on them.
    words: Vec<TokenId>,
    /// What the caller was told when the whole prompt was in memory.
    prefilled: Option<Box<PrefillReport>>,
    escalations: Vec<Escalation>,
    /// What is kept at the end.
    session: Option<Session>,
    /// Chunks that were given to workers again since.
    redone: u32,
    /// Chunks that were given to a worker again, each as often as it was.
    pub(super) retried: u32,
    /// Who decodes it.
    home: Option<WorkerId>,
    /// Whether its completions have come further there than they were.
    is_further: bool,
    /// Whether no other home could be told how far its completions came.
    stays: bool,
    choices: Vec<Completion>,
    trace: RequestTrace,
    /// Where each chunk of this try is, or was last.
    placed: BTreeMap<u32, view::Placed>,
    trail: Trail,
}

/// How long a request may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// A chunk waits so long for the memory before it.
    pub(crate) handoff_deadline: Duration,
    /// When the request came, on the plan's clock.
    pub(crate) arrived_at_ms: u64,
    /// When it fails.
    pub(crate) deadline_at_ms: u64,
}

/// What was heard of one try of the prefill.
#[derive(Debug, Default)]
struct Prefill {
    told: Option<Instant>,
    workers: BTreeMap<WorkerId, WorkerProgress>,
    prefix: Prefix,
    /// With who did the chunk.
    reports: BTreeMap<u32, (WorkerId, ChunkReport)>,
    /// Per chunk, the position up to which its logits or log probabilities were told: a chunk
    /// that is done again makes the same ones again.
    outputs_end: BTreeMap<u32, u32>,
    /// Those logits or log probabilities, where a later try may make better ones.
    outputs: Vec<Update>,
}

impl Live {
    pub(crate) fn new(
        request: RequestId,
        asked: Asked,
        mailbox: Arc<Mailbox>,
        timing: Timing,
    ) -> Self {
        let Asked { submission, grid, model, trace, prefix, words } = asked;
        trace.accepted(request);
        let (policy, clamps) = submission.policy.clamped(grid.chunk_tokens());
        let chunk_count = grid.chunk_count();
        let Submission { caller_id, priority, .. } = &submission;
        let prompt_tokens = grid.prompt_tokens();
        tracing::debug!(%request, caller_id, prompt_tokens, priority, "request arrived");
        clamps.iter().for_each(|clamp| tracing::warn!(%request, %clamp, "memory budget lowered"));
        mailbox.push(Update::Accepted { request, chunk_count, policy, clamps });
        Self {
            choices: vec![Completion::default(); submission.choices as usize],
            submission,
            mailbox,
            is_accepted: false,
            is_kept: false,
            permit: None,
            request,
            run: request,
            grid,
            model,
            policy,
            timing,
            accepted: Instant::now(),
            began: None,
            prefill: Prefill { prefix, ..Prefill::default() },
            words,
            prefilled: None,
            escalations: Vec::new(),
            session: None,
            redone: 0,
            retried: 0,
            home: None,
            is_further: false,
            stays: false,
            trace,
            placed: BTreeMap::new(),
            trail: Trail::default(),
        }
    }

    /// As its caller knows it.
    pub(crate) fn request(&self) -> RequestId {
        self.request
    }

    /// What answers it.
    pub(crate) fn model(&self) -> &ModelInfo {
        &self.model
    }

    pub(crate) fn assignment(
        &mut self,
        key: ChunkKey,
        span: ChunkSpan,
        next: Option<NextHop>,
        shards: Option<Shards>,
    ) -> Assignment {
        self.began.get_or_insert_with(Instant::now);
        self.trace.began();
        let shards = shards.zip(self.carry()).map(|(Shards { holders, chunks }, carry)| {
            let wire = self.submission.wire;
            Box::new(Directory { holders, shards: chunks, carry, wire })
        });
        let outputs = self.submission.outputs;
        let wants_next = matches!(outputs, Outputs::Logprobs(_));
        let (prompt, known) = (&self.submission.prompt, self.grid.known_tokens());
        let next_token = prompt.get((span.positions().end - known) as usize).copied();
        Assignment {
            key,
            span,
            chunk_count: self.grid.chunk_count(),
            chunk_tokens: self.grid.chunk_tokens(),
            policy: self.policy,
            tokens: span.of(prompt, known).to_vec(),
            next_token: next_token.filter(|_| wants_next),
            outputs,
            next,
            shards,
            wire: self.hand_off_wire(),
            deadline_ms: self.timing.handoff_deadline.as_millis() as u64,
            trace: self.trace.parent(),
        }
    }

    pub(crate) fn layer_done(&mut self, worker: WorkerId, key: ChunkKey, layers_done: u32) {
        let at = self.worker(worker);
        (at.chunk_idx, at.layers_done) = (key.chunk_idx, layers_done);
        self.placed_layer(worker, key, layers_done);
        self.tell_progress();
    }

    /// Its tokens, when the chunk was computed and was not done before. One that is done again is
    /// reported anew: what counts is the try whose memory there is, and who has that.
    pub(crate) fn chunk_done(
        &mut self,
        worker: WorkerId,
        key: ChunkKey,
        report: ChunkReport,
    ) -> Option<u32> {
        let span = self.grid.chunk(key.chunk_idx)?;
        let is_restored = self.prefill.prefix.restores(key.chunk_idx);
        self.prefill.prefix.done(key.chunk_idx);
        self.chunk_reported(worker, key, &report);
        let earlier = self.prefill.reports.insert(key.chunk_idx, (worker, report));
        // Not every layer is told, but a chunk that is done has them all.
        let layers = self.model.shape.memory_layers();
        let at = self.worker(worker);
        (at.chunk_idx, at.layers_done) = (key.chunk_idx, layers);
        at.chunks_done += 1;
        self.tell_progress();
        (earlier.is_none() && !is_restored).then_some(span.tokens)
    }

    fn worker(&mut self, worker: WorkerId) -> &mut WorkerProgress {
        let at = WorkerProgress { worker, chunk_idx: 0, layers_done: 0, chunks_done: 0 };
        self.prefill.workers.entry(worker).or_insert(at)
    }

    fn tell_progress(&mut self) {
        let told = self.prefill.told;
        if self.prefilled.is_some() {
            return;
        }
        if !self.all_done() && told.is_some_and(|told| told.elapsed() < PROGRESS_INTERVAL) {
            return;
        }
        self.prefill.told = Some(Instant::now());
        let (chunks_done, tokens_done) = self.done();
        self.mailbox.push(Update::Progress(PrefillProgress {
            chunks_done,
            chunk_count: self.grid.chunk_count(),
            tokens_done,
            cached_tokens: self.cached_tokens(),
            elapsed: self.accepted.elapsed(),
            workers: self.prefill.workers.values().cloned().collect(),
        }));
    }

    fn all_done(&self) -> bool {
        let skipped = self.prefill.prefix.skipped();
        self.prefill.reports.len() as u32 + skipped == self.grid.chunk_count()
    }

    /// Per layer, summed over chunks.
    fn retained(&self) -> Vec<RetainedMass> {
        let mut retained: Vec<RetainedMass> = Vec::new();
        for (_, report) in self.prefill.reports.values() {
            RetainedMass::add_layers(&mut retained, &report.retained);
        }
        retained
    }

    /// Logits of `rows` positions from `start` on, `[rows, vocab]`.
    pub(crate) fn logits(&mut self, chunk_idx: u32, start: u32, rows: u32, mut logits: Vec<f32>) {
        let vocab = logits.len() / rows.max(1) as usize;
        let Some(skip) = self.told_already(chunk_idx, start, rows) else { return };
        logits.drain(..skip as usize * vocab);
        self.tell_output(Update::Logits { start: start + skip, rows: rows - skip, logits });
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
        self.tell_output(Update::PromptLogprobs { start: start + skip, entries });
    }

    fn tell_output(&mut self, update: Update) {
        // With a floor, whether this try is the last one is known at its end.
        match self.submission.floor {
            Some(_) => self.prefill.outputs.push(update),
            None => self.mailbox.push(update),
        }
    }

    /// How many of these rows were told before; `None` when all of them were, or when they are
    /// none of the prompt's. Remembers that they are told now.
    fn told_already(&mut self, chunk_idx: u32, start: u32, rows: u32) -> Option<u32> {
        let end = start.checked_add(rows)?;
        // The last log probability of a chunk is about the first token after it.
        if self.grid.chunk(chunk_idx).is_none() || end > self.grid.prompt_tokens() {
            return None;
        }
        let told = self.prefill.outputs_end.entry(chunk_idx).or_insert(0);
        let skip = told.saturating_sub(start).min(rows);
        *told = end.max(*told);
        (skip < rows).then_some(skip)
    }

    pub(crate) fn prefilled(&mut self, chunks_retried: u32) {
        self.trail.note("prefilled", None, "");
        self.prefill.outputs.drain(..).for_each(|output| self.mailbox.push(output));
        let reports = &self.prefill.reports;
        let mut traffic = Traffic::default();
        reports.values().for_each(|(_, report)| traffic.add(report.traffic));
        let mut audits = Vec::new();
        reports.values().for_each(|(_, report)| MergeAudit::gather(&mut audits, &report.audits));
        // What is remembered at the end is with the last chunk, unless keys stayed with each.
        let rest = if self.carry().is_some() { 0 } else { self.grid.chunk_count() - 1 };
        let remembered = || reports.range(rest..).map(|(_, (_, report))| report);
        let add_bytes = |sum: u64, report: &ChunkReport| sum.saturating_add(report.memory_bytes);
        let add_tokens = |sum: u32, report: &ChunkReport| sum.saturating_add(report.memory_tokens);
        let sum = |of: fn(&ChunkReport) -> u64| -> Duration {
            reports.values().map(|(_, report)| Duration::from_micros(of(report))).sum()
        };
        let report = Box::new(PrefillReport {
            retained: self.retained(),
            memory_bytes: remembered().fold(0, add_bytes),
            memory_tokens: remembered().fold(0, add_tokens),
            exchange: used(self.carry(), traffic),
            traffic,
            audits,
            elapsed: self.accepted.elapsed(),
            queued: self.began.unwrap_or(self.accepted) - self.accepted,
            stalled: sum(|report| report.wait_us),
            computed: sum(|report| report.busy_us),
            cached_tokens: self.cached_tokens(),
            chunks_retried,
        });
        self.prefilled = Some(report.clone());
        self.mailbox.push(Update::Prefilled(report));
        // Where it goes on from a journal there are tokens already.
        told(self.request, &self.choices).for_each(|update| self.mailbox.push(update));
    }
}

/// Which exchange a request came to.
fn used(carry: Option<Carry>, traffic: Traffic) -> Exchange {
    match carry {
        None | Some(Carry::Keys) => Exchange::Move,
        Some(Carry::Fewest) if traffic.fetched > traffic.asked => Exchange::Move,
        Some(Carry::Queries | Carry::Fewest) => Exchange::Stay,
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::journal::Drawn;
    use aqueduct_core::work::Peer;
    use aqueduct_core::{Epoch, KvDtype, ModelShape, WindowedLayers, WireDtype, limits};
    use aqueduct_plan::{Sharded, Windowed};

    use super::super::status::Cluster;
    use super::*;
    use crate::submit::tests::SHAPE;

    fn live(exchange: Exchange, policy: MemoryPolicy) -> Live {
        let submission = Submission {
            policy,
            chunk_tokens: 16,
            exchange,
            wire: WireDtype::Bf16,
            choices: 2,
            max_tokens: 10,
            ..Submission::of(vec![1; 40])
        };
        let model = ModelInfo { fingerprint: "same".into(), shape: SHAPE, kv: KvDtype::F32 };
        let grid = ChunkGrid::new(40, 16).unwrap();
        let mailbox = Arc::new(Mailbox::new(Arc::default()));
        let asked = Asked::read(submission, grid, model);
        let handoff_deadline = Duration::from_secs(1);
        let timing = Timing { handoff_deadline, arrived_at_ms: 0, deadline_at_ms: 1 };
        Live::new(RequestId(7), asked, mailbox, timing)
    }

    #[test]
    fn all_keys_of_a_model_that_has_states_are_in_its_memory_sets() {
        let mut live = live(Exchange::Auto, MemoryPolicy::dense());
        assert!(live.job().sharded.is_some());
        live.model.shape = ModelShape { recurrent_layers: 1, state_bytes: 8, ..SHAPE };
        let job = live.job();
        assert_eq!((job.sharded, job.memory_tokens, job.keeps_all), (None, 64, true)); // in pages
        let all = live.model.shape.clone();
        let windowed = WindowedLayers { layers: all.kv_layers(), tokens: 20 };
        live.model.shape.windowed = windowed;
        assert_eq!(live.job().memory_tokens, 32, "none sees more than 20 of 50");
        live.model.shape = all;
        let token_bytes = live.model.shape.kv_bytes(1, KvDtype::F32);
        for (state_bytes, tokens) in [(0, 0), (1, 1), (token_bytes, 1), (3 * token_bytes + 1, 4)] {
            live.model.shape.state_bytes = state_bytes;
            assert_eq!(live.job().state_tokens, tokens, "{state_bytes} of {token_bytes}");
        }
        assert_eq!(live.hand_off_wire(), WireDtype::Bf16);
        assert_eq!(used(live.carry(), Traffic::default()), Exchange::Move);
    }

    fn prefilled(live: &mut Live) -> PrefillReport {
        let traffic =
            Traffic { sent_bytes: 1, received_bytes: 2, asked: 3, fetched: 4, spared_bytes: 5 };
        for chunk_idx in 0..3 {
            let key = ChunkKey { request: RequestId(7), chunk_idx, epoch: Epoch(0) };
            let memory_bytes = 10 + u64::from(chunk_idx);
            let report =
                ChunkReport { memory_bytes, memory_tokens: 5, traffic, ..Default::default() };
            assert!(live.chunk_done(WorkerId(0), key, report).is_some());
        }
        live.prefilled(0);
        let updates = std::iter::from_fn(|| futures::FutureExt::now_or_never(live.mailbox.next()));
        let report = updates.flatten().find_map(|update| match update {
            Ok(Update::Prefilled(report)) => Some(*report),
            _ => None,
        });
        report.unwrap()
    }

    #[test]
    fn memory_that_is_handed_on_is_that_of_the_last_chunk() {
        let mut live = live(Exchange::Move, MemoryPolicy::h2o(1, 2, 3));
        assert_eq!((live.carry(), live.job().sharded), (None, None));
        let report = prefilled(&mut live);
        assert_eq!((report.memory_bytes, report.memory_tokens), (12, 5));
        let Traffic { sent_bytes, spared_bytes, .. } = report.traffic;
        assert_eq!((report.exchange, sent_bytes, spared_bytes), (Exchange::Move, 3, 15));
    }

    #[test]
    fn keys_that_stay_are_counted_where_they_are() {
        let check = |exchange, policy, carry, pruned, used| {
            let mut live = live(exchange, policy);
            assert_eq!(live.carry(), Some(carry), "{exchange} {policy:?}");
            let gathers = carry == Carry::Keys;
            live.model.shape.windowed = WindowedLayers { layers: 1, tokens: 7 };
            let all_bytes = live.model.shape.kv_bytes(1, live.model.kv);
            let bytes = all_bytes / u64::from(live.model.shape.layers);
            let windowed = Windowed { kept_tokens: 7, bytes, all_bytes };
            let sharded = Sharded { output_tokens: 20, pruned, gathers, windowed };
            assert_eq!(live.job().sharded, Some(sharded));
            let report = prefilled(&mut live);
            assert_eq!((report.memory_bytes, report.memory_tokens), (33, 15));
            assert_eq!((report.exchange, report.traffic.fetched), (used, 12));
        };
        let (h2o, dense) = (MemoryPolicy::h2o(1, 2, 3), MemoryPolicy::dense());
        check(Exchange::Stay, h2o, Carry::Queries, true, Exchange::Stay);
        check(Exchange::Stay, dense, Carry::Queries, false, Exchange::Stay);
        check(Exchange::Move, dense, Carry::Keys, false, Exchange::Move);
        check(Exchange::Auto, dense, Carry::Fewest, false, Exchange::Move);
    }

    #[test]
    fn a_chunk_that_is_done_has_all_its_layers() {
        let mut live = live(Exchange::Move, MemoryPolicy::h2o(1, 2, 3));
        let key = ChunkKey { request: RequestId(7), chunk_idx: 2, epoch: Epoch(0) };
        let at = |live: &Live| {
            let work = live.work_of(WorkerId(0)).unwrap();
            (work.chunk_idx, work.layers_done, work.chunks_done)
        };
        live.layer_done(WorkerId(0), key, 1);
        assert_eq!(at(&live), (2, 1, 0));
        live.chunk_done(WorkerId(0), key, ChunkReport::default());
        assert_eq!(at(&live), (2, 2, 1), "that the second was done was not told");
    }

    #[test]
    fn what_is_done_again_is_reported_anew() {
        let mut live = live(Exchange::Move, MemoryPolicy::h2o(1, 2, 3));
        let key = |chunk_idx, epoch| ChunkKey { request: RequestId(7), chunk_idx, epoch };
        let took = |busy_us| {
            let retained = vec![RetainedMass { kept: 1.0, total: 2.0 }];
            ChunkReport { busy_us, retained, ..ChunkReport::default() }
        };
        let shown = |live: &Live| {
            let chunk = live.view(&Cluster::default()).chunks.remove(0);
            (chunk.worker, chunk.state, (chunk.busy_seconds * 1e6).round() as u64)
        };
        assert!(!live.placed(WorkerId(1), key(0, Epoch(0)), false));
        assert_eq!(live.chunk_done(WorkerId(1), key(0, Epoch(0)), took(10)), Some(16));
        assert_eq!(shown(&live), ("w1".into(), "done".into(), 10));
        assert_eq!(live.rememberer().0, Some(WorkerId(1)));
        assert!(live.placed(WorkerId(2), key(0, Epoch(1)), false), "it is done again");
        assert_eq!(shown(&live), ("w2".into(), "assigned".into(), 0));
        let again = live.chunk_done(WorkerId(2), key(0, Epoch(1)), took(3000));
        assert_eq!(again, None, "its tokens count once");
        assert_eq!(shown(&live), ("w2".into(), "done".into(), 3000));
        assert_eq!((live.rememberer().0, live.done()), (Some(WorkerId(2)), (1, 16)));
        assert_eq!(live.retained(), [RetainedMass { kept: 1.0, total: 2.0 }]);
        // Two were at it, and the one that was asked first was first.
        live.placed(WorkerId(3), key(1, Epoch(0)), false);
        live.placed(WorkerId(4), key(1, Epoch(2)), false);
        live.chunk_done(WorkerId(3), key(1, Epoch(0)), took(5));
        let second = live.view(&Cluster::default()).chunks.remove(1);
        assert_eq!((second.worker.as_str(), second.epoch), ("w3", 0));
        let computed: u64 = live.prefill.reports.values().map(|(_, report)| report.busy_us).sum();
        assert_eq!(computed, 3005);
    }

    #[test]
    fn a_snapshot_takes_the_place_of_what_was_reported() {
        let mut live = live(Exchange::Move, MemoryPolicy::h2o(1, 2, 3));
        let done = |live: &mut Live, chunk_idx, epoch, total| {
            let key = ChunkKey { request: RequestId(7), chunk_idx, epoch };
            let retained = vec![RetainedMass { kept: total, total }];
            let report = ChunkReport { retained, ..ChunkReport::default() };
            live.chunk_done(WorkerId(1), key, report)
        };
        for chunk_idx in 0..2 {
            assert_eq!(done(&mut live, chunk_idx, Epoch(0), 1.0), Some(16));
        }
        live.restored(1);
        assert_eq!((live.done(), live.all_done()), ((1, 16), false));
        assert_eq!(done(&mut live, 1, Epoch(1), 2.0), None, "nobody computed it");
        assert_eq!((live.done(), live.all_done()), ((2, 32), false));
        assert_eq!(done(&mut live, 2, Epoch(2), 1.0), Some(8));
        assert_eq!((live.done(), live.all_done()), ((3, 40), true));
        assert_eq!(live.retained(), [RetainedMass { kept: 3.0, total: 3.0 }]);
    }

    #[test]
    fn completions_stay_that_nobody_else_can_be_told() {
        let mut live = live(Exchange::Move, MemoryPolicy::h2o(1, 2, 3));
        let completion = |tokens| {
            let drawn = Drawn { token: TokenLogprob { token: 1, logprob: 0.0 }, top: Vec::new() };
            Completion { tokens: vec![drawn; tokens], eos: None }
        };
        let most = limits::BEGUN_TOKENS_MAX;
        live.choices = vec![completion(most / 2), completion(1)];
        assert_eq!(live.stays_now(), None);
        let spec = live.decode_at(WorkerId(0), Some(Epoch(1)), false);
        assert_eq!(spec.begun.iter().map(|begun| begun.tokens.len()).sum::<usize>(), most / 2 + 1);
        live.choices[1] = completion(most / 2);
        assert_eq!((live.stays_now(), live.stays_now()), (Some(true), None));
        live.choices[0].eos = Some(true);
        assert_eq!((live.stays_now(), live.stays_now()), (Some(false), None));
        live.choices[1] = completion(most - 1);
        assert_eq!(live.stays_now(), Some(true), "what is on its way counts");
    }

    #[test]
    fn an_assignment_says_where_the_past_is() {
        let mut live = live(Exchange::Auto, MemoryPolicy::dense());
        let key = ChunkKey { request: RequestId(7), chunk_idx: 1, epoch: Epoch(3) };
        let holders = vec![Peer("local://w1".into())];
        let shards = Shards { holders: holders.clone(), chunks: vec![(0, Epoch(2))] };
        let span = live.grid.chunk(1).unwrap();
        let assignment = live.assignment(key, span, None, Some(shards));
        let want = Directory {
            holders,
            shards: vec![(0, Epoch(2))],
            carry: Carry::Fewest,
            wire: WireDtype::Bf16,
        };
        assert_eq!((assignment.shards, assignment.next), (Some(Box::new(want)), None));
        assert_eq!(assignment.wire, WireDtype::F32, "nothing is handed off");
    }

    #[test]
    fn what_is_handed_off_is_rounded_where_it_is_f32() {
        let mut live = live(Exchange::Move, MemoryPolicy::h2o(1, 2, 3));
        let rounded = live.prefix().chain();
        assert_eq!((live.hand_off_wire(), rounded.len()), (WireDtype::Bf16, 2));
        live.submission.wire = WireDtype::F32;
        assert_ne!(live.prefix().chain(), rounded, "another memory has another name");
        (live.submission.wire, live.model.kv) = (WireDtype::F16, KvDtype::Bf16);
        assert_eq!(live.hand_off_wire(), WireDtype::F32);
    }
}
