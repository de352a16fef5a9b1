//! Rows of a batch, which have nothing to do with each other: they share products, and lie apart
//! otherwise, each as it would alone.

use std::sync::Arc;

use super::latent::take;
use super::layers::{SplitHeads, Stand, write_heads};
use super::operands::Elements;
use super::params::latent::TakeParams;
use super::{Cuda, Shared};
use crate::backend::{BackendError, Qkv};
use crate::shapes;
use crate::tensor::{KvDtype, Rows};
use crate::weights::{Angles, LayerWeights};

/// See [`crate::LayerOps::project_each`].
pub(super) fn project_each(
    cuda: &Cuda,
    layer: &LayerWeights,
    x: &Rows,
    positions: &[u32],
    angles: &Angles,
) -> Result<Vec<Qkv>, BackendError> {
    shapes::placed_rows(x, positions)?;
    if positions.is_empty() {
        return Ok(Vec::new());
    }
    shapes::projection(layer, x, (0, angles), x.rows())?;
    let (shared, spec) = (&cuda.shared, &layer.projected());
    let row = |(first, &start): (usize, &u32)| {
        Ok((SplitHeads::room(shared, spec, 1)?, Stand { first, start, angles }))
    };
    let each = positions.iter().enumerate().map(row).collect::<Result<Vec<_>, BackendError>>()?;
    write_heads(cuda, layer, x, &each)?;
    let each = each.into_iter().map(|(heads, stand)| heads.into_qkv(spec, stand.start));
    shared.done(each.collect())
}

/// See [`crate::MixerOps::stack`].
pub(super) fn stack(cuda: &Cuda, cols: usize, parts: Vec<Rows>) -> Result<Rows, BackendError> {
    let is_on_host = |part: &Rows| part.array().on_host().is_some();
    if parts.len() == 1 || parts.iter().all(is_on_host) {
        return Ok(Rows::stack(cols, parts));
    }
    let (shared, rows) = (&cuda.shared, parts.iter().map(Rows::rows).sum());
    let placed = parts.iter().map(|part| Elements::of_rows(shared, part.array()));
    let placed = placed.collect::<Result<Vec<_>, _>>()?;
    let is_rounded = |part: &Elements| part.of_dtype(false, true);
    let dtype = match placed.iter().all(is_rounded) {
        true => KvDtype::Bf16,
        false => KvDtype::F32, // bf16 are those f32 too
    };
    let all = Elements::room(shared, dtype, rows * cols)?;
    let mut at = all.address();
    for (part, placed) in parts.iter().zip(placed) {
        let placed = match placed {
            Elements::Bf16(rounded) if dtype == KvDtype::F32 => {
                Elements::F32(shared.widened(&rounded)?)
            }
            as_it_is => as_it_is,
        };
        copy(shared, &placed, (at, part.array().len()))?;
        at += (part.array().len() * dtype.bytes()) as u64;
    }
    Ok(Rows::new(rows, cols, all.into_array()))
}

/// Copies so many elements to an address.
fn copy(
    shared: &Arc<Shared>,
    from: &Elements,
    (to, count): (u64, usize),
) -> Result<(), BackendError> {
    /// Elements that a warp copies, where that comes out even.
    const PIECE: usize = 128;
    if count == 0 {
        return Ok(());
    }
    let columns = if count.is_multiple_of(PIECE) { PIECE } else { count };
    take(
        shared,
        from,
        TakeParams {
            x: from.address(),
            y: to,
            rows: (count / columns) as u64,
            columns: columns as u32,
            stride: columns as u32,
        },
    )
}
