//! From tokens to text: what the runtime says about a request becomes the events that callers
//! see, the same for HTTP and gRPC.

mod board;
mod events;
mod generator;
mod runtime;
mod source;

pub use board::{Board, Entry, Map, Stage};
pub use events::{Finish, Report, Stands, TextEvent, TextToken};
pub use generator::Generator;
pub(crate) use generator::{draw_seed, now_s};
pub use runtime::{Attached, Claim, Load, Started, Submit, Updates};
pub use source::Source;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use aqueduct_core::work::Emitted;
use aqueduct_core::{Telling, TokenId};
use futures::FutureExt;

use crate::keys::Permit;
use crate::metrics::Outcome;
use crate::submit::{Escalation, PrefillReport, RequestError, Update};
use crate::text::{CallNotation, Detokenizer, Heard, Hearing, StopMatcher, TextModel};
use board::Place;

/// What an API layer has to know of a request to tell its answer.
#[derive(Debug, Clone)]
pub struct About {
    /// Completions.
    pub choices: u32,
    /// Alternatives to report for each token, if log probabilities were asked for.
    pub logprobs: Option<u32>,
    /// How the answer is told.
    pub telling: Telling,
}

/// One completion of a request.
struct Choice {
    detokenizer: Detokenizer,
    hearing: Hearing,
    /// How calls are written, some of whose tokens are said as text.
    notation: Option<CallNotation>,
    stops: StopMatcher,
    /// Before that many tokens nothing is looked for.
    min_tokens: u32,
    tokens: u32,
    last_token: Option<Instant>,
    finish: Option<Finish>,
}

impl Choice {
    fn new(
        detokenizer: Detokenizer,
        hearing: Hearing,
        notation: Option<CallNotation>,
        stops: StopMatcher,
        min_tokens: u32,
    ) -> Self {
        let (tokens, last_token, finish) = (0, None, None);
        Self { detokenizer, hearing, notation, stops, min_tokens, tokens, last_token, finish }
    }

    /// What its last token says.
    fn heard(&mut self, text: &TextModel, token: TokenId) -> Heard {
        let said = text.push(&mut self.detokenizer, token);
        let was_text = self.hearing.is_text();
        let name = text.is_special(token).then(|| text.token_bytes(token));
        let heard = match name.map(String::from_utf8_lossy) {
            Some(name) if self.notation.is_some_and(|it| it.says(&name)) => {
                self.hearing.say(name.into_owned())
            }
            Some(name) => self.hearing.mark(&name),
            None => self.hearing.say(said),
        };
        let is_watched = self.tokens >= self.min_tokens;
        let mut shown = if is_watched { self.stops.push(&heard.text) } else { heard.text };
        if was_text && !self.hearing.is_text() {
            shown += &self.stops.finish(); // nothing begins in one message and ends in another
        }
        Heard { text: shown, ..heard }
    }

    /// Where its last token stands, of which `said` was heard.
    fn stands(&self, said: &str, is_special: bool) -> Stands {
        match &self.hearing {
            Hearing::Plain => Stands::InText,
            hearing if hearing.is_thinking() => Stands::Apart,
            _ if is_special && said.is_empty() => Stands::Nowhere,
            hearing if hearing.is_text() => Stands::InText,
            hearing if hearing.is_undecided() => Stands::Either,
            _ => Stands::Apart,
        }
    }

    /// What was held back, when nothing follows. `whole`: the model ended it.
    fn rest(&mut self, whole: bool) -> Heard {
        let said = self.detokenizer.finish();
        let Heard { text, reasoning, mut calls } = self.hearing.say(said);
        let rest = self.hearing.finish(whole);
        calls.extend(rest.calls);
        let text = self.stops.push(&(text + &rest.text)) + &self.stops.finish();
        Heard { text, reasoning: reasoning + &rest.reasoning, calls }
    }

    fn done(&self, choice: u32, heard: Heard) -> Option<TextEvent> {
        let (finish, tokens) = (self.finish?, self.tokens);
        let stop = self.stops.found().map(str::to_owned);
        Some(TextEvent::ChoiceDone { choice, finish, tokens, heard, stop })
    }
}

/// How much of an answer was told, and counted, before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Nothing.
    Nothing,
    /// All that there was at once when its caller came back, up to now.
    AllSoFar,
    /// What is behind the prefill at once, when that comes.
    Tokens,
}

struct Clock {
    /// `None`: its caller has come back, and when it was submitted nobody knows.
    started: Option<Instant>,
    prefilled: Option<Instant>,
    has_token: bool,
}

/// A request under way; dropping it cancels the request.
pub struct Generation {
    generator: Generator,
    updates: Box<dyn Updates>,
    place: Place,
    about: About,
    choices: Vec<Choice>,
    eos: Vec<TokenId>,
    generates: bool,
    report: Report,
    queue: VecDeque<TextEvent>,
    clock: Clock,
    told: Told,
    /// Of one token in a full KV cache; known once a worker has been found.
    token_bytes: u64,
    /// Of the states beside it.
    state_bytes: u64,
    /// Its place among the requests of its key.
    permit: Option<Permit>,
    outcome: Option<Outcome>,
}

impl Generation {
    /// The next event; `None` after the last one and after an error.
    pub async fn next(&mut self) -> Option<Result<TextEvent, RequestError>> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(Ok(event));
            }
            if self.outcome.is_some() {
                return None;
            }
            let next = match self.told {
                Told::Nothing => self.updates.next().await,
                _ => self.next_told().await,
            };
            match next {
                Some(Ok(update)) => self.take(update),
                Some(Err(error)) => return Some(Err(self.fail(error))),
                None => {
                    if let Err(error) = self.end() {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    /// The next update of an answer that its caller has come back to. What was told before is there
    /// at once; what has to be waited for is new.
    async fn next_told(&mut self) -> Option<Result<Update, RequestError>> {
        if let Some(next) = self.updates.next().now_or_never() {
            return next;
        }
        let is_prefilled = self.clock.prefilled.is_some();
        self.told = if is_prefilled { Told::Nothing } else { Told::Tokens };
        self.updates.next().await
    }

    /// The figures, as far as they are known.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What was asked for.
    pub fn about(&self) -> &About {
        &self.about
    }

    fn is_done(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish.is_some())
    }

    fn take(&mut self, update: Update) {
        self.place.take(&update);
        match update {
            Update::Accepted { request, chunk_count, policy, clamps } => {
                if self.told != Told::AllSoFar {
                    self.generator.metrics.accepted(clamps.len());
                }
                self.report.policy = policy;
                self.report.chunk_count = chunk_count;
                self.report.warnings.extend(clamps.iter().map(ToString::to_string));
                self.queue.push_back(TextEvent::Accepted { request, chunk_count });
            }
            Update::Progress(progress) => self.queue.push_back(TextEvent::Progress(progress)),
            Update::Escalated(escalation) => self.take_escalated(escalation),
            // No text API asks for logits; what is seen is on the board.
            Update::Logits { .. } | Update::Seen(_) => {}
            Update::PromptLogprobs { start, entries } => {
                self.queue.push_back(TextEvent::PromptLogprobs { start, entries });
            }
            Update::Session(session) => self.report.session = Some(session),
            Update::Prefilled(report) => self.take_prefilled(*report),
            Update::Resumed { chunks_retried } => {
                if self.told != Told::AllSoFar {
                    self.generator.metrics.resumed(chunks_retried);
                }
                self.report.prefill.chunks_retried += chunks_retried;
            }
            Update::Token(emitted) => self.take_token(*emitted),
            Update::ChoiceDone { choice, eos } => self.take_choice_done(choice, eos),
        }
    }

    fn take_escalated(&mut self, escalation: Escalation) {
        if self.told != Told::AllSoFar {
            self.generator.metrics.escalated();
        }
        self.report.escalations += 1;
        self.report.policy = escalation.next;
        self.report.warnings.push(escalation.to_string());
        self.queue.push_back(TextEvent::Escalated(escalation));
    }

    fn take_prefilled(&mut self, prefill: PrefillReport) {
        self.clock.prefilled = Some(Instant::now());
        self.report.prefill = prefill;
        self.report.warnings.extend(self.report.shortfall());
        if self.told != Told::AllSoFar {
            self.count_prefill();
        }
        let load = self.generator.runtime.load();
        (self.token_bytes, self.state_bytes) = (load.token_bytes, load.state_bytes);
        self.count_dense_bytes();
        self.queue.push_back(TextEvent::Prefilled);
    }

    fn count_prefill(&self) {
        let (metrics, report) = (&self.generator.metrics, &self.report);
        let PrefillReport { exchange, traffic, audits, .. } = &report.prefill;
        let elapsed = self.clock.started.map(|started| started.elapsed());
        metrics.prefilled(report.prompt_tokens, elapsed, report.prefill.chunks_retried);
        metrics.queued(report.prefill.queued);
        metrics.wavefront(report.prefill.stalled, report.prefill.computed);
        if report.cache_prompt {
            metrics.prefix_looked_for(report.prompt_tokens, report.prefill.cached_tokens);
        }
        metrics.retained(report.retained_mass());
        metrics.exchanged(*exchange, traffic.bytes());
        metrics.audited(audits);
    }

    fn take_token(&mut self, emitted: Emitted) {
        let idx = emitted.choice;
        let Some(choice) = self.choices.get_mut(idx as usize) else { return };
        // Tokens that were under way when a stop string was found are no part of the answer.
        if choice.finish.is_some() {
            return;
        }
        let now = Instant::now();
        if self.told == Told::Nothing {
            let metrics = &self.generator.metrics;
            let is_first = !std::mem::replace(&mut self.clock.has_token, true);
            if let Some(started) = self.clock.started.filter(|_| is_first) {
                metrics.first_token(now - started);
            }
            metrics.token(choice.last_token.replace(now).map(|last| now - last));
        }
        choice.tokens += 1;
        self.report.output_tokens += 1;
        self.permit.iter().for_each(Permit::spend);
        let is_end = self.eos.contains(&emitted.token);
        let heard = match is_end {
            true => Heard::default(),
            false => choice.heard(&self.generator.text, emitted.token),
        };
        let is_thought = choice.hearing.is_thinking() || !heard.reasoning.is_empty();
        self.report.reasoning_tokens += u32::from(is_thought);
        let stands = choice.stands(&heard.text, self.generator.text.is_special(emitted.token));
        self.queue.push_back(TextEvent::Token(TextToken { emitted, heard, stands, is_end }));
        if choice.stops.stopped() {
            choice.finish = Some(Finish::Stop);
            self.queue.extend(choice.done(idx, Heard::default()));
            self.updates.stop_choice(idx);
        }
        self.count_decode();
    }

    fn take_choice_done(&mut self, idx: u32, eos: bool) {
        let Some(choice) = self.choices.get_mut(idx as usize) else { return };
        if choice.finish.is_some() {
            return;
        }
        let heard = choice.rest(eos);
        let stopped = eos || choice.stops.stopped();
        choice.finish = Some(if stopped { Finish::Stop } else { Finish::Length });
        self.queue.extend(choice.done(idx, heard));
        self.count_decode();
    }

    /// The runtime has nothing more to say.
    fn end(&mut self) -> Result<(), RequestError> {
        if !self.generates && self.clock.prefilled.is_some() {
            for idx in 0..self.choices.len() as u32 {
                self.take_choice_done(idx, false);
            }
        }
        if !self.is_done() {
            let message = "the request ended before its completions did".to_owned();
            return Err(self.fail(RequestError::Unavailable(message)));
        }
        self.set_outcome(Outcome::Finished);
        Ok(())
    }

    fn fail(&mut self, error: RequestError) -> RequestError {
        let refused = matches!(error, RequestError::Refused(_) | RequestError::Busy { .. });
        if refused && self.told != Told::AllSoFar {
            self.generator.metrics.rejected(error.reason());
        }
        self.set_outcome(match error {
            _ if refused => Outcome::Refused,
            RequestError::Cancelled => Outcome::Cancelled,
            _ => Outcome::Failed,
        });
        self.queue.clear();
        error
    }

    fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
        self.place.end(outcome);
        if self.told != Told::AllSoFar {
            let elapsed = self.clock.started.map(|started| started.elapsed());
            self.generator.metrics.ended(outcome, elapsed);
        }
    }

    fn count_decode(&mut self) {
        self.report.decode_elapsed =
            self.clock.prefilled.map_or(Duration::ZERO, |prefilled| prefilled.elapsed());
        self.count_dense_bytes();
    }

    fn count_dense_bytes(&mut self) {
        let longest = self.choices.iter().map(|choice| choice.tokens).max().unwrap_or(0);
        let tokens = u64::from(self.report.prompt_tokens) + u64::from(longest);
        self.report.dense_bytes = tokens * self.token_bytes + self.state_bytes;
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            self.set_outcome(Outcome::Cancelled);
        }
    }
}
