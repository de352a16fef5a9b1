//! Callers who come back to requests that were under way when this coordinator began, or that
//! had ended then.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::journal::{Accepted, Kept, Outcome};
use aqueduct_core::{ChunkGrid, RequestId, Session, SessionUse, Telling};
use aqueduct_journal::Journal;
use aqueduct_plan::Event;

use super::super::live::told;
use super::super::mailbox::Mailbox;
use super::super::scribe::accepted::as_asked;
use super::EventLoop;
use super::ports::Comeback;
use crate::generation::Claim;
use crate::submit::{RequestError, Submission, Update};

/// Who has come back to what has not gone on yet, and how long what has gone on waits for others.
#[derive(Debug, Default)]
pub(super) struct Claims {
    mailboxes: HashMap<RequestId, Arc<Mailbox>>,
    until: Option<Instant>,
}

impl Claims {
    pub(super) fn take(&mut self, request: RequestId) -> Option<Arc<Mailbox>> {
        self.mailboxes.remove(&request)
    }

    /// Whoever came before has it no more.
    fn put(&mut self, request: RequestId, mailbox: Arc<Mailbox>) {
        if let Some(before) = self.mailboxes.insert(request, mailbox) {
            before.end(Some(RequestError::TakenOver));
        }
    }

    /// Those who have gone for good.
    pub(super) fn gone(&self) -> Vec<RequestId> {
        let gone = self.mailboxes.iter().filter(|(_, mailbox)| mailbox.is_abandoned());
        gone.map(|(request, _)| *request).collect()
    }

    /// Whether whoever has come back to `request` has come here.
    fn is_read_here(&self, request: RequestId) -> bool {
        self.mailboxes.get(&request).is_some_and(|mailbox| mailbox.is_read_here())
    }

    /// Nothing goes on here.
    pub(super) fn end(&self) {
        self.mailboxes.values().for_each(|mailbox| mailbox.end(Some(RequestError::Stopping)));
    }

    pub(super) fn wait_until(&mut self, until: Instant) {
        self.until = Some(until);
    }

    /// When what nobody has come back to is to end.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }
}

impl EventLoop {
    pub(super) fn attach(&mut self, comeback: Comeback) {
        let Comeback { request, claim, mailbox, reply } = comeback;
        let unknown = Err(RequestError::Unknown(request));
        // Whom another coordinator has may have come here by now, and is heard first.
        let is_member = claim == Claim::Member;
        let may_read = |telling: &Telling| claim.may_read(telling);
        let answer = if let Some(live) =
            self.live.values_mut().find(|live| live.request() == request)
        {
            match may_read(&live.submission.telling) {
                true if is_member && live.mailbox.is_read_here() => Err(RequestError::TakenOver),
                true => {
                    live.attach(mailbox);
                    Ok(live.submission.clone())
                }
                false => unknown,
            }
        } else if let Some(waits) = self.interrupted.iter().find(|it| it.request == request) {
            match may_read(&waits.kept.accepted.telling) {
                true if is_member && self.claims.is_read_here(request) => {
                    Err(RequestError::TakenOver)
                }
                true => {
                    self.claims.put(request, mailbox);
                    Ok(as_asked(waits.kept.accepted.clone()))
                }
                false => unknown,
            }
        } else if let Some(keeping) = &self.keeping {
            let journal = keeping.journal.clone();
            tokio::spawn(async move {
                // Who has asked may have gone.
                drop(reply.send(find(&journal, request, &claim, &mailbox).await));
            });
            return;
        } else {
            unknown
        };
        drop(reply.send(answer));
        self.grant_wishes(); // of who has gone meanwhile
    }

    /// Ends what nobody has come back to in time; to some of it nobody can.
    pub(super) fn end_unclaimed(&mut self) {
        if self.claims.until.is_none_or(|until| until > Instant::now()) {
            return;
        }
        self.claims.until = None;
        let unclaimed = self.live.iter().filter(|(_, live)| live.mailbox.is_unread());
        for request in unclaimed.map(|(run, _)| *run).collect::<Vec<_>>() {
            tracing::info!(%request, "nobody has come back to a request of the journal");
            self.step(Event::Cancel { request });
        }
    }
}

/// A request that has ended is told from the journal.
async fn find(
    journal: &Journal,
    request: RequestId,
    claim: &Claim,
    mailbox: &Mailbox,
) -> Result<Submission, RequestError> {
    let kept = journal.read(move |state| state.get(request).cloned()).await;
    let kept = kept.map_err(|_| RequestError::Stopping)?;
    let kept = kept.filter(|kept| claim.may_read(&kept.accepted.telling));
    let kept = kept.ok_or(RequestError::Unknown(request))?;
    // One that goes on is on its way to its end.
    let ended = kept.ended.as_ref().ok_or(RequestError::Stopping)?;
    if ended.outcome == Outcome::Cancelled {
        return Err(RequestError::Unknown(request));
    }
    retell(request, &kept, ended.outcome.clone(), mailbox);
    Ok(as_asked(kept.accepted))
}

/// Tells all that is written down of a request that has ended so: of its prefill nothing is.
pub(super) fn retell(request: RequestId, kept: &Kept, outcome: Outcome, mailbox: &Mailbox) {
    let accepted = &kept.accepted;
    let (policy, clamps) = accepted.policy.clamped(accepted.chunk_tokens);
    let chunk_count = grid(accepted).map_or(0, |grid| grid.chunk_count());
    mailbox.push(Update::Accepted { request, chunk_count, policy, clamps });
    mailbox.push(Update::Prefilled(Box::default()));
    told(request, &kept.choices).for_each(|update| mailbox.push(update));
    mailbox.end(match outcome {
        Outcome::Finished => None,
        Outcome::Cancelled => Some(RequestError::Unknown(request)),
        Outcome::Failed { kind, message } => Some(RequestError::Failed { kind, message }),
    });
}

fn grid(accepted: &Accepted) -> Option<ChunkGrid> {
    let known = accepted.session.as_ref().and_then(SessionUse::goes_on);
    let known = known.map_or(0, |session: &Session| session.end);
    ChunkGrid::after(known, accepted.telling.prompt_tokens, accepted.chunk_tokens).ok()
}
