//! Requests whose coordinator does not lead any more, and whose callers are still here: who leads
//! now goes on with them, from the journal, and what it tells is carried to those callers. It tells
//! all of it from the beginning, and they are told what is new to them.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use aqueduct_core::RequestId;
use tokio::sync::{Notify, watch};

use super::mailbox::Mailbox;
use super::seat::Seat;
use super::{RequestHandle, attaching};
use crate::generation::Claim;
use crate::peers::{Calls, Carriage, Heard, Passage};
use crate::submit::{RequestError, Update};

/// So long nobody may tell of a request before its caller is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same of a caller who can come back by itself, perhaps where this coordinator reaches nobody.
const PATIENCE_RESUMABLE: Duration = Duration::from_secs(5);
/// Between two looks for who tells.
const PAUSE: Duration = Duration::from_millis(100);

/// The caller of a request, and what it was told.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) request: RequestId,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Whether its caller can come back by itself.
    pub(crate) is_resumable: bool,
    /// Whether another member has the caller, and has the request go on wherever it does when the
    /// connection to this one is lost.
    pub(crate) is_escorted: bool,
    pub(crate) is_prefilled: bool,
    /// So many.
    pub(crate) escalations: usize,
    /// Of each completion: its tokens, and whether it has ended.
    pub(crate) choices: Vec<(u32, bool)>,
}

/// Where it is told how such requests go on.
#[derive(Debug, Clone)]
pub(crate) struct Carriers {
    passage: Arc<OnceLock<Passage>>,
    under_way: Calls,
    stopped: watch::Sender<bool>,
}

/// What came of listening.
enum Listened {
    /// Nothing follows.
    Done,
    /// Nobody tells any more; whether anything new was told.
    Lost { was_told: bool },
}

/// Who tells.
enum Teller {
    /// This coordinator, which leads again.
    Here(RequestHandle),
    /// Another one.
    There(Carriage),
    /// This one leads, and does not.
    Nobody(RequestError),
}

impl Left {
    /// Nobody carries it.
    pub(crate) fn end(self) {
        self.mailbox.end(Some(RequestError::Stopping));
    }

    /// Whether its caller has not been told this; then it is.
    fn is_new(&mut self, update: &Update, escalation: &mut usize) -> bool {
        let choices = &mut self.choices;
        match update {
            Update::Accepted { .. } => false,
            Update::Progress(_) => !self.is_prefilled,
            Update::Escalated(_) => {
                *escalation += 1;
                let is_new = *escalation > self.escalations;
                self.escalations = self.escalations.max(*escalation);
                is_new
            }
            Update::Prefilled(_) => !std::mem::replace(&mut self.is_prefilled, true),
            Update::Token(emitted) => {
                let choice = choices.get_mut(emitted.choice as usize);
                choice.is_some_and(|(tokens, has_ended)| {
                    let is_next = !*has_ended && emitted.token_idx == *tokens;
                    *tokens += u32::from(is_next);
                    is_next
                })
            }
            Update::ChoiceDone { choice, .. } => {
                let choice = choices.get_mut(*choice as usize);
                choice.is_some_and(|(_, has_ended)| !std::mem::replace(has_ended, true))
            }
            Update::Logits { .. } | Update::PromptLogprobs { .. } | Update::Seen(_) => false,
            Update::Session(_) | Update::Resumed { .. } => true,
        }
    }
}

impl Carriers {
    pub(super) fn new(passage: Arc<OnceLock<Passage>>) -> Self {
        Self { passage, under_way: Calls::default(), stopped: watch::Sender::new(false) }
    }

    /// Nothing is carried any more.
    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Waits until all that is carried has ended.
    pub(super) async fn idle(&self) {
        self.under_way.none().await;
    }

    /// Carries each of them, as far as there is a way, from whoever serves as `seat` has it.
    pub(super) fn take(&self, left: Vec<Left>, seat: &watch::Sender<Seat>) {
        for left in left {
            match self.passage.get().filter(|passage| passage.carries()) {
                None => left.end(),
                Some(passage) => {
                    let mailbox = left.mailbox.clone();
                    let carried = carry(left, (seat.subscribe(), passage.clone()));
                    let counted = self.under_way.one();
                    let mut stopped = self.stopped.subscribe();
                    tokio::spawn(async move {
                        let _counted = counted;
                        tokio::select! {
                            () = carried => {}
                            _ = stopped.wait_for(|stopped| *stopped) => {
                                mailbox.end(Some(RequestError::Stopping));
                            }
                        }
                    });
                }
            }
        }
    }
}

/// Carries it, from whoever `seat` says that serves, by `passage`, until nothing follows.
async fn carry(mut left: Left, (seat, passage): (watch::Receiver<Seat>, Passage)) {
    let wished = Arc::new(Notify::new());
    left.mailbox.wakes(wished.clone());
    let patience = if left.is_resumable { PATIENCE_RESUMABLE } else { PATIENCE };
    let mut until = Instant::now() + patience;
    while Instant::now() < until {
        if let Some(teller) = teller(left.request, &seat, &passage).await {
            let since = Instant::now();
            match listen(&mut left, teller, &wished).await {
                Listened::Done => return,
                Listened::Lost { was_told: true } => until = Instant::now() + patience,
                // It may have waited there for long; only that nobody tells takes patience.
                Listened::Lost { was_told: false } => until += since.elapsed(),
            }
        }
        if left.mailbox.is_abandoned() {
            return; // whoever goes on with it finds that nobody reads it
        }
        tokio::time::sleep(PAUSE).await;
    }
    tracing::warn!(request = %left.request, "nobody goes on with a request");
    left.end();
}

/// Who tells of `request` at this moment, if anybody does.
async fn teller(
    request: RequestId,
    seat: &watch::Receiver<Seat>,
    passage: &Passage,
) -> Option<Teller> {
    let office = match &*seat.borrow() {
        Seat::Here(office) => Some(office.clone()),
        Seat::Elsewhere(_) => None,
    };
    match office {
        Some(office) => {
            match attaching::attach(office, request, Claim::Member).await {
                Ok((_, handle)) => Some(Teller::Here(handle)),
                Err(why @ (RequestError::Unknown(_) | RequestError::TakenOver)) => {
                    Some(Teller::Nobody(why))
                }
                Err(_) => None, // not yet, or not any more
            }
        }
        None => passage.carry(request).await.map(Teller::There),
    }
}

/// Tells the caller of a request what `teller` tells.
async fn listen(left: &mut Left, mut teller: Teller, wished: &Notify) -> Listened {
    let (mut escalation, mut was_told) = (0, false);
    // Who tells does not know what another one was asked for.
    left.mailbox.stopped().into_iter().for_each(|choice| teller.stop_choice(choice));
    loop {
        let heard = tokio::select! {
            heard = teller.next() => heard,
            () = wished.notified() => {
                let wishes = left.mailbox.wishes();
                wishes.stops.into_iter().for_each(|choice| teller.stop_choice(choice));
                if wishes.cancel {
                    // That a member does not read here any more need not mean that nobody does.
                    if !left.is_escorted {
                        teller.cancel().await;
                    }
                    return Listened::Done;
                }
                continue;
            }
        };
        match heard {
            Some(Heard::Update(update)) => {
                if left.is_new(&update, &mut escalation) {
                    was_told = true;
                    left.mailbox.push(*update);
                }
            }
            Some(Heard::End(error)) => {
                left.mailbox.end(error);
                return Listened::Done;
            }
            None => return Listened::Lost { was_told },
        }
    }
}

impl Teller {
    /// `None` when it tells no more, and the request goes on.
    async fn next(&mut self) -> Option<Heard> {
        match self {
            Self::Nobody(why) => Some(Heard::End(Some(why.clone()))),
            Self::There(carriage) => carriage.next().await,
            Self::Here(handle) => match handle.next().await {
                Some(Ok(update)) => Some(Heard::Update(Box::new(update))),
                Some(Err(RequestError::Stopping)) => None,
                Some(Err(error)) => Some(Heard::End(Some(error))),
                None => Some(Heard::End(None)),
            },
        }
    }

    fn stop_choice(&self, choice: u32) {
        match self {
            Self::Here(handle) => handle.stop_choice(choice),
            Self::There(carriage) => carriage.stop_choice(choice),
            Self::Nobody(_) => {}
        }
    }

    async fn cancel(self) {
        if let Self::There(carriage) = self {
            carriage.cancel().await;
        } // a handle that is dropped does it by itself
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::work::Emitted;

    use super::*;

    fn token(choice: u32, token_idx: u32) -> Update {
        let request = RequestId(7);
        let emitted = Emitted { request, choice, token_idx, token: 1, logprob: 0.0, top: vec![] };
        Update::Token(Box::new(emitted))
    }

    #[test]
    fn a_caller_is_told_what_is_new_to_it() {
        let mailbox = Arc::new(Mailbox::new(Arc::default()));
        let mut left = Left {
            request: RequestId(7),
            mailbox,
            is_resumable: false,
            is_escorted: false,
            is_prefilled: true,
            escalations: 0,
            choices: vec![(2, false), (1, true)],
        };
        let mut check = |update: &Update, want: bool| {
            assert_eq!(left.is_new(update, &mut 0), want, "{update:?}");
        };
        let done = |choice| Update::ChoiceDone { choice, eos: true };
        for update in [token(0, 0), token(0, 1), token(1, 0), token(1, 1), done(1), done(2)] {
            check(&update, false);
        }
        check(&Update::Prefilled(Box::default()), false);
        check(&Update::Progress(Default::default()), false);
        check(&token(0, 3), false); // not the next one
        check(&token(0, 2), true);
        check(&token(0, 2), false);
        check(&token(2, 0), false);
        check(&done(0), true);
        check(&done(0), false);
        check(&Update::Resumed { chunks_retried: 1 }, true);
    }

    #[test]
    fn a_prefill_that_began_again_is_told_once() {
        let (policy, next) = (aqueduct_core::MemoryPolicy::default(), Default::default());
        let escalation =
            crate::submit::Escalation { policy, lowest: 0.5, min_retained_mass: 0.7, next };
        let update = Update::Escalated(escalation);
        let mut left = Left {
            request: RequestId(7),
            mailbox: Arc::new(Mailbox::new(Arc::default())),
            is_resumable: false,
            is_escorted: false,
            is_prefilled: false,
            escalations: 1,
            choices: vec![(0, false)],
        };
        let mut heard = 0;
        assert!(!left.is_new(&update, &mut heard));
        assert!(left.is_new(&update, &mut heard));
        let mut again = 0;
        assert!((0..2).all(|_| !left.is_new(&update, &mut again)));
        assert!(left.is_new(&Update::Prefilled(Box::default()), &mut again));
    }
}
