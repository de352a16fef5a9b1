//! Decode at the home: one token at a time through the same spine as prefill.

use std::sync::Arc;

use aqueduct_core::{MemoryPolicy, TokenId};
use aqueduct_kernels::MemorySet;

use crate::error::EngineError;
use crate::model::Model;
use crate::port::LocalPort;
use crate::prefill::{Block, Want, prefill};

/// One completion under way: what it remembers, and where it stands.
#[derive(Debug, Clone)]
pub struct Sequence {
    port: LocalPort,
}

impl Sequence {
    /// Goes on from the memory of all layers, as the last prompt chunk left it. Completions of
    /// one prompt share these sets; each makes its own copy when it first changes one.
    pub fn new(model: &Model, memory: Vec<Arc<MemorySet>>) -> Self {
        Self { port: LocalPort::resume(memory, model) }
    }

    /// Position of the next token.
    pub fn position(&self) -> u32 {
        self.port.end()
    }

    /// Bytes that it remembers.
    pub fn bytes(&self) -> u64 {
        self.port.bytes()
    }

    /// The memory of every layer.
    pub fn memory(&self) -> &[Arc<MemorySet>] {
        self.port.layers()
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
        let block = Block { tokens: &[token], start: self.position() };
        let done = prefill(model, block, policy, &mut self.port, Want::Last)?;
        Ok(model.logits(&done.hidden)?.into_vec())
    }
}
