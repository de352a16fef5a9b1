//! The exchange with a worker of another process: one stream, many calls under way.

mod session;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::limits;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout};

use super::{Answered, Call, CallError, ExchangeLink, Reply};
use crate::doorbell::Doorbell;
use crate::link::Remote;
use session::{Ended, IDLE, Session};

/// First and longest pause before another stream.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Longest time without a sign of a call before it is asked again.
const PATIENCE_MAX: Duration = Duration::from_millis(limits::HANDOFF_DEADLINE_MS);
/// Calls are lost to a peer that could not be reached for so long, or not for long enough to
/// answer any.
const REACH: Duration = Duration::from_millis(limits::PEER_REACH_MS);

/// A way to one holder over gRPC.
#[derive(Debug)]
pub struct GrpcExchange {
    calls: mpsc::Sender<Box<Call>>,
    answers: mpsc::Receiver<Answered>,
    /// Calls that were taken and whose answers were not read yet.
    under_way: usize,
    asker: JoinHandle<()>,
}

impl GrpcExchange {
    /// A link to `peer`, served on `runtime`, about shards of the model with this fingerprint; it
    /// connects with the first call.
    pub fn open(
        runtime: &Handle,
        peer: impl Into<Remote>,
        fingerprint: String,
        doorbell: Arc<Doorbell>,
    ) -> Self {
        let retry = Duration::from_millis(limits::EXCHANGE_RETRY_MS);
        Self::open_with(runtime, (peer.into(), fingerprint), doorbell, (retry, IDLE))
    }

    /// The same, which asks again after `retry` and closes when nothing was asked for `idle`.
    pub(crate) fn open_with(
        runtime: &Handle,
        (peer, fingerprint): (Remote, String),
        doorbell: Arc<Doorbell>,
        (retry, idle): (Duration, Duration),
    ) -> Self {
        let (calls, queue) = mpsc::channel(limits::EXCHANGE_CALLS_MAX);
        let (done, answers) = mpsc::channel(limits::EXCHANGE_CALLS_MAX);
        let desk = Desk { queue, done, doorbell, pending: BTreeMap::new() };
        let asker = Asker { peer, fingerprint, retry, idle, desk };
        Self { calls, answers, under_way: 0, asker: runtime.spawn(asker.run()) }
    }
}

impl ExchangeLink for GrpcExchange {
    fn send(&mut self, call: Box<Call>) -> Result<(), Box<Call>> {
        if self.under_way == limits::EXCHANGE_CALLS_MAX {
            return Err(call);
        }
        self.calls.try_send(call).map_err(mpsc::error::TrySendError::into_inner)?;
        self.under_way += 1;
        Ok(())
    }

    fn answers(&mut self) -> Vec<Answered> {
        let answers: Vec<_> = std::iter::from_fn(|| self.answers.try_recv().ok()).collect();
        self.under_way -= answers.len();
        answers
    }

    fn is_open(&self) -> bool {
        !self.calls.is_closed()
    }

    fn is_over(&self) -> bool {
        self.asker.is_finished() && self.answers.is_empty()
    }
}

impl Drop for GrpcExchange {
    fn drop(&mut self) {
        self.asker.abort();
    }
}

/// A call that is not answered yet.
#[derive(Debug)]
struct Pending {
    call: Arc<Call>,
    bytes: (u64, u64),
    /// When the peer last showed that it knows of the call, or it was sent.
    seen: Instant,
}

/// The calls of a link, whatever stream they go by.
struct Desk {
    queue: mpsc::Receiver<Box<Call>>,
    done: mpsc::Sender<Answered>,
    doorbell: Arc<Doorbell>,
    pending: BTreeMap<u64, Pending>,
}

impl Desk {
    fn take(&mut self, call: Box<Call>) -> u64 {
        let (id, seen) = (call.id, Instant::now());
        self.pending.insert(id, Pending { call: call.into(), bytes: (0, 0), seen });
        id
    }

    /// Answers a call, once.
    fn answer(&mut self, id: u64, reply: Result<Reply, CallError>) {
        let Some(Pending { bytes, .. }) = self.pending.remove(&id) else { return };
        // There is a place for the answer to every call; a link that was dropped reads none.
        let _ = self.done.try_send(Answered { id, bytes, reply });
        self.doorbell.ring();
    }

    fn answer_all(&mut self, reply: &CallError) {
        for id in self.pending.keys().copied().collect::<Vec<_>>() {
            self.answer(id, Err(reply.clone()));
        }
    }

    /// Gives up what has passed its deadline, and what nobody waits for any more.
    fn expire(&mut self, why: &str) {
        let now = Instant::now();
        let over = |(&id, one): (&u64, &Pending)| {
            (one.call.deadline <= now || !one.call.is_wanted()).then_some(id)
        };
        for id in self.pending.iter().filter_map(over).collect::<Vec<_>>() {
            self.answer(id, Err(CallError::Lost(format!("{why}: deadline"))));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.pending.values().map(|one| one.call.deadline).min()
    }

    /// Waits for `work`, taking calls and giving up what is late; `None` when no call is left.
    async fn meanwhile<T>(&mut self, why: &str, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let wake = self.next_deadline()?;
            tokio::select! {
                done = &mut work => return Some(done),
                Some(call) = self.queue.recv() => {
                    self.take(call);
                }
                () = sleep_until(wake.into()) => self.expire(why),
            }
        }
    }
}

/// The task behind a link.
struct Asker {
    peer: Remote,
    fingerprint: String,
    retry: Duration,
    idle: Duration,
    desk: Desk,
}

impl Asker {
    async fn run(mut self) {
        let (mut pause, mut patience) = (PAUSE_MIN, self.retry);
        let mut broken_since: Option<Instant> = None;
        let mut why = self.peer.to_string();
        loop {
            self.desk.expire(&why); // a request that is gone asks nothing again
            if self.desk.pending.is_empty() {
                match timeout(self.idle, self.desk.queue.recv()).await {
                    Ok(Some(call)) => self.desk.take(call),
                    Ok(None) => return,
                    Err(_) => {
                        self.desk.queue.close(); // what was asked at this moment is still taken
                        continue;
                    }
                };
            }
            let mut tried = Instant::now();
            let opening = Session::open(&self.peer, &self.fingerprint, patience);
            let Some(opened) = self.desk.meanwhile(&why, opening).await else { continue };
            let ended = match opened {
                Ok(mut session) => {
                    let ended = session.run(&mut self.desk).await;
                    tried = Instant::now();
                    if session.has_answers() {
                        (pause, patience) = (PAUSE_MIN, self.retry);
                        broken_since = None;
                    }
                    ended
                }
                Err(ended) => ended,
            };
            why = match ended {
                Ended::Idle => continue,
                Ended::Broken(what) => {
                    let why = format!("{}: {what}", self.peer);
                    if broken_since.get_or_insert(tried).elapsed() >= REACH {
                        broken_since = None;
                        self.desk.answer_all(&CallError::Lost(why.clone()));
                    }
                    why
                }
                Ended::Silent(what) => format!("{}: {what}", self.peer),
                Ended::Unfit(what) => {
                    let why = format!("{}: {what}", self.peer);
                    self.desk.answer_all(&CallError::Lost(why.clone()));
                    why
                }
            };
            if pause == PAUSE_MIN {
                tracing::warn!(peer = %self.peer, why, "a stream of asks broke");
            } else {
                tracing::debug!(peer = %self.peer, why, "and again");
            }
            self.desk.meanwhile(&why, tokio::time::sleep(pause)).await;
            pause = PAUSE_MAX.min(pause * 2);
            patience = PATIENCE_MAX.min(patience * 2); // a slow way is not a lost call
        }
    }
}

#[cfg(test)]
mod faulty;
#[cfg(test)]
mod tests;
