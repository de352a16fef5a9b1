//! A caller comes back to a request of this coordinator, or of one before it, by itself or by way
//! of the coordinator that had it.

use std::sync::Arc;

use aqueduct_core::RequestId;
use aqueduct_journal::State;
use tokio::sync::oneshot;

use super::event_loop::{Comeback, Inbound};
use super::mailbox::Mailbox;
use super::seat::Office;
use super::{Attached, Coordinator, Reader, RequestHandle, Silent};
use crate::generation::{Claim, Started};
use crate::submit::RequestError;

impl Coordinator {
    /// Takes up a request that was under way, or has ended, before this coordinator began: what
    /// was asked for, and all that is known of it, from its beginning. Whoever had it before has
    /// it no more. It must be one for which `claim` is enough.
    ///
    /// # Errors
    /// [`RequestError::Unknown`], or `Stopping`: it may be known soon, or to another one. To a
    /// member that has its caller also [`RequestError::TakenOver`]: that one has come here.
    pub async fn attach(&self, request: RequestId, claim: Claim) -> Result<Attached, RequestError> {
        attach(self.office()?, request, claim).await
    }

    /// What the journal has of a request that `holder` started with the key `name`, by whichever
    /// coordinator; nothing where there is no journal.
    ///
    /// # Errors
    /// Where to ask instead; `Stopping`: nobody answers here.
    pub async fn started(
        &self,
        holder: String,
        name: String,
    ) -> Result<Option<Started>, RequestError> {
        self.office()?;
        let journal = self.ask(|event_loop| event_loop.journal()).await;
        let Some(journal) = journal.map_err(|Silent| RequestError::Stopping)? else {
            return Ok(None);
        };
        let read = move |state: &State| {
            let (request, kept) = state.started(&holder, &name)?;
            kept.accepted.telling.once.as_ref().map(|once| (request, once.content))
        };
        journal.read(read).await.map_err(|_| RequestError::Stopping)
    }
}

/// Takes up a request for whose `claim` it is.
///
/// # Errors
/// As [`Coordinator::attach`].
pub(super) async fn attach(
    office: Office,
    request: RequestId,
    claim: Claim,
) -> Result<Attached, RequestError> {
    let of_wishes = office.wished.clone();
    let mailbox = Arc::new(match &claim {
        Claim::Caller(_) | Claim::Escorted { .. } => Mailbox::new(of_wishes),
        Claim::Member => Mailbox::for_member(of_wishes),
    });
    let reader = Reader(mailbox.clone());
    let (reply, answer) = oneshot::channel();
    let inbound = Inbound::Attach(Comeback { request, claim, mailbox, reply });
    office.inbound.send(inbound).await.map_err(|_| RequestError::Stopping)?;
    let submission = answer.await.map_err(|_| RequestError::Stopping)??;
    Ok((submission, RequestHandle { request, reader, _inbound: office.inbound }))
}
