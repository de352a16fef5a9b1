//! Hidden states into queries, keys and values.

use std::ops::Range;
use std::sync::Arc;

use super::linear::linear;
use super::norm::{norm, norm_row};
use crate::backend::{BackendError, Qkv};
use crate::latent::{Latent, Raised};
use crate::memory::Keys;
use crate::shapes;
use crate::tensor::{Heads, KvHeads, Rows};
use crate::weights::{Angles, LayerSpec, LayerWeights, Turns};

/// See [`crate::LayerOps::project`].
pub(super) fn project(
    layer: &LayerWeights,
    x: &Rows,
    (start, angles): (u32, &Angles),
    queries: usize,
) -> Result<Qkv, BackendError> {
    shapes::projection(layer, x, (start, angles), queries)?;
    let spec = layer.projected();
    let (h, g, tokens) = (spec.heads, spec.kv_heads, x.rows());
    let normed = layer.attn_norm.as_ref().map(|weight| norm(x, weight, spec.norm_eps));
    let mut qkv = linear("project", normed.as_ref().unwrap_or(x), &layer.qkv)?;
    if let Some(latent) = &layer.latent {
        qkv = stacked(&spec, latent, &qkv)?;
    }
    let (q_norm, k_norm) = norm_all_heads(layer, &mut qkv);

    let mut q = split(&qkv, 0..h, spec.head_dim);
    let mut k = split(&qkv, h..h + g, spec.head_dim);
    let mut v = split(&qkv, h + g..h + 2 * g, spec.head_dim);
    let (of_queries, of_keys) = (angles.of_queries(), angles.of_keys());
    for (heads, weight, turns) in [(&mut q, q_norm, of_queries), (&mut k, k_norm, of_keys)] {
        for (i, row) in heads.chunks_exact_mut(spec.head_dim).enumerate() {
            if let Some(weight) = weight.filter(|_| !layer.norms_last) {
                norm_row(row, of_head(weight, i / tokens, spec.head_dim), spec.norm_eps);
            }
            clip(row, layer.clip);
            rotate(row, turns, i % tokens);
            if let Some(weight) = weight.filter(|_| layer.norms_last) {
                norm_row(row, weight, spec.norm_eps);
            }
        }
        shapes::finite("project", "a rotated query or key", heads)?;
    }

    if let Some(weight) = &layer.v_norm {
        v.chunks_exact_mut(spec.head_dim).for_each(|row| norm_row(row, weight, spec.norm_eps));
    }
    clip(&mut v, layer.clip);

    let stored = |data: &[f32]| KvHeads::from_f32(g, tokens, spec.head_dim, data, spec.kv);
    let positions: Vec<u32> = (start..).take(tokens).collect();
    let qkv = Qkv {
        q: Heads { heads: h, tokens, head_dim: spec.head_dim, data: q.into() },
        keys: Keys::new(positions.repeat(g), stored(&k), stored(&v)),
    };
    qkv.of_last(queries)
}

/// Queries, keys and values of all heads, of what the first product made.
fn stacked(spec: &LayerSpec, latent: &Latent, made: &Rows) -> Result<Rows, BackendError> {
    let LayerSpec { heads, head_dim: d, .. } = *spec;
    let part = |columns: &Range<usize>| {
        let rows = (0..made.rows()).flat_map(|t| made.row(t)[columns.clone()].to_vec());
        Rows::from_vec(made.rows(), columns.len(), rows.collect())
    };
    let raised = |Raised { norm: weight, up }: &Raised, columns| {
        linear("project", &norm(&part(columns), weight, latent.norm_eps), up)
    };
    let [queries, keys, shared] = latent.columns(spec);
    let q = latent.queries.as_ref().map(|it| raised(it, &queries)).transpose()?;
    let (q, kv) = (q.unwrap_or_else(|| part(&queries)), raised(&latent.keys, &keys)?);
    let mut stacked = Rows::zeros(made.rows(), 3 * heads * d);
    for t in 0..made.rows() {
        let (kv, shared) = (kv.row(t), &made.row(t)[shared.clone()]);
        let (to_q, rest) = stacked.row_mut(t).split_at_mut(heads * d);
        to_q.copy_from_slice(q.row(t));
        let (to_k, to_v) = rest.split_at_mut(heads * d);
        for (head, (k, v)) in to_k.chunks_exact_mut(d).zip(to_v.chunks_exact_mut(d)).enumerate() {
            let [key, value] = latent.columns_of(spec, head);
            latent.key(&kv[key..key + latent.own(spec)], shared, k);
            v[..latent.value_dim].copy_from_slice(&kv[value..value + latent.value_dim]);
        }
    }
    Ok(stacked)
}

/// Applies to each row the norms that are of all its heads; gives those that are of each head.
fn norm_all_heads<'l>(
    layer: &'l LayerWeights,
    qkv: &mut Rows,
) -> (Option<&'l [f32]>, Option<&'l [f32]>) {
    let (d, eps) = (layer.spec.head_dim, layer.spec.norm_eps);
    let all_queries = layer.spec.heads * d;
    let mut of_each = |weight: &'l Option<Arc<[f32]>>, first: usize| {
        let weight = weight.as_deref()?;
        if weight.len() == d || layer.norms_apart {
            return Some(weight);
        }
        for i in 0..qkv.rows() {
            norm_row(&mut qkv.row_mut(i)[first..first + weight.len()], weight, eps);
        }
        None
    };
    (of_each(&layer.q_norm, 0), of_each(&layer.k_norm, all_queries))
}

/// Of the weights of a norm those of head `head`, where each has its own.
fn of_head(weights: &[f32], head: usize, head_dim: usize) -> &[f32] {
    if weights.len() == head_dim { weights } else { &weights[head * head_dim..][..head_dim] }
}

/// Cuts off what is further from 0, but what is infinite, so that it is seen.
fn clip(row: &mut [f32], most: Option<f32>) {
    let Some(most) = most else { return };
    row.iter_mut().filter(|x| x.is_finite()).for_each(|x| *x = x.clamp(-most, most));
}

/// `heads` of `[tokens, all heads * head_dim]` as `[heads, tokens, head_dim]`.
fn split(qkv: &Rows, heads: Range<usize>, head_dim: usize) -> Vec<f32> {
    let mut data = Vec::with_capacity(heads.len() * qkv.rows() * head_dim);
    for head in heads {
        for t in 0..qkv.rows() {
            data.extend_from_slice(&qkv.row(t)[head * head_dim..(head + 1) * head_dim]);
        }
    }
    data
}

/// Rotates one head's row by the angles of token `t`, element i against i + head_dim / 2.
fn rotate(row: &mut [f32], turns: Turns<'_>, t: usize) {
    let span = t * turns.half..(t + 1) * turns.half;
    let (first, second) = row.split_at_mut(turns.half);
    let turns = turns.cos[span.clone()].iter().zip(&turns.sin[span]);
    for ((a, b), (&cos, &sin)) in first.iter_mut().zip(second).zip(turns) {
        let [x, y, cos, sin] = [*a, *b, cos, sin].map(f64::from);
        *a = (x * cos - y * sin) as f32;
        *b = (y * cos + x * sin) as f32;
    }
}
