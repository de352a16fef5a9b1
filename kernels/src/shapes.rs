//! What the arguments of every operation must look like: checked on entry, named errors.
//!
//! One copy for all backends of this crate, so that a caller's mistake reads the same whatever
//! computes.

mod logits;
mod mixer;

pub(crate) use self::mixer::{borrowing, gating, mixing, recurrent, recurring, taking};
use crate::backend::{BackendError, Queries, Scope};
use crate::experts::Groups;
use crate::fold::Node;
use crate::int8::GROUP;
use crate::latent::{Latent, Raised};
use crate::memory::{Keys, MemorySet, Selection};
use crate::state::AttentionState;
use crate::tensor::{KvData, KvHeads, Rows};
use crate::weights::{
    Angles, Beside, Experts, FeedForward, Gated, LayerSpec, LayerWeights, Linear, Matrix,
    MatrixData,
};

type Checked = Result<(), BackendError>;

/// `queries` over `keys`.
pub(crate) fn attention(op: &'static str, queries: &Queries<'_>, keys: &Keys) -> Checked {
    let q = queries.q;
    same(op, "q elements", q.data.len(), q.heads * q.tokens * q.head_dim)?;
    key_arrays(op, keys)?;
    same(op, "keys.head_dim", keys.k.head_dim, q.head_dim)?;
    logits::numbers(op, queries)?;
    let (heads, kv_heads) = (q.heads, keys.kv_heads());
    ensure(op, kv_heads > 0 && heads.is_multiple_of(kv_heads), || {
        format!("{heads} query heads cannot share {kv_heads} KV heads")
    })?;
    positions_fit(op, queries.start, q.tokens)
}

/// Keys of all leaves of a node of a fold of `chunks` chunks.
pub(crate) fn folded(op: &'static str, keys: &[&Keys], (node, chunks): (Node, u32)) -> Checked {
    ensure(op, node.is_of(chunks), || format!("{node:?} is no node over {chunks} chunks"))?;
    same(op, "sets of keys", keys.len(), node.leaves(chunks).count())
}

/// A state of `queries`.
pub(crate) fn state(op: &'static str, queries: &Queries<'_>, state: &AttentionState) -> Checked {
    let q = queries.q;
    same(op, "state.heads", state.heads, q.heads)?;
    same(op, "state.tokens", state.tokens, q.tokens)?;
    same(op, "state.head_dim", state.head_dim, q.head_dim)?;
    same(op, "m elements", state.m.len(), q.heads * q.tokens)?;
    same(op, "l elements", state.l.len(), q.heads * q.tokens)?;
    same(op, "o elements", state.o.len(), q.data.len())
}

/// Own and past keys of one layer.
pub(crate) fn alike(op: &'static str, own: &Keys, past: &Keys) -> Checked {
    same(op, "past.kv_heads", past.kv_heads(), own.kv_heads())?;
    let (own, past) = (own.k.dtype(), past.k.dtype());
    ensure(op, own == past, || format!("own keys are {own:?}, remembered ones {past:?}"))
}

/// What a backend has no kernel for.
pub(crate) fn at_most(op: &'static str, field: &str, seen: usize, most: usize) -> Checked {
    ensure(op, seen <= most, || format!("{field} is {seen}, at most {most}"))
}

/// `queries` over `keys` with what [`crate::AttentionOps::weigh`] needs besides.
pub(crate) fn weighing(
    queries: &Queries<'_>,
    keys: &Keys,
    lse: &[f32],
    row_weights: &[f32],
) -> Checked {
    attention("weigh", queries, keys)?;
    same("weigh", "lse elements", lse.len(), queries.q.heads * queries.q.tokens)?;
    voting(queries, row_weights)
}

/// What the rows of `queries` weigh.
pub(crate) fn voting(queries: &Queries<'_>, row_weights: &[f32]) -> Checked {
    same("weigh", "row weights", row_weights.len(), queries.q.tokens)
}

/// What rows see besides keys.
pub(crate) fn sinks(op: &'static str, queries: &Queries<'_>, scope: &Scope<'_>) -> Checked {
    let Some(sinks) = scope.sinks else { return Ok(()) };
    same(op, "sinks", sinks.len(), queries.q.heads)?;
    finite(op, "a sink", sinks)
}

/// Outputs of the last of the block's rows.
pub(crate) fn outputs(op: &'static str, queries: &Queries<'_>, scope: &Scope<'_>) -> Checked {
    at_most(op, "outputs", scope.outputs, queries.q.tokens)
}

/// A block's own keys following `past`, with their masses.
pub(crate) fn selection(
    past: &MemorySet,
    own: &Keys,
    masses: (&[f32], &[f32]),
    selection: &Selection,
) -> Checked {
    selection_sizes(past, own, (masses.0.len(), masses.1.len()), selection)?;
    following(past.end, own)
}

/// Own keys at positions `end..`.
pub(crate) fn following(end: u32, own: &Keys) -> Checked {
    let follows = (0..own.kv_heads())
        .all(|g| own.head_positions(g).iter().zip(end..).all(|(&own, next)| own == next));
    ensure("select", follows, || format!("own keys must stand at positions {end}.. in a row"))
}

/// What of a selection can be checked without reading an array; `masses` are their elements.
pub(crate) fn selection_sizes(
    past: &MemorySet,
    own: &Keys,
    masses: (usize, usize),
    selection: &Selection,
) -> Checked {
    const OP: &str = "select";
    key_arrays(OP, &past.keys)?;
    key_arrays(OP, own)?;
    let (kv_heads, keys) = (past.keys.kv_heads(), past.keys.len());
    same(OP, "own.kv_heads", own.kv_heads(), kv_heads)?;
    same(OP, "own.head_dim", own.k.head_dim, past.keys.k.head_dim)?;
    let (own_dtype, past_dtype) = (own.k.dtype(), past.keys.k.dtype());
    ensure(OP, own_dtype == past_dtype, || {
        format!("own keys are {own_dtype:?}, remembered ones {past_dtype:?}")
    })?;
    same(OP, "past.score elements", past.score.len(), kv_heads * keys)?;
    same(OP, "past.votes elements", past.votes.len(), kv_heads * keys)?;
    let (past_mass, own_mass) =
        if selection.keep_all { (0, 0) } else { (kv_heads * keys, kv_heads * own.len()) };
    same(OP, "past mass elements", masses.0, past_mass)?;
    same(OP, "own mass elements", masses.1, own_mass)?;
    positions_fit(OP, past.end, own.len())
}

/// A weight as a model file has it.
pub(crate) fn matrix(weight: &Matrix, bias: Option<&[f32]>) -> Checked {
    let elements = match &weight.data {
        MatrixData::F32(data) => data.len(),
        MatrixData::Bf16(data) => data.len(),
        MatrixData::Int8(data) => {
            let scales = weight.outputs * weight.inputs.div_ceil(GROUP);
            same("pack", "weight scales", data.scales.len(), scales)?;
            data.q.len()
        }
    };
    same("pack", "weight elements", elements, weight.outputs * weight.inputs)?;
    bias.map_or(Ok(()), |bias| same("pack", "bias elements", bias.len(), weight.outputs))
}

/// `x` through `weight`.
pub(crate) fn linear(op: &'static str, x: &Rows, weight: &Linear) -> Checked {
    map(op, x.cols(), weight)
}

/// Rows of so many columns through `weight`.
fn map(op: &'static str, columns: usize, weight: &Linear) -> Checked {
    same(op, "x.cols", columns, weight.inputs)?;
    weight.bias.as_ref().map_or(Ok(()), |bias| same(op, "bias", bias.len(), weight.outputs))
}

/// `x` into a layer's queries, keys and values.
pub(crate) fn projection(
    layer: &LayerWeights,
    x: &Rows,
    (start, angles): (u32, &Angles),
    queries: usize,
) -> Checked {
    const OP: &str = "project";
    let spec = &layer.spec;
    let (heads, kv_heads) = (spec.heads, spec.kv_heads);
    ensure(OP, kv_heads > 0 && heads.is_multiple_of(kv_heads), || {
        format!("{heads} query heads cannot share {kv_heads} KV heads")
    })?;
    layer.attn_norm.as_ref().map_or(Ok(()), |norm| same(OP, "attn_norm", norm.len(), x.cols()))?;
    linear(OP, x, &layer.qkv)?;
    match &layer.latent {
        _ if layer.keys_of.is_some() => borrowing(layer)?,
        None => {
            same(OP, "qkv.outputs", layer.qkv.outputs, (heads + 2 * kv_heads) * spec.head_dim)?;
        }
        Some(latent) => raising(layer, latent)?,
    }
    for (norm, heads) in [(&layer.q_norm, heads), (&layer.k_norm, kv_heads)] {
        let of_all = norm.as_ref().is_some_and(|norm| norm.len() > spec.head_dim);
        let want = if of_all { heads * spec.head_dim } else { spec.head_dim };
        norm.as_ref().map_or(Ok(()), |norm| same(OP, "QK norm", norm.len(), want))?;
        ensure(OP, !(of_all && layer.norms_last), || {
            "a norm of what is rotated has weights of all heads".to_owned()
        })?;
    }
    clipping(layer)?;
    layer.v_norm.as_ref().map_or(Ok(()), |norm| same(OP, "v_norm", norm.len(), spec.head_dim))?;
    same(OP, "2 angles.half", 2 * angles.half, spec.head_dim)?;
    same(OP, "angles.tokens", angles.tokens, x.rows())?;
    let kinds = if angles.queries_from() > 0 { 2 } else { 1 };
    let elements = kinds * angles.tokens * angles.half;
    same(OP, "angles.cos elements", angles.cos.len(), elements)?;
    same(OP, "angles.sin elements", angles.sin.len(), elements)?;
    at_most(OP, "queries", queries, x.rows())?;
    positions_fit(OP, start, x.rows())
}

/// What is cut off of queries, keys and values.
fn clipping(layer: &LayerWeights) -> Checked {
    let Some(most) = layer.clip else { return Ok(()) };
    let is_behind = !layer.norms_last && layer.latent.is_none();
    ensure("project", most.is_finite() && most > 0.0 && is_behind, || {
        format!("clip is {most}, must be above 0, finite, behind norms and of no few numbers")
    })
}

/// What a first product made into heads.
fn raising(layer: &LayerWeights, latent: &Latent) -> Checked {
    const OP: &str = "project";
    let LayerSpec { heads, kv_heads, head_dim, .. } = layer.spec;
    let (shared, value_dim) = (latent.shared, latent.value_dim);
    same(OP, "kv_heads", kv_heads, heads)?;
    ensure(OP, shared.is_multiple_of(2) && (2..head_dim).contains(&shared), || {
        format!("shared is {shared}, must be even and below head_dim = {head_dim}")
    })?;
    ensure(OP, (1..=head_dim).contains(&value_dim), || {
        format!("value_dim is {value_dim}, must be from 1 to head_dim = {head_dim}")
    })?;
    let norms = [&layer.q_norm, &layer.k_norm, &layer.v_norm];
    ensure(OP, norms.into_iter().all(Option::is_none), || {
        "there are other norms of queries, keys or values".to_owned()
    })?;
    let [_, _, columns] = latent.columns(&layer.spec);
    same(OP, "qkv.outputs", layer.qkv.outputs, columns.end)?;
    let raised = |Raised { norm, up }: &Raised, outputs| {
        map(OP, norm.len(), up)?;
        same(OP, "up.outputs", up.outputs, outputs)
    };
    latent.queries.as_ref().map_or(Ok(()), |queries| raised(queries, heads * head_dim))?;
    raised(&latent.keys, heads * (latent.own(&layer.spec) + value_dim))
}

/// Rows of `x` that are blocks of their own, at these positions.
pub(crate) fn placed_rows(x: &Rows, positions: &[u32]) -> Checked {
    same("project", "positions", positions.len(), x.rows())?;
    positions.iter().try_for_each(|&position| positions_fit("project", position, 1))
}

/// `x` and `attention` through the rest of a layer.
pub(crate) fn finishing(layer: &LayerWeights, x: &Rows, attention: &Rows) -> Checked {
    const OP: &str = "finish";
    same(OP, "attention.rows", attention.rows(), x.rows())?;
    let LayerSpec { heads, head_dim, .. } = layer.spec;
    if let Some(recurrent) = &layer.recurrent {
        same(OP, "columns", attention.cols(), recurrent.outputs())?;
        map(OP, recurrent.outputs(), &layer.out)?;
        return finishing_rest(layer, x);
    }
    same(OP, "attention.cols", attention.cols(), heads * head_dim)?;
    let value_dim = layer.latent.as_ref().map_or(head_dim, |latent| latent.value_dim);
    map(OP, heads * value_dim, &layer.out)?;
    finishing_rest(layer, x)
}

/// `x` through the rest of a layer behind the product that `out` is.
fn finishing_rest(layer: &LayerWeights, x: &Rows) -> Checked {
    const OP: &str = "finish";
    same(OP, "out.outputs", layer.out.outputs, x.cols())?;
    mixer::norms_behind(layer, x)?;
    let projections = layer.spec.activation.projections();
    match &layer.ffn {
        FeedForward::Nothing => {
            let normed = layer.ffn_norm.is_some() || layer.ffn_post_norm.is_some();
            ensure(OP, !normed, || "norms of a feed-forward part that is not there".to_owned())
        }
        FeedForward::Dense(dense) => part(x, dense, projections),
        FeedForward::Experts(experts) => some_of_many(x, experts, projections),
        FeedForward::Beside(both) => side_by_side(x, both, projections),
    }
}

/// `x` through one part.
fn part(x: &Rows, Gated { gate_up, down }: &Gated, projections: usize) -> Checked {
    const OP: &str = "finish";
    linear(OP, x, gate_up)?;
    same(OP, "gate_up.outputs", gate_up.outputs, projections * down.inputs)?;
    same(OP, "down.outputs", down.outputs, x.cols())
}

/// `x` through a few of many.
fn some_of_many(x: &Rows, experts: &Experts, projections: usize) -> Checked {
    const OP: &str = "finish";
    let (count, routing) = (experts.each.len(), &experts.routing);
    linear(OP, x, &experts.router)?;
    same(OP, "router.outputs", experts.router.outputs, count)?;
    ensure(OP, (1..=count).contains(&routing.chosen), || {
        format!("{} of {count} experts cannot be chosen", routing.chosen)
    })?;
    if let Some(groups) = routing.groups {
        let Groups { count: all, chosen, summed } = groups;
        let size = count.checked_div(all).unwrap_or(0);
        let fits =
            size * all == count && (1..=all).contains(&chosen) && (1..=size).contains(&summed);
        ensure(OP, fits && routing.chosen <= chosen * size, || {
            format!("{} of {count} experts cannot be chosen by {groups:?}", routing.chosen)
        })?;
    }
    for (name, each) in [("routing bias", &routing.bias), ("routing factors", &routing.factors)] {
        each.as_ref().map_or(Ok(()), |each| same(OP, name, each.len(), count))?;
    }
    experts.each.iter().chain(&experts.shared).try_for_each(|one| part(x, one, projections))?;
    experts.shared_gate.as_ref().map_or(Ok(()), |gate| {
        linear(OP, x, gate)?;
        same(OP, "shared gate.outputs", gate.outputs, 1)
    })
}

/// `x` through one part, and through a few of many beside it.
fn side_by_side(x: &Rows, both: &Beside, projections: usize) -> Checked {
    const OP: &str = "finish";
    for (name, norm) in [
        ("dense_post_norm", &both.dense_post_norm),
        ("experts_norm", &both.experts_norm),
        ("router_norm", &both.router_norm),
        ("experts_post_norm", &both.experts_post_norm),
    ] {
        same(OP, name, norm.len(), x.cols())?;
    }
    let shares = both.experts.shared.is_some() || both.experts.shared_gate.is_some();
    ensure(OP, !shares, || "experts beside a dense part share another".to_owned())?;
    part(x, &both.dense, projections)?;
    some_of_many(x, &both.experts, projections)
}

/// `tokens` of an embedding table.
pub(crate) fn embedding(table: &Linear, tokens: &[u32]) -> Checked {
    let highest = tokens.iter().copied().max().unwrap_or(0);
    ensure("embed", tokens.is_empty() || (highest as usize) < table.outputs, || {
        format!("token {highest} is outside a table of {} rows", table.outputs)
    })
}

/// Refuses infinities and NaN: broken weights must not become plausible tokens.
pub(crate) fn finite(op: &'static str, what: &'static str, values: &[f32]) -> Checked {
    if values.iter().all(|x| x.is_finite()) {
        Ok(())
    } else {
        Err(BackendError::NotFinite { op, what })
    }
}

fn key_arrays(op: &'static str, keys: &Keys) -> Checked {
    let (k, v) = (&keys.k, &keys.v);
    same(op, "positions", keys.positions.len(), k.kv_heads * keys.len())?;
    ensure(op, keys.len() <= k.tokens, || {
        format!("{} keys do not fit in {} cells", keys.len(), k.tokens)
    })?;
    same(op, "v.kv_heads", v.kv_heads, k.kv_heads)?;
    same(op, "v.tokens", v.tokens, k.tokens)?;
    same(op, "v.head_dim", v.head_dim, k.head_dim)?;
    same(op, "k elements", elements(k), k.kv_heads * k.tokens * k.head_dim)?;
    same(op, "v elements", elements(v), v.kv_heads * v.tokens * v.head_dim)?;
    ensure(op, k.dtype() == v.dtype(), || {
        format!("keys are {:?}, values {:?}", k.dtype(), v.dtype())
    })
}

fn elements(heads: &KvHeads) -> usize {
    match &heads.data {
        KvData::F32(data) => data.len(),
        KvData::Bf16(data) => data.len(),
    }
}

fn positions_fit(op: &'static str, start: u32, tokens: usize) -> Checked {
    let end = u64::from(start) + tokens as u64;
    ensure(op, end <= u64::from(u32::MAX), || format!("position {end} is beyond {}", u32::MAX))
}

fn same(op: &'static str, field: &str, seen: usize, want: usize) -> Checked {
    ensure(op, seen == want, || format!("{field} is {seen}, must be {want}"))
}

fn ensure(op: &'static str, holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(BackendError::Shape { op, what: what() }) }
}
