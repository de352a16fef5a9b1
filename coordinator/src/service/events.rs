//! What happens to a request, as gRPC events.

use std::collections::HashMap;

use aqueduct_core::work::TokenLogprob;
use aqueduct_core::{RequestId, WorkerId};
use aqueduct_proto::v1;
use aqueduct_proto::v1::generate_event::Kind;

use crate::generation::{Finish, Source, TextEvent};
use crate::runtime::Coordinator;
use crate::streams::Place;
use crate::submit::{PrefillProgress, RequestError, WorkerProgress};
use crate::text::Heard;

/// Tells one request.
pub(super) struct Narrator {
    source: Source,
    /// Where its caller stands.
    place: Place,
    names: HashMap<WorkerId, String>,
    layers: u32,
    summed_up: bool,
}

impl Narrator {
    pub(super) fn new(source: Source, place: Place, coordinator: &Coordinator) -> Self {
        let cluster = coordinator.describe();
        let names = cluster.workers.into_iter().map(|worker| (worker.worker, worker.name));
        let layers = cluster.model.map_or(0, |model| model.shape.memory_layers());
        Self { source, place, names: names.collect(), layers, summed_up: false }
    }

    /// The request, if its caller may come back to it.
    pub(super) fn request(&self) -> Option<RequestId> {
        match &self.source {
            Source::Own(_) => None,
            Source::Kept(reader) => Some(reader.request()),
        }
    }

    /// The next event; the summary is the last one of a request that went well.
    pub(super) async fn next(&mut self) -> Result<Option<v1::GenerateEvent>, RequestError> {
        while !self.summed_up {
            let kind = match self.source.next().await.transpose()? {
                Some(event) if self.place.takes(&event) => self.kind_of(event),
                Some(_) => None,
                None => {
                    self.summed_up = true;
                    Some(Kind::Summary(self.summary()))
                }
            };
            if kind.is_some() {
                return Ok(Some(v1::GenerateEvent { kind }));
            }
        }
        Ok(None)
    }

    fn kind_of(&self, event: TextEvent) -> Option<Kind> {
        let report = self.source.report();
        Some(match event {
            TextEvent::Accepted { request, chunk_count } => Kind::Accepted(v1::Accepted {
                request: request.0,
                prompt_tokens: report.prompt_tokens,
                chunk_count,
                seed: report.seed,
                warnings: report.warnings.clone(),
            }),
            TextEvent::Progress(progress) => Kind::Progress(self.progress(progress)),
            TextEvent::Escalated(escalation) => Kind::Escalated(v1::Escalated {
                lowest_retained_mass: escalation.lowest,
                min_retained_mass: escalation.min_retained_mass,
                policy: Some(escalation.policy.into()),
                next: Some(escalation.next.into()),
            }),
            TextEvent::PromptLogprobs { start, entries } => {
                let entries = entries.into_iter().map(|(token, top)| v1::PromptLogprob {
                    token: Some(token.into()),
                    top: wire_list(top),
                });
                Kind::PromptLogprobs(v1::PromptLogprobs { start, entries: entries.collect() })
            }
            TextEvent::Token(token) => Kind::Token(v1::Token {
                choice: token.emitted.choice,
                token_idx: token.emitted.token_idx,
                id: token.emitted.token,
                text: token.heard.text,
                reasoning: token.heard.reasoning,
                logprob: token.emitted.logprob,
                top: wire_list(token.emitted.top),
            }),
            TextEvent::ChoiceDone { choice, finish, tokens, heard, .. } => {
                let reason = match finish {
                    Finish::Stop => v1::choice_done::Reason::Stop,
                    Finish::Length => v1::choice_done::Reason::Length,
                };
                let reason = reason.into();
                let Heard { text, reasoning, .. } = heard;
                Kind::ChoiceDone(v1::ChoiceDone { choice, reason, tokens, text, reasoning })
            }
            // The summary has the prefill's figures; nobody asks for logits over gRPC.
            TextEvent::Prefilled => return None,
        })
    }

    fn progress(&self, progress: PrefillProgress) -> v1::Progress {
        let prompt_tokens = self.source.report().prompt_tokens;
        let tokens_left = prompt_tokens.saturating_sub(progress.tokens_done);
        let seconds = progress.elapsed.as_secs_f64().max(1e-6);
        // What was kept from another request took no time.
        let computed = progress.tokens_done.saturating_sub(progress.cached_tokens);
        let tokens_per_second = f64::from(computed) / seconds;
        let is_known = tokens_per_second > 0.0;
        v1::Progress {
            chunks_done: progress.chunks_done,
            chunk_count: progress.chunk_count,
            tokens_per_second,
            seconds_left: if is_known { f64::from(tokens_left) / tokens_per_second } else { 0.0 },
            workers: progress.workers.into_iter().map(|worker| self.worker(worker)).collect(),
        }
    }

    fn worker(&self, at: WorkerProgress) -> v1::WorkerProgress {
        let name = self.names.get(&at.worker);
        v1::WorkerProgress {
            worker: name.cloned().unwrap_or_else(|| at.worker.to_string()),
            chunk_idx: at.chunk_idx,
            layers_done: at.layers_done,
            layers: self.layers,
            chunks_done: at.chunks_done,
        }
    }

    fn summary(&self) -> v1::Summary {
        let report = self.source.report().clone();
        v1::Summary {
            lowest_retained_mass: report.lowest_retained_mass(),
            min_retained_mass: report.floor.map(|floor| floor.min_retained_mass),
            escalations: report.escalations,
            cached_tokens: report.prefill.cached_tokens,
            prompt_tokens: report.prompt_tokens,
            output_tokens: report.output_tokens,
            queue_seconds: report.prefill.queued.as_secs_f64(),
            prefill_seconds: report.prefill.elapsed.as_secs_f64(),
            decode_seconds: report.decode_elapsed.as_secs_f64(),
            memory_bytes: report.prefill.memory_bytes,
            dense_bytes: report.dense_bytes,
            retained: report.prefill.retained.into_iter().map(Into::into).collect(),
            policy: Some(report.policy.into()),
            chunk_tokens: report.chunk_tokens,
            warnings: report.warnings,
            exchange: v1::Exchange::from(report.prefill.exchange).into(),
            traffic: Some(report.prefill.traffic.into()),
            session: report.session.map_or(String::new(), |session| session.to_string()),
        }
    }
}

fn wire_list(tokens: Vec<TokenLogprob>) -> Vec<v1::TokenLogprob> {
    tokens.into_iter().map(Into::into).collect()
}
