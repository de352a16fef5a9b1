//! Arguments of the kernels of `kernels/cu/latent.cu`, which says what they are.

use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct TakeParams {
    pub(crate) x: u64,
    pub(crate) y: u64,
    pub(crate) rows: u64,
    pub(crate) columns: u32,
    pub(crate) stride: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct LatentParams {
    pub(crate) queries: u64,
    pub(crate) keys: u64,
    pub(crate) common: u64,
    pub(crate) cosines: u64,
    pub(crate) sines: u64,
    pub(crate) q: u64,
    pub(crate) k: u64,
    pub(crate) v: u64,
    pub(crate) positions: u64,
    pub(crate) broken: u64,
    pub(crate) tokens: u32,
    pub(crate) heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) shared: u32,
    pub(crate) value_dim: u32,
    pub(crate) queries_stride: u32,
    pub(crate) common_stride: u32,
    pub(crate) start: u32,
    pub(crate) code: u32,
    pub(crate) queries_from: u32,
}
