//! The loop that owns the plan: whatever happens becomes an event, whatever the plan commands
//! is carried out. Nothing in here waits for a caller or for a worker.

mod asks;
mod attach;
mod drain;
mod ends;
mod figures;
mod journal;
mod operator;
mod ports;
mod snapshots;
mod time;
mod workers;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::snapshot::Restore;
use aqueduct_core::work::{Command as Order, Event as Said};
use aqueduct_core::{ChunkKey, RequestId, SnapshotsHeld, WorkerId};
use aqueduct_plan::{Command, Event, Plan};
use tokio::sync::{Notify, mpsc};

use super::carrying::Left;
use super::ids::Ids;
use super::keeping::{Interrupted, Keeping};
use super::leaving::Farewell;
use super::live::Live;
use super::pace::Pace;
use super::scribe::Scribe;
use super::status::{Stats, WorkerState};
use crate::config::Config;
use crate::submit::RequestError;
pub(crate) use asks::{Told, Whereabouts};
use attach::Claims;
pub(crate) use drain::DrainOrder;
use drain::Drained;
use operator::Desk;
pub(crate) use operator::{Inquiry, Wanted};
pub(crate) use ports::{Arrival, Comeback, Inbound, Inputs, Outputs, Shown};

pub(crate) struct EventLoop {
    config: Config,
    plan: Plan,
    live: HashMap<RequestId, Live>,
    /// Workers that are up.
    orders: BTreeMap<WorkerId, mpsc::Sender<Order>>,
    /// Workers that keep snapshots, and what they have.
    keepers: BTreeMap<WorkerId, SnapshotsHeld>,
    /// Writes requests down, if they are.
    scribe: Option<Scribe>,
    keeping: Option<Keeping>,
    /// Requests of the journal that wait for a worker to go on.
    interrupted: Vec<Interrupted>,
    resume_at: Option<Instant>,
    claims: Claims,
    /// Workers that said that they are going to stop.
    leaving: BTreeSet<WorkerId>,
    /// Those that have left the cluster.
    away: BTreeSet<WorkerId>,
    /// Since when there is none.
    unserved_since: Option<Instant>,
    drained: Drained,
    /// For those who look after the cluster.
    desk: Desk,
    outputs: Outputs,
    stats: Stats,
    pace: Pace,
    started: Instant,
    ids: Ids,
    /// What the plan was last told the time is.
    told_ms: u64,
    /// What it waits for before it says that it could end.
    farewell: Option<Farewell>,
    /// Another coordinator is to lead.
    leaves: bool,
}

/// How a loop has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What it would have called the next request.
    pub(crate) ids: Ids,
    /// Whether it was told to, or nobody could submit any more.
    pub(crate) as_wished: bool,
    /// Whether that was to hand the lead over.
    pub(crate) leaves: bool,
    /// Callers of what was under way, whom another one could tell the rest.
    pub(crate) left: Vec<Left>,
}

impl EventLoop {
    pub(crate) fn new(config: Config, outputs: Outputs, ids: Ids) -> Self {
        let stats = outputs.shown.stats.borrow().counted();
        Self {
            plan: Plan::new(config.plan_limits()),
            config,
            live: HashMap::new(),
            orders: BTreeMap::new(),
            keepers: BTreeMap::new(),
            scribe: None,
            keeping: None,
            interrupted: Vec::new(),
            resume_at: None,
            claims: Claims::default(),
            leaving: BTreeSet::new(),
            away: BTreeSet::new(),
            unserved_since: None,
            drained: Drained::default(),
            desk: Desk::default(),
            outputs,
            stats,
            pace: Pace::default(),
            started: Instant::now(),
            ids,
            told_ms: 0,
            farewell: None,
            leaves: false,
        }
    }

    /// Runs until it is told to stop, does not lead any more, or nobody can submit any more.
    pub(crate) async fn run(mut self, mut inputs: Inputs) -> Ended {
        let as_wished = loop {
            let deadline = self.next_deadline();
            tokio::select! {
                inbound = inputs.inbound.recv() => match inbound {
                    Some(Inbound::Request(arrival)) => self.arrive(*arrival),
                    Some(Inbound::Attach(comeback)) => self.attach(comeback),
                    Some(Inbound::Keep(found)) => self.keep(*found),
                    Some(Inbound::Drain(order)) => self.drain_as_ordered(order),
                    None => break true,
                },
                Some(written) = inputs.written.recv() => if !self.written(written) {
                    break false;
                },
                Some((worker, notice)) = inputs.notices.recv() => self.hear(worker, notice),
                () = inputs.stopping.notified() => break true,
                () = inputs.deposed.notified() => break false,
                Some(inquiry) = inputs.inquiries.recv() => inquiry(&mut self),
                () = inputs.wished.notified() => self.grant_wishes(),
                () = tokio::time::sleep_until(deadline.into()) => drop(self.tick()),
            }
            self.write_down();
            self.publish_stats();
            if self.leaves {
                break true;
            }
            self.say_farewell();
        };
        if self.leaves {
            // Those who ask from now on ask another one; who is at the door is accepted first.
            inputs.inbound.close();
            while let Some(inbound) = inputs.inbound.recv().await {
                if let Inbound::Request(arrival) = inbound {
                    self.arrive(*arrival);
                }
            }
        }
        if let Some(scribe) = self.scribe {
            scribe.end(as_wished, &mut inputs.written).await;
        }
        let left = self.live.into_values().filter_map(Live::leave).collect();
        self.claims.end();
        Ended { ids: self.ids, as_wished, leaves: self.leaves, left }
    }

    /// Has it tell `over` when what is under way has ended, or can be carried on, as [`Farewell`]
    /// has it.
    pub(crate) fn prepare(&mut self, times: (Instant, Instant), over: Arc<Notify>) {
        let before = self.live.values().map(Live::request).collect();
        self.farewell = Some(Farewell::new(before, times, over));
    }

    /// Has it end, so that another one can lead.
    pub(crate) fn leave(&mut self) {
        self.leaves = true;
    }

    fn say_farewell(&mut self) {
        let live = self.live.values().filter(|live| !live.mailbox.is_unread());
        let under_way = live.map(|live| (live.request(), live.can_be_carried()));
        let now = Instant::now();
        let over = self.farewell.take_if(|farewell| farewell.is_over(now, under_way));
        over.into_iter().for_each(Farewell::tell);
    }

    fn arrive(&mut self, arrival: Arrival) {
        let Arrival { asked, mailbox, reply } = arrival;
        if let Some(error) = self.serves_none_like(&asked) {
            return drop(reply.send(Err(error)));
        }
        let request = self.ids.draw();
        let timing = self.timing(asked.submission.deadline, asked.submission.waited);
        let live = Live::new(request, asked, mailbox, timing);
        let job = live.job();
        self.live.insert(request, live);
        let failed = self.step(Event::Submit { request, job });
        let refused = failed.into_iter().find(|(failed, _)| *failed == request);
        match refused {
            Some((_, error)) => drop(reply.send(Err(error))),
            None => {
                self.with(request, |live| live.is_accepted = true);
                self.answer_written(request, reply);
                // Its caller may have gone before there was anything to cancel.
                self.grant_wishes();
            }
        }
    }

    /// The event that lets a request begin anew if its memory kept too little. Decided before
    /// the plan hears of the last chunk, so that no token is generated from that memory.
    fn escalated(&mut self, request: RequestId) -> Option<Event> {
        let plan = &self.plan;
        let escalation = self.live.get_mut(&request)?.escalation(|job| plan.could_hold(job))?;
        let mut live = self.live.remove(&request)?;
        let anew = self.ids.draw();
        live.escalate(anew, escalation);
        let job = live.job();
        self.live.insert(anew, live);
        Some(Event::Again { request, anew, job })
    }

    fn grant_wishes(&mut self) {
        self.end_unwanted();
        let wishes: Vec<_> =
            self.live.iter().map(|(request, live)| (*request, live.mailbox.wishes())).collect();
        for (request, wishes) in wishes {
            for choice in wishes.stops {
                self.step(Event::StopChoice { request, choice });
            }
            if wishes.cancel {
                self.step(Event::Cancel { request });
            }
        }
    }

    fn worker_said(&mut self, worker: WorkerId, said: Said) {
        match said {
            Said::Hello(_) => {
                let name = self.name_of(worker);
                tracing::warn!(%worker, name, "a second hello is ignored");
            }
            Said::Draining => self.leaves(worker),
            Said::Answered(answer) => self.answered(worker, *answer),
            Said::Progress { key, layers_done } => {
                self.with(key.request, |live| live.layer_done(worker, key, layers_done));
            }
            Said::Logits { key, start, rows, logits } => {
                self.with(key.request, |live| live.logits(key.chunk_idx, start, rows, logits));
            }
            Said::PromptLogprobs { key, start, entries } => {
                self.with(key.request, |live| live.prompt_logprobs(key.chunk_idx, start, entries));
            }
            Said::ChunkDone { key, report } => {
                let busy_us = report.busy_us;
                let counts = self.plan.awaits(worker, key);
                let live = self.live.get_mut(&key.request).filter(|_| counts);
                let tokens = live.and_then(|live| live.chunk_done(worker, key, *report));
                self.stats.chunks_done += u64::from(tokens.is_some());
                self.pace.done(tokens.unwrap_or(0), Instant::now());
                self.keep_prefixes(key.request);
                self.keep_prompt(key.request);
                let anew = self.escalated(key.request);
                self.step(anew.unwrap_or(Event::ChunkDone { worker, key, busy_us }));
            }
            // Whoever is at it when its shards are let go of may fail: that is no news.
            Said::ChunkFailed { key: ChunkKey { request, .. }, .. }
            | Said::DecodeFailed { request, .. }
                if !self.live.contains_key(&request) => {}
            Said::ChunkFailed { key, kind, message } => {
                let name = self.name_of(worker);
                tracing::warn!(%worker, name, %key, ?kind, message, "chunk failed");
                self.with(key.request, |live| live.chunk_failed(worker, key, &message));
                self.step(Event::ChunkFailed { worker, key, kind, message });
            }
            Said::Pool(pool) => drop(self.stats.pools.insert(worker, pool)),
            Said::Snapshots(news) => self.snapshots_changed(worker, *news),
            Said::Seen(seen) => self.with(seen.request, |live| live.seen(worker, *seen)),
            Said::Token(emitted) => self.drew(worker, *emitted),
            Said::ChoiceDone { request, choice, eos } => {
                self.keep_choice(worker, request, choice);
                self.step(Event::ChoiceDone { worker, request, choice, eos });
            }
            Said::HandedOver { request } => drop(self.step(Event::HandedOver { worker, request })),
            Said::DecodeFailed { request, kind, message } => {
                let name = self.name_of(worker);
                tracing::warn!(%worker, name, %request, ?kind, message, "decoding failed");
                self.step(Event::DecodeFailed { worker, request, kind, message });
            }
        }
    }

    fn with(&mut self, request: RequestId, act: impl FnOnce(&mut Live)) {
        if let Some(live) = self.live.get_mut(&request) {
            act(live);
        }
    }

    /// Moves the plan on, at the time that it is, and carries out what it says. Which requests
    /// failed by that.
    fn step(&mut self, event: Event) -> Vec<(RequestId, RequestError)> {
        let mut failed = self.tick();
        failed.extend(self.carry_out(event));
        failed
    }

    fn carry_out(&mut self, event: Event) -> Vec<(RequestId, RequestError)> {
        let mut aftermath = Aftermath::default();
        for command in self.plan.step(event) {
            self.obey(command, &mut aftermath);
        }
        for worker in aftermath.hung {
            if self.orders.contains_key(&worker) {
                self.worker_down(worker, WorkerState::Down, "it takes no more commands");
            }
        }
        for (request, choice) in aftermath.over {
            self.step(Event::StopChoice { request, choice });
        }
        aftermath.failed
    }

    fn obey(&mut self, command: Command, aftermath: &mut Aftermath) {
        let (worker, order) = match command {
            Command::Assign { worker, key, span, next, shards, is_hedge } => {
                let Some(live) = self.live.get_mut(&key.request) else { return };
                live.computed(key.chunk_idx);
                let is_again = live.placed(worker, key, false) && !is_hedge;
                live.retried += u32::from(is_again);
                self.stats.chunks_retried += u64::from(is_again);
                self.stats.chunk_hedges += u64::from(is_hedge);
                (worker, Order::Assign(Box::new(live.assignment(key, span, next, shards))))
            }
            Command::Restore { worker, key, snapshot, next } => {
                let Some(live) = self.live.get_mut(&key.request) else { return };
                live.restored(key.chunk_idx);
                live.placed(worker, key, true);
                let wire = live.hand_off_wire();
                (worker, Order::Restore(Box::new(Restore { key, snapshot, next, wire })))
            }
            Command::Redirect { worker, request, chunk_idx, next } => {
                (worker, Order::Redirect { request, chunk_idx, next })
            }
            Command::Confirm { worker, request, chunk_idx } => {
                (worker, Order::Confirm { request, chunk_idx })
            }
            Command::Drop { worker, request, chunk_idx } => {
                (worker, Order::Drop { request, chunk_idx })
            }
            Command::Decode { worker, request, handed_over, gathers } => {
                let Some(live) = self.live.get_mut(&request) else { return };
                let spec = live.decode_at(worker, handed_over, gathers);
                (worker, Order::Decode(Box::new(spec)))
            }
            Command::HandOver { worker, request, next } => {
                (worker, Order::HandOver { request, next })
            }
            Command::StopChoice { worker, request, choice } => {
                (worker, Order::StopChoice { request, choice })
            }
            Command::Cancel { worker, request } => (worker, Order::Cancel { request }),
            Command::Prefilled { request, chunks_retried } => {
                self.with(request, |live| live.prefilled(chunks_retried));
                let Some(live) = self.live.get(&request) else { return };
                return aftermath.over.extend(live.ended_choices());
            }
            Command::ChoiceEnded { request, choice, eos } => {
                return self.choice_ended(request, choice, eos);
            }
            Command::Ended { request, end } => {
                return aftermath.failed.extend(self.ended(request, end));
            }
        };
        // A worker whose commands pile up reads none of them: it is as good as lost.
        let took = self.orders.get(&worker).is_none_or(|orders| orders.try_send(order).is_ok());
        aftermath.hung.extend((!took).then_some(worker));
    }
}

/// What came of carrying out commands.
#[derive(Debug, Default)]
struct Aftermath {
    hung: Vec<WorkerId>,
    /// Completions that had ended before their request went on.
    over: Vec<(RequestId, u32)>,
    failed: Vec<(RequestId, RequestError)>,
}
