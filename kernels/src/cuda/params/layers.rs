//! Arguments of the kernels of layers: preparing rows, heads, embedding, linear maps.

use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct PrepareParams {
    pub(crate) x: u64,
    pub(crate) norm: u64,
    pub(crate) residual: u64,
    pub(crate) y: u64,
    pub(crate) scales: u64,
    pub(crate) broken: u64,
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    pub(crate) y_stride: u32,
    pub(crate) scale_stride: u32,
    pub(crate) eps: f32,
    pub(crate) code: u32,
    pub(crate) activation: u32,
    pub(crate) positive: f32,
    pub(crate) negative: f32,
    pub(crate) beta: f32,
    pub(crate) factor: f32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct HeadsParams {
    pub(crate) qkv: u64,
    pub(crate) q_norm: u64,
    pub(crate) k_norm: u64,
    pub(crate) v_norm: u64,
    pub(crate) cosines: u64,
    pub(crate) sines: u64,
    pub(crate) q: u64,
    pub(crate) k: u64,
    pub(crate) v: u64,
    pub(crate) positions: u64,
    pub(crate) broken: u64,
    pub(crate) tokens: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) start: u32,
    pub(crate) code: u32,
    pub(crate) eps: f32,
    pub(crate) q_span: u32,
    pub(crate) k_span: u32,
    pub(crate) queries_from: u32,
    pub(crate) norms_last: u32,
    pub(crate) norms_apart: u32,
    pub(crate) clip: f32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct EmbedParams {
    pub(crate) table: u64,
    pub(crate) scales: u64,
    pub(crate) tokens: u64,
    pub(crate) y: u64,
    pub(crate) count: u32,
    pub(crate) columns: u32,
    pub(crate) stride: u32,
    pub(crate) scale_stride: u32,
    pub(crate) scale: f32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct CombineParams {
    pub(crate) parts: u64,
    pub(crate) weights: u64,
    pub(crate) shared: u64,
    pub(crate) gates: u64,
    pub(crate) residual: u64,
    pub(crate) y: u64,
    pub(crate) rows: u32,
    pub(crate) count: u32,
    pub(crate) columns: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct LinearParams {
    pub(crate) x: u64,
    pub(crate) w: u64,
    pub(crate) x_scales: u64,
    pub(crate) w_scales: u64,
    pub(crate) bias: u64,
    pub(crate) residual: u64,
    pub(crate) y: u64,
    pub(crate) broken: u64,
    pub(crate) rows: u32,
    pub(crate) outputs: u32,
    pub(crate) inputs: u32,
    pub(crate) x_stride: u32,
    pub(crate) w_stride: u32,
    pub(crate) y_stride: u32,
    pub(crate) x_scale_stride: u32,
    pub(crate) w_scale_stride: u32,
    pub(crate) rounds: u32,
    pub(crate) code: u32,
    pub(crate) activation: u32,
    pub(crate) unused: u32,
}
