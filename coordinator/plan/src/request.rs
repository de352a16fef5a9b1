//! One admitted request: where its chunks are, and which of them must be done again.

mod again;
mod chunk;
mod leave;
mod loss;
mod patience;
mod race;
mod resume;
mod share;

use std::collections::{BTreeMap, BTreeSet};

use aqueduct_core::work::Base;
use aqueduct_core::{ChunkKey, ChunkSpan, Epoch, RequestId, WorkerId};

use self::chunk::{Chunk, State};
pub(crate) use self::leave::Departure;
use self::patience::Patience;
use crate::room::{Chunks, Keeping, output};
use crate::sets::Sets;
use crate::words::Job;

/// How many done chunks keep what they gave. Two, because then the loss of any one worker
/// leaves a memory to go on from: were it one, losing the worker of the newest done chunk
/// would send the request back to its first.
pub(crate) const HELD_CHUNKS: usize = 2;

/// What a request is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Chunks are to be done, for the first time or because what they left was lost.
    Prefill,
    /// Its memory is whole, and completions go on at its home.
    Decode { home: WorkerId },
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) job: Job,
    pub(crate) phase: Phase,
    /// Completions that have not ended.
    pub(crate) open: BTreeSet<u32>,
    /// Whether its caller was told that the whole prompt is in memory.
    pub(crate) told_prefilled: bool,
    /// Workers that may remember anything of it.
    pub(crate) touched: BTreeSet<WorkerId>,
    /// Workers that were told to forget it.
    pub(crate) left: BTreeSet<WorkerId>,
    /// How often each worker that holds shards of it could not reach others, since it was left
    /// last.
    complaints: BTreeMap<WorkerId, u32>,
    /// Workers whose complaints have been taken off its failures.
    spared: BTreeSet<WorkerId>,
    /// Where its completions are on their way to.
    pub(crate) departure: Option<Departure>,
    /// They have come too far for another home to be told.
    pub(crate) stays: bool,
    /// Failures that made chunks be done again since it came further than ever before.
    pub(crate) disruptions: u32,
    /// When a worker was lost that counts among them, with those that are lost soon after.
    pub(crate) lost_at_ms: Option<u64>,
    pub(crate) chunks_retried: u32,
    chunks: Vec<Chunk>,
    epoch: Epoch,
    /// The first chunk that is not done.
    frontier: usize,
    /// When it became that.
    frontier_since_ms: u64,
    /// The second try of that chunk, if there is one.
    second: Option<race::Second>,
    /// Chunks before this one were told that they need not keep what they gave.
    confirmed: usize,
    waiting: usize,
    /// Chunks that wait for a worker to come or to have room, or for another to be reached.
    pub(crate) stranded: BTreeSet<usize>,
    /// Whether these wait for others to give room back.
    pub(crate) wants_room: bool,
    /// How long they do.
    pub(crate) patience: Patience,
    /// Where memory is handed on, the chunk that a snapshot stands for; those before it need
    /// nobody.
    restored: Option<usize>,
    /// Chunks that are assigned and not done, and those of their tokens that are computed.
    pub(crate) in_flight: usize,
    pub(crate) in_flight_tokens: u64,
    /// When its next chunk is due, in virtual time.
    pub(crate) turn: u64,
    /// How long its last chunk took for each unit of its work.
    pub(crate) pace_ns: Option<u64>,
    /// What its memory sets take of pools, where so many of its chunks are in flight at most.
    pub(crate) sets: Sets,
    pub(crate) window: usize,
    /// Tokens of the home's pool that shards of other workers take which have come to it.
    pub(crate) gathered_tokens: u64,
}

impl Request {
    /// A request whose chunks go to `places`.
    pub(crate) fn new(id: RequestId, job: Job, places: Vec<WorkerId>) -> Self {
        Self {
            id,
            waiting: places.len(),
            chunks: places.into_iter().map(Chunk::waiting).collect(),
            open: (0..job.choices).collect(),
            told_prefilled: false,
            job,
            phase: Phase::Prefill,
            touched: BTreeSet::new(),
            left: BTreeSet::new(),
            complaints: BTreeMap::new(),
            spared: BTreeSet::new(),
            departure: None,
            stays: false,
            disruptions: 0,
            lost_at_ms: None,
            chunks_retried: 0,
            epoch: Epoch::default(),
            frontier: 0,
            frontier_since_ms: 0,
            second: None,
            confirmed: 0,
            stranded: BTreeSet::new(),
            wants_room: false,
            patience: Patience::default(),
            restored: None,
            in_flight: 0,
            in_flight_tokens: 0,
            turn: 0,
            pace_ns: None,
            sets: Sets::default(),
            window: 1,
            gathered_tokens: 0,
        }
    }

    /// Where it is decoded.
    pub(crate) fn home(&self) -> WorkerId {
        self.worker(self.chunks.len() - 1)
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.job.sharded.is_some()
    }

    /// Tokens that it takes of workers' pools, part by part.
    pub(crate) fn reserved(&self, page_tokens: u64) -> Vec<(WorkerId, u64)> {
        match self.is_sharded() {
            true => self.reserved_but(&[], page_tokens),
            false => self.reserved_for_sets(),
        }
    }

    /// What its shards take but those of `chunks` (ascending).
    pub(crate) fn reserved_but(&self, chunks: &[usize], page_tokens: u64) -> Vec<(WorkerId, u64)> {
        let keeping = Keeping::of(&self.job, page_tokens);
        let mut held: BTreeMap<WorkerId, Chunks> = BTreeMap::new();
        let counts = |idx: usize| chunks.binary_search(&idx).is_err();
        let all = self.chunks.iter().zip(self.job.grid.chunks()).enumerate();
        for (_, (chunk, span)) in all.filter(|(idx, _)| counts(*idx)) {
            let own_and_left = [Some(chunk.worker), chunk.left_elsewhere()];
            for worker in own_and_left.into_iter().flatten() {
                let all = held.entry(worker).or_default();
                *all = all.plus(keeping.chunk(span.tokens.into()));
            }
        }
        let at_home = output(&self.job, page_tokens) + self.gathered_tokens;
        let home = self.chunks.last().filter(|_| counts(self.chunks.len() - 1));
        let home = home.map(|last| (last.worker, at_home));
        let held = held.into_iter().map(|(worker, chunks)| (worker, keeping.taken(chunks)));
        held.chain(home).collect()
    }

    /// Tokens that the shards of other workers than the home would take there.
    pub(crate) fn elsewhere(&self, page_tokens: u64) -> u64 {
        let (home, spans) = (self.home(), self.job.grid.chunks());
        let others = self.chunks.iter().zip(spans).filter(|(chunk, _)| chunk.worker != home);
        others.map(|(_, span)| in_pages(span, page_tokens)).sum()
    }

    /// Tokens that memory sets take: while it decodes, those of the home, and those that its last
    /// chunk was given.
    fn reserved_for_sets(&self) -> Vec<(WorkerId, u64)> {
        let all = |worker| (worker, self.sets.all);
        let decoding = |worker| (worker, self.sets.decoding);
        match self.phase {
            Phase::Prefill => self.computing().into_iter().map(all).collect(),
            Phase::Decode { home } => {
                let giver = self.giver().map(|idx| (self.worker(idx), self.sets.one));
                let next = self.departure.map(|departure| decoding(departure.to));
                giver.into_iter().chain(next).chain([decoding(home)]).collect()
            }
        }
    }

    /// The chunk that gave the last one its memory, as long as another worker than that of the
    /// last one has it: from there the home can be replaced.
    pub(crate) fn giver(&self) -> Option<usize> {
        let giver = self.chunks.len().checked_sub(2).filter(|_| !self.is_sharded())?;
        let Chunk { worker, state, .. } = self.chunks[giver];
        (state == State::Held && worker != self.home() && !self.open.is_empty()).then_some(giver)
    }

    /// Where the keys of the chunks before `idx` are: workers, and for each chunk which of
    /// them and in which epoch.
    pub(crate) fn shards_before(&self, idx: usize) -> (Vec<WorkerId>, Vec<(u32, Epoch)>) {
        let mut holders: Vec<WorkerId> = Vec::new();
        let mut shard = |chunk: &Chunk| {
            let known = holders.iter().position(|holder| *holder == chunk.worker);
            let holder = known.unwrap_or_else(|| {
                holders.push(chunk.worker);
                holders.len() - 1
            });
            (holder as u32, chunk.epoch)
        };
        let shards = self.chunks[..idx].iter().map(&mut shard).collect();
        (holders, shards)
    }

    pub(crate) fn worker(&self, idx: usize) -> WorkerId {
        self.chunks[idx].worker
    }

    pub(crate) fn key(&self, idx: usize) -> ChunkKey {
        ChunkKey { request: self.id, chunk_idx: idx as u32, epoch: self.chunks[idx].epoch }
    }

    pub(crate) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    pub(crate) fn all_dispatched(&self) -> bool {
        self.waiting == 0
    }

    pub(crate) fn all_done(&self) -> bool {
        self.frontier == self.chunks.len()
    }

    /// Whether `worker` holds, or will hold, a memory to send for chunk `idx + 1`.
    pub(crate) fn can_send(&self, idx: usize) -> bool {
        !self.is_sharded() && matches!(self.chunks[idx].state, State::Running | State::Held)
    }

    /// The newest memory before that of chunk `idx` which its worker holds, or will hold by the
    /// time that it is handed the one before: what both remember need not travel there.
    pub(crate) fn base_of(&self, idx: usize) -> Option<Base> {
        self.base_at(idx, self.chunks[idx].worker)
    }

    /// The same, if chunk `idx` is at `worker`.
    pub(crate) fn base_at(&self, idx: usize, worker: WorkerId) -> Option<Base> {
        let base = (0..idx).rev().find(|before| self.chunks[*before].worker == worker)?;
        let span = self.job.grid.chunk(base as u32).filter(|_| self.can_send(base))?;
        let epoch = self.chunks[base].epoch;
        Some(Base { chunk_idx: span.idx, epoch, end: span.positions().end })
    }

    /// Whether the memory of chunk `idx` will spare bytes of a hand-off to its own worker.
    fn will_spare(&self, idx: usize) -> bool {
        let Chunk { worker, state, .. } = self.chunks[idx];
        let mut later = self.chunks[idx + 1..].iter();
        let next_there = later.find(|chunk| chunk.worker == worker);
        state == State::Held && next_there.is_some_and(|chunk| !chunk.state.is_done())
    }

    /// The first chunk that waits, if it is among the first `window` chunks that are not done.
    pub(crate) fn next_chunk(&self, window: usize) -> Option<usize> {
        if self.all_dispatched() {
            return None;
        }
        let undone = |idx: &usize| !self.chunks[*idx].state.is_done();
        let mut undone = (self.frontier..self.chunks.len()).filter(undone).take(window);
        undone.find(|idx| self.chunks[*idx].state == State::Waiting)
    }

    /// The place of chunk `idx` in the total order; `None` while it is behind all that have one.
    pub(crate) fn ticket(&self, idx: usize) -> Option<u64> {
        self.chunks[idx].ticket
    }

    /// Chunks whose place is `worker`.
    pub(crate) fn on(&self, worker: WorkerId) -> Vec<usize> {
        let on = |idx: &usize| self.chunks[*idx].worker == worker;
        (0..self.chunks.len()).filter(on).collect()
    }

    /// Chunks in flight.
    pub(crate) fn running(&self) -> impl Iterator<Item = usize> + '_ {
        let running = |idx: &usize| self.chunks[*idx].state == State::Running;
        (self.frontier..self.chunks.len()).filter(running).take(self.in_flight)
    }

    /// Chunks that run on `worker` and come after `ticket` in the total order, with theirs.
    pub(crate) fn running_behind(&self, ticket: u64, worker: WorkerId) -> Vec<(u64, usize)> {
        let on_worker = self.running().filter(|idx| self.chunks[*idx].worker == worker);
        let later = on_worker.filter_map(|idx| Some((self.chunks[idx].ticket?, idx)));
        later.filter(|(later, _)| *later > ticket).collect()
    }

    /// Takes a report of `worker` about `key`; false when it is out of date.
    pub(crate) fn finish(&mut self, worker: WorkerId, key: ChunkKey, now_ms: u64) -> bool {
        let idx = key.chunk_idx as usize;
        if !self.is_current(worker, key) || self.chunks[idx].state != State::Running {
            return false;
        }
        self.set(idx, State::Held);
        if !std::mem::replace(&mut self.chunks[idx].was_done, true) {
            self.came_further();
        }
        if self.pass_done() {
            self.frontier_since_ms = now_ms;
        }
        true
    }

    /// Whether the first chunk that is not done is a later one now.
    fn pass_done(&mut self) -> bool {
        let before = self.frontier;
        let done = self.chunks[before..].iter().take_while(|chunk| chunk.state.is_done());
        self.frontier += done.count();
        self.frontier > before
    }

    /// Whether `key` is what `worker` was asked for last.
    pub(crate) fn is_current(&self, worker: WorkerId, key: ChunkKey) -> bool {
        self.chunks
            .get(key.chunk_idx as usize)
            .is_some_and(|chunk| chunk.worker == worker && chunk.epoch == key.epoch)
    }

    /// The worker of `key`, which is undone, if `worker`, which has the chunk before it, says that
    /// what it gave does not arrive there.
    pub(crate) fn unreached(&self, worker: WorkerId, key: ChunkKey) -> Option<WorkerId> {
        let idx = key.chunk_idx as usize;
        let before = idx.checked_sub(1)?;
        let chunk = self.chunks.get(idx).filter(|chunk| !chunk.state.is_done())?;
        let told = self.chunks[before].worker == worker && self.can_send(before);
        let second = self.second().filter(|second| self.is_second(*second, key));
        let there = second.or((chunk.epoch == key.epoch).then_some(chunk.worker));
        there.filter(|_| told)
    }

    /// Chunks that need not keep what they gave any longer, each said once.
    pub(crate) fn confirm(&mut self) -> Vec<usize> {
        if self.is_sharded() {
            return Vec::new();
        }
        // The last chunk's memory is what decoding goes on from, and what it was given is what
        // that is made of again: they are never confirmed.
        let end = if self.all_done() {
            self.giver().unwrap_or(self.chunks.len() - 1)
        } else {
            self.frontier.saturating_sub(HELD_CHUNKS)
        };
        let from = self.confirmed.min(end);
        let is_held = |chunk: &Chunk| chunk.state == State::Held;
        // What spares bytes holds up nobody: that is one of each worker at most.
        let ready = |idx: &usize| is_held(&self.chunks[*idx]) && !self.will_spare(*idx);
        let ready: Vec<usize> = (from..end).filter(ready).collect();
        for idx in &ready {
            self.chunks[*idx].state = State::Released;
        }
        self.confirmed = (from..end).find(|idx| is_held(&self.chunks[*idx])).unwrap_or(end);
        ready
    }

    /// Gives chunk `idx` a new worker and an epoch that none of the request's chunks had.
    pub(crate) fn move_to(&mut self, idx: usize, worker: WorkerId) {
        self.epoch = self.epoch.next();
        self.stranded.remove(&idx);
        self.chunks[idx].worker = worker;
        self.chunks[idx].epoch = self.epoch;
        self.touched.insert(worker);
    }

    fn set(&mut self, idx: usize, state: State) {
        let old = std::mem::replace(&mut self.chunks[idx].state, state);
        self.waiting += usize::from(state == State::Waiting);
        self.waiting -= usize::from(old == State::Waiting);
        self.in_flight += usize::from(state == State::Running);
        self.in_flight -= usize::from(old == State::Running);
        let is_computed = state == State::Running && self.snapshot(idx).is_none();
        let tokens = if is_computed { self.tokens(idx) } else { 0 };
        let before = std::mem::replace(&mut self.chunks[idx].in_flight_tokens, tokens);
        self.in_flight_tokens = self.in_flight_tokens - before + tokens;
    }
}

/// What the keys of a chunk take of a pool, in tokens.
fn in_pages(span: ChunkSpan, page_tokens: u64) -> u64 {
    u64::from(span.tokens).next_multiple_of(page_tokens)
}
