//! A past that is always late.

use std::sync::Arc;

use aqueduct_engine::{LocalPort, MemoryPort, Model, PortError};
use aqueduct_kernels::MemorySet;

/// A port that is never ready, and notes in which order layers are given.
pub(crate) struct Late {
    pub(crate) port: LocalPort,
    pub(crate) given: Vec<usize>,
}

impl Late {
    pub(crate) fn empty(model: &Model) -> Self {
        Self { port: LocalPort::empty(model), given: Vec::new() }
    }
}

impl MemoryPort for Late {
    fn is_ready(&self, _layer: usize) -> bool {
        false
    }

    fn take(&mut self, layer: usize) -> Result<Arc<MemorySet>, PortError> {
        self.port.take(layer)
    }

    fn give(&mut self, layer: usize, memory: Arc<MemorySet>) -> Result<(), PortError> {
        self.given.push(layer);
        self.port.give(layer, memory)
    }
}
