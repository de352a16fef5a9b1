//! Requests are written down, and what was under way when a coordinator ended goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::journal::{Accepted, Kept, Outcome};
use aqueduct_core::work::Emitted;
use aqueduct_core::{Refusal, RequestId, WorkerId};
use aqueduct_journal::{AppendError, Journal, Misfit, Unable};
use aqueduct_plan::{Busy, Event};
use tokio::sync::oneshot;

use super::super::keeping::{Found, Interrupted};
use super::super::live::{Asked, Live};
use super::super::mailbox::Mailbox;
use super::super::scribe::accepted::{failed, of_submission, overdue, to_submission};
use super::super::scribe::{Scribe, Written, heard};
use super::super::{ModelInfo, keeping};
use super::EventLoop;
use super::attach::retell;
use super::ports::Answer;
use crate::peers::Group;
use crate::submit::RequestError;

/// So long after the first worker has come what was interrupted goes on: chunks are laid over
/// those that are there then.
const SETTLING: Duration = Duration::from_millis(500);

impl EventLoop {
    /// From now on requests are written down.
    pub(crate) fn keep(&mut self, found: Found) {
        let Found { keeping, term, clock, live, last, drained } = found;
        self.ids.pass(last);
        let (journal, written) = (keeping.journal.clone(), self.outputs.written.clone());
        self.scribe = Some(Scribe::new(journal, (term, clock), written));
        self.interrupted = live;
        self.keeping = Some(keeping);
        self.drain_those(drained);
        if term.is_none() {
            self.end_unreadable();
        }
        self.resume_soon();
    }

    /// Ends what nobody can come back to: its callers were lost with the last coordinator, and no
    /// other one has them, as one of a group might.
    fn end_unreadable(&mut self) {
        let is_lost = |it: &mut Interrupted| !it.kept.accepted.telling.resumable;
        let lost: Vec<_> = self.interrupted.extract_if(.., is_lost).collect();
        for Interrupted { request, kept, .. } in lost {
            let finished = is_finished(&kept);
            let outcome = if finished { Outcome::Finished } else { Outcome::Cancelled };
            self.end_interrupted(request, kept.accepted.choices, None, outcome);
        }
    }

    /// Where requests are written down, if they are.
    pub(crate) fn journal(&self) -> Option<Journal> {
        self.keeping.as_ref().map(|keeping| keeping.journal.clone())
    }

    /// Its journal and whose it is, where that is a group's.
    pub(crate) fn group(&self) -> Option<(Journal, Group)> {
        let keeping = self.keeping.as_ref()?;
        keeping.group.clone().map(|group| (keeping.journal.clone(), group))
    }

    /// What was under way when the journal was written last goes on, once there is a worker, and
    /// others have had time to come.
    pub(super) fn resume_soon(&mut self) {
        if !self.interrupted.is_empty() && !self.orders.is_empty() {
            self.resume_at.get_or_insert_with(|| Instant::now() + SETTLING);
        }
    }

    /// Does what is due.
    pub(super) fn write_down(&mut self) {
        if self.resume_at.is_some_and(|at| at <= Instant::now()) {
            self.resume_at = None;
            self.resume();
        }
        self.end_overdue();
        self.forget_drained();
        self.end_unclaimed();
        if let Some(scribe) = &mut self.scribe {
            scribe.go_on();
        }
    }

    fn resume(&mut self) {
        if self.orders.is_empty() {
            return; // whoever came has gone again: the next one to come is waited for
        }
        let Some(model) = self.outputs.shown.cluster.borrow().model.clone() else { return };
        for interrupted in std::mem::take(&mut self.interrupted) {
            let (request, choices) = (interrupted.request, interrupted.kept.accepted.choices);
            let claim = self.claims.take(request);
            let told = claim.clone().map(|mailbox| (mailbox, interrupted.kept.clone()));
            if let Err(outcome) = self.resume_one(interrupted, claim, &model) {
                self.end_interrupted(request, choices, told, outcome);
            }
        }
        self.claims.wait_until(Instant::now() + self.config.resume_grace);
        self.grant_wishes(); // of those who came back and went meanwhile
    }

    /// A request of the journal has ended before it could go on.
    fn end_interrupted(
        &mut self,
        request: RequestId,
        choices: u32,
        told: Option<(Arc<Mailbox>, Kept)>,
        outcome: Outcome,
    ) {
        tracing::info!(%request, ?outcome, "a request of the journal has ended");
        if let Some((mailbox, kept)) = told {
            retell(request, &kept, outcome.clone(), &mailbox);
        }
        if let Some(scribe) = &mut self.scribe {
            scribe.ended(request, choices, outcome);
        }
    }

    /// Ends what waits to go on and whose caller has come back only to cancel it.
    pub(super) fn end_unwanted(&mut self) {
        for request in self.claims.gone() {
            let Some(at) = self.interrupted.iter().position(|it| it.request == request) else {
                continue;
            };
            drop(self.claims.take(request));
            let choices = self.interrupted.remove(at).kept.accepted.choices;
            self.end_interrupted(request, choices, None, Outcome::Cancelled);
        }
    }

    /// Ends what waits to go on and has no time left for it.
    fn end_overdue(&mut self) {
        let now_ms = self.journal_ms();
        let is_over = |it: &mut Interrupted| it.kept.accepted.deadline_at_ms <= now_ms;
        let over: Vec<_> = self.interrupted.extract_if(.., is_over).collect();
        for Interrupted { request, kept, .. } in over {
            let choices = kept.accepted.choices;
            let outcome = if is_finished(&kept) { Outcome::Finished } else { failed(&overdue()) };
            let told = self.claims.take(request).map(|mailbox| (mailbox, kept));
            self.end_interrupted(request, choices, told, outcome);
        }
    }

    /// What time it is for what is written down.
    fn journal_ms(&self) -> u64 {
        self.scribe.as_ref().map_or(0, |scribe| scribe.clock().now_ms())
    }

    /// How it has ended, if there is nothing to be done.
    fn resume_one(
        &mut self,
        Interrupted { request, kept, permit }: Interrupted,
        claim: Option<Arc<Mailbox>>,
        model: &ModelInfo,
    ) -> Result<(), Outcome> {
        if is_finished(&kept) {
            return Err(Outcome::Finished);
        }
        let Kept { accepted, choices, .. } = kept;
        let asked = self.ask_again(accepted, model).map_err(|error| failed(&error))?;
        let timing = self.timing_of(asked.submission.deadline);
        let unread = || Mailbox::unread(self.outputs.wished.clone()).into();
        let mailbox = claim.unwrap_or_else(unread);
        let mut live = Live::new(request, asked, mailbox, timing);
        let run = self.ids.draw();
        let tokens: usize = choices.iter().map(|choice| choice.tokens.len()).sum();
        tracing::info!(%request, %run, tokens, "a request of the journal goes on");
        live.go_on(run, choices);
        live.permit = permit;
        let job = live.job();
        self.live.insert(run, live);
        self.step(Event::Resume { request: run, job });
        Ok(())
    }

    fn ask_again(&self, accepted: Accepted, model: &ModelInfo) -> Result<Asked, RequestError> {
        let constrain = |form| match &self.keeping {
            Some(keeping) => (keeping.constrain)(form),
            None => Err(keeping::no_vocabulary()),
        };
        let submission = to_submission(accepted, self.journal_ms(), model, constrain)?;
        Ok(Asked::of(submission, model.clone(), &self.config.past_admission())?)
    }

    /// Tells the caller that its request is accepted, once it is written down.
    pub(super) fn answer_written(&mut self, request: RequestId, reply: Answer) {
        let (Some(scribe), Some(live)) = (&mut self.scribe, self.live.get_mut(&request)) else {
            // A caller that has gone cancels its request by itself.
            return drop(reply.send(Ok(request)));
        };
        let deadline = live.submission.deadline.min(self.config.request_deadline);
        let deadline_at_ms = scribe.clock().after_ms(deadline);
        let accepted = of_submission(&live.submission, live.model(), deadline_at_ms);
        live.is_kept = true;
        let (sender, written) = oneshot::channel();
        scribe.accepted(request, accepted, sender);
        let (lead, retry_after) = (scribe.lead(), self.config.retry_after);
        tokio::spawn(async move {
            let heard = heard(written, lead).await;
            if let Err(error) = &heard {
                tracing::debug!(%request, %error, "a request was not written down");
            }
            let answer = heard.map(|()| request);
            drop(reply.send(answer.map_err(|error| unwritten(error, retry_after))));
        });
    }

    /// A token was drawn, perhaps not for the first time.
    pub(super) fn drew(&mut self, worker: WorkerId, emitted: Emitted) {
        let request = emitted.request;
        let Some(live) = self.live.get_mut(&request) else { return };
        let (choice, token_idx) = (emitted.choice, emitted.token_idx);
        let is_new = live.token(worker, emitted);
        if is_new {
            self.stats.output_tokens += 1;
            let scribe = self.scribe.as_mut().filter(|_| live.is_kept);
            if let (Some(scribe), Some(drawn)) = (scribe, live.drawn(choice, token_idx)) {
                scribe.drew(live.request(), choice, token_idx, drawn.clone());
            }
        }
        let (came_further, stays) = (is_new && live.came_further(), live.stays_now());
        if came_further {
            self.step(Event::CameFurther { request });
        }
        if let Some(stays) = stays {
            self.step(Event::Stays { request, stays });
        }
    }

    /// A completion has ended, perhaps not for the first time.
    pub(super) fn choice_ended(&mut self, request: RequestId, choice: u32, eos: bool) {
        let Some(live) = self.live.get_mut(&request) else { return };
        if !live.choice_ended(choice, eos) {
            return;
        }
        if let Some(scribe) = self.scribe.as_mut().filter(|_| live.is_kept) {
            scribe.choice_ended(live.request(), choice, eos);
        }
    }

    /// A request has ended, which may have been refused before it was written down.
    pub(super) fn note_end(&mut self, live: &Live, outcome: Outcome) {
        if let Some(scribe) = self.scribe.as_mut().filter(|_| live.is_kept) {
            scribe.ended(live.request(), live.submission.choices, outcome);
        }
    }

    /// When [`write_down`](Self::write_down) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let writing = self.scribe.as_ref().and_then(Scribe::due);
        let deadlines = self.interrupted.iter().map(|it| it.kept.accepted.deadline_at_ms);
        let clock = self.scribe.as_ref().map(Scribe::clock);
        let overdue = deadlines.min().zip(clock).and_then(|(at_ms, clock)| clock.when(at_ms));
        let others = [self.resume_at, self.claims.until(), self.drained.due()];
        others.into_iter().chain([writing, overdue]).flatten().min()
    }

    /// Whether more can be.
    pub(super) fn written(&mut self, written: Written) -> bool {
        match (written, &mut self.scribe) {
            (Written::Done(again), Some(scribe)) => scribe.again(again),
            (Written::Broken(error), _) => {
                tracing::error!(%error, "the journal cannot be written here, so nothing is served");
                return false;
            }
            (Written::Done(_), None) => {}
        }
        true
    }
}

/// What the caller is told of a request that could not be written down. There is less to be kept
/// when others have ended; all else is no matter of how much there is.
fn unwritten(error: AppendError, retry_after: Duration) -> RequestError {
    match error {
        AppendError::Misfit(Misfit::Full) => {
            RequestError::Busy { busy: Busy::Memory(error.to_string()), retry_after }
        }
        // It would be no less when others have ended.
        AppendError::Misfit(Misfit::TooLong) => {
            let bound = "fewer, of so many choices with so many logprobs, to be written down";
            Refusal::new("max_tokens", "that many", bound).into()
        }
        // Whoever leads next takes it; whether it was written after all, a name that it has tells.
        AppendError::Lost | AppendError::Unable(Unable::NotLeading) => RequestError::Stopping,
        error => RequestError::Unavailable(format!("the request was not written down: {error}")),
    }
}

/// Whether all of it was told before it was interrupted.
fn is_finished(kept: &Kept) -> bool {
    kept.accepted.max_tokens > 0 && kept.choices.iter().all(|choice| choice.eos.is_some())
}

#[cfg(test)]
mod tests {
    use aqueduct_core::journal::{Record, RecordKind};
    use aqueduct_core::{KvDtype, Telling};
    use aqueduct_journal::{Options, Standing};
    use tempfile::TempDir;

    use super::super::super::ids::Ids;
    use super::super::super::status::Cluster;
    use super::super::super::{Keeping, seated};
    use super::super::Shown;
    use super::*;
    use crate::Config;
    use crate::submit::tests::SHAPE;

    fn resumable() -> Telling {
        Telling { resumable: true, prompt_tokens: 40, ..Telling::default() }
    }

    /// A loop that has found `accepted`, written down at one second after 1970, and its folder.
    /// `term`: it leads a group.
    async fn found(accepted: Accepted, term: Option<u64>) -> (EventLoop, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path(), Options::alone(), ()).unwrap();
        let mut standing = journal.standing();
        let leads = standing.wait_for(|standing| matches!(standing, Standing::Leads { .. }));
        drop(leads.await.unwrap());
        let kind = RecordKind::Accepted(Box::new(accepted));
        journal.append(Record { request: RequestId(7), at_ms: 1_000, kind }).await.unwrap();
        let constrain = |_| Err(Refusal::new("grammar", "any", "none"));
        let constrain = Arc::new(constrain);
        let keeping = Keeping { journal, constrain, keys: None, group: None };
        let (shown, ..) = Shown::new(Cluster::default());
        let (mut event_loop, ..) = seated(&Config::default(), shown, Ids::of(0));
        event_loop.keep(Found::read(keeping, term).await.unwrap());
        (event_loop, folder)
    }

    #[tokio::test]
    async fn what_nobody_can_come_back_to_goes_on_only_where_another_member_may_have_its_caller() {
        let accepted = Accepted { max_tokens: 1, ..Accepted::of("same", vec![1; 40]) };
        for (telling, term, waits) in [
            (Telling::default(), None, false),
            (resumable(), None, true),
            (Telling::default(), Some(1), true),
        ] {
            let accepted = Accepted { telling: telling.clone(), ..accepted.clone() };
            let (it, _folder) = found(accepted, term).await;
            assert_eq!(it.interrupted.len(), usize::from(waits), "{telling:?} {term:?}");
            // Then that is written down.
            assert_eq!(it.scribe.and_then(|scribe| scribe.due()).is_some(), !waits);
        }
    }

    /// By the clock of this machine all of them are over, since 1970.
    #[tokio::test]
    async fn a_leader_whose_clock_is_ahead_leaves_requests_their_time() {
        let accepted = Accepted::of("same", vec![1; 40]);
        let accepted = Accepted { max_tokens: 1, telling: resumable(), ..accepted };
        for (deadline_at_ms, term, waits) in
            [(61_000, Some(1), true), (1_000, Some(1), false), (61_000, None, false)]
        {
            let accepted = Accepted { deadline_at_ms, ..accepted.clone() };
            let (mut it, _folder) = found(accepted.clone(), term).await;
            it.write_down();
            assert_eq!(it.interrupted.len(), usize::from(waits), "{deadline_at_ms} {term:?}");
            if waits {
                let in_time = it.due().unwrap().saturating_duration_since(Instant::now());
                assert!(in_time > Duration::from_secs(1), "{in_time:?}");
                let model =
                    ModelInfo { fingerprint: "same".into(), shape: SHAPE, kv: KvDtype::F32 };
                let left = it.ask_again(accepted, &model).unwrap().submission.deadline;
                let most = Duration::from_secs(60);
                assert!(left > most / 10 && left <= most, "{left:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_was_let_in_is_not_measured_by_the_limits_of_today() {
        let (deadline_at_ms, telling) = (61_000, resumable());
        let accepted = Accepted::of("same", vec![1; 40]);
        let accepted = Accepted { max_tokens: 20, telling, deadline_at_ms, ..accepted };
        let (mut it, _folder) = found(accepted.clone(), Some(1)).await;
        it.config.prompt_tokens_max = 10;
        it.config.request_deadline = Duration::from_secs(1);
        let model = ModelInfo { fingerprint: "same".into(), shape: SHAPE, kv: KvDtype::F32 };
        let left = it.ask_again(accepted, &model).unwrap().submission.deadline;
        let timing = it.timing_of(left);
        let in_ms = timing.deadline_at_ms - timing.arrived_at_ms;
        assert!(in_ms > 6_000, "{in_ms}");
    }

    #[test]
    fn only_a_full_journal_is_a_matter_of_room() {
        let retry_after = Duration::from_secs(1);
        let told = |error| unwritten(error, retry_after);
        let full = told(AppendError::Misfit(Misfit::Full));
        let is_memory = matches!(full, RequestError::Busy { busy: Busy::Memory(_), .. });
        assert!(is_memory, "{full:?}");
        for error in [
            AppendError::Deadline(retry_after),
            AppendError::Ended,
            AppendError::Unable(Unable::Busy),
            AppendError::Misfit(Misfit::KeyKnown),
        ] {
            let told = told(error);
            assert!(matches!(told, RequestError::Unavailable(_)), "{told:?}");
        }
        // A lead that is lost takes nothing away: another member goes on.
        for error in [AppendError::Lost, AppendError::Unable(Unable::NotLeading)] {
            assert_eq!(told(error), RequestError::Stopping);
        }
    }
}
