//! A simulated coordinator: the plan itself, and what the runtime does around it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aqueduct_core::snapshot::{Keep, Made, Restore};
use aqueduct_core::work::{
    Assignment, Begun, Command as Order, DecodeSpec, Event as Said, HandedOver,
};
use aqueduct_core::{Carry, ChunkKey, Directory, RequestId, SnapshotKey, WireDtype, WorkerId};
use aqueduct_plan::{Command, End, Event, Failure, Job, Limits, Plan, Sharded, Shards};

use crate::asked::{Asked, Completion, Told};
use crate::worker::peer;

/// Something happened that must never happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

const LIMITS: Limits = Limits {
    batch_tokens: 32,
    batch_chunks: 12,
    queued_requests: 6,
    queued_tokens: 500,
    running_requests: 4,
    page_tokens: 1,
    retries: 200,
    grace_ms: 600_000, // longer than any worker is away
    hedge_after_ms: Some(150),
};

/// One request as its caller sees it.
pub(crate) struct Live {
    asked: Arc<Asked>,
    truth: Arc<Vec<Completion>>,
    told: Vec<Vec<Told>>,
    ended: Vec<Option<bool>>,
    /// Whether the workers that there were when it came have room for it.
    fits: bool,
    /// When it was accepted, on the plan's clock.
    since_ms: u64,
    /// Its caller went away.
    pub(crate) left: bool,
    /// How it ended.
    pub(crate) end: Option<End>,
}

/// The plan, and what was heard of every request.
pub(crate) struct Coordinator {
    plan: Plan,
    /// Requests by their ids.
    pub(crate) live: BTreeMap<RequestId, Live>,
    /// Orders for workers that have not been sent.
    pub(crate) orders: Vec<(usize, Order)>,
    /// Callers that were sent away at once.
    pub(crate) busy: usize,
    /// Workers that are to be left.
    drained: BTreeSet<WorkerId>,
    /// How often completions went from one home to another.
    pub(crate) handed_over: usize,
    /// Chunks for which snapshots were to stand.
    pub(crate) restored: usize,
}

impl Default for Coordinator {
    fn default() -> Self {
        Self {
            plan: Plan::new(LIMITS),
            live: BTreeMap::new(),
            orders: Vec::new(),
            busy: 0,
            drained: BTreeSet::new(),
            handed_over: 0,
            restored: 0,
        }
    }
}

impl Coordinator {
    /// Chunks that a second worker was given as well.
    pub(crate) fn hedges(&self) -> u64 {
        self.plan.hedges()
    }

    /// When it wants to be woken, on its clock.
    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        self.plan.next_deadline_ms()
    }

    /// A caller asks.
    pub(crate) fn submit(
        &mut self,
        now_ms: u64,
        asked: Arc<Asked>,
        truth: Arc<Vec<Completion>>,
    ) -> Result<RequestId, Violation> {
        let request = RequestId(self.live.len() as u64);
        let choices = asked.choices as usize;
        let all = asked.grid.prompt_tokens() + asked.max_tokens;
        let memory_tokens = asked.policy.kept_of(all).into();
        let job = Job {
            grid: asked.grid,
            choices: asked.choices,
            sharded: asked.sharded.then(|| Sharded {
                output_tokens: u64::from(asked.choices) * u64::from(asked.max_tokens),
                pruned: !asked.policy.keeps_all(),
                ..Sharded::default()
            }),
            memory_tokens,
            state_tokens: 0,
            keeps_all: asked.policy.keeps_all(),
            priority: 0,
            arrived_at_ms: now_ms,
            prefix: asked.names().into(),
            resumes: false,
            deadline_at_ms: now_ms + asked.deadline_ms,
        };
        let fits = self.plan.could_hold(&job);
        let live = Live {
            asked,
            fits,
            truth,
            told: vec![Vec::new(); choices],
            ended: vec![None; choices],
            since_ms: now_ms,
            left: false,
            end: None,
        };
        self.live.insert(request, live);
        self.step(now_ms, Event::Submit { request, job })?;
        Ok(request)
    }

    /// A caller goes away.
    pub(crate) fn leave(&mut self, now_ms: u64, request: RequestId) -> Result<(), Violation> {
        if let Some(live) = self.live.get_mut(&request).filter(|live| live.end.is_none()) {
            live.left = true;
            self.step(now_ms, Event::Cancel { request })?;
        }
        Ok(())
    }

    /// A worker said hello.
    pub(crate) fn worker_up(
        &mut self,
        now_ms: u64,
        worker: usize,
        (pool_tokens, kept): (u64, Vec<SnapshotKey>),
    ) -> Result<(), Violation> {
        let (id, peer) = (WorkerId(worker as u32), peer(worker));
        let draining = self.drained.contains(&id);
        self.step(now_ms, Event::WorkerUp { worker: id, peer, pool_tokens, draining, kept })
    }

    /// An operator has a worker left, or not any more.
    pub(crate) fn drain(
        &mut self,
        now_ms: u64,
        worker: usize,
        draining: bool,
    ) -> Result<(), Violation> {
        let worker = WorkerId(worker as u32);
        match draining {
            true => self.drained.insert(worker),
            false => self.drained.remove(&worker),
        };
        self.step(now_ms, Event::Drain { worker, draining })
    }

    /// A session is gone.
    pub(crate) fn worker_down(&mut self, now_ms: u64, worker: usize) -> Result<(), Violation> {
        self.step(now_ms, Event::WorkerDown { worker: WorkerId(worker as u32) })
    }

    /// Time went on.
    pub(crate) fn tick(&mut self, now_ms: u64) -> Result<(), Violation> {
        self.carry_out(now_ms, Event::Tick { now_ms })
    }

    /// What a worker says.
    pub(crate) fn hear(&mut self, now_ms: u64, worker: usize, said: Said) -> Result<(), Violation> {
        let worker = WorkerId(worker as u32);
        let event = match said {
            Said::ChunkDone { key, report } => {
                self.keep(now_ms, worker, key)?;
                Event::ChunkDone { worker, key, busy_us: report.busy_us }
            }
            Said::ChunkFailed { key, kind, message } => {
                Event::ChunkFailed { worker, key, kind, message }
            }
            Said::ChoiceDone { request, choice, eos } => {
                Event::ChoiceDone { worker, request, choice, eos }
            }
            Said::HandedOver { request } => Event::HandedOver { worker, request },
            Said::DecodeFailed { request, kind, message } => {
                Event::DecodeFailed { worker, request, kind, message }
            }
            Said::Snapshots(news) => {
                Event::Snapshots { worker, kept: news.kept, dropped: news.dropped }
            }
            Said::Token(token) => {
                let told = (token.token, token.logprob.to_bits());
                return self.token(token.request, token.choice, token.token_idx, told);
            }
            _ => return Ok(()),
        };
        self.step(now_ms, event)
    }

    /// Has the worker keep what the chunk left that it has just done, if nobody has that yet.
    fn keep(&mut self, now_ms: u64, worker: WorkerId, key: ChunkKey) -> Result<(), Violation> {
        let (request, chunk_idx) = (key.request, key.chunk_idx);
        let asked = &self.live[&request].asked;
        let is_last = asked.grid.is_last(chunk_idx);
        let name = asked.names().get(chunk_idx as usize).copied().filter(|_| !is_last);
        let Some(snapshot) = name.filter(|name| !self.plan.has_snapshot(name)) else {
            return Ok(());
        };
        let keep = Keep { request, made: Made::Chunk(chunk_idx), snapshot, retained: Vec::new() };
        self.orders.push((worker.0 as usize, Order::Keep(Box::new(keep))));
        self.step(now_ms, Event::Snapshots { worker, kept: vec![snapshot], dropped: Vec::new() })
    }

    /// A token is right wherever it comes from, and is told once.
    fn token(
        &mut self,
        request: RequestId,
        choice: u32,
        token_idx: u32,
        told: Told,
    ) -> Result<(), Violation> {
        let Some(live) = self.live.get_mut(&request) else { return Ok(()) };
        let (true_tokens, _) = &live.truth[choice as usize];
        let want = true_tokens.get(token_idx as usize);
        if want != Some(&told) {
            let what = format!("{request}/{choice}: token {token_idx} is {told:?}, not {want:?}");
            return Err(Violation(what));
        }
        let tokens = &mut live.told[choice as usize];
        let is_open = live.end.is_none() && live.ended[choice as usize].is_none();
        if is_open && token_idx as usize == tokens.len() {
            tokens.push(told);
        } else if is_open && token_idx as usize > tokens.len() {
            let what = format!("{request}/{choice}: token {token_idx} after {}", tokens.len());
            return Err(Violation(what));
        }
        Ok(())
    }

    fn step(&mut self, now_ms: u64, event: Event) -> Result<(), Violation> {
        self.tick(now_ms)?;
        self.carry_out(now_ms, event)
    }

    fn carry_out(&mut self, now_ms: u64, event: Event) -> Result<(), Violation> {
        for command in self.plan.step(event) {
            let is_from_home = matches!(command, Command::Decode { handed_over: Some(_), .. });
            self.handed_over += usize::from(is_from_home);
            self.restored += usize::from(matches!(command, Command::Restore { .. }));
            if let Some((worker, order)) = self.order(&command)? {
                self.orders.push((worker.0 as usize, order));
            }
            match command {
                Command::ChoiceEnded { request, choice, eos } => {
                    let live = self.live.get_mut(&request).expect("it was submitted");
                    live.ended[choice as usize] = Some(eos);
                }
                Command::Ended { request, end } => self.ended(now_ms, request, end)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn order(&self, command: &Command) -> Result<Option<(WorkerId, Order)>, Violation> {
        let (worker, order) = match command.clone() {
            Command::Assign { worker, key, span, next, shards, .. } => {
                let asked = &self.live[&key.request].asked;
                if shards.is_some() != asked.sharded {
                    return Err(Violation(format!("{key}: in shards is {}", !asked.sharded)));
                }
                let shards = shards.map(directory);
                (
                    worker,
                    Order::Assign(Box::new(Assignment { next, shards, ..asked.work(key, span) })),
                )
            }
            Command::Redirect { worker, request, chunk_idx, next } => {
                (worker, Order::Redirect { request, chunk_idx, next })
            }
            Command::Confirm { worker, request, chunk_idx } => {
                (worker, Order::Confirm { request, chunk_idx })
            }
            Command::Decode { worker, request, handed_over, .. } => {
                let live = &self.live[&request];
                let spec = live.asked.spec(request, live.begun());
                let handed_over = handed_over.map(|epoch| HandedOver {
                    chunk_idx: live.asked.grid.chunk_count() - 1,
                    epoch,
                    prompt_tokens: live.asked.grid.prompt_tokens(),
                    policy: live.asked.policy,
                    chunk_tokens: live.asked.grid.chunk_tokens(),
                });
                (worker, Order::Decode(Box::new(DecodeSpec { handed_over, ..spec })))
            }
            Command::HandOver { worker, request, next } => {
                (worker, Order::HandOver { request, next })
            }
            Command::StopChoice { worker, request, choice } => {
                (worker, Order::StopChoice { request, choice })
            }
            Command::Cancel { worker, request } => (worker, Order::Cancel { request }),
            Command::Drop { worker, request, chunk_idx } => {
                (worker, Order::Drop { request, chunk_idx })
            }
            Command::Restore { worker, key, snapshot, next } => {
                let restore = Restore { key, snapshot, next, wire: WireDtype::F32 };
                (worker, Order::Restore(Box::new(restore)))
            }
            _ => return Ok(None),
        };
        Ok(Some((worker, order)))
    }

    /// There is one outcome, and it is the one that the request must have.
    fn ended(&mut self, now_ms: u64, request: RequestId, end: End) -> Result<(), Violation> {
        let live = self.live.get_mut(&request).expect("it was submitted");
        if let Some(before) = &live.end {
            return Err(Violation(format!("{request} ended twice: {before:?}, {end:?}")));
        }
        let is_right = match &end {
            End::Finished => live.is_whole(),
            End::Cancelled => live.left,
            End::Failed(Failure::Deadline) => now_ms >= live.since_ms + live.asked.deadline_ms,
            End::Failed(Failure::Busy(_)) => now_ms == live.since_ms,
            // A worker comes back before anybody gives up, so only who comes when none is up.
            End::Failed(Failure::Unavailable(_)) => now_ms == live.since_ms,
            End::Failed(Failure::TooLong(_)) => now_ms == live.since_ms && !live.fits,
            End::Failed(Failure::SessionLost | Failure::Worker { .. }) => false,
        };
        if !is_right {
            let told = (&live.told, &live.ended);
            return Err(Violation(format!("{request} ended with {end:?} after {told:?}")));
        }
        self.busy += usize::from(matches!(end, End::Failed(Failure::Busy(_))));
        live.end = Some(end);
        Ok(())
    }
}

fn directory(Shards { holders, chunks }: Shards) -> Box<Directory> {
    let (carry, wire) = (Carry::Queries, WireDtype::F32);
    Box::new(Directory { holders, shards: chunks, carry, wire })
}

impl Live {
    /// How far its completions came.
    fn begun(&self) -> Vec<Begun> {
        let of = |(choice, (told, ended)): (u32, (&Vec<Told>, &Option<bool>))| {
            let ended = ended.is_some();
            let told = if ended { &[][..] } else { told };
            let tokens = told.iter().map(|(token, _)| *token).collect();
            Begun { choice, tokens, ended }
        };
        let begun = (0..).zip(self.told.iter().zip(&self.ended)).map(of);
        begun.filter(|begun| begun.ended || !begun.tokens.is_empty()).collect()
    }

    /// Whether every completion is the true one, to its end.
    fn is_whole(&self) -> bool {
        let told = self.told.iter().zip(&self.ended);
        let mut pairs = told.zip(self.truth.iter());
        pairs.all(|((tokens, ended), (want, eos))| tokens == want && *ended == Some(*eos))
    }
}
