//! A cluster and the simplest coordinator that can command it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::work::{
    Assignment, Base, Command, DecodeSpec, Event, FailureKind, NextHop, Outputs, Peer, Traffic,
};
use aqueduct_core::{
    ChunkGrid, ChunkKey, Epoch, MemoryPolicy, RequestId, Sampling, Steering, TokenId, WireDtype,
    limits,
};
use aqueduct_engine::Model;
use aqueduct_worker::{
    Direct, LoopbackHub, Scheduling, SnapshotOptions, Stats, Worker, WorkerOptions, serve,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Receiver, Sender};

use crate::in_process::{Meeting, Trouble};

/// Longest that anything in these tests may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How far ahead of their merges workers ask others, in turn: for all at once, for as little as
/// there is, for a few states at a time.
const AHEAD: [u64; 3] = [limits::EXCHANGE_AHEAD_BYTES, 1, 40 << 10];

/// What carries memory between workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Loopback,
    Grpc,
    /// From device to device, where the devices have joined in time.
    Direct,
}

/// A worker and a session with it.
pub(crate) struct Member {
    pub(crate) worker: Worker,
    pub(crate) peer: Peer,
    pub(crate) commands: Sender<Command>,
    pub(crate) events: Receiver<Event>,
    /// What its chunks' past came to between processes.
    pub(crate) traffic: Traffic,
    /// Chunks of others that it said had failed, while something else was waited for.
    failures: Vec<(ChunkKey, FailureKind)>,
}

/// One prompt and what is wanted of it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) request: RequestId,
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) chunk_tokens: u32,
    pub(crate) policy: MemoryPolicy,
    pub(crate) outputs: Outputs,
    pub(crate) wire: WireDtype,
    /// Whether its home has room for the shards of others.
    pub(crate) gathers: bool,
}

/// Everything that came out of a prompt, in comparable form.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Answer {
    /// By position: bits of logits.
    pub(crate) logits: Vec<(u32, Vec<u32>)>,
    /// By position: token and bits of its log probability.
    pub(crate) logprobs: Vec<(u32, TokenId, u32)>,
    /// By chunk: bytes and keys of the memory it gave, and bits of the mass it kept.
    pub(crate) memory: Vec<(u32, u64, u32, Vec<u64>)>,
    /// By choice and index: token and bits of its log probability.
    pub(crate) tokens: Vec<(u32, u32, TokenId, u32)>,
}

impl Answer {
    /// The largest difference of logits, relative to the largest of their row.
    pub(crate) fn difference(&self, other: &Self) -> f32 {
        let row = |a: &[u32], b: &[u32]| {
            let [a, b] = [a, b].map(|bits| bits.iter().map(|&bits| f32::from_bits(bits)));
            let scale = b.clone().fold(0f32, |max, z| max.max(z.abs()));
            a.zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / scale
        };
        let rows = self.logits.iter().zip(&other.logits);
        rows.map(|(a, b)| row(&a.1, &b.1)).fold(0.0, f32::max)
    }
}

impl Job {
    pub(crate) fn new(prompt_tokens: u32, policy: MemoryPolicy) -> Self {
        let prompt = (0..prompt_tokens).map(|i| (i * i * 7 + i * 3 + 11) % 61).collect();
        let (request, outputs, wire) = (RequestId(1), Outputs::Logits, WireDtype::F32);
        Self { request, prompt, chunk_tokens: 8, policy, outputs, wire, gathers: true }
    }

    pub(crate) fn grid(&self) -> ChunkGrid {
        ChunkGrid::new(self.prompt.len() as u32, self.chunk_tokens).unwrap()
    }

    /// The assignment of chunk `idx` in `epoch`, whose memory goes to `next` (in `next_epoch`).
    pub(crate) fn assignment(&self, idx: u32, epoch: u32, next: (&Peer, u32)) -> Assignment {
        let (grid, span) = (self.grid(), self.grid().chunk(idx).unwrap());
        let next = NextHop { peer: next.0.clone(), epoch: Epoch(next.1), base: None };
        Assignment {
            key: self.key(idx, epoch),
            span,
            chunk_count: grid.chunk_count(),
            chunk_tokens: grid.chunk_tokens(),
            policy: self.policy.clamped(self.chunk_tokens).0,
            tokens: span.of(&self.prompt, 0).to_vec(),
            next_token: self.prompt.get(span.positions().end as usize).copied(),
            outputs: self.outputs,
            next: (!grid.is_last(idx)).then_some(next),
            shards: None,
            wire: self.wire,
            deadline_ms: 20_000,
            trace: None,
        }
    }

    /// Which of `count` members has the last chunk.
    pub(crate) fn home(&self, count: usize) -> usize {
        (self.grid().chunk_count() as usize - 1) % count
    }

    pub(crate) fn key(&self, chunk_idx: u32, epoch: u32) -> ChunkKey {
        ChunkKey { request: self.request, chunk_idx, epoch: Epoch(epoch) }
    }

    /// What chunk `idx` gave in `epoch`.
    pub(crate) fn base(&self, idx: u32, epoch: u32) -> Base {
        let end = self.grid().chunk(idx).unwrap().positions().end;
        Base { chunk_idx: idx, epoch: Epoch(epoch), end }
    }

    pub(crate) fn decode(&self, choices: u32, max_tokens: u32) -> Command {
        let sampling = Sampling { seed: 5, ..Sampling::default() };
        let request = self.request;
        Command::Decode(Box::new(DecodeSpec {
            request,
            sampling,
            steering: Steering::default(),
            constraint: None,
            prompt_vocabulary: Vec::new(),
            choices,
            max_tokens,
            eos: vec![],
            begun: Vec::new(),
            keeps: false,
            trace: None,
            shows: false,
            handed_over: None,
            gathers: self.gathers,
        }))
    }
}

impl Member {
    pub(crate) async fn start(model: Arc<Model>, hub: &LoopbackHub, carrier: Carrier) -> Self {
        Self::start_with(model, hub, carrier, (None, AHEAD[0])).await
    }

    /// A worker that others reach by gRPC, and whose device they reach by `direct`.
    pub(crate) async fn with_device(model: Arc<Model>, direct: Direct) -> Self {
        let hub = LoopbackHub::default();
        Self::start_with(model, &hub, Carrier::Direct, (Some(direct), AHEAD[0])).await
    }

    async fn start_with(
        model: Arc<Model>,
        hub: &LoopbackHub,
        carrier: Carrier,
        (direct, ahead_bytes): (Option<Direct>, u64),
    ) -> Self {
        let with = |options| WorkerOptions {
            ahead_bytes,
            audit_every: 3,
            snapshots: in_memory(),
            ..options
        };
        let worker = match carrier {
            Carrier::Loopback => {
                let options = with(in_process(&model, hub));
                Worker::start(model, options).unwrap()
            }
            Carrier::Grpc | Carrier::Direct => {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let name = format!("http://{}", listener.local_addr().unwrap());
                let options = with(WorkerOptions::new(name, hub.clone()));
                let options = WorkerOptions { direct, ..options };
                let worker = Worker::start(model, options).unwrap();
                tokio::spawn(serve(worker.clone(), listener, std::future::pending()));
                worker
            }
        };
        Self::join(worker).await
    }

    /// A worker of this process with a scheduler of its own.
    pub(crate) async fn scheduled(
        model: Arc<Model>,
        hub: &LoopbackHub,
        scheduling: Scheduling,
    ) -> Self {
        let options = WorkerOptions::new(format!("local://{}", unique()), hub.clone());
        Self::join(Worker::start(model, WorkerOptions { scheduling, ..options }).unwrap()).await
    }

    /// Another session with a worker.
    pub(crate) async fn join(worker: Worker) -> Self {
        let (commands, events) = worker.open_session();
        let peer = worker.info().peer.clone();
        let (traffic, failures) = (Traffic::default(), Vec::new());
        let mut member = Self { worker, peer, commands, events, traffic, failures };
        assert!(matches!(member.event().await, Event::Hello(_)));
        member
    }

    pub(crate) async fn send(&self, command: Command) {
        self.commands.send(command).await.unwrap();
    }

    pub(crate) async fn assign(&self, assignment: Assignment) {
        self.send(Command::Assign(Box::new(assignment))).await;
    }

    /// The next event that is about a request.
    pub(crate) async fn event(&mut self) -> Event {
        loop {
            let event = self.any_event().await;
            if !matches!(event, Event::Snapshots(_) | Event::Pool(_)) {
                return event;
            }
        }
    }

    pub(crate) async fn any_event(&mut self) -> Event {
        let event = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        event.expect("an event in time").expect("a session that lives")
    }

    /// The next chunk that it says has failed.
    pub(crate) async fn failure(&mut self) -> (ChunkKey, FailureKind) {
        while self.failures.is_empty() {
            if let Event::ChunkFailed { key, kind, .. } = self.event().await {
                self.failures.push((key, kind));
            }
        }
        self.failures.remove(0)
    }

    /// The first event for which `wanted` is true; the others are dropped.
    pub(crate) async fn event_where(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.event().await;
            if wanted(&event) {
                return event;
            }
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.worker.stats()
    }

    /// Waits until the worker's figures are as wanted.
    pub(crate) async fn settle(&self, wanted: impl Fn(&Stats) -> bool) {
        let settled = async {
            while !wanted(&self.stats()) {
                tokio::task::yield_now().await;
            }
        };
        let done = tokio::time::timeout(PATIENCE, settled).await;
        assert!(done.is_ok(), "still held: {:?}", self.stats());
    }

    pub(crate) async fn settle_empty(&self) {
        self.settle(|stats| *stats == Stats::default()).await;
    }
}

/// Options of a worker that others reach through `hub`.
pub(crate) fn in_process(model: &Arc<Model>, hub: &LoopbackHub) -> WorkerOptions {
    let name = format!("local://{:p}-{}", Arc::as_ptr(model), unique());
    WorkerOptions::new(name, hub.clone())
}

fn in_memory() -> SnapshotOptions {
    SnapshotOptions { bytes: 1 << 20, disk: None }
}

/// `count` workers of one model.
pub(crate) async fn cluster(model: &Arc<Model>, count: usize, carrier: Carrier) -> Vec<Member> {
    let hub = LoopbackHub::default();
    let direct = (carrier == Carrier::Direct).then(|| direct(&Arc::default(), Trouble::None));
    let mut members = Vec::new();
    for idx in 0..count {
        let others = (direct.clone(), AHEAD[idx % AHEAD.len()]);
        members.push(Member::start_with(model.clone(), &hub, carrier, others).await);
    }
    members
}

/// A worker for each trouble, whose devices meet at `meeting`.
pub(crate) async fn with_devices(
    model: &Arc<Model>,
    meeting: &Arc<Meeting>,
    troubles: &[Trouble],
) -> Vec<Member> {
    let mut members = Vec::new();
    for &trouble in troubles {
        members.push(Member::with_device(model.clone(), direct(meeting, trouble)).await);
    }
    members
}

fn direct(meeting: &Arc<Meeting>, trouble: Trouble) -> Direct {
    Direct::new(meeting.fabric(trouble)).within(Duration::from_millis(200))
}

/// Runs `job` over `members`, chunk k on member k mod N, then decodes two completions of
/// `output_tokens` at the home.
pub(crate) async fn run(members: &mut [Member], job: &Job, output_tokens: u32) -> Answer {
    let mut answer = prefill(members, job).await;
    let home = job.home(members.len());
    decode(&mut members[home], job, output_tokens, &mut answer).await;
    answer
}

/// Runs `job` over `members` up to its last chunk.
pub(crate) async fn prefill(members: &mut [Member], job: &Job) -> Answer {
    let count = members.len();
    for chunk in job.grid().chunks() {
        let idx = chunk.idx as usize;
        let next = (&members[(idx + 1) % count].peer, 0);
        let mut assignment = job.assignment(chunk.idx, 0, next);
        if let (Some(next), Some(given)) = (&mut assignment.next, (idx + 1).checked_sub(count)) {
            next.base = Some(job.base(given as u32, 0));
        }
        members[idx % count].assign(assignment).await;
    }
    let mut answer = Answer::default();
    let confirm = |idx: usize| Command::Confirm { request: job.request, chunk_idx: idx as u32 };
    for chunk in job.grid().chunks() {
        let idx = chunk.idx as usize;
        finish(&mut members[idx % count], job.key(chunk.idx, 0), &mut answer).await;
        if let Some(given) = idx.checked_sub(count) {
            members[given % count].send(confirm(given)).await; // it has spared all that it can
        }
    }
    let last = job.grid().chunk_count() as usize - 1;
    for given in last.saturating_sub(count)..last {
        members[given % count].send(confirm(given)).await;
    }
    answer
}

/// Reads a member's events until chunk `key` is done. A member's chunks end in order.
pub(crate) async fn finish(member: &mut Member, key: ChunkKey, answer: &mut Answer) {
    finish_all(member, vec![key], answer).await;
}

/// The same of all of `keys`, in whatever order they are done.
pub(crate) async fn finish_all(member: &mut Member, mut keys: Vec<ChunkKey>, answer: &mut Answer) {
    while !keys.is_empty() {
        match member.event().await {
            Event::Logits { start, rows, logits, .. } => {
                let rows = logits.chunks(logits.len() / rows as usize);
                let bits = rows.map(|row| row.iter().map(|z| z.to_bits()).collect());
                answer.logits.extend((start..).zip(bits));
            }
            Event::PromptLogprobs { start, entries, .. } => {
                let entry = |(at, (token, _)): (u32, &(aqueduct_core::work::TokenLogprob, _))| {
                    (at, token.token, token.logprob.to_bits())
                };
                let entries: &Vec<(_, Vec<_>)> = &entries;
                answer.logprobs.extend((start..).zip(entries).map(entry));
            }
            Event::ChunkDone { key: done, report } => {
                let kept = report.retained.iter().map(|mass| mass.kept.to_bits()).collect();
                let (bytes, tokens) = (report.memory_bytes, report.memory_tokens);
                answer.memory.push((done.chunk_idx, bytes, tokens, kept));
                member.traffic.add(report.traffic);
                keys.retain(|key| *key != done);
            }
            Event::ChunkFailed { key: failed, kind, .. } if !keys.contains(&failed) => {
                member.failures.push((failed, kind));
            }
            Event::Progress { .. } => {}
            other => panic!("while waiting for {keys:?}: {other:?}"),
        }
    }
}

/// Decodes two completions and reads them to their ends.
pub(crate) async fn decode(home: &mut Member, job: &Job, tokens: u32, answer: &mut Answer) {
    home.send(job.decode(2, tokens)).await;
    let mut open: BTreeSet<u32> = (0..2).collect();
    while !open.is_empty() {
        match home.event().await {
            Event::Token(token) => answer.tokens.push((
                token.choice,
                token.token_idx,
                token.token,
                token.logprob.to_bits(),
            )),
            Event::ChoiceDone { choice, eos, .. } => {
                assert!(!eos);
                open.remove(&choice);
            }
            Event::Progress { .. } => {}
            other => panic!("while decoding: {other:?}"),
        }
    }
    answer.tokens.sort_unstable();
}

fn unique() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
