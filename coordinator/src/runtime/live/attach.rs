//! All that is known of a request, for a caller who comes back to it.

use std::sync::Arc;

use aqueduct_core::journal::{Completion, Drawn};
use aqueduct_core::work::{Emitted, Outputs};
use aqueduct_core::{RequestId, Session};

use super::super::carrying::Left;
use super::super::mailbox::Mailbox;
use super::Live;
use crate::submit::{RequestError, Update};

impl Live {
    /// Whoever reads `mailbox` reads all of it, and from now on alone.
    pub(crate) fn attach(&mut self, mailbox: Arc<Mailbox>) {
        let before = std::mem::replace(&mut self.mailbox, mailbox);
        before.end(Some(RequestError::TakenOver));
        let (policy, clamps) = self.submission.policy.clamped(self.grid.chunk_tokens());
        let (request, chunk_count) = (self.request, self.grid.chunk_count());
        self.mailbox.push(Update::Accepted { request, chunk_count, policy, clamps });
        let escalations = self.escalations.iter().copied().map(Update::Escalated);
        escalations.for_each(|update| self.mailbox.push(update));
        if let Some(report) = &self.prefilled {
            self.mailbox.push(Update::Prefilled(report.clone()));
            let session = self.session.map(Update::Session);
            session.into_iter().for_each(|update| self.mailbox.push(update));
            told(request, &self.choices).for_each(|update| self.mailbox.push(update));
        }
    }

    /// Whether its caller can be told the rest of it by another coordinator: of what is not
    /// written down there is no rest.
    pub(crate) fn can_be_carried(&self) -> bool {
        let Self { submission, mailbox, .. } = self;
        let is_read = !mailbox.is_unread() && !mailbox.is_abandoned();
        self.is_kept && is_read && submission.outputs == Outputs::None && !submission.shows
    }

    /// Its caller and what that one was told; `None`, and told so, if it can hear no more from
    /// here: another coordinator that reads asks the next leader by itself.
    pub(crate) fn leave(self) -> Option<Left> {
        if !self.can_be_carried() || self.mailbox.is_for_member() {
            self.mailbox.end(Some(RequestError::Stopping));
            return None;
        }
        let completion = |choice: &Completion| (choice.tokens.len() as u32, choice.eos.is_some());
        Some(Left {
            request: self.request,
            is_resumable: self.submission.telling.resumable,
            is_escorted: self.submission.telling.is_escorted(),
            is_prefilled: self.prefilled.is_some(),
            escalations: self.escalations.len(),
            choices: self.choices.iter().map(completion).collect(),
            mailbox: self.mailbox,
        })
    }

    /// What is remembered at the end is kept.
    pub(crate) fn session_kept(&mut self, session: Session) {
        self.session = Some(session);
        self.mailbox.push(Update::Session(session));
    }
}

/// What completions have come to, as it was told when it came.
pub(crate) fn told(
    request: RequestId,
    completions: &[Completion],
) -> impl Iterator<Item = Update> + '_ {
    (0..).zip(completions).flat_map(move |(choice, completion)| {
        let token = move |(token_idx, drawn): (u32, &Drawn)| {
            let Drawn { token, top } = drawn.clone();
            let (token, logprob) = (token.token, token.logprob);
            let emitted = Emitted { request, choice, token_idx, token, logprob, top };
            Update::Token(Box::new(emitted))
        };
        let end = completion.eos.map(|eos| Update::ChoiceDone { choice, eos });
        (0..).zip(&completion.tokens).map(token).chain(end)
    })
}
