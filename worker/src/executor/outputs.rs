//! Logits and log probabilities of a prompt's own tokens, in slices that fit an event.

use std::time::{Duration, Instant};

use aqueduct_core::work::{Assignment, Event, Outputs, TokenLogprob};
use aqueduct_core::{TokenId, limits};
use aqueduct_engine::{EngineError, logprob_of};
use aqueduct_kernels::Rows;

use super::Executor;
use super::chunk::ChunkError;
use super::schedule::Boundary;

/// A prompt token's log probability and its alternatives.
type Entry = (TokenLogprob, Vec<TokenLogprob>);

impl Executor {
    /// Sends what `work` asks for beyond the memory. `hidden` is `[tokens, width]` then.
    pub(super) fn emit_outputs(
        &mut self,
        work: &Assignment,
        hidden: &Rows,
    ) -> Result<(), ChunkError> {
        if work.outputs == Outputs::None {
            return Ok(());
        }
        hidden.array().host().map_err(EngineError::from)?;
        let row_bytes = self.model.shape().vocab as usize * size_of::<f32>();
        let step = (limits::LOGITS_EVENT_BYTES / row_bytes).max(1);
        for first in (0..hidden.rows()).step_by(step) {
            let rows = step.min(hidden.rows() - first);
            let logits = self.model.logits(&slice(hidden, first, rows))?;
            logits.array().host().map_err(EngineError::from)?;
            if let Some(event) = event(work, first, logits) {
                self.send_patiently(work, event)?;
            }
        }
        Ok(())
    }

    /// Sends a large event: not before there is room for it.
    fn send_patiently(&mut self, work: &Assignment, event: Event) -> Result<(), ChunkError> {
        let deadline_ms = work.deadline_ms;
        let deadline = Instant::now() + Duration::from_millis(deadline_ms);
        loop {
            let attended = self.attend(Boundary::Idle);
            self.check_wanted(work.key).map_err(EngineError::from)?;
            if self.has_room(work) {
                self.send(work.key.request, event);
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(ChunkError::Unread { deadline_ms });
            }
            if !attended {
                self.rest(deadline);
            }
        }
    }

    fn has_room(&mut self, work: &Assignment) -> bool {
        let Self { requests, sessions, waker, .. } = self;
        let owner = requests.get(&work.key.request).map(|request| request.session);
        let session = owner.and_then(|owner| sessions.get_mut(&owner));
        session.is_some_and(|session| session.outlet.has_room(waker))
    }
}

/// Rows `first..first + rows`.
fn slice(hidden: &Rows, first: usize, rows: usize) -> Rows {
    let cols = hidden.cols();
    let data = hidden.data()[first * cols..(first + rows) * cols].to_vec();
    Rows::from_vec(rows, cols, data)
}

/// What is told about the tokens from row `first` of the chunk on.
fn event(work: &Assignment, first: usize, logits: Rows) -> Option<Event> {
    let (key, start) = (work.key, work.span.start + first as u32);
    match work.outputs {
        Outputs::None => None,
        Outputs::Logits => {
            let rows = logits.rows() as u32;
            Some(Event::Logits { key, start, rows, logits: logits.into_vec() })
        }
        Outputs::Logprobs(top) => {
            let entries = logprobs(work, first, &logits, top);
            // Row i speaks of the token after it; the last token of all has none after it.
            (!entries.is_empty()).then(|| Event::PromptLogprobs { key, start: start + 1, entries })
        }
    }
}

fn logprobs(work: &Assignment, first: usize, logits: &Rows, top: u32) -> Vec<Entry> {
    // What the next chunk begins with is refused there if the model does not have it.
    let next = work.next_token.filter(|token| (*token as usize) < logits.cols());
    let after =
        |row: usize| -> Option<TokenId> { work.tokens.get(first + row + 1).copied().or(next) };
    (0..logits.rows())
        .filter_map(|row| Some(logprob_of(logits.row(row), after(row)?, top)))
        .collect()
}
