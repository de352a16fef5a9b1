//! Answers that outlive the connections of their callers. One that was asked for as resumable is
//! written on a tape as it comes; whoever comes back reads the tape from its beginning, and is
//! told what is new to it ([`Place`]). What is made of the tokens, be it text, tool calls or
//! log probabilities, is thus made again of all of them, and continues what was told before.

mod place;
mod tape;

pub(crate) use place::request_of;
pub use place::{Ended, EventId, Place};
pub use tape::Reader;

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aqueduct_core::{Refusal, RequestId, limits};
use tokio::sync::{Mutex as Turn, MutexGuard as TurnOf};

use crate::generation::{About, Generation, Started, TextEvent};
use crate::submit::RequestError;
use tape::{Tape, Whose};

/// Requests with a key that are started at the same time.
const STARTS_MAX: usize = 64;

/// The answers that somebody may come back to. Clones are the same ones.
#[derive(Clone)]
pub struct Streams(Arc<Shared>);

struct Shared {
    grace: Duration,
    tapes: Mutex<Tapes>,
    /// What the runtime has to be asked for is asked for once.
    coming_back: Turn<()>,
    /// And what is started with a key is started once; each of these is for some of the keys.
    starting: [Turn<()>; STARTS_MAX],
}

#[derive(Default)]
struct Tapes {
    by_request: HashMap<RequestId, Arc<Tape>>,
    /// The oldest end first.
    ended: VecDeque<Arc<Tape>>,
    ended_bytes: u64,
    /// Of which nobody is told any more, whatever is known of them elsewhere; the latest last.
    given_up: VecDeque<RequestId>,
}

impl Streams {
    /// Answers wait so long for their callers, and as long after their end.
    pub fn new(grace: Duration) -> Self {
        let (tapes, coming_back) = (Mutex::default(), Turn::default());
        let starting = std::array::from_fn(|_| Turn::default());
        Self(Arc::new(Shared { grace, tapes, coming_back, starting }))
    }

    /// While this is held nobody else starts a request with this key.
    pub(crate) async fn turn(&self, name: &str) -> TurnOf<'_, ()> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        self.0.starting[hasher.finish() as usize % STARTS_MAX].lock().await
    }

    /// The request that `holder` has started with the key `name`, if its answer is kept here.
    pub(crate) fn started(&self, holder: &str, name: &str) -> Option<Started> {
        let tapes = self.tapes();
        let keyed = tapes.by_request.values().filter_map(|tape| {
            let once = tape.start_key(holder)?;
            (once.name == name).then_some((tape.request(), once.content))
        });
        keyed.max()
    }

    /// Whether nobody will come back to this request, as it was said.
    pub(crate) fn is_given_up(&self, request: RequestId) -> bool {
        self.tapes().given_up.contains(&request)
    }

    /// Goes on with a request whether or not somebody reads, as long as somebody may come back.
    pub(crate) async fn keep(&self, mut generation: Generation) -> Result<Reader, RequestError> {
        let Some(first) = generation.next().await.transpose()? else {
            return Err(RequestError::Stopping);
        };
        let TextEvent::Accepted { request, .. } = first else {
            return Err(RequestError::Stopping); // it is first of all, or there is nothing
        };
        let tape = Tape::new(request, generation.about().clone(), Whose::Starts);
        tape.push(first, generation.report());
        Ok(Reader::of(self.record(tape, generation)))
    }

    /// Goes on with a tape, whoever reads it.
    fn record(&self, tape: Tape, generation: Generation) -> Arc<Tape> {
        let tape = Arc::new(tape);
        self.tapes().by_request.insert(tape.request(), tape.clone());
        let (streams, recorded) = (self.clone(), tape.clone());
        tokio::spawn(async move {
            if !recorded.record(generation, streams.0.grace).await {
                return streams.tapes().forget(&recorded);
            }
            streams.let_go(recorded).await;
        });
        tape
    }

    /// Keeps a tape that has ended for a while, or until others need its room: that it is waited
    /// for here does not hold it.
    async fn let_go(self, recorded: Arc<Tape>) {
        let ended = Arc::downgrade(&recorded);
        self.tapes().end(recorded);
        tokio::time::sleep(self.0.grace).await;
        if let Some(tape) = ended.upgrade() {
            self.tapes().forget(&tape);
        }
    }

    /// The answer to `request`, for the holder of the key that asked for it: the one that is
    /// kept, or the one that `comes_back` finds for that holder. It may be long until there is
    /// anything to read: nothing else waits for that. Whoever reads it now reads on unless
    /// `may_read` says that this caller does.
    pub(crate) async fn read(
        &self,
        request: RequestId,
        holder: &str,
        may_read: impl FnOnce(&About, &Ended) -> Result<(), Refusal>,
        comes_back: impl AsyncFnOnce() -> Result<Generation, RequestError>,
    ) -> Result<Reader, RequestError> {
        let tape = self.taken_up(request, holder, comes_back).await?;
        may_read(tape.about(), &tape.ended())?;
        Ok(Reader::of(tape))
    }

    /// Ends a request that nobody will come back to, or forgets its answer if it has ended.
    pub(crate) async fn cancel(
        &self,
        request: RequestId,
        holder: &str,
        comes_back: impl AsyncFnOnce() -> Result<Generation, RequestError>,
    ) -> Result<(), RequestError> {
        let tape = self.taken_up(request, holder, comes_back).await?;
        tape.cancel();
        self.tapes().give_up(&tape);
        Ok(())
    }

    async fn taken_up(
        &self,
        request: RequestId,
        holder: &str,
        comes_back: impl AsyncFnOnce() -> Result<Generation, RequestError>,
    ) -> Result<Arc<Tape>, RequestError> {
        let _turn = self.0.coming_back.lock().await;
        if self.is_given_up(request) {
            return Err(RequestError::Unknown(request));
        }
        if let Some(tape) = self.find(request) {
            let is_for = tape.about().telling.is_for(holder);
            return is_for.then_some(tape).ok_or(RequestError::Unknown(request));
        }
        let generation = comes_back().await?;
        let tape = Tape::new(request, generation.about().clone(), Whose::ComesBack);
        Ok(self.record(tape, generation))
    }

    fn find(&self, request: RequestId) -> Option<Arc<Tape>> {
        self.tapes().by_request.get(&request).cloned()
    }

    fn tapes(&self) -> MutexGuard<'_, Tapes> {
        self.0.tapes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tapes {
    /// A tape grows no more; the oldest ones go where there are too many.
    fn end(&mut self, tape: Arc<Tape>) {
        self.ended_bytes += tape.bytes();
        self.ended.push_back(tape);
        while self.ended.len() > limits::STREAMS_ENDED_MAX
            || self.ended_bytes > limits::STREAMS_ENDED_BYTES_MAX
        {
            let Some(oldest) = self.ended.front().cloned() else { return };
            self.forget(&oldest);
        }
    }

    fn give_up(&mut self, tape: &Arc<Tape>) {
        self.forget(tape);
        self.given_up.push_back(tape.request());
        if self.given_up.len() > limits::STREAMS_ENDED_MAX {
            self.given_up.pop_front();
        }
    }

    fn forget(&mut self, tape: &Arc<Tape>) {
        let is_it = |other: &Arc<Tape>| Arc::ptr_eq(other, tape);
        if self.by_request.get(&tape.request()).is_some_and(is_it) {
            self.by_request.remove(&tape.request());
        }
        if let Some(at) = self.ended.iter().position(is_it) {
            self.ended.remove(at);
            self.ended_bytes -= tape.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::Telling;

    use super::*;

    fn tape(request: u64) -> Arc<Tape> {
        let about = About { choices: 1, logprobs: None, telling: Telling::default() };
        Arc::new(Tape::new(RequestId(request), about, Whose::Starts))
    }

    #[tokio::test]
    async fn ended_answers_are_let_go_when_there_are_enough() {
        let streams = Streams::new(Duration::from_secs(3600));
        let first = tape(0);
        let is_there = Arc::downgrade(&first);
        tokio::spawn(streams.clone().let_go(first));
        while streams.tapes().ended.is_empty() {
            tokio::task::yield_now().await;
        }
        for request in 1..=limits::STREAMS_ENDED_MAX as u64 {
            assert!(is_there.upgrade().is_some(), "before {request}");
            streams.tapes().end(tape(request));
        }
        assert!(is_there.upgrade().is_none(), "something holds it");
    }
}
