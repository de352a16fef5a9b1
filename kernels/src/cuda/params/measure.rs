//! Arguments of the kernels that measures need.

use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct Noise {
    pub(crate) to: u64,
    pub(crate) count: u64,
    pub(crate) seed: u64,
    pub(crate) size: f32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct Roof {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) quads: u64,
}
