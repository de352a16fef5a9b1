//! Layers whose heads are of another shape.

use super::Decoder;

impl Decoder {
    /// Layer `idx` has the heads of [`ModelShape::wide`](aqueduct_core::ModelShape::wide): where
    /// there are such, layers that see everything have them.
    pub(crate) fn is_wide(&self, idx: usize) -> bool {
        self.shape.wide.layers > 0 && self.windows[idx].is_none()
    }

    /// Values of layer `idx` are its keys before their norm and rotation: in layers that see
    /// everything, whether their heads are wide or not.
    pub(crate) fn has_keys_for_values(&self, idx: usize) -> bool {
        self.keys_are_values && self.windows[idx].is_none()
    }

    /// KV heads of layer `idx`, and elements of each.
    pub(crate) fn kv_heads(&self, idx: usize) -> [u32; 2] {
        match self.is_wide(idx) {
            true => [self.shape.wide.kv_heads, self.shape.wide.head_dim],
            false => [self.shape.kv_heads, self.shape.head_dim],
        }
    }
}
