//! Arguments of the kernels of `kernels/cu/recurrent.cu` and `recurrent_walk.cu`, as
//! `recurrent.cuh` says what they are.

use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct Sequence {
    pub(crate) columns: u64,
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) output: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct Recurrence {
    pub(crate) one: Sequence,
    pub(crate) many: u64,
    pub(crate) convolved: u64,
    pub(crate) steps: u64,
    pub(crate) walked: u64,
    pub(crate) taps_of: u64,
    pub(crate) bias: u64,
    pub(crate) rate: u64,
    pub(crate) shift: u64,
    pub(crate) skip: u64,
    pub(crate) norm: u64,
    pub(crate) broken: u64,
    pub(crate) rule: u32,
    pub(crate) sequences: u32,
    pub(crate) rows: u32,
    pub(crate) tile: u32,
    pub(crate) taps: u32,
    pub(crate) channels: u32,
    pub(crate) columns: u32,
    pub(crate) outputs: u32,
    pub(crate) inputs: u32,
    pub(crate) z: u32,
    pub(crate) gates: u32,
    pub(crate) heads: u32,
    pub(crate) groups: u32,
    pub(crate) state_rows: u32,
    pub(crate) state_cols: u32,
    pub(crate) padded_rows: u32,
    pub(crate) padded_cols: u32,
    pub(crate) q: u32,
    pub(crate) k: u32,
    pub(crate) v: u32,
    pub(crate) parts: u32,
    pub(crate) eps: f32,
    pub(crate) least: f32,
    pub(crate) most: f32,
    pub(crate) dt_scale: f32,
    pub(crate) x_scale: f32,
    pub(crate) code: u32,
    pub(crate) tiled: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct GateParams {
    pub(crate) x: u64,
    pub(crate) gates: u64,
    pub(crate) y: u64,
    pub(crate) columns: u32,
    pub(crate) each: u32,
}
