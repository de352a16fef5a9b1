//! Arguments of the kernels of attention, masses and merging.

use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct QueryArray {
    pub(crate) q: u64,
    pub(crate) heads: u32,
    pub(crate) tokens: u32,
    pub(crate) start: u32,
    pub(crate) window: u32,
    pub(crate) scale: f32,
    pub(crate) head_dim: u32,
    pub(crate) softcap: f32,
    pub(crate) blocks: u32,
    pub(crate) slopes: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct KeyArrays {
    pub(crate) k: u64,
    pub(crate) v: u64,
    pub(crate) table: u64,
    pub(crate) positions: u64,
    pub(crate) kv_heads: u32,
    pub(crate) keys: u32,
    pub(crate) cells: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct StateArrays {
    pub(crate) m: u64,
    pub(crate) l: u64,
    pub(crate) o: u64,
}

impl KeyArrays {
    /// No keys.
    pub(crate) const NONE: Self =
        Self { k: 0, v: 0, table: 0, positions: 0, kv_heads: 0, keys: 0, cells: 0, unused: 0 };
}

impl StateArrays {
    /// No state.
    pub(crate) const NONE: Self = Self { m: 0, l: 0, o: 0 };
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct PlainAttention {
    pub(crate) queries: QueryArray,
    pub(crate) keys: KeyArrays,
    pub(crate) to: StateArrays,
    pub(crate) broken: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct PlainMasses {
    pub(crate) queries: QueryArray,
    pub(crate) keys: KeyArrays,
    pub(crate) lse: u64,
    pub(crate) row_weights: u64,
    pub(crate) mass: u64,
    pub(crate) broken: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct MergeStates {
    pub(crate) a: StateArrays,
    pub(crate) b: StateArrays,
    pub(crate) sinks: u64,
    pub(crate) output: u64,
    pub(crate) lse: u64,
    pub(crate) heads: u32,
    pub(crate) tokens: u32,
    pub(crate) head_dim: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct Convert {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) count: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct LayInOrder {
    pub(crate) from: [u64; 2],
    pub(crate) to: [u64; 2],
    pub(crate) table: u64,
    pub(crate) keys: u32,
    pub(crate) cells: u32,
    pub(crate) chunks: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct FindSight {
    pub(crate) queries: QueryArray,
    pub(crate) positions: u64,
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) keys: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct FewStretch {
    pub(crate) keys: KeyArrays,
    pub(crate) logits: u64,
    pub(crate) splits: u32,
    pub(crate) split_keys: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct FewAttention {
    pub(crate) queries: QueryArray,
    pub(crate) stretches: [FewStretch; 2],
    pub(crate) parts: StateArrays,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct FewCombine {
    pub(crate) parts: StateArrays,
    pub(crate) to: StateArrays,
    pub(crate) sinks: u64,
    pub(crate) output: u64,
    pub(crate) lse: u64,
    pub(crate) broken: u64,
    pub(crate) heads: u32,
    pub(crate) tokens: u32,
    pub(crate) head_dim: u32,
    pub(crate) splits: u32,
    pub(crate) rounds: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct FewColumns {
    pub(crate) logits: u64,
    pub(crate) mass: u64,
    pub(crate) keys: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct FewMasses {
    pub(crate) stretches: [FewColumns; 2],
    pub(crate) lse: u64,
    pub(crate) row_weights: u64,
    pub(crate) broken: u64,
    pub(crate) group: u32,
    pub(crate) tokens: u32,
}
