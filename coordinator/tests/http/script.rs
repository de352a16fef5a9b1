//! A runtime that says what a test tells it to, in the order of the protocol.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_coordinator::Leader;
use aqueduct_coordinator::generation::{Attached, Claim, Load, Started, Submit, Updates};
use aqueduct_coordinator::runtime::Cluster;
use aqueduct_coordinator::submit::{Escalation, PrefillReport, RequestError, Submission, Update};
use aqueduct_core::work::{Emitted, Outputs, RetainedMass, Seen, SeenHead, TokenLogprob, Traffic};
use aqueduct_core::{Exchange, RequestId, SnapshotsHeld, TokenId, Verdict};
use futures::future::BoxFuture;

const REQUEST: RequestId = RequestId(7);

/// Answers every request with the same tokens.
#[derive(Default)]
pub(crate) struct Script {
    /// Given to every choice, then the choice ends by length, or by `eos` if that is among them.
    pub(crate) answer: Vec<TokenId>,
    /// Instead of accepting.
    pub(crate) refuse: Option<RequestError>,
    /// After the prefill, instead of tokens.
    pub(crate) fail: Option<RequestError>,
    /// After the prefill, wait for ever.
    pub(crate) hang: bool,
    /// So many of the last updates have to be waited for.
    pub(crate) late: usize,
    /// What was asked for before it began.
    pub(crate) remembers: Option<Submission>,
    /// What was asked.
    pub(crate) seen: Mutex<Vec<Submission>>,
    /// Requests dropped before their end.
    pub(crate) cancelled: Arc<AtomicUsize>,
    /// Calls of `stop_choice`.
    pub(crate) stopped: Arc<AtomicUsize>,
}

struct Scripted {
    updates: VecDeque<Result<Update, RequestError>>,
    hang: bool,
    late: usize,
    ended: bool,
    cancelled: Arc<AtomicUsize>,
    stopped: Arc<AtomicUsize>,
}

impl Submit for Script {
    fn submit(
        &self,
        submission: Submission,
    ) -> BoxFuture<'_, Result<Box<dyn Updates>, RequestError>> {
        let result = match &self.refuse {
            Some(error) => Err(error.clone()),
            None => Ok(Box::new(self.script(&submission)) as Box<dyn Updates>),
        };
        self.seen.lock().unwrap().push(submission);
        Box::pin(async { result })
    }

    fn attach(
        &self,
        request: RequestId,
        claim: Claim,
    ) -> BoxFuture<'_, Result<Attached, RequestError>> {
        let asked = self.remembers.clone().filter(|_| request == REQUEST);
        let asked = asked.filter(|asked| claim.may_read(&asked.telling));
        let answer = asked.ok_or(RequestError::Unknown(request)).map(|asked| {
            let mut scripted = self.script(&asked);
            // One completion after the other, however they came.
            let choice = |update: &Result<Update, RequestError>| match update {
                Ok(Update::Token(token)) => Some(token.choice),
                Ok(Update::ChoiceDone { choice, .. }) => Some(*choice),
                _ => None,
            };
            scripted.updates.make_contiguous().sort_by_key(choice);
            (asked, Box::new(scripted) as Box<dyn Updates>)
        });
        Box::pin(async { answer })
    }

    fn started(
        &self,
        holder: &str,
        name: &str,
    ) -> BoxFuture<'_, Result<Option<Started>, RequestError>> {
        let asked = self.remembers.as_ref().map(|asked| &asked.telling);
        let asked = asked.filter(|telling| telling.holder == holder);
        let once = asked.and_then(|telling| telling.once.as_ref());
        let started = once.filter(|once| once.name == name).map(|once| (REQUEST, once.content));
        Box::pin(async move { Ok(started) })
    }

    fn load(&self) -> Load {
        let (waiting_tokens, token_bytes, snapshots) = (30, 10, SnapshotsHeld::default());
        let (workers_up, running, waiting) = (1, 1, 2);
        Load {
            leader: Leader::default(),
            open: true,
            closing: false,
            workers_up,
            workers_open: workers_up,
            running,
            waiting,
            places: 1000,
            waiting_tokens,
            token_bytes,
            state_bytes: 0,
            snapshots,
            pools: Vec::new(),
            chunk_hedges: 0,
        }
    }

    fn cluster(&self) -> Cluster {
        Cluster::default()
    }
}

impl Script {
    fn script(&self, submission: &Submission) -> Scripted {
        let (policy, clamps) = submission.policy.clamped(submission.chunk_tokens);
        let request = REQUEST;
        let mut updates = vec![Update::Accepted { request, chunk_count: 1, policy, clamps }];
        if submission.shows {
            let heads = vec![SeenHead { positions: vec![0], weights: vec![2.0], left_out: 3 }];
            let seen = Seen { request, token_idx: None, layer: 0, heads };
            updates.push(Update::Seen(Box::new(seen)));
        }
        // One more try is enough, whatever it keeps.
        if let Some(floor) = submission.floor
            && let Verdict::Again(next) = floor.judge(0.5, &policy, submission.chunk_tokens)
        {
            let min_retained_mass = floor.min_retained_mass;
            let escalation = Escalation { policy, lowest: 0.5, min_retained_mass, next };
            updates.push(Update::Escalated(escalation));
        }
        if let Outputs::Logprobs(top) = submission.outputs {
            let entry = |token: &TokenId| (logprob(*token), vec![logprob(9); top as usize]);
            let entries = submission.prompt[1..].iter().map(entry).collect();
            updates.push(Update::PromptLogprobs { start: 1, entries });
        }
        updates.push(Update::Prefilled(Box::new(PrefillReport {
            retained: vec![RetainedMass { kept: 1.0, total: 2.0 }; 2],
            memory_bytes: 99,
            memory_tokens: 5,
            exchange: Exchange::Stay,
            traffic: Traffic {
                sent_bytes: 30,
                received_bytes: 40,
                asked: 2,
                fetched: 1,
                spared_bytes: 9,
            },
            audits: Vec::new(),
            elapsed: Duration::from_millis(250),
            queued: Duration::from_millis(125),
            stalled: Duration::from_millis(40),
            computed: Duration::from_millis(200),
            cached_tokens: 2,
            chunks_retried: 0,
        })));
        let mut updates: VecDeque<_> = updates.into_iter().map(Ok).collect();
        match &self.fail {
            Some(error) => updates.push_back(Err(error.clone())),
            None if submission.max_tokens > 0 && !self.hang => {
                updates.extend(self.tokens(submission).into_iter().map(Ok));
            }
            None => {}
        }
        Scripted {
            updates,
            hang: self.hang,
            late: self.late,
            ended: false,
            cancelled: self.cancelled.clone(),
            stopped: self.stopped.clone(),
        }
    }

    /// Choices take turns, as they do when they are decoded together.
    fn tokens(&self, submission: &Submission) -> Vec<Update> {
        let answer = &self.answer[..self.answer.len().min(submission.max_tokens as usize)];
        let top = submission.sampling.logprobs.unwrap_or(0) as usize;
        let mut updates = Vec::new();
        for (token_idx, token) in (0..).zip(answer) {
            updates.extend((0..submission.choices).map(|choice| {
                Update::Token(Box::new(Emitted {
                    request: REQUEST,
                    choice,
                    token_idx,
                    token: *token,
                    logprob: -0.5,
                    top: vec![logprob(*token); top.min(1)],
                }))
            }));
        }
        let eos = answer.last().is_some_and(|last| submission.eos.contains(last));
        updates.extend((0..submission.choices).map(|choice| Update::ChoiceDone { choice, eos }));
        updates
    }
}

fn logprob(token: TokenId) -> TokenLogprob {
    TokenLogprob { token, logprob: -0.5 }
}

impl Updates for Scripted {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Update, RequestError>>> {
        Box::pin(async {
            if self.late > 0 && self.updates.len() == self.late {
                self.late = 0;
                tokio::task::yield_now().await;
            }
            match self.updates.pop_front() {
                None if self.hang => std::future::pending().await,
                next => {
                    self.ended = next.is_none();
                    next
                }
            }
        })
    }

    fn stop_choice(&mut self, _choice: u32) {
        self.stopped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if !self.ended {
            self.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}
