//! Commands of coordinators, and the traffic of memory sets to the next hops.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use aqueduct_core::work::{Assignment, Command, Event, FailureKind, NextHop};
use aqueduct_core::{ChunkKey, RequestId, limits};

use super::Executor;
use super::request::{Outgoing, Request};
use super::session::SessionId;
use crate::link::{Outcome, Parcel};

impl Executor {
    /// Carries out every command that is there, and ends sessions that are over.
    pub(super) fn obey(&mut self) {
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            while let Some(session) = self.sessions.get_mut(&id) {
                match session.poll_command(&self.waker) {
                    Poll::Pending => break,
                    Poll::Ready(Some(command)) => self.command(id, command),
                    Poll::Ready(None) => self.end_session(id),
                }
            }
        }
    }

    fn command(&mut self, session: SessionId, command: Command) {
        match command {
            Command::Assign(assignment) => self.assign(session, *assignment),
            Command::Redirect { request, chunk_idx, next } => {
                self.redirect(session, request, chunk_idx, next);
            }
            Command::Confirm { request, chunk_idx } => {
                if let Some(held) = self.owned(session, request) {
                    held.outbox.remove(&chunk_idx.saturating_add(1));
                    self.shared.inbox.confirm(request, chunk_idx);
                }
            }
            Command::Drop { request, chunk_idx } => self.drop_chunk(session, request, chunk_idx),
            Command::Keep(keep) => self.keep(session, *keep),
            Command::Restore(restore) => self.restore(session, *restore),
            Command::Ask(ask) => self.answer(session, *ask),
            Command::Decode(spec) => self.start_decoding(session, *spec),
            Command::HandOver { request, next } => self.hand_over(session, request, next),
            Command::StopChoice { request, choice } => {
                if let Some(held) = self.owned(session, request) {
                    held.stop_choice(choice);
                    self.tell_departure(request);
                }
            }
            Command::Cancel { request } => {
                // Not assigned here yet, it may still have memory here.
                let is_unknown = !self.requests.contains_key(&request);
                if is_unknown || self.owned(session, request).is_some() {
                    self.drop_request(request);
                    self.shared.inbox.forget(request);
                }
            }
        }
    }

    /// The request, if `session` is the one that started it.
    pub(super) fn owned(&mut self, session: SessionId, request: RequestId) -> Option<&mut Request> {
        self.requests.get_mut(&request).filter(|request| request.session == session)
    }

    fn end_session(&mut self, id: SessionId) {
        self.sessions.remove(&id);
        let of_session = |(_, request): &(&RequestId, &Request)| request.session == id;
        let requests: Vec<RequestId> =
            self.requests.iter().filter(of_session).map(|(&request, _)| request).collect();
        for request in requests {
            self.drop_request(request);
            self.shared.inbox.suspend(request);
        }
        if !self.sessions.is_empty() {
            self.readmit(); // its successor may be among them, and read before its last commands
        }
    }

    /// What was cancelled holds for as long as the session does: a coordinator that has another one
    /// begins anew with this worker, also with requests that it had taken away from it, and others
    /// may send for these, or ask about them, before they are assigned here. No session says whose
    /// successor it is, and the one before may not be known to be over. So this is for the requests
    /// of all: what it costs those of others is that memory of tries that never came here, if it
    /// is still under way, waits until nobody has claimed it in time.
    pub(super) fn readmit(&self) {
        self.shared.inbox.readmit();
        self.shared.holder.store().readmit();
    }

    /// A worker that is going to stop waits for nothing but what somebody needs of it.
    pub(super) fn let_go(&mut self) {
        if !*self.shared.draining.borrow() {
            return;
        }
        let chunks: BTreeSet<RequestId> = self.queue.iter().map(|work| work.key.request).collect();
        let is_at = |request: &RequestId| {
            chunks.contains(request) || self.running.is_some_and(|key| key.request == *request)
        };
        let spent =
            self.requests.iter().filter(|(request, held)| held.is_spent() && !is_at(request));
        for request in spent.map(|(request, _)| *request).collect::<Vec<_>>() {
            self.drop_request(request);
            self.shared.inbox.suspend(request);
        }
    }

    /// Drops everything of a request: running, waiting or finished.
    fn drop_request(&mut self, request: RequestId) {
        self.requests.remove(&request);
        self.shared.holder.store().forget(request);
        self.shared.holder.changed();
        self.queue.retain(|waiting| waiting.key.request != request);
        if self.running.is_some_and(|running| running.request == request) {
            self.running = None;
        }
    }

    /// Drops a chunk, waiting, running or done; with the last one, what goes on from it.
    fn drop_chunk(&mut self, session: SessionId, request: RequestId, chunk_idx: u32) {
        if let Some(held) = self.owned(session, request) {
            held.home.take_if(|home| home.chunk_idx == chunk_idx);
            held.decoding.take_if(|it| it.chunk_idx == chunk_idx);
            let decoded = held.decoded.take_if(|home| home.is_last(chunk_idx));
            held.outbox.remove(&chunk_idx.saturating_add(1));
            held.restoring.remove(&chunk_idx);
            held.stay();
            if let Some(home) = decoded {
                home.drop_what_came(&self.exchange);
                self.shared.holder.store().drop_branches(request);
            }
            self.shared.inbox.withdraw(request, chunk_idx);
            let is_it = |key: &ChunkKey| (key.request, key.chunk_idx) == (request, chunk_idx);
            self.queue.retain(|waiting| !is_it(&waiting.key));
            self.running = self.running.filter(|running| !is_it(running));
            self.shared.holder.store().drop_chunk(request, chunk_idx);
        }
    }

    fn assign(&mut self, session: SessionId, assignment: Assignment) {
        let key = assignment.key;
        if let Err((kind, message)) = self.admissible(session, key) {
            self.send_to(session, Event::ChunkFailed { key, kind, message });
            return;
        }
        if !self.supersede(key) {
            tracing::warn!(%key, "assigned again in the same or an older epoch; ignored");
            return;
        }
        if assignment.shards.is_some() {
            self.shared.holder.store().claim(key.request);
        } else {
            self.shared.inbox.claim(key);
        }
        let request = self.request_of(session, key.request);
        request.restoring.remove(&key.chunk_idx);
        request.is_sharded |= assignment.shards.is_some();
        if let Some(next) = &assignment.next {
            request.outbox.insert(key.chunk_idx + 1, Outgoing::new(next.clone(), assignment.wire));
        }
        self.queue.push_back(assignment);
    }

    /// What is held of the request, which is `session`'s; new if nothing is.
    pub(super) fn request_of(&mut self, session: SessionId, request: RequestId) -> &mut Request {
        let charge = || self.shared.gauges.requests.charge(1);
        self.requests.entry(request).or_insert_with(|| Request::new(session, charge()))
    }

    /// Whether there is room for a chunk, as `session` asks for it. A session that knows a request
    /// of an older one is its successor: only one coordinator does, and it has lost the older one,
    /// though nothing of that may have been heard here. So that one ends.
    pub(super) fn admissible(
        &mut self,
        session: SessionId,
        key: ChunkKey,
    ) -> Result<(), (FailureKind, String)> {
        let owner = self.requests.get(&key.request).map(|request| request.session);
        if let Some(older) = owner.filter(|owner| *owner < session) {
            tracing::warn!(request = %key.request, "a session ends: its coordinator has another");
            self.end_session(older);
        }
        match self.requests.get(&key.request) {
            Some(request) if request.session != session => {
                let message = format!("{} belongs to another session", key.request);
                return Err((FailureKind::Peer, message));
            }
            None if self.requests.len() >= limits::WORKER_REQUESTS_MAX => {
                let message = format!("{} requests are held", self.requests.len());
                return Err((FailureKind::Exhausted, message));
            }
            _ => {}
        }
        if self.queue.len() >= limits::COMMANDS_MAX {
            return Err((FailureKind::Exhausted, format!("{} chunks wait", self.queue.len())));
        }
        Ok(())
    }

    /// Makes way for a newer epoch of a chunk; false when there is none older to make way.
    pub(super) fn supersede(&mut self, key: ChunkKey) -> bool {
        let same =
            |other: &ChunkKey| (other.request, other.chunk_idx) == (key.request, key.chunk_idx);
        let here = self.queue.iter().map(|waiting| waiting.key).chain(self.running);
        if here.filter(same).any(|other| other.epoch >= key.epoch) {
            return false;
        }
        self.queue.retain(|waiting| !same(&waiting.key));
        self.running = self.running.filter(|running| !same(running));
        true
    }

    fn redirect(&mut self, session: SessionId, request: RequestId, chunk_idx: u32, next: NextHop) {
        let key = ChunkKey { request, chunk_idx, epoch: next.epoch };
        let outgoing =
            self.owned(session, request).and_then(|held| held.outbox.get_mut(&chunk_idx));
        match outgoing {
            Some(outgoing) if next.epoch < outgoing.next.epoch => {
                tracing::warn!(%key, "redirected to an older epoch; ignored");
            }
            Some(outgoing) => outgoing.redirect(next),
            None => {
                let message = "the memory for it is no longer held".to_owned();
                let kind = FailureKind::Peer;
                self.send_to(session, Event::ChunkFailed { key, kind, message });
            }
        }
    }

    /// Offers the links what they have not taken yet.
    pub(super) fn pump(&mut self) {
        let Self { requests, links, .. } = self;
        let deadline = Instant::now() + Duration::from_millis(limits::HANDOFF_DEADLINE_MS);
        for (&request, held) in requests.iter_mut() {
            for (&chunk_idx, outgoing) in &mut held.outbox {
                let key = ChunkKey { request, chunk_idx, epoch: outgoing.next.epoch };
                while !outgoing.broken && outgoing.sent < outgoing.sets.len() {
                    let memory = Arc::downgrade(&outgoing.sets[outgoing.sent].memory);
                    let layer = outgoing.sent as u32;
                    let (base, wire) = (outgoing.next.base, outgoing.wire);
                    let parcel = Parcel { key, layer, memory, base, wire, deadline };
                    if links.send(&outgoing.next.peer, parcel).is_err() {
                        break; // full; the doorbell rings when it is not
                    }
                    outgoing.sent += 1;
                }
            }
        }
    }

    /// Reads receipts. A set that cannot be delivered is no failure of the chunk that gave it:
    /// it is told as a failure of the chunk that waits, and the set is kept for a redirect.
    pub(super) fn account(&mut self) {
        for receipt in self.links.receipts() {
            let key = receipt.key;
            match receipt.outcome {
                Outcome::Delivered => self.arrived(key),
                Outcome::Withdrawn => {}
                Outcome::Stale if self.departs(key) => {
                    self.departure_failed(key.request, "the receiver does not want it".into());
                }
                Outcome::Stale => {
                    tracing::debug!(%key, layer = receipt.layer, "the receiver is past this");
                }
                Outcome::Failed(message) => self.hop_broke(key, message),
            }
        }
    }

    fn hop_broke(&mut self, key: ChunkKey, message: String) {
        if self.departs(key) {
            return self.departure_failed(key.request, message);
        }
        let outgoing = self
            .requests
            .get_mut(&key.request)
            .and_then(|request| request.outbox.get_mut(&key.chunk_idx))
            .filter(|outgoing| outgoing.next.epoch == key.epoch && !outgoing.broken);
        if let Some(outgoing) = outgoing {
            tracing::warn!(%key, message, "memory could not be handed off");
            outgoing.broken = true;
            let kind = FailureKind::Peer;
            self.send(key.request, Event::ChunkFailed { key, kind, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_engine::shards::Answer;
    use tokio::runtime::Runtime;
    use tokio::sync::mpsc::{Receiver, Sender, channel};

    use super::super::Session;
    use super::*;
    use crate::exchange::conformance::{dense, place};
    use crate::inbox::{Came, Verdict};
    use crate::link::conformance::{key, set};
    use crate::{LoopbackHub, WorkerOptions};

    /// Has `test` be the thread of a worker.
    fn by_hand(test: impl FnOnce(Executor)) {
        let runtime = Runtime::new().unwrap();
        let _inside = runtime.enter();
        let options = WorkerOptions::new("local://by-hand", LoopbackHub::default());
        test(Executor::by_hand(options));
    }

    /// A coordinator comes; its ends of the session.
    fn arrive(executor: &mut Executor) -> (Sender<Command>, Receiver<Event>) {
        let (commands, orders) = channel(limits::COMMANDS_MAX);
        let (reports, events) = channel(limits::EVENTS_MAX);
        let leading = executor.shared.led.enter();
        let session = Session::new(orders, reports, executor.shared.info.clone(), leading);
        executor.shared.arrivals.lock().unwrap().push(session);
        executor.admit();
        (commands, events)
    }

    /// What becomes of a set for chunk 3.
    fn deliver(executor: &Executor, epoch: u32) -> Verdict {
        let came = Came::Far { bytes: 0, spared_bytes: 0 };
        executor.shared.inbox.deliver(key(3, epoch), 0, Arc::new(set(4, 1)), came)
    }

    #[test]
    fn a_chunk_that_is_confirmed_takes_no_memory_any_more() {
        by_hand(|mut executor| {
            let request = key(3, 5).request;
            executor.request_of(SessionId(0), request);
            executor.shared.inbox.claim(key(3, 5));
            let confirm = Command::Confirm { request, chunk_idx: 3 };
            executor.command(SessionId(1), confirm.clone());
            assert_eq!(deliver(&executor, 5), Verdict::Taken, "that was somebody else");
            executor.command(SessionId(0), confirm);
            assert_eq!(deliver(&executor, 5), Verdict::Stale);
            assert_eq!(deliver(&executor, 6), Verdict::Taken, "it is done again");
        });
    }

    #[test]
    fn what_was_cancelled_may_come_back_in_a_new_session() {
        by_hand(|mut executor| {
            let (request, asked) = (key(3, 5).request, place(0, 2, dense()));
            let _before = arrive(&mut executor);
            for request in [request, asked.request] {
                executor.command(SessionId(0), Command::Cancel { request });
            }
            assert_eq!(deliver(&executor, 5), Verdict::Stale);
            let store = executor.shared.holder.store().clone();
            assert!(store.shards(&asked).is_err());
            let _now = arrive(&mut executor);
            assert_eq!(deliver(&executor, 5), Verdict::Taken);
            assert!(matches!(store.shards(&asked), Ok(Answer::NotYet)));
        });
    }

    /// A coordinator may be back before it is known that its last session is over, and what it said
    /// in that may be read after it was admitted anew.
    #[test]
    fn a_session_that_ends_late_takes_what_it_cancelled_along() {
        by_hand(|mut executor| {
            let request = key(3, 5).request;
            let (before, _now) = (arrive(&mut executor), arrive(&mut executor));
            before.0.try_send(Command::Cancel { request }).unwrap();
            executor.obey();
            assert_eq!(deliver(&executor, 5), Verdict::Stale);
            drop(before);
            executor.obey();
            assert_eq!(deliver(&executor, 5), Verdict::Taken);
        });
    }
}
