//! What lies between the runtime and the caller of one request. The runtime never waits for a
//! caller: progress that nobody has read is replaced by newer progress, and everything else is
//! bounded by what the request asked for (its tokens, its prompt's logits), which was checked
//! when it was submitted. The caller's own wishes, to stop or to go away, can not get lost.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::submit::{RequestError, Update};

/// Both directions of one request.
#[derive(Debug)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    /// Wakes the caller.
    arrived: Notify,
}

#[derive(Debug)]
struct State {
    /// Wakes who grants wishes.
    wished: Arc<Notify>,
    updates: VecDeque<Update>,
    /// Nothing follows; the error, if any, is told once.
    ended: bool,
    error: Option<RequestError>,
    abandoned: bool,
    /// Nobody will ever read.
    unread: bool,
    /// Another coordinator reads it, for a caller who came to that one.
    for_member: bool,
    stops: BTreeSet<u32>,
    /// All of them so far.
    stopped: BTreeSet<u32>,
}

/// What the caller wants of the runtime.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// Nobody reads any more.
    pub(crate) cancel: bool,
    /// Completions to be ended.
    pub(crate) stops: BTreeSet<u32>,
}

impl Mailbox {
    pub(crate) fn new(wished: Arc<Notify>) -> Self {
        let state = State {
            wished,
            updates: VecDeque::new(),
            ended: false,
            error: None,
            abandoned: false,
            unread: false,
            for_member: false,
            stops: BTreeSet::new(),
            stopped: BTreeSet::new(),
        };
        Self { state: Mutex::new(state), arrived: Notify::new() }
    }

    /// From now on `wished` is woken for its wishes, and at once for those that there are.
    pub(crate) fn wakes(&self, wished: Arc<Notify>) {
        wished.notify_one();
        self.lock().wished = wished;
    }

    /// One whose caller has gone without cancelling: what is put in is lost.
    pub(crate) fn unread(wished: Arc<Notify>) -> Self {
        let mailbox = Self::new(wished);
        mailbox.lock().unread = true;
        mailbox
    }

    /// One that another coordinator reads, for a caller who came to that one.
    pub(crate) fn for_member(wished: Arc<Notify>) -> Self {
        let mailbox = Self::new(wished);
        mailbox.lock().for_member = true;
        mailbox
    }

    /// Whether it is one that another coordinator reads.
    pub(crate) fn is_for_member(&self) -> bool {
        self.lock().for_member
    }

    /// Whether somebody reads it who has come here.
    pub(crate) fn is_read_here(&self) -> bool {
        let state = self.lock();
        !state.unread && !state.abandoned && !state.for_member
    }

    /// Whether it is one that nobody will read.
    pub(crate) fn is_unread(&self) -> bool {
        self.lock().unread
    }

    pub(crate) fn push(&self, update: Update) {
        let mut state = self.lock();
        if state.unread {
            return;
        }
        if matches!(update, Update::Progress(_))
            && matches!(state.updates.back(), Some(Update::Progress(_)))
        {
            state.updates.pop_back();
        }
        state.updates.push_back(update);
        drop(state);
        self.arrived.notify_one();
    }

    pub(crate) fn end(&self, error: Option<RequestError>) {
        let mut state = self.lock();
        state.ended = true;
        state.error = error;
        drop(state);
        self.arrived.notify_one();
    }

    /// The next update or the error; `None` when nothing follows.
    pub(crate) async fn next(&self) -> Option<Result<Update, RequestError>> {
        loop {
            if let Some(answer) = self.take() {
                return answer;
            }
            self.arrived.notified().await;
        }
    }

    fn take(&self) -> Option<Option<Result<Update, RequestError>>> {
        let mut state = self.lock();
        match state.updates.pop_front() {
            Some(update) => Some(Some(Ok(update))),
            None if state.ended => Some(state.error.take().map(Err)),
            None => None,
        }
    }

    pub(crate) fn stop(&self, choice: u32) {
        let mut state = self.lock();
        state.stops.insert(choice);
        state.stopped.insert(choice);
        state.wished.notify_one();
    }

    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        state.wished.notify_one();
    }

    /// Completions that its caller has ended, for somebody who is new to it.
    pub(crate) fn stopped(&self) -> BTreeSet<u32> {
        self.lock().stopped.clone()
    }

    /// Whether its caller has gone, and what was asked for is not wanted any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().abandoned
    }

    pub(crate) fn wishes(&self) -> Wishes {
        let mut state = self.lock();
        Wishes { cancel: state.abandoned, stops: std::mem::take(&mut state.stops) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment, so what a panic left behind is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::submit::PrefillProgress;

    fn progress(chunks_done: u32) -> Update {
        Update::Progress(PrefillProgress { chunks_done, ..PrefillProgress::default() })
    }

    #[tokio::test]
    async fn progress_gives_way_and_nothing_else_does() {
        let mailbox = Mailbox::new(Arc::default());
        let done = |choice| Update::ChoiceDone { choice, eos: true };
        for update in [progress(1), progress(2), done(0), progress(3), progress(4), done(1)] {
            mailbox.push(update);
        }
        mailbox.end(Some(RequestError::Unavailable("gone".into())));
        for update in [progress(2), done(0), progress(4), done(1)] {
            assert_eq!(mailbox.next().await, Some(Ok(update)));
        }
        assert!(matches!(mailbox.next().await, Some(Err(RequestError::Unavailable(_)))));
        assert_eq!(mailbox.next().await, None);
    }

    #[tokio::test]
    async fn wishes_wake_the_runtime() {
        let wished = Arc::new(Notify::new());
        let mailbox = Mailbox::new(wished.clone());
        mailbox.stop(3);
        wished.notified().await;
        assert_eq!(mailbox.wishes(), Wishes { cancel: false, stops: [3].into() });
        mailbox.abandon();
        wished.notified().await;
        assert_eq!(mailbox.wishes(), Wishes { cancel: true, stops: [].into() });
        let next = Arc::new(Notify::new());
        mailbox.wakes(next.clone());
        next.notified().await;
        mailbox.stop(0);
        next.notified().await;
        assert_eq!(mailbox.wishes(), Wishes { cancel: true, stops: [0].into() });
        assert_eq!(mailbox.stopped(), [0, 3].into());
    }
}
