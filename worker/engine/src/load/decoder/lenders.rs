//! Layers that attend to keys of earlier ones.

use aqueduct_core::Refusal;
use aqueduct_kernels::Window;

use super::Decoder;

impl Decoder {
    /// The layer to whose keys layer `idx` attends, if it has none of its own: of those that have
    /// the last one that sees as far.
    pub(crate) fn keys_of(&self, idx: usize) -> Option<usize> {
        let first = self.shape.memory_layers() as usize;
        let is_like = |window: &Option<u32>| window.is_some() == self.windows[idx].is_some();
        if idx < first { None } else { self.windows[..first].iter().rposition(is_like) }
    }

    /// Refuses layers without keys that have none to attend to.
    pub(super) fn check_lenders(&self) -> Result<(), Refusal> {
        let first = self.shape.memory_layers() as usize;
        match (first..self.windows.len()).find(|&idx| self.keys_of(idx).is_none()) {
            None => Ok(()),
            Some(idx) => {
                let bound =
                    format!("so few that a layer is before them which sees as far as {idx}");
                Err(Refusal::new("kv_shared_layers", self.shape.kv_shared_layers, bound))
            }
        }
    }

    /// What a window makes of its count.
    pub(crate) fn sight(&self) -> fn(u32) -> Window {
        if self.in_blocks { Window::Block } else { Window::Last }
    }

    /// How wide the feed-forward part of layer `idx` is, where it is dense.
    pub(crate) fn ffn(&self, idx: usize) -> usize {
        let is_double = self.double_ffn && idx >= self.shape.memory_layers() as usize;
        self.shape.ffn as usize * if is_double { 2 } else { 1 }
    }
}
