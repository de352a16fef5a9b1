//! Who has requests written down: each record again and again until it is known to be there, as
//! a caller must who does not know whether a lost leader wrote it.

use std::collections::BTreeMap;

use aqueduct_core::RequestId;
use aqueduct_core::journal::{Accepted, Batch, Drawn, Kept, Outcome, Record, RecordKind};
use aqueduct_core::work::TokenLogprob;
use aqueduct_journal::{Applied, Misfit, State, Ticket};

use crate::random::Random;

const TOKENS: u32 = 12;

/// A request on its way through the journal.
#[derive(Debug, Default)]
struct Caller {
    /// Tokens that are known to be there.
    tokens: u32,
    accepted: bool,
    ended: bool,
}

/// What becomes known of a request when a record of it is there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    Accepted,
    /// It has so many tokens.
    Tokens(u32),
    Ended,
}

#[derive(Debug, Default)]
pub(crate) struct Callers {
    callers: Vec<Caller>,
    waiting: BTreeMap<Ticket, (usize, Stage)>,
}

impl Callers {
    /// Something that a caller wants written, and whose it is.
    pub(crate) fn record(&mut self, now_ms: u64, random: &mut Random) -> (usize, Stage, Record) {
        let is_open = |callers: &[Caller], idx: &usize| !callers[*idx].ended;
        let mut open: Vec<_> =
            (0..self.callers.len()).filter(|idx| is_open(&self.callers, idx)).collect();
        if open.len() < 3 {
            open.push(self.callers.len());
            self.callers.push(Caller::default());
        }
        let whose = open[random.below(open.len() as u64) as usize];
        let caller = &self.callers[whose];
        let (stage, kind) = if !caller.accepted {
            (Stage::Accepted, RecordKind::Accepted(Box::new(accepted(whose))))
        } else if caller.tokens < TOKENS {
            // Sometimes tokens that are there already come once more.
            let first_idx = caller.tokens.saturating_sub(random.below(3) as u32);
            let end = (caller.tokens + 1 + random.below(4) as u32).min(TOKENS);
            let tokens = (first_idx..end).map(|idx| drawn(whose, idx)).collect();
            (Stage::Tokens(end), RecordKind::Tokens(Batch { choice: 0, first_idx, tokens }))
        } else {
            (Stage::Ended, RecordKind::Ended(Outcome::Finished))
        };
        let request = RequestId(whose as u64 + 1);
        (whose, stage, Record { request, at_ms: now_ms, kind })
    }

    /// It was proposed.
    pub(crate) fn proposed(&mut self, ticket: Ticket, whose: usize, stage: Stage) {
        self.waiting.insert(ticket, (whose, stage));
    }

    /// Some member has applied it, so it is there.
    pub(crate) fn settled(&mut self, applied: &Applied) {
        let Some((whose, stage)) = self.waiting.remove(&applied.ticket) else { return };
        let caller = &mut self.callers[whose];
        match (stage, applied.result) {
            (Stage::Accepted, Ok(()) | Err(Misfit::Known)) => caller.accepted = true,
            (Stage::Tokens(end), Ok(())) => caller.tokens = caller.tokens.max(end),
            (Stage::Ended, Ok(()) | Err(Misfit::Over | Misfit::Unknown)) => caller.ended = true,
            // Written twice, and again after the end.
            (Stage::Tokens(_), Err(Misfit::Over | Misfit::Unknown)) if caller.tokens == TOKENS => {}
            (_, result) => panic!("request {whose}: {stage:?} gives {result:?}"),
        }
    }

    /// Nothing that was known to be there is missing, and nothing is there twice.
    pub(crate) fn check(&self, state: &State) {
        for (whose, caller) in self.callers.iter().enumerate() {
            let Some(kept) = state.get(RequestId(whose as u64 + 1)) else {
                // An ended one may be forgotten.
                assert!(!caller.accepted || caller.tokens == TOKENS, "request {whose} is lost");
                continue;
            };
            let Kept { choices, .. } = kept;
            let tokens = &choices[0].tokens;
            assert!(tokens.len() as u32 >= caller.tokens, "tokens of request {whose} are lost");
            let want: Vec<_> = (0..tokens.len() as u32).map(|idx| drawn(whose, idx)).collect();
            assert_eq!(*tokens, want, "request {whose}");
        }
    }

    /// Requests that were written to their end.
    pub(crate) fn ended(&self) -> usize {
        self.callers.iter().filter(|caller| caller.ended).count()
    }
}

fn drawn(whose: usize, idx: u32) -> Drawn {
    let token = TokenLogprob { token: whose as u32 * 100 + idx, logprob: -(idx as f32) };
    Drawn { token, top: Vec::new() }
}

fn accepted(whose: usize) -> Accepted {
    Accepted { max_tokens: TOKENS, ..Accepted::of("m", vec![whose as u32; 20]) }
}
