//! Arguments of the kernels of attention and masses for sm_90a.

use bytemuck::{Pod, Zeroable};

use super::attention::StateArrays;
use crate::cuda::device::TensorMap;

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct HopperAttention {
    pub(crate) q: TensorMap,
    pub(crate) k: [TensorMap; 2],
    pub(crate) v: [TensorMap; 2],
    pub(crate) output: TensorMap,
    pub(crate) from: StateArrays,
    pub(crate) to: StateArrays,
    pub(crate) lse: u64,
    pub(crate) broken: u64,
    pub(crate) keys: [u32; 2],
    pub(crate) heads: u32,
    pub(crate) group: u32,
    pub(crate) tokens: u32,
    pub(crate) scale: f32,
    pub(crate) first: [u64; 2],
    pub(crate) head_dim: u32,
    pub(crate) unused: [u32; 5],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct HopperMasses {
    pub(crate) q: TensorMap,
    pub(crate) k: [TensorMap; 2],
    pub(crate) columns: [u64; 2],
    pub(crate) lse: u64,
    pub(crate) row_weights: u64,
    pub(crate) broken: u64,
    pub(crate) keys: [u32; 2],
    pub(crate) first_row: u32,
    pub(crate) end_row: u32,
    pub(crate) heads: u32,
    pub(crate) group: u32,
    pub(crate) tokens: u32,
    pub(crate) scale: f32,
    pub(crate) first: [u64; 2],
    pub(crate) end: [u64; 2],
    pub(crate) unused: [u32; 6],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct AddHeads {
    pub(crate) columns: u64,
    pub(crate) mass: u64,
    pub(crate) keys: u32,
    pub(crate) group: u32,
}
