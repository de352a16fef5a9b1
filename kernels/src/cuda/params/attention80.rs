//! Arguments of `attention80.cu` and `masses80.cu`.

use bytemuck::{Pod, Zeroable};

use super::attention::StateArrays;

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct Stretch80 {
    pub(crate) k: u64,
    pub(crate) v: u64,
    pub(crate) keys: u32,
    pub(crate) cells: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct Attention80 {
    pub(crate) q: u64,
    pub(crate) own: Stretch80,
    pub(crate) past: Stretch80,
    pub(crate) from: StateArrays,
    pub(crate) to: StateArrays,
    pub(crate) output: u64,
    pub(crate) lse: u64,
    pub(crate) broken: u64,
    pub(crate) heads: u32,
    pub(crate) group: u32,
    pub(crate) tokens: u32,
    pub(crate) scale: f32,
    pub(crate) first: [u64; 2],
    pub(crate) head_dim: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct Columns80 {
    pub(crate) k: u64,
    pub(crate) mass: u64,
    pub(crate) keys: u32,
    pub(crate) cells: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct Masses80 {
    pub(crate) q: u64,
    pub(crate) own: Columns80,
    pub(crate) past: Columns80,
    pub(crate) lse: u64,
    pub(crate) row_weights: u64,
    pub(crate) broken: u64,
    pub(crate) group: u32,
    pub(crate) tokens: u32,
    pub(crate) first_row: u32,
    pub(crate) scale: f32,
    pub(crate) end: [u64; 2],
    pub(crate) head_dim: u32,
    pub(crate) unused: u32,
}
