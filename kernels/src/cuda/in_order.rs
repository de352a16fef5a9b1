//! Keys and values without a table, for kernels whose tiles are whole stretches of memory.

use std::sync::Arc;

use half::bf16;

use super::Shared;
use super::device::Launch;
use super::params::attention::LayInOrder;
use super::resident::OnDevice;
use crate::backend::BackendError;

/// Keys and values, `[kv_heads, cells, head_dim]`, as `[kv_heads, keys, head_dim]` in the order
/// of `table`, `[kv_heads, keys]`. A head's size is a multiple of eight.
pub(super) fn lay_in_order(
    shared: &Arc<Shared>,
    from: [&OnDevice<bf16>; 2],
    table: &OnDevice<u32>,
    [kv_heads, cells, keys]: [usize; 3],
) -> Result<[OnDevice<bf16>; 2], BackendError> {
    const THREADS: usize = 256;
    let head_dim = from[0].len() / (kv_heads * cells);
    let room = || OnDevice::room(shared, kv_heads * keys * head_dim);
    let to = [room()?, room()?];
    let params = LayInOrder {
        from: from.map(OnDevice::address),
        to: [to[0].address(), to[1].address()],
        table: table.address(),
        keys: keys as u32,
        cells: cells as u32,
        chunks: (head_dim / 8) as u32,
        unused: 0,
    };
    shared.run(&Launch {
        kernel: "lay_in_order",
        grid: [(keys * head_dim / 8).div_ceil(THREADS) as u32, kv_heads as u32, 2],
        threads: THREADS as u32,
        shared_bytes: 0,
        params: bytemuck::bytes_of(&params),
    })?;
    Ok(to)
}
