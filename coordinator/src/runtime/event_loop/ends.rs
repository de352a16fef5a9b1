//! How requests end: for their callers, and for the journal.

use aqueduct_core::journal::Outcome;
use aqueduct_core::{Refusal, RequestId};
use aqueduct_plan::{End, Failure};

use super::super::live::{Asked, Live};
use super::super::scribe::accepted::failed;
use super::super::status::{WorkerState, WorkerStatus};
use super::EventLoop;
use crate::submit::RequestError;

impl EventLoop {
    /// Why nothing of this kind is served now, whatever there is room for.
    pub(super) fn serves_none_like(&self, asked: &Asked) -> Option<RequestError> {
        let cluster = self.outputs.shown.cluster.borrow();
        if !cluster.serves(&asked.model) {
            let why = "another model is served since this was asked".to_owned();
            return Some(RequestError::Unavailable(why));
        }
        let session = asked.submission.session.as_ref().filter(|_| self.keepers.is_empty())?;
        let may_come = |status: &WorkerStatus| {
            let is_missing = matches!(status.state, WorkerState::Connecting | WorkerState::Down);
            is_missing && !self.away.contains(&status.worker)
        };
        if !cluster.workers.iter().any(may_come) {
            let bound = "absent: no worker keeps anything (snapshot_bytes is 0)";
            return Some(Refusal::new("session", "present", bound).into());
        }
        // Whoever has what another turn left is waited for, as long as that has a sense.
        let is_first = session.goes_on().is_none();
        let why = "no worker is up that keeps sessions".to_owned();
        is_first.then_some(RequestError::Unavailable(why))
    }

    /// Whether workers may still come that the plan has never heard of: it begins anew with every
    /// term, and knows only who has come since.
    fn is_unsettled(&self) -> bool {
        let is_young = self.started.elapsed() < self.config.worker_grace;
        let may_come = |status: &WorkerStatus| match status.state {
            WorkerState::Connecting => true,
            WorkerState::Down => is_young && !self.away.contains(&status.worker),
            WorkerState::Up | WorkerState::Refused => false,
        };
        self.outputs.shown.cluster.borrow().workers.iter().any(may_come)
    }

    /// What its caller is told, if it failed.
    pub(super) fn ended(
        &mut self,
        request: RequestId,
        end: End,
    ) -> Option<(RequestId, RequestError)> {
        let mut live = self.live.remove(&request)?;
        let (outcome, error) = match end {
            End::Finished => (Outcome::Finished, None),
            End::Cancelled if self.desk.stopped.contains(&request) => {
                (Outcome::Cancelled, Some(RequestError::Cancelled))
            }
            End::Cancelled => (Outcome::Cancelled, None),
            End::Failed(failure) => {
                let error = self.error_of(failure, &live);
                (failed(&error), Some(error))
            }
        };
        live.traced_to_end(error.as_ref());
        let state = match outcome {
            Outcome::Finished => "finished",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed { .. } => "failed",
        };
        let told = error.as_ref().map_or_else(String::new, ToString::to_string);
        let caller_id = &live.submission.caller_id;
        match &error {
            Some(error) if live.is_accepted => {
                tracing::info!(%request, caller_id, %error, "request failed");
            }
            Some(error) => tracing::debug!(%request, caller_id, %error, "request refused"),
            None => {}
        }
        // Those that are refused may be many, and would push out all that was served.
        if live.is_accepted {
            self.remember(&mut live, state, told);
        }
        self.note_end(&live, outcome);
        live.mailbox.end(error.clone());
        error.map(|error| (request, error))
    }

    fn error_of(&self, failure: Failure, live: &Live) -> RequestError {
        match failure {
            Failure::TooLong(refusal) if self.is_unsettled() => {
                RequestError::Unavailable(refusal.to_string())
            }
            Failure::TooLong(refusal) => live.refused(refusal).into(),
            Failure::Busy(busy) => {
                let wait = self.pace.wait_for(self.plan.queued_tokens());
                RequestError::Busy { busy, retry_after: wait.max(self.config.retry_after) }
            }
            Failure::Unavailable(why) => RequestError::Unavailable(why),
            Failure::SessionLost if self.is_unsettled() => {
                RequestError::Unavailable("who has the session's memory may still come".into())
            }
            Failure::SessionLost => RequestError::SessionLost,
            Failure::Deadline => RequestError::Deadline(live.submission.deadline),
            Failure::Worker { kind, message } => RequestError::Failed { kind, message },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use aqueduct_core::work::{CONVENTION, Command as Order, Peer, WorkerInfo};
    use aqueduct_core::{Exchange, KvDtype, MemoryPolicy, SessionUse, WorkerId};
    use aqueduct_plan::Event;
    use tokio::sync::{mpsc, oneshot};

    use super::super::super::ids::Ids;
    use super::super::super::mailbox::Mailbox;
    use super::super::super::seated;
    use super::super::super::status::{Cluster, ModelInfo};
    use super::super::{Arrival, Shown};
    use super::*;
    use crate::config::Config;
    use crate::submit::Submission;
    use crate::submit::tests::SHAPE;

    fn event_loop() -> EventLoop {
        let (shown, ..) = Shown::new(Cluster::default());
        let (event_loop, ..) = seated(&Config::default(), shown, Ids::of(0));
        event_loop
    }

    fn asked(policy: MemoryPolicy) -> Submission {
        Submission { policy, ..Submission::of(vec![1; 40]) }
    }

    /// Whether it is accepted.
    fn ask(event_loop: &mut EventLoop, asked: Submission) -> Result<RequestId, RequestError> {
        let model = ModelInfo { fingerprint: "same".into(), shape: SHAPE, kv: KvDtype::F32 };
        let asked = Asked::of(asked, model, &Config::default()).unwrap();
        let mailbox = Arc::new(Mailbox::new(Arc::default()));
        let (reply, mut answer) = oneshot::channel();
        event_loop.arrive(Arrival { asked, mailbox, reply });
        answer.try_recv().expect("it answers at once")
    }

    /// Has worker `idx` come; what it is told.
    fn come(event_loop: &mut EventLoop, idx: u32, pool_tokens: u64) -> mpsc::Receiver<Order> {
        let info = WorkerInfo {
            peer: Peer(format!("local://w{idx}")),
            fingerprint: "same".into(),
            shape: SHAPE,
            kv: KvDtype::F32,
            threads: 1,
            device: String::new(),
            pool_tokens,
            keeps_snapshots: false,
            convention: CONVENTION,
        };
        let (orders, told) = mpsc::channel(64);
        event_loop.worker_up(WorkerId(idx), info, None, orders);
        told
    }

    #[tokio::test]
    async fn what_was_refused_is_no_history() {
        let mut it = event_loop();
        let refused = ask(&mut it, asked(MemoryPolicy::dense()));
        assert!(matches!(refused, Err(RequestError::Unavailable(_))), "{refused:?}");
        assert_eq!(it.desk.history.iter().count(), 0);

        it.worker_joined(WorkerId(0), "w0".into());
        let _told = come(&mut it, 0, u64::MAX);
        let request = ask(&mut it, asked(MemoryPolicy::dense())).unwrap();
        it.step(Event::Cancel { request });
        assert_eq!(it.desk.history.iter().count(), 1);
    }

    #[tokio::test]
    async fn nobody_is_sent_away_for_good_before_all_have_come() {
        let mut it = event_loop();
        (0..2).for_each(|idx| it.worker_joined(WorkerId(idx), format!("w{idx}")));
        let policy = MemoryPolicy::h2o(1, 2, 3);
        let (session, exchange) = (Some(SessionUse::New), Exchange::Move);
        let session = Submission { session, exchange, ..asked(policy) };
        let long = asked(MemoryPolicy::dense());
        let mut told = Vec::new();
        for idx in 0..2 {
            told.push(come(&mut it, idx, 1));
            for asked in [&session, &long] {
                let answer = ask(&mut it, asked.clone());
                let is_right = match answer {
                    Err(RequestError::Unavailable(_)) => idx == 0,
                    Err(RequestError::Refused(_)) => idx == 1,
                    _ => false,
                };
                assert!(is_right, "after {idx}: {answer:?}");
            }
        }
    }
}
