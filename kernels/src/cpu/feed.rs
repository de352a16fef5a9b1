//! Feed-forward parts, of which a token may go through a few of many.

use super::gemm::{Argument, Hidden, Place, Prepare, down, gate_row, linear, up};
use super::layer::{added, norm};
use super::simd::{Kernel, LANES, Simd, Vector, load_front, store_front};
use crate::backend::BackendError;
use crate::experts::Sent;
use crate::tensor::Rows;
use crate::weights::{Activation, Beside, Experts, FeedForward, Gated, LayerSpec, LayerWeights};

/// Rows that a task takes out or puts back.
const ROWS: usize = 16;

/// What the layer makes of `x`, normed where it has a norm before this part, plus `residual`.
pub(super) fn feed(
    place: Place<'_>,
    layer: &LayerWeights,
    x: &Rows,
    residual: Option<&Rows>,
) -> Result<Rows, BackendError> {
    let LayerSpec { norm_eps: eps, activation, .. } = layer.spec;
    let weight = layer.ffn_norm.as_deref();
    let normed = Argument { rows: x, prepare: Prepare::norm(weight, eps) };
    match &layer.ffn {
        FeedForward::Nothing => unreachable!("a layer without one ends before"),
        FeedForward::Dense(dense) => match &layer.hidden_norm {
            None => through(place, dense, activation, normed, residual),
            Some(norm) => {
                let hidden = hidden(place, dense, activation, normed)?;
                let x = Argument { rows: &hidden, prepare: Prepare::norm(Some(norm), eps) };
                linear("finish", place, x, &dense.down, residual)
            }
        },
        FeedForward::Experts(experts) => {
            let normed = weight.map(|weight| norm(place, x, weight, eps));
            let x = normed.as_ref().unwrap_or(x);
            Ok(plus(place, through_some(place, experts, activation, [x, x])?, residual))
        }
        FeedForward::Beside(both) => {
            Ok(plus(place, through_both(place, both, normed, &layer.spec)?, residual))
        }
    }
}

/// `y`, plus `residual` if there is one.
fn plus(place: Place<'_>, y: Rows, residual: Option<&Rows>) -> Rows {
    match residual {
        Some(residual) => added(place, y, None, residual),
        None => y,
    }
}

/// What a dense part makes of `x`, plus what experts beside it make of the rows of `x` as they
/// come: those have norms of their own.
fn through_both(
    place: Place<'_>,
    both: &Beside,
    x: Argument<'_>,
    spec: &LayerSpec,
) -> Result<Rows, BackendError> {
    let LayerSpec { norm_eps: eps, activation, .. } = *spec;
    let rows = x.rows;
    let dense = through(place, &both.dense, activation, x, None)?;
    let dense = norm(place, &dense, &both.dense_post_norm, eps);
    let [given, routed] =
        [&both.experts_norm, &both.router_norm].map(|own| norm(place, rows, own, eps));
    let chosen = through_some(place, &both.experts, activation, [&given, &routed])?;
    Ok(added(place, chosen, Some((&both.experts_post_norm, eps)), &dense))
}

fn through(
    place: Place<'_>,
    part: &Gated,
    activation: Activation,
    x: Argument<'_>,
    residual: Option<&Rows>,
) -> Result<Rows, BackendError> {
    let rows = x.rows.rows();
    let hidden = up("finish", place, x, (&part.gate_up, activation), Some(&part.down))?;
    down("finish", place, (hidden, rows), &part.down, residual)
}

/// What stands between both products, as f32.
fn hidden(
    place: Place<'_>,
    part: &Gated,
    activation: Activation,
    x: Argument<'_>,
) -> Result<Rows, BackendError> {
    match up("finish", place, x, (&part.gate_up, activation), None)? {
        Hidden::Rows(sums, Prepare::Gate(activation)) => {
            let mut hidden = Rows::zeros(sums.rows(), sums.cols() / 2);
            let cols = hidden.cols().max(1);
            let rows = hidden.data_mut().chunks_exact_mut(cols);
            let tasks = rows.zip(sums.data().chunks_exact(2 * cols)).collect();
            place.crew.map(tasks, |(to, gate_up): (&mut [f32], &[f32])| {
                place.isa.run(GateRow { activation, gate_up, to });
            });
            Ok(hidden)
        }
        Hidden::Rows(hidden, _) => Ok(hidden),
        #[cfg(target_arch = "x86_64")]
        Hidden::Rounded(_) => unreachable!("for no product"),
    }
}

struct GateRow<'a> {
    activation: Activation,
    gate_up: &'a [f32],
    to: &'a mut [f32],
}

impl Kernel for GateRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        gate_row(simd, self.activation, self.gate_up, self.to);
    }
}

/// What each expert makes of its rows of `x`, in the order of experts, and then what all rows go
/// through. The router takes `routed`.
fn through_some(
    place: Place<'_>,
    experts: &Experts,
    activation: Activation,
    [x, routed]: [&Rows; 2],
) -> Result<Rows, BackendError> {
    fn plain(rows: &Rows) -> Argument<'_> {
        Argument { rows, prepare: Prepare::Nothing }
    }
    let logits = linear("finish", place, plain(routed), &experts.router, None)?;
    let mut y = Rows::zeros(x.rows(), x.cols());
    for (part, mut sent) in experts.each.iter().zip(experts.routing.send(&logits)?) {
        if !sent.rows.is_empty() {
            let weights = experts.routing.before.then(|| sent.take_weights());
            let some = taken(place, x, &sent.rows, weights.as_deref());
            let made = through(place, part, activation, plain(&some), None)?;
            add_weighed(place, &mut y, &made, &sent);
        }
    }
    if let Some(shared) = &experts.shared {
        let made = through(place, shared, activation, plain(x), None)?;
        let weights = match &experts.shared_gate {
            Some(gate) => {
                let gates = linear("finish", place, plain(x), gate, None)?;
                gates.data().iter().map(|&gate| sigmoid(gate)).collect()
            }
            None => vec![1.0; x.rows()],
        };
        let sent = Sent { rows: (0..x.rows() as u32).collect(), weights };
        add_weighed(place, &mut y, &made, &sent);
    }
    Ok(y)
}

fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

/// The rows of `x` with these numbers, each times its weight where they have any.
fn taken(place: Place<'_>, x: &Rows, rows: &[u32], weights: Option<&[f32]>) -> Rows {
    let mut some = Rows::zeros(rows.len(), x.cols());
    let cols = x.cols().max(1);
    let tasks = some.data_mut().chunks_mut(ROWS * cols).enumerate().collect();
    place.crew.map(tasks, |(task, to): (usize, &mut [f32])| {
        for (i, to) in (task * ROWS..).zip(to.chunks_exact_mut(cols)) {
            to.copy_from_slice(x.row(rows[i] as usize));
            if let Some(weights) = weights {
                to.iter_mut().for_each(|x| *x *= weights[i]);
            }
        }
    });
    some
}

/// Adds to the rows of `y` that were sent what was made of them.
fn add_weighed(place: Place<'_>, y: &mut Rows, made: &Rows, sent: &Sent) {
    let cols = y.cols().max(1);
    let mut wanted = sent.rows.iter().zip(&sent.weights).enumerate().peekable();
    let mut parts = Vec::with_capacity(sent.rows.len());
    for (row, to) in y.data_mut().chunks_exact_mut(cols).enumerate() {
        if let Some((i, (_, &weight))) = wanted.next_if(|(_, (wanted, _))| **wanted as usize == row)
        {
            parts.push((to, made.row(i), weight));
        }
    }
    let mut tasks = Vec::with_capacity(parts.len().div_ceil(ROWS));
    while !parts.is_empty() {
        tasks.push(parts.split_off(parts.len().saturating_sub(ROWS)));
    }
    place.crew.map(tasks, |parts| place.isa.run(AddWeighed(parts)));
}

/// Rows of a sum, and what is added to them so many times.
struct AddWeighed<'a>(Vec<(&'a mut [f32], &'a [f32], f32)>);

impl Kernel for AddWeighed<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (to, made, weight) in self.0 {
            let weight = simd.splat(weight);
            for (to, made) in to.chunks_mut(LANES).zip(made.chunks(LANES)) {
                store_front(load_front(simd, made).fma(weight, load_front(simd, to)), to);
            }
        }
    }
}
