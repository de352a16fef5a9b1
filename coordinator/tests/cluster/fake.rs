//! Workers that follow the protocol without a model: every chunk is done at once, and what is
//! made of a token is a function of the token.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_coordinator::submit::{RequestError, Submission, Update};
use aqueduct_coordinator::{RequestHandle, Session};
use aqueduct_core::snapshot::{Restore, SnapshotNews};
use aqueduct_core::work::{
    Assignment, CONVENTION, ChunkReport, Command, DecodeSpec, Emitted, Event, FailureKind, Outputs,
    Peer, RetainedMass, WorkerInfo,
};
use aqueduct_core::{
    KvDtype, MemoryPolicy, ModelShape, SnapshotKey, SnapshotsHeld, WideHeads, WindowedLayers,
    limits,
};
use tokio::sync::{Notify, mpsc};

/// What was kept, by name.
type Snapshots = BTreeMap<SnapshotKey, Vec<RetainedMass>>;

pub(crate) const VOCAB: u32 = 4096;
pub(crate) const LAYERS: u32 = 2;
pub(crate) const CHUNK_TOKENS: u32 = 4;
/// How long a test waits for what must come.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// What a worker does with chunk `chunk_idx` of any request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Everything.
    Obey,
    /// From this chunk on, nothing.
    Hold { chunk_idx: u32 },
    /// Nothing under policies with more local keys than these.
    HoldBeyond { local: u32 },
    /// Half of it, then the session ends.
    DieAt { chunk_idx: u32 },
    /// Everything, and says again that a chunk is done, as if it had been another try.
    Repeat,
    /// Everything, but completions have one more token each, which does not come.
    NeverEnd,
}

/// A worker and what it was told.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) name: String,
    pub(crate) fingerprint: String,
    pub(crate) habit: Habit,
    pub(crate) pool_tokens: u64,
    pub(crate) max_positions: u32,
    /// What it says of a chunk's attention mass, per layer.
    pub(crate) retained: fn(&Assignment) -> Vec<RetainedMass>,
    /// What prefixes kept, if it keeps any.
    pub(crate) snapshots: Option<Arc<Mutex<Snapshots>>>,
    seen: Arc<Mutex<Vec<Command>>>,
    heard: Arc<Notify>,
    closed: Arc<Notify>,
    leaves: Arc<Notify>,
}

impl Fake {
    pub(crate) fn new(name: &str, habit: Habit) -> Self {
        let (name, fingerprint) = (name.to_owned(), "same".to_owned());
        Self {
            name,
            fingerprint,
            habit,
            pool_tokens: u64::MAX,
            max_positions: 1000,
            retained: tokens_of_ten,
            snapshots: None,
            seen: Arc::default(),
            heard: Arc::default(),
            closed: Arc::default(),
            leaves: Arc::default(),
        }
    }

    /// Starts it in this process.
    pub(crate) fn session(&self) -> Session {
        self.session_at(&self.name)
    }

    /// Starts it in this process, where it is found at `name`.
    pub(crate) fn session_at(&self, name: &str) -> Session {
        let (commands, inbox) = mpsc::channel(limits::COMMANDS_MAX);
        let (outbox, events) = mpsc::channel(limits::COMMANDS_MAX);
        tokio::spawn(self.clone().serve(inbox, outbox));
        Session::in_process(name, commands, events)
    }

    /// One session.
    pub(crate) async fn serve(
        self,
        mut inbox: mpsc::Receiver<Command>,
        outbox: mpsc::Sender<Event>,
    ) {
        let mut say = Say(&outbox);
        say.event(Event::Hello(Box::new(self.info()))).await;
        if self.snapshots.is_some() {
            // Whoever is told that it is up asks at once.
            tokio::time::sleep(Duration::from_millis(20)).await;
            say.event(self.news(&[])).await;
        }
        loop {
            let command = tokio::select! {
                command = inbox.recv() => command,
                () = self.closed.notified() => return,
                () = self.leaves.notified() => {
                    say.event(Event::Draining).await;
                    continue;
                }
            };
            let Some(command) = command else { return };
            self.seen.lock().unwrap().push(command.clone());
            self.heard.notify_waiters();
            match command {
                Command::Assign(chunk) => match self.habit {
                    Habit::Hold { chunk_idx } if chunk.key.chunk_idx >= chunk_idx => {}
                    Habit::HoldBeyond { local } if chunk.policy.local > local => {}
                    Habit::DieAt { chunk_idx } if chunk.key.chunk_idx == chunk_idx => {
                        return say.outputs(&chunk, chunk.tokens.len() / 2).await;
                    }
                    Habit::Repeat => {
                        say.chunk(&chunk, (self.retained)(&chunk)).await;
                        say.chunk(&chunk, Vec::new()).await;
                    }
                    _ => say.chunk(&chunk, (self.retained)(&chunk)).await,
                },
                Command::Keep(keep) => {
                    let snapshots = self.snapshots.as_ref().expect("one that keeps snapshots");
                    snapshots.lock().unwrap().insert(keep.snapshot, keep.retained);
                    say.event(self.news(&[keep.snapshot])).await;
                }
                Command::Restore(restore) => say.event(self.restored(&restore)).await,
                Command::Decode(spec) => say.tokens(&spec, self.habit).await,
                _ => {}
            }
        }
    }

    fn news(&self, kept: &[SnapshotKey]) -> Event {
        let count = self.snapshots.as_ref().map_or(0, |all| all.lock().unwrap().len());
        let held = SnapshotsHeld { count: count as u64, ..SnapshotsHeld::default() };
        Event::Snapshots(Box::new(SnapshotNews { kept: kept.to_vec(), dropped: vec![], held }))
    }

    fn restored(&self, restore: &Restore) -> Event {
        let key = restore.key;
        let snapshots = self.snapshots.as_ref().expect("one that keeps snapshots");
        match snapshots.lock().unwrap().get(&restore.snapshot) {
            Some(retained) => {
                let retained = retained.clone();
                let report = ChunkReport { retained, ..ChunkReport::default() };
                Event::ChunkDone { key, report: Box::new(report) }
            }
            None => {
                let (kind, message) = (FailureKind::Peer, "it is gone".into());
                Event::ChunkFailed { key, kind, message }
            }
        }
    }

    /// Says that it is going to stop.
    pub(crate) fn leave(&self) {
        self.leaves.notify_one();
    }

    /// Ends its session.
    pub(crate) fn close(&self) {
        self.closed.notify_one();
    }

    fn info(&self) -> WorkerInfo {
        WorkerInfo {
            peer: Peer(format!("local://{}", self.name)),
            fingerprint: self.fingerprint.clone(),
            shape: ModelShape {
                vocab: VOCAB,
                layers: LAYERS,
                width: 8,
                heads: 2,
                kv_heads: 1,
                head_dim: 4,
                ffn: 16,
                max_positions: self.max_positions,
                recurrent_layers: 0,
                state_bytes: 0,
                wide: WideHeads::NONE,
                kv_shared_layers: 0,
                windowed: WindowedLayers::NONE,
            },
            kv: KvDtype::F32,
            threads: 1,
            device: String::new(),
            pool_tokens: self.pool_tokens,
            keeps_snapshots: self.snapshots.is_some(),
            convention: CONVENTION,
        }
    }

    /// Everything that it was told, in order.
    pub(crate) fn seen(&self) -> Vec<Command> {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until it was told something like that.
    pub(crate) async fn told(&self, what: impl Fn(&Command) -> bool) {
        let wait = async {
            loop {
                let heard = self.heard.notified();
                tokio::pin!(heard);
                heard.as_mut().enable();
                if self.seen.lock().unwrap().iter().any(&what) {
                    return;
                }
                heard.await;
            }
        };
        if tokio::time::timeout(SOON, wait).await.is_err() {
            panic!("{} was told only {:?}", self.name, self.seen.lock().unwrap());
        }
    }
}

fn tokens_of_ten(chunk: &Assignment) -> Vec<RetainedMass> {
    let mass = RetainedMass { kept: f64::from(chunk.span.tokens), total: 10.0 };
    vec![mass; LAYERS as usize]
}

struct Say<'a>(&'a mpsc::Sender<Event>);

impl Say<'_> {
    async fn event(&mut self, event: Event) {
        // The coordinator may be gone, which ends the session at the next command.
        drop(self.0.send(event).await);
    }

    async fn chunk(&mut self, chunk: &Assignment, retained: Vec<RetainedMass>) {
        for layers_done in 1..=LAYERS {
            self.event(Event::Progress { key: chunk.key, layers_done }).await;
        }
        self.outputs(chunk, chunk.tokens.len()).await;
        let report = ChunkReport {
            retained,
            memory_tokens: chunk.span.start + chunk.span.tokens,
            ..ChunkReport::default()
        };
        self.event(Event::ChunkDone { key: chunk.key, report: Box::new(report) }).await;
    }

    /// The logits of a chunk's first tokens, a row at a time.
    async fn outputs(&mut self, chunk: &Assignment, rows: usize) {
        if chunk.outputs != Outputs::Logits {
            return;
        }
        for (start, token) in (chunk.span.start..).zip(&chunk.tokens[..rows]) {
            let logits = vec![*token as f32; VOCAB as usize];
            self.event(Event::Logits { key: chunk.key, start, rows: 1, logits }).await;
        }
    }

    async fn tokens(&mut self, spec: &DecodeSpec, habit: Habit) {
        let last = spec.max_tokens - u32::from(habit == Habit::NeverEnd);
        for choice in 0..spec.choices {
            let begun = spec.begun(choice).cloned().unwrap_or_default();
            if begun.ended {
                continue;
            }
            for token_idx in begun.tokens.len() as u32..last {
                self.event(Event::Token(Box::new(Emitted {
                    request: spec.request,
                    choice,
                    token_idx,
                    token: choice * 10 + token_idx,
                    logprob: -0.5,
                    top: Vec::new(),
                })))
                .await;
            }
            let (request, eos) = (spec.request, false);
            if last == spec.max_tokens {
                self.event(Event::ChoiceDone { request, choice, eos }).await;
            }
        }
    }
}

/// A prompt of `prompt_tokens` counting tokens.
pub(crate) fn submission(prompt_tokens: u32) -> Submission {
    let prompt = (0..prompt_tokens).map(|token| token % VOCAB).collect();
    Submission {
        policy: MemoryPolicy::h2o(1, 1, 1),
        chunk_tokens: CHUNK_TOKENS,
        max_tokens: 2,
        deadline: SOON,
        ..Submission::of(prompt)
    }
}

/// Every update up to the end, and the error that ended it.
pub(crate) async fn all(handle: &mut RequestHandle) -> (Vec<Update>, Option<RequestError>) {
    let mut updates = Vec::new();
    let read = async {
        while let Some(update) = handle.next().await {
            match update {
                Ok(update) => updates.push(update),
                Err(error) => return Some(error),
            }
        }
        None
    };
    let error = tokio::time::timeout(SOON, read).await.expect("the request never ended");
    (updates, error)
}
