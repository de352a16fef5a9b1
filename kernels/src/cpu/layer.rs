//! Everything of a layer that is not attention.

use std::sync::Arc;

use super::gemm::{
    Argument, PackedWeight, Place, Prepare, down, gate_up, linear, norm_row, packed_weight,
};
use super::heads::project_heads;
use super::simd::{Kernel, Simd};
use crate::backend::{BackendError, Qkv};
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{Angles, LayerSpec, LayerWeights, Linear};

/// Rows that a task norms.
const ROWS: usize = 16;

/// See [`crate::LayerOps::project`].
pub(super) fn project(
    place: Place<'_>,
    layer: &LayerWeights,
    x: &Rows,
    (start, angles): (u32, &Angles),
    queries: usize,
) -> Result<Qkv, BackendError> {
    shapes::projection(layer, x, (start, angles), queries)?;
    if queries == x.rows() {
        return project_heads(place, layer, normed(layer, x), (start, angles), true);
    }
    let Qkv { mut q, keys } =
        project_heads(place, layer, normed(layer, x), (start, angles), false)?;
    if queries > 0 {
        // Keys and values of these are computed again: they are few.
        let first = x.rows() - queries;
        let (start, angles) = (start + first as u32, angles.last(queries));
        let x = x.some(first..x.rows());
        q = project_heads(place, layer, normed(layer, &x), (start, &angles), true)?.q;
    }
    Ok(Qkv { q, keys })
}

/// `x` before it is projected.
fn normed<'a>(layer: &'a LayerWeights, x: &'a Rows) -> Argument<'a> {
    let prepare = Prepare::Norm { weight: &layer.attn_norm, eps: layer.spec.norm_eps };
    Argument { rows: x, prepare }
}

/// See [`crate::LayerOps::finish`].
pub(super) fn finish(
    place: Place<'_>,
    layer: &LayerWeights,
    x: &Rows,
    attention: &Rows,
) -> Result<Rows, BackendError> {
    shapes::finishing(layer, x, attention)?;
    let (rows, LayerSpec { norm_eps: eps, activation, .. }) = (x.rows(), layer.spec);
    let attention = Argument { rows: attention, prepare: Prepare::Nothing };
    let beside = |x, norm: &Option<_>| if norm.is_none() { Some(x) } else { None };
    let residual = beside(x, &layer.attn_post_norm);
    let attended = linear("finish", place, attention, &layer.out, residual)?;
    let x = behind(place, attended, (&layer.attn_post_norm, eps), x);

    let norm = Prepare::Norm { weight: &layer.ffn_norm, eps };
    let normed = Argument { rows: &x, prepare: norm };
    let hidden = gate_up("finish", place, normed, (&layer.gate_up, activation), &layer.down)?;
    let residual = beside(&x, &layer.ffn_post_norm);
    let fed = down("finish", place, (hidden, rows), &layer.down, residual)?;
    Ok(behind(place, fed, (&layer.ffn_post_norm, eps), &x))
}

/// The RMS norm of `y` plus `x`; `y`, to which `x` was added already, where there is no norm.
fn behind(
    place: Place<'_>,
    mut y: Rows,
    (weight, eps): (&Option<Arc<[f32]>>, f32),
    x: &Rows,
) -> Rows {
    let Some(weight) = weight else { return y };
    let cols = y.cols().max(1);
    let (some, beside) = (y.data_mut().chunks_mut(ROWS * cols), x.data().chunks(ROWS * cols));
    place.crew.map(some.zip(beside).collect(), |(rows, beside): (&mut [f32], &[f32])| {
        place.isa.run(Norm { rows, cols, weight, eps });
        rows.iter_mut().zip(beside).for_each(|(y, x)| *y += x);
    });
    y
}

/// See [`crate::LayerOps::embed`].
pub(super) fn embed(
    place: Place<'_>,
    table: &Linear,
    tokens: &[u32],
    scale: f32,
) -> Result<Rows, BackendError> {
    shapes::embedding(table, tokens)?;
    let packed: &PackedWeight = packed_weight("embed", table)?;
    let mut rows = Rows::zeros(tokens.len(), table.inputs);
    let tasks = rows.data_mut().chunks_mut(table.inputs.max(1)).zip(tokens).collect();
    place.crew.map(tasks, |(row, &token): (&mut [f32], &u32)| {
        packed.row(token as usize, row);
        row.iter_mut().for_each(|x| *x *= scale);
    });
    Ok(rows)
}

/// See [`crate::LayerOps::norm`].
pub(super) fn norm(place: Place<'_>, x: &Rows, weight: &[f32], eps: f32) -> Rows {
    let mut y = x.clone();
    let cols = x.cols().max(1);
    let tasks = y.data_mut().chunks_mut(ROWS * cols).collect();
    place.crew.map(tasks, |rows| place.isa.run(Norm { rows, cols, weight, eps }));
    y
}

struct Norm<'a> {
    rows: &'a mut [f32],
    cols: usize,
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for Norm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for row in self.rows.chunks_exact_mut(self.cols) {
            norm_row(simd, row, self.weight, self.eps);
        }
    }
}
