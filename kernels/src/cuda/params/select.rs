//! Arguments of the kernels of selection.

use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct SelectKeys {
    pub(crate) positions: u64,
    pub(crate) score: u64,
    pub(crate) votes: u64,
    pub(crate) table: u64,
    pub(crate) past_mass: u64,
    pub(crate) own_mass: u64,
    pub(crate) own_votes: u64,
    pub(crate) ranks: u64,
    pub(crate) kept_positions: u64,
    pub(crate) kept_score: u64,
    pub(crate) kept_votes: u64,
    pub(crate) kept_table: u64,
    pub(crate) source: u64,
    pub(crate) sums: u64,
    pub(crate) past: u32,
    pub(crate) own: u32,
    pub(crate) kept: u32,
    pub(crate) end: u32,
    pub(crate) sinks: u32,
    pub(crate) recent: u32,
    pub(crate) fade: f32,
    pub(crate) past_votes: f32,
    pub(crate) age_normalised: u32,
    pub(crate) first_seen: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct SelectJoin {
    pub(crate) positions: u64,
    pub(crate) score: u64,
    pub(crate) votes: u64,
    pub(crate) table: u64,
    pub(crate) kept_positions: u64,
    pub(crate) kept_score: u64,
    pub(crate) kept_votes: u64,
    pub(crate) kept_table: u64,
    pub(crate) past: u32,
    pub(crate) own: u32,
    pub(crate) end: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct SelectGather {
    pub(crate) past: [u64; 2],
    pub(crate) own: [u64; 2],
    pub(crate) to: [u64; 2],
    pub(crate) past_table: u64,
    pub(crate) own_table: u64,
    pub(crate) source: u64,
    pub(crate) past_keys: u32,
    pub(crate) own_keys: u32,
    pub(crate) past_cells: u32,
    pub(crate) own_cells: u32,
    pub(crate) to_cells: u32,
    pub(crate) first: u32,
    pub(crate) kept: u32,
    pub(crate) row_units: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct SelectReplace {
    pub(crate) positions: u64,
    pub(crate) score: u64,
    pub(crate) votes: u64,
    pub(crate) table: u64,
    pub(crate) past_mass: u64,
    pub(crate) own_mass: u64,
    pub(crate) sums: u64,
    pub(crate) to: [u64; 2],
    pub(crate) own: [u64; 2],
    pub(crate) own_table: u64,
    pub(crate) keys: u32,
    pub(crate) cells: u32,
    pub(crate) own_cells: u32,
    pub(crate) row_units: u32,
    pub(crate) end: u32,
    pub(crate) sinks: u32,
    pub(crate) recent: u32,
    pub(crate) fade: f32,
    pub(crate) new_votes: f32,
    pub(crate) age_normalised: u32,
    pub(crate) fresh_table: u32,
    pub(crate) first_seen: u32,
}
