//! Kernels that serve every shape, dtype, table and window.

use std::sync::Arc;

use super::Shared;
use super::device::Launch;
use super::operands::{Output, PlacedKeys, PlacedQueries, PlacedState, Votes};
use super::params::attention::{MergeStates, PlainAttention, PlainMasses, StateArrays};
use super::resident::OnDevice;
use crate::backend::BackendError;
use crate::tensor::KvDtype;

/// The partial state of `rows` over `keys`.
pub(super) fn state(
    shared: &Shared,
    rows: &PlacedQueries<'_>,
    keys: &PlacedKeys,
    state: &PlacedState,
) -> Result<(), BackendError> {
    const WARPS: usize = 4;
    let q = rows.queries.q;
    let kernels: [_; 4] = match keys.dtype() {
        KvDtype::F32 => [
            "plain_attention_f32_64",
            "plain_attention_f32_128",
            "plain_attention_f32_256",
            "plain_attention_f32_512",
        ],
        KvDtype::Bf16 => [
            "plain_attention_bf16_64",
            "plain_attention_bf16_128",
            "plain_attention_bf16_256",
            "plain_attention_bf16_512",
        ],
    };
    let width = q.head_dim.next_power_of_two().max(64);
    let params = PlainAttention {
        queries: rows.array(),
        keys: keys.arrays(),
        to: state.arrays(),
        broken: shared.broken_at(),
    };
    shared.run(&Launch {
        kernel: kernels[(width / 64).ilog2() as usize],
        grid: [q.tokens.div_ceil(WARPS) as u32, q.heads as u32, 1],
        threads: 32 * WARPS as u32,
        shared_bytes: WARPS * (q.head_dim + 64) * size_of::<f32>(),
        params: bytemuck::bytes_of(&params),
    })
}

/// What `rows` spend on `keys`, `[kv_heads, keys]`.
pub(super) fn masses(
    shared: &Shared,
    rows: &PlacedQueries<'_>,
    (keys, votes): (&PlacedKeys, &Votes<'_>),
    mass: &OnDevice<f32>,
) -> Result<(), BackendError> {
    const COLUMNS: usize = 128;
    let params = PlainMasses {
        queries: rows.array(),
        keys: keys.arrays(),
        lse: votes.lse.address(),
        row_weights: votes.row_weights.address(),
        mass: mass.address(),
        broken: shared.broken_at(),
    };
    shared.run(&Launch {
        kernel: match keys.dtype() {
            KvDtype::F32 => "plain_masses_f32",
            KvDtype::Bf16 => "plain_masses_bf16",
        },
        grid: [keys.len().div_ceil(COLUMNS) as u32, keys.kv_heads() as u32, 1],
        threads: COLUMNS as u32,
        shared_bytes: 0,
        params: bytemuck::bytes_of(&params),
    })
}

/// What one or two states of `rows`, over different keys, say together, and sinks beside them.
pub(super) fn merge(
    shared: &Arc<Shared>,
    rows: &PlacedQueries<'_>,
    states: &[PlacedState],
    sinks: Option<&OnDevice<f32>>,
    dtype: KvDtype,
) -> Result<Output, BackendError> {
    const WARPS: usize = 8;
    let output = Output::room(shared, rows, dtype)?;
    let mut arrays = states.iter().map(PlacedState::arrays);
    let q = rows.queries.q;
    let params = MergeStates {
        a: arrays.next().unwrap_or(StateArrays::NONE),
        b: arrays.next().unwrap_or(StateArrays::NONE),
        sinks: sinks.map_or(0, OnDevice::address),
        output: output.address(),
        lse: output.lse.address(),
        heads: q.heads as u32,
        tokens: q.tokens as u32,
        head_dim: q.head_dim as u32,
        unused: 0,
    };
    shared.run(&Launch {
        kernel: output.of_dtype("merge_output_f32", "merge_output_bf16"),
        grid: [(q.heads * q.tokens).div_ceil(WARPS) as u32, 1, 1],
        threads: 32 * WARPS as u32,
        shared_bytes: 0,
        params: bytemuck::bytes_of(&params),
    })?;
    Ok(output)
}
