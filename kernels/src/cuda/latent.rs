//! Keys and values of a few numbers that heads share, in three products.

use std::ops::Range;
use std::sync::Arc;

use super::device::Launch;
use super::layers::{Block, SplitHeads, Stand};
use super::linear::packed;
use super::operands::Elements;
use super::params::latent::{LatentParams, TakeParams};
use super::prepare::{Prepare, Then};
use super::resident::OnDevice;
use super::{Broken, Cuda, Shared};
use crate::backend::BackendError;
use crate::latent::{Latent, Raised};
use crate::weights::LayerSpec;

/// Rows that a block of a kernel writes: a warp each.
const WARPS: usize = 8;

/// A layer's latent with the shape of its heads.
#[derive(Clone, Copy)]
pub(super) struct OfLayer<'a> {
    pub(super) latent: &'a Latent,
    pub(super) spec: &'a LayerSpec,
}

/// Writes all `parts`, of what the first product `made`.
pub(super) fn raise(
    cuda: &Cuda,
    block: Block<'_>,
    OfLayer { latent, spec }: OfLayer<'_>,
    made: &OnDevice<f32>,
    parts: &[(SplitHeads, Stand<'_>)],
) -> Result<(), BackendError> {
    let shared = block.shared;
    let [queries, keys, common] = latent.columns(spec);
    let stride = common.end;
    let raised = |raised, columns| raised_of(cuda, block, (raised, latent.norm_eps), made, columns);
    let q_sums = latent.queries.as_ref().map(|it| raised(it, (queries, stride))).transpose()?;
    let kv_sums = raised(&latent.keys, (keys, stride))?;
    let kv_stride = kv_sums.len() / block.rows;
    let (queries, queries_stride) = match &q_sums {
        Some(sums) => (sums.address(), spec.heads * spec.head_dim),
        None => (made.address(), stride),
    };
    for (heads, stand) in parts {
        let row = |from, stride| from + (stand.first * stride * size_of::<f32>()) as u64;
        let [cosines, sines] = stand.turns(cuda)?;
        let params = LatentParams {
            queries: row(queries, queries_stride),
            keys: row(kv_sums.address(), kv_stride),
            common: row(made.address(), stride) + (common.start * size_of::<f32>()) as u64,
            cosines: stand.first_of(&cosines),
            sines: stand.first_of(&sines),
            q: heads.q.address(),
            k: heads.k.address(),
            v: heads.v.address(),
            positions: heads.positions.address(),
            broken: shared.broken_at(),
            tokens: heads.tokens as u32,
            heads: spec.heads as u32,
            head_dim: spec.head_dim as u32,
            shared: latent.shared as u32,
            value_dim: latent.value_dim as u32,
            queries_stride: queries_stride as u32,
            common_stride: stride as u32,
            start: stand.start,
            code: Broken::Project as u32,
            queries_from: stand.angles.queries_from() as u32,
        };
        shared.run(&Launch {
            kernel: heads.q.of_dtype("latent_heads_f32", "latent_heads_bf16"),
            grid: [(heads.tokens * 3 * spec.heads).div_ceil(WARPS) as u32, 1, 1],
            threads: 32 * WARPS as u32,
            shared_bytes: 0,
            params: bytemuck::bytes_of(&params),
        })?;
    }
    Ok(())
}

/// What comes of some columns of `made`.
fn raised_of(
    cuda: &Cuda,
    block: Block<'_>,
    (Raised { norm, up }, eps): (&Raised, f32),
    made: &OnDevice<f32>,
    (columns, stride): (Range<usize>, usize),
) -> Result<OnDevice<f32>, BackendError> {
    let shared = block.shared;
    let weight = packed("project", shared, up)?;
    let few = taken(shared, &Elements::F32(made.clone()), (block.rows, stride), columns)?;
    let norm = cuda.norms.on_device(shared, norm)?;
    let prepare = Prepare::Norm { weight: &norm, eps, then: Then::default() };
    let x = block.prepared(few, prepare, weight)?;
    block.product(&x, weight).sums()
}

/// What attention gave to so many rows, without the elements that no value has.
pub(super) fn outputs(
    shared: &Arc<Shared>,
    OfLayer { latent, spec }: OfLayer<'_>,
    attention: &Elements,
    rows: usize,
) -> Result<Elements, BackendError> {
    taken(shared, attention, (rows * spec.heads, spec.head_dim), 0..latent.value_dim)
}

/// Some columns of so many rows that lie `stride` elements apart.
fn taken(
    shared: &Arc<Shared>,
    from: &Elements,
    (rows, stride): (usize, usize),
    columns: Range<usize>,
) -> Result<Elements, BackendError> {
    let to = from.alike(shared, rows * columns.len())?;
    take(
        shared,
        from,
        TakeParams {
            x: from.address() + (columns.start * from.of_dtype(4, 2)) as u64,
            y: to.address(),
            rows: rows as u64,
            columns: columns.len() as u32,
            stride: stride as u32,
        },
    )?;
    Ok(to)
}

/// Copies what `params` says, of elements as those of `from`.
pub(super) fn take(
    shared: &Arc<Shared>,
    from: &Elements,
    params: TakeParams,
) -> Result<(), BackendError> {
    shared.run(&Launch {
        kernel: from.of_dtype("take_f32", "take_bf16"),
        grid: [params.rows.div_ceil(WARPS as u64) as u32, 1, 1],
        threads: 32 * WARPS as u32,
        shared_bytes: 0,
        params: bytemuck::bytes_of(&params),
    })
}
