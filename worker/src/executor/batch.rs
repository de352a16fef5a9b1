//! One step of many completions, wherever they have their memory.

use aqueduct_core::{MemoryPolicy, TokenId};
use aqueduct_engine::{EngineError, Model, Past, Remembered, Sequence, Turn, decode};

use super::sharded::{Device, SequencePort, ShardedSequence};

/// What a completion goes on from.
pub(super) enum Continuation {
    /// Memory sets of its own, here.
    Sets(Sequence),
    /// The prompt's shards, and its own.
    Sharded(ShardedSequence),
}

impl Continuation {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Sets(sequence) => sequence.bytes(),
            Self::Sharded(_) => 0, // the store counts them
        }
    }

    /// Whether its steps need nothing of other workers.
    pub(super) fn is_here(&self) -> bool {
        matches!(self, Self::Sets(_))
    }

    /// Makes ready for the next token.
    pub(super) fn prepare(
        &mut self,
        model: &Model,
        device: &Device<'_>,
    ) -> Result<(), EngineError> {
        match self {
            Self::Sets(_) => Ok(()),
            Self::Sharded(sequence) => sequence.prepare(model, device),
        }
    }

    fn open<'a, 'd>(&'a mut self, device: &'a Device<'d>) -> Door<'a, 'd> {
        match self {
            Self::Sets(sequence) => Door::Sets(sequence),
            Self::Sharded(sequence) => Door::Sharded(Box::new(sequence.port(device)), sequence),
        }
    }
}

/// A completion's part in a step.
pub(super) struct Part<'a> {
    pub(super) token: TokenId,
    pub(super) policy: &'a MemoryPolicy,
    pub(super) from: &'a mut Continuation,
}

/// The way to a completion's memory, for one step.
enum Door<'a, 'd> {
    Sets(&'a mut Sequence),
    Sharded(Box<SequencePort<'a, 'd>>, &'a ShardedSequence),
}

impl Door<'_, '_> {
    fn turn<'a>(&'a mut self, token: TokenId, policy: &'a MemoryPolicy) -> Turn<'a> {
        match self {
            Self::Sets(sequence) => sequence.turn(token, policy),
            Self::Sharded(port, sequence) => {
                let (chunks, port) = (sequence.chunks(), port.as_mut());
                let past = Remembered::Shards(Past { chunks, port });
                Turn { token, position: sequence.position(), policy, past }
            }
        }
    }
}

/// Appends a token to every completion and returns for each the logits of the one after it.
pub(super) fn step(
    model: &Model,
    device: &Device<'_>,
    parts: &mut [Part<'_>],
) -> Vec<Result<Vec<f32>, EngineError>> {
    let each = parts.iter_mut();
    let mut doors: Vec<_> =
        each.map(|part| (part.from.open(device), part.token, part.policy)).collect();
    let turns = doors.iter_mut().map(|(door, token, policy)| door.turn(*token, policy)).collect();
    let logits = decode(model, turns);
    drop(doors);
    let here = device.borrow().exchange.peer().clone();
    for (part, logits) in parts.iter_mut().zip(&logits) {
        if let (Continuation::Sharded(sequence), Ok(_)) = (&mut *part.from, logits) {
            sequence.advance(&here);
        }
    }
    logits
}
