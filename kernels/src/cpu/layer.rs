//! Everything of a layer that is not attention.

use std::sync::Arc;

use super::exp::tanh;
use super::feed::feed;
use super::gemm::{Argument, PackedWeight, Place, Prepare, linear, norm_row, packed_weight};
use super::heads::{norms_all_heads, project_heads, project_latent, project_rows};
use super::input::scaled;
use super::simd::{Kernel, LANES, Simd, load_front, store_front};
use crate::backend::{BackendError, Qkv};
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{Angles, FeedForward, LayerWeights, Linear};

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
    if let Some(latent) = &layer.latent {
        let qkv = project_latent(place, (layer, latent), normed(layer, x), (start, angles))?;
        return qkv.of_last(queries);
    }
    if norms_all_heads(layer) {
        let qkv = project_rows(place, layer, normed(layer, x), (start, angles))?;
        return qkv.of_last(queries);
    }
    if queries == x.rows() || layer.keys_of.is_some() {
        let qkv = project_heads(place, layer, normed(layer, x), (start, angles), true)?;
        return qkv.of_last(queries);
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
pub(super) fn normed<'a>(layer: &'a LayerWeights, x: &'a Rows) -> Argument<'a> {
    Argument { rows: x, prepare: Prepare::norm(layer.attn_norm.as_deref(), layer.spec.norm_eps) }
}

/// See [`crate::LayerOps::finish`].
pub(super) fn finish(
    place: Place<'_>,
    layer: &LayerWeights,
    x: &Rows,
    attention: &Rows,
) -> Result<Rows, BackendError> {
    shapes::finishing(layer, x, attention)?;
    let mut y = unscaled(place, layer, x, attention)?;
    if let Some(scale) = layer.scale {
        scaled(place, &mut y, scale);
    }
    Ok(y)
}

/// The same before the stream is multiplied.
fn unscaled(
    place: Place<'_>,
    layer: &LayerWeights,
    x: &Rows,
    attention: &Rows,
) -> Result<Rows, BackendError> {
    let eps = layer.spec.norm_eps;
    let latent = layer.latent.as_ref();
    let outputs = latent.map(|latent| latent.outputs(&layer.spec, attention));
    let rows = outputs.as_ref().unwrap_or(attention);
    let attention = Argument { rows, prepare: Prepare::Nothing };
    let through_out = |residual| linear("finish", place, attention, &layer.out, residual);
    let attended = match &layer.attn_post_norm {
        None => through_out(Some(x))?,
        Some(norm) => added(place, through_out(None)?, Some((norm, eps)), x),
    };
    if let FeedForward::Nothing = layer.ffn {
        return Ok(attended);
    }
    let fed = if layer.parallel { x } else { &attended };
    match &layer.ffn_post_norm {
        None => feed(place, layer, fed, Some(&attended)),
        Some(norm) => {
            let y = feed(place, layer, fed, None)?;
            Ok(added(place, y, Some((norm, eps)), &attended))
        }
    }
}

/// `y`, or its RMS norm with these weights, plus `x`.
pub(super) fn added(
    place: Place<'_>,
    mut y: Rows,
    norm: Option<(&Arc<[f32]>, f32)>,
    x: &Rows,
) -> Rows {
    let cols = y.cols().max(1);
    let (some, beside) = (y.data_mut().chunks_mut(ROWS * cols), x.data().chunks(ROWS * cols));
    place.crew.map(some.zip(beside).collect(), |(rows, beside): (&mut [f32], &[f32])| {
        if let Some((weight, eps)) = norm {
            place.isa.run(Norm { rows: &mut *rows, cols, weight, eps });
        }
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

/// See [`crate::AttentionOps::cap`].
pub(super) fn cap(place: Place<'_>, logits: &Rows, cap: f32) -> Rows {
    const TASK: usize = 1 << 13;
    let mut capped = logits.clone();
    let tasks = capped.data_mut().chunks_mut(TASK).collect();
    place.crew.map(tasks, |logits| place.isa.run(Cap { logits, cap }));
    capped
}

struct Cap<'a> {
    logits: &'a mut [f32],
    cap: f32,
}

impl Kernel for Cap<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (factor, cap) = (simd.splat(1.0 / self.cap), simd.splat(self.cap));
        for logits in self.logits.chunks_mut(LANES) {
            store_front(cap * tanh(simd, load_front(simd, logits) * factor), logits);
        }
    }
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
