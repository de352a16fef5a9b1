//! Completions of a request: what their caller has of them, wherever they are decoded.

use aqueduct_core::journal::{Completion, Drawn};
use aqueduct_core::work::{Begun, DecodeSpec, Emitted, HandedOver, Seen, TokenLogprob};
use aqueduct_core::{Epoch, RequestId, WorkerId, limits};

use super::Live;
use crate::keys::Permit;
use crate::submit::Update;

/// Tokens that a home may have drawn and its coordinator has not heard of: what is told and not
/// read, at both ends and on the way, is bounded, and seldom that many.
const UNHEARD_TOKENS: usize = 4 * limits::EVENTS_MAX;

impl Live {
    /// What `worker`, its home from now on, is to do; with what came from its last home, if
    /// anything did, in epoch `handed_over`, and whether it has room for the shards of others.
    pub(crate) fn decode_at(
        &mut self,
        worker: WorkerId,
        handed_over: Option<Epoch>,
        gathers: bool,
    ) -> DecodeSpec {
        (self.home, self.is_further) = (Some(worker), false);
        self.trail.note("decodes", Some(worker), "");
        if self.redone > 0 {
            let chunks_retried = std::mem::take(&mut self.redone);
            if let Some(report) = &mut self.prefilled {
                report.chunks_retried += chunks_retried;
            }
            self.mailbox.push(Update::Resumed { chunks_retried });
        }
        DecodeSpec {
            request: self.run,
            sampling: self.submission.sampling,
            steering: self.submission.steering.clone(),
            constraint: self.submission.constraint.clone(),
            prompt_vocabulary: self.words.clone(),
            choices: self.submission.choices,
            max_tokens: self.submission.max_tokens,
            eos: self.submission.eos.clone(),
            begun: self.begun(),
            keeps: self.submission.session.is_some(),
            trace: self.trace.parent(),
            shows: self.submission.shows,
            gathers,
            handed_over: handed_over.map(|epoch| HandedOver {
                chunk_idx: self.grid.chunk_count() - 1,
                epoch,
                prompt_tokens: self.grid.prompt_tokens(),
                policy: self.policy,
                chunk_tokens: self.grid.chunk_tokens(),
            }),
        }
    }

    /// Whether its completions stay where they are, when that is no longer as it was. Who takes
    /// over their memory must be told all tokens that this knows of, and of more than a worker
    /// takes it is told the first ones.
    pub(crate) fn stays_now(&mut self) -> Option<bool> {
        let open = self.choices.iter().filter(|choice| choice.eos.is_none());
        let tokens: usize = open.map(|choice| choice.tokens.len()).sum();
        let stays = tokens + UNHEARD_TOKENS > limits::BEGUN_TOKENS_MAX;
        (std::mem::replace(&mut self.stays, stays) != stays).then_some(stays)
    }

    /// True for the first new token of its home.
    pub(crate) fn came_further(&mut self) -> bool {
        !std::mem::replace(&mut self.is_further, true)
    }

    /// How far completions have come. Of more tokens than a worker takes the first ones: it draws
    /// the rest again, which are the same.
    fn begun(&self) -> Vec<Begun> {
        let mut room = limits::BEGUN_TOKENS_MAX;
        let mut begun = |(choice, of): (u32, &Completion)| {
            let ended = of.eos.is_some();
            let told = if ended { 0 } else { of.tokens.len().min(room) };
            room -= told;
            let tokens = of.tokens[..told].iter().map(|drawn| drawn.token.token).collect();
            let begun = Begun { choice, tokens, ended };
            (begun.ended || told > 0).then_some(begun)
        };
        (0..).zip(&self.choices).filter_map(&mut begun).collect()
    }

    /// True when the token was the next one of a completion that goes on. One that was told by
    /// an earlier home, or is told again by a new one, is not.
    pub(crate) fn token(&mut self, worker: WorkerId, emitted: Emitted) -> bool {
        if self.home != Some(worker) {
            return false;
        }
        let max_tokens = self.submission.max_tokens;
        let Some(choice) = self.choices.get_mut(emitted.choice as usize) else { return false };
        let tokens = choice.tokens.len();
        if choice.eos.is_some()
            || emitted.token_idx as usize != tokens
            || tokens >= max_tokens as usize
        {
            return false;
        }
        let Emitted { token, logprob, .. } = emitted;
        let top = emitted.top.clone();
        if tokens == 0 {
            self.trail.note("first token", Some(worker), format_args!("choice {}", emitted.choice));
        }
        self.permit.iter().for_each(Permit::spend);
        choice.tokens.push(Drawn { token: TokenLogprob { token, logprob }, top });
        self.mailbox.push(Update::Token(Box::new(Emitted { request: self.request, ..emitted })));
        true
    }

    /// What its home tells for its caller to see.
    pub(crate) fn seen(&self, worker: WorkerId, seen: Seen) {
        if self.home == Some(worker) && self.submission.shows {
            self.mailbox.push(Update::Seen(Box::new(Seen { request: self.request, ..seen })));
        }
    }

    /// True when the completion went on until now.
    pub(crate) fn choice_ended(&mut self, choice: u32, eos: bool) -> bool {
        let Some(completion) = self.choices.get_mut(choice as usize) else { return false };
        if completion.eos.is_some() {
            return false;
        }
        completion.eos = Some(eos);
        let reason = if eos { "stop" } else { "length" };
        let about = format_args!("choice {choice}, {reason}, {} tokens", completion.tokens.len());
        self.trail.note("completion ended", self.home, about);
        self.mailbox.push(Update::ChoiceDone { choice, eos });
        true
    }

    /// Goes on as `run`, which nobody has heard of, from where the journal has its completions.
    pub(crate) fn go_on(&mut self, run: RequestId, choices: Vec<Completion>) {
        (self.run, self.choices) = (run, choices);
        (self.is_accepted, self.is_kept) = (true, true);
    }

    /// A token that its caller has.
    pub(crate) fn drawn(&self, choice: u32, token_idx: u32) -> Option<&Drawn> {
        self.choices.get(choice as usize)?.tokens.get(token_idx as usize)
    }

    /// Completions of this try that have ended, or that their caller had enough of before.
    pub(crate) fn ended_choices(&self) -> impl Iterator<Item = (RequestId, u32)> {
        let choices = (0..).zip(&self.choices).filter(|(_, choice)| choice.eos.is_some());
        let choices = choices.map(|(choice, _)| choice).chain(self.mailbox.stopped());
        choices.map(|choice| (self.run, choice))
    }
}
