//! Decode at the home: the next token of many sequences, in one pass through the layers.
//!
//! Weights are read once for all rows; what is a sequence's own (its memory, its policy, where
//! it stands) is asked of each. A row's bits do not depend on the rows beside it, so neither do
//! a sequence's on who else is in the batch; and what goes wrong with one ends that one alone.

mod rows;
mod seat;
mod told;

use std::sync::Arc;

use aqueduct_core::work::SeenHead;
use aqueduct_core::{MemoryPolicy, TokenId};
use aqueduct_kernels::{Leaves, MemorySet};

use self::rows::Batch;
use crate::error::EngineError;
use crate::model::Model;
use crate::port::LocalPort;
use crate::shards::Past;

/// One completion under way: what it remembers, and where it stands.
#[derive(Debug, Clone)]
pub struct Sequence {
    port: LocalPort,
    leaves: Leaves,
}

impl Sequence {
    /// Goes on from the memory of all layers, as the last prompt chunk left it. Completions of
    /// one prompt share these sets; each makes its own copy when it first changes one. What is
    /// generated belongs to the last of the prompt's `leaves`.
    pub fn new(model: &Model, memory: Vec<Arc<MemorySet>>, leaves: Leaves) -> Self {
        Self { port: LocalPort::resume(memory, model), leaves }
    }

    /// Position of the next token.
    pub fn position(&self) -> u32 {
        self.port.end()
    }

    /// Bytes that it remembers.
    pub fn bytes(&self) -> u64 {
        self.port.bytes()
    }

    /// Has it noted from now on what each step looks at.
    pub fn watch(&mut self) {
        self.port.watch();
    }

    /// Has every step count what it spends, as another turn goes on from what is left.
    pub fn keep(&mut self) {
        self.port.keep();
    }

    /// What the last step looked at, layer by layer: each KV head's heaviest keys.
    pub fn take_looks(&mut self) -> Vec<Vec<SeenHead>> {
        self.port.take_looks()
    }

    /// The memory of every layer.
    pub fn memory(&self) -> &[Arc<MemorySet>] {
        self.port.layers()
    }

    /// Its turn in a batch. If that fails, nothing can go on from what is left.
    pub fn turn<'a>(&'a mut self, token: TokenId, policy: &'a MemoryPolicy) -> Turn<'a> {
        let position = self.position();
        Turn { token, position, policy, past: Remembered::Sets(&mut self.port, self.leaves) }
    }

    /// Appends `token` and returns the logits of the one after it, `[vocab]`.
    ///
    /// # Errors
    /// A token outside the vocabulary, or what the backend refuses.
    pub fn step(
        &mut self,
        model: &Model,
        token: TokenId,
        policy: &MemoryPolicy,
    ) -> Result<Vec<f32>, EngineError> {
        decode(model, vec![self.turn(token, policy)]).pop().expect("one for each turn")
    }
}

/// A sequence's part in a step of a batch.
pub struct Turn<'a> {
    /// What comes next.
    pub token: TokenId,
    /// Where it stands.
    pub position: u32,
    /// What is remembered.
    pub policy: &'a MemoryPolicy,
    /// Everything before.
    pub past: Remembered<'a>,
}

/// Where a sequence has its memory.
pub enum Remembered<'a> {
    /// Sets, here, and which of their keys are summed together.
    Sets(&'a mut LocalPort, Leaves),
    /// Shards, here and elsewhere.
    Shards(Past<'a>),
}

/// Appends a token to every sequence and returns for each the logits of the one after it,
/// `[vocab]`: the bits that a batch of it alone gives.
///
/// # Errors
/// For each sequence, what went wrong with it: a token outside the vocabulary, what the backend
/// refuses, what its port could not do.
pub fn decode(model: &Model, turns: Vec<Turn<'_>>) -> Vec<Result<Vec<f32>, EngineError>> {
    let mut batch = Batch::new(model, turns);
    for (idx, layer) in model.parts.layers.iter().enumerate() {
        if let Some(recurrent) = &layer.recurrent {
            let outputs = batch.recur((idx, layer), recurrent);
            batch.finish((idx, layer), outputs);
            continue;
        }
        let mut qkvs = batch.project((idx, layer));
        if let Some(lender) = layer.keys_of {
            let outputs = batch.borrow((idx, layer), lender, &qkvs);
            batch.finish((idx, layer), outputs);
            continue;
        }
        let of_shards = qkvs.split_off(batch.sets.len());
        let asked = batch.shards.iter_mut().zip(of_shards).map(|(seat, qkv)| seat.ask(idx, qkv));
        let asked = asked.collect(); // holders are at work while this node is
        let mut outputs = batch.attend((idx, layer), qkvs);
        outputs.extend(batch.collect(asked));
        batch.finish((idx, layer), outputs);
    }
    batch.end_broken();
    batch.remember();
    batch.logits()
}
