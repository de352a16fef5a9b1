//! The only door between a block's mathematics and the rest of the world.

use std::sync::Arc;

use aqueduct_core::work::SeenHead;
use aqueduct_kernels::{MemorySet, Pool};

use crate::error::PortError;
use crate::model::Model;

/// Where the memory of the past comes from and where that of the future goes.
///
/// Per block, `take` and `give` are called once for each layer that remembers something, layers
/// ascending, `take(j)` before `give(j)`; the last layers may be given once all are taken. Both
/// may block and must have a deadline.
pub trait MemoryPort {
    /// Whether `take(layer)` would not wait. Asked before it, so that nothing is computed apart
    /// that could be computed in one pass; the answer changes no result.
    fn is_ready(&self, layer: usize) -> bool;

    /// What layer `layer` remembers of everything before the block.
    fn take(&mut self, layer: usize) -> Result<Arc<MemorySet>, PortError>;

    /// What layer `layer` remembers after the block.
    fn give(&mut self, layer: usize, memory: Arc<MemorySet>) -> Result<(), PortError>;

    /// Runs `compute`, a part of a layer, once; other things may be done beside it.
    fn beside(&mut self, compute: &mut (dyn FnMut() + Send)) {
        compute();
    }
}

/// The result of `compute`, beside which the port may do other things.
pub(crate) fn beside<T: Send>(port: &mut dyn MemoryPort, compute: impl FnOnce() -> T + Send) -> T {
    let (mut compute, mut result) = (Some(compute), None);
    port.beside(&mut || result = compute.take().map(|compute| compute()));
    result.expect("a port runs what it is given")
}

/// A sequence's memory on this node: what is given is what is taken next time.
#[derive(Debug, Clone)]
pub struct LocalPort {
    layers: Vec<Arc<MemorySet>>,
    /// What stands where a layer's was taken.
    nothing: Arc<MemorySet>,
    /// What the last step looked at, layer by layer, where somebody wants to know.
    looks: Option<Vec<Vec<SeenHead>>>,
    /// Scores are read when the sequence has ended.
    is_kept: bool,
}

impl LocalPort {
    /// A sequence that has seen nothing.
    pub fn empty(model: &Model) -> Self {
        let nothing = |layer| Arc::new(model.empty_memory(layer));
        Self::resume((0..model.memory_layers()).map(nothing).collect(), model)
    }

    /// A sequence that has seen nothing and remembers in pages of `pool`.
    pub fn empty_in(pool: &Pool, model: &Model) -> Self {
        let nothing = |layer| Arc::new(model.empty_memory_in(layer, Some(pool)));
        Self::resume((0..model.memory_layers()).map(nothing).collect(), model)
    }

    /// A sequence that goes on from `layers`.
    pub fn resume(layers: Vec<Arc<MemorySet>>, model: &Model) -> Self {
        let nothing = Arc::new(model.empty_memory(0));
        Self { layers, nothing, looks: None, is_kept: false }
    }

    /// The memory of every layer that has one.
    pub fn layers(&self) -> &[Arc<MemorySet>] {
        &self.layers
    }

    /// Tokens processed so far: the position of the next one.
    pub fn end(&self) -> u32 {
        self.layers.first().map_or(0, |layer| layer.end)
    }

    /// Has it noted from now on what each step looks at.
    pub fn watch(&mut self) {
        self.looks = Some(Vec::new());
    }

    /// Has every step count what it spends, also where no key is kept for it: another turn goes on
    /// from what is remembered at the end, and tells what that has drawn.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Whether it does.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Whether it is.
    pub(crate) fn is_watched(&self) -> bool {
        self.looks.is_some()
    }

    /// Notes what the next layer looked at.
    pub(crate) fn looked(&mut self, heads: Vec<SeenHead>) {
        if let Some(looks) = &mut self.looks {
            looks.push(heads);
        }
    }

    /// What has been looked at since the last time it was asked, layer by layer.
    pub fn take_looks(&mut self) -> Vec<Vec<SeenHead>> {
        self.looks.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Bytes of all layers.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes() as u64).sum()
    }
}

impl MemoryPort for LocalPort {
    fn is_ready(&self, _layer: usize) -> bool {
        true
    }

    fn take(&mut self, layer: usize) -> Result<Arc<MemorySet>, PortError> {
        // Leaves no second owner behind, so that selection may work in place.
        Ok(std::mem::replace(&mut self.layers[layer], self.nothing.clone()))
    }

    fn give(&mut self, layer: usize, memory: Arc<MemorySet>) -> Result<(), PortError> {
        self.layers[layer] = memory;
        Ok(())
    }
}
