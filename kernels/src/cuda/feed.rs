//! Feed-forward parts, of which a token may go through a few of many.

use std::sync::Arc;

use super::device::Launch;
use super::layers::Block;
use super::linear::{Product, packed};
use super::operands::Elements;
use super::params::layers::{CombineParams, EmbedParams};
use super::prepare::{Factor, Form, Prepare, Then, Unprepared};
use super::resident::OnDevice;
use super::{Cuda, Shared};
use crate::backend::BackendError;
use crate::experts::Sent;
use crate::tensor::Rows;
use crate::weights::{Activation, Beside, Experts, FeedForward, Gated, LayerSpec, LayerWeights};

/// What the layer makes of `x`, normed where it has a norm before this part, plus `residual`.
pub(super) fn feed(
    cuda: &Cuda,
    layer: &LayerWeights,
    block: Block<'_>,
    x: &OnDevice<f32>,
    residual: Option<&OnDevice<f32>>,
) -> Result<OnDevice<f32>, BackendError> {
    let LayerSpec { norm_eps: eps, activation, .. } = layer.spec;
    match &layer.ffn {
        FeedForward::Nothing => match residual {
            Some(residual) => Ok(residual.clone()),
            None => OnDevice::of(block.shared, &vec![0.0; x.len()]),
        },
        FeedForward::Dense(dense) => {
            let norm = cuda.norms.each_on_device(block.shared, &layer.ffn_norm)?;
            let x = (x, Prepare::norm(norm.as_ref(), eps));
            match cuda.norms.each_on_device(block.shared, &layer.hidden_norm)? {
                None => through(block, dense, activation, x, residual),
                Some(norm) => {
                    let norm = Prepare::norm(Some(&norm), eps);
                    through_normed(block, dense, activation, x, (norm, residual))
                }
            }
        }
        FeedForward::Experts(experts) => {
            let x = match &layer.ffn_norm {
                Some(norm) => block.normed(cuda, x.clone(), (norm, eps), Then::default())?,
                None => x.clone(),
            };
            through_some(block, experts, activation, [&x, &x], residual)
        }
        FeedForward::Beside(both) => {
            let norm = cuda.norms.each_on_device(block.shared, &layer.ffn_norm)?;
            let prepare = Prepare::norm(norm.as_ref(), eps);
            let y = through_both(cuda, block, both, (x, prepare), &layer.spec)?;
            let Some(residual) = residual else { return Ok(y) };
            let none = Parts::new(block.rows, 0);
            none.combined(block.shared, y.len() / block.rows, [Some(&y), None, Some(residual)])
        }
    }
}

/// What a dense part makes of `x` as it is prepared, plus what experts beside it make of `x`: those
/// have norms of their own.
fn through_both(
    cuda: &Cuda,
    block: Block<'_>,
    both: &Beside,
    (x, prepare): (&OnDevice<f32>, Prepare<'_>),
    spec: &LayerSpec,
) -> Result<OnDevice<f32>, BackendError> {
    let LayerSpec { norm_eps: eps, activation, .. } = *spec;
    let normed = |rows, norm, then| block.normed(cuda, rows, (norm, eps), then);
    let dense = through(block, &both.dense, activation, (x, prepare), None)?;
    let dense = normed(dense, &both.dense_post_norm, Then::default())?;
    let given = normed(x.clone(), &both.experts_norm, Then::default())?;
    let routed = normed(x.clone(), &both.router_norm, Then::default())?;
    let chosen = through_some(block, &both.experts, activation, [&given, &routed], None)?;
    normed(chosen, &both.experts_post_norm, Then::add(&dense))
}

fn through(
    block: Block<'_>,
    part: &Gated,
    activation: Activation,
    (x, prepare): (&OnDevice<f32>, Prepare<'_>),
    residual: Option<&OnDevice<f32>>,
) -> Result<OnDevice<f32>, BackendError> {
    let weight = |linear| packed("finish", block.shared, linear);
    let (gate_up, down) = (weight(&part.gate_up)?, weight(&part.down)?);
    let x = block.prepared(Elements::F32(x.clone()), prepare, gate_up)?;
    let gates = Product { activation, ..block.product(&x, gate_up) };
    let hidden = match gates.gates() {
        true => gates.gated(down.weight.form())?,
        false => block.prepared(Elements::F32(gates.sums()?), Prepare::Gate(activation), down)?,
    };
    Product { residual, ..block.product(&hidden, down) }.sums()
}

/// The same where what stands between both products is prepared first.
fn through_normed(
    block: Block<'_>,
    part: &Gated,
    activation: Activation,
    (x, prepare): (&OnDevice<f32>, Prepare<'_>),
    (norm, residual): (Prepare<'_>, Option<&OnDevice<f32>>),
) -> Result<OnDevice<f32>, BackendError> {
    let weight = |linear| packed("finish", block.shared, linear);
    let (gate_up, down) = (weight(&part.gate_up)?, weight(&part.down)?);
    let x = block.prepared(Elements::F32(x.clone()), prepare, gate_up)?;
    let sums = Elements::F32(Product { activation, ..block.product(&x, gate_up) }.sums()?);
    let (rows, columns) = (block.rows, part.down.inputs);
    let prepare = Prepare::Gate(activation);
    let hidden = Unprepared { source: sums, rows, columns, prepare, broken: None };
    let Factor::F32(hidden) = hidden.into_form(block.shared, Form::F32)? else {
        unreachable!("rows of f32 are asked for");
    };
    let hidden = block.prepared(Elements::F32(hidden), norm, down)?;
    Product { residual, ..block.product(&hidden, down) }.sums()
}

/// Where rows go is decided on the host, once the router's logits of `routed` are there.
fn through_some(
    block: Block<'_>,
    experts: &Experts,
    activation: Activation,
    [x, routed]: [&OnDevice<f32>; 2],
    residual: Option<&OnDevice<f32>>,
) -> Result<OnDevice<f32>, BackendError> {
    let (shared, rows) = (block.shared, block.rows);
    let columns = experts.router.inputs;
    let product = |x: &OnDevice<f32>, linear| -> Result<OnDevice<f32>, BackendError> {
        let weight = packed("finish", shared, linear)?;
        let x = block.prepared(Elements::F32(x.clone()), Prepare::Nothing, weight)?;
        block.product(&x, weight).sums()
    };
    let logits = product(routed, &experts.router)?.into_array();
    let logits = shared.done(Rows::new(rows, experts.router.outputs, logits))?;
    let logits = Rows::from_vec(rows, logits.cols(), logits.array().host()?.to_vec());

    let mut parts = Parts::new(rows, experts.routing.chosen);
    for (part, mut sent) in experts.each.iter().zip(experts.routing.send(&logits)?) {
        if !sent.rows.is_empty() {
            let weights = experts.routing.before.then(|| sent.take_weights());
            let some = taken(shared, (x, columns), &sent.rows, weights.as_deref())?;
            let block = Block { rows: sent.rows.len(), own: true, ..block };
            let made = through(block, part, activation, (&some, Prepare::Nothing), None)?;
            parts.add(&sent, made, columns);
        }
    }
    let of_all = |part| through(block, part, activation, (x, Prepare::Nothing), None);
    let besides = experts.shared.as_ref().map(of_all).transpose()?;
    let gates = experts.shared_gate.as_ref().map(|gate| product(x, gate)).transpose()?;
    parts.combined(shared, columns, [besides.as_ref(), gates.as_ref(), residual])
}

/// The rows of `x`, `[_, columns]`, with these numbers, each times its weight where they have any.
fn taken(
    shared: &Arc<Shared>,
    (x, columns): (&OnDevice<f32>, usize),
    rows: &[u32],
    weights: Option<&[f32]>,
) -> Result<OnDevice<f32>, BackendError> {
    let (tokens, y) = (OnDevice::of(shared, rows)?, OnDevice::room(shared, rows.len() * columns)?);
    let weights = weights.map(|weights| OnDevice::of(shared, weights)).transpose()?;
    let params = EmbedParams {
        table: x.address(),
        scales: weights.as_ref().map_or(0, OnDevice::address),
        tokens: tokens.address(),
        y: y.address(),
        count: rows.len() as u32,
        columns: columns as u32,
        stride: columns as u32,
        scale_stride: 0,
        scale: 1.0,
        unused: 0,
    };
    let (grid, params) = ([rows.len() as u32, 1, 1], bytemuck::bytes_of(&params));
    let kernel = if weights.is_some() { "weigh_rows" } else { "embed_f32" };
    shared.run(&Launch { kernel, grid, threads: 256, shared_bytes: 0, params })?;
    Ok(y)
}

/// What experts have made of rows.
struct Parts {
    /// Experts of a row.
    count: usize,
    /// `[rows]`: where what each has made begins, and how much it counts.
    of_rows: Vec<Vec<(u64, f32)>>,
    /// Who has the memory.
    made: Vec<OnDevice<f32>>,
}

impl Parts {
    fn new(rows: usize, count: usize) -> Self {
        Self { count, of_rows: vec![Vec::with_capacity(count); rows], made: Vec::new() }
    }

    /// What the next expert has made of its rows.
    fn add(&mut self, sent: &Sent, made: OnDevice<f32>, columns: usize) {
        let begins = (made.address()..).step_by(columns * size_of::<f32>());
        for ((&row, &weight), begin) in sent.rows.iter().zip(&sent.weights).zip(begins) {
            self.of_rows[row as usize].push((begin, weight));
        }
        self.made.push(made);
    }

    /// All of a row, in the order of experts.
    fn combined(
        self,
        on: &Arc<Shared>,
        columns: usize,
        [shared, gates, residual]: [Option<&OnDevice<f32>>; 3],
    ) -> Result<OnDevice<f32>, BackendError> {
        let rows = self.of_rows.len();
        let (begins, weights): (Vec<u64>, Vec<f32>) = self.of_rows.into_iter().flatten().unzip();
        debug_assert_eq!(begins.len(), rows * self.count);
        let (parts, weights) = (OnDevice::of(on, &begins)?, OnDevice::of(on, &weights)?);
        let y = OnDevice::room(on, rows * columns)?;
        let address = |array: Option<&OnDevice<f32>>| array.map_or(0, OnDevice::address);
        let params = CombineParams {
            parts: parts.address(),
            weights: weights.address(),
            shared: address(shared),
            gates: address(gates),
            residual: address(residual),
            y: y.address(),
            rows: rows as u32,
            count: self.count as u32,
            columns: columns as u32,
            unused: 0,
        };
        let (grid, params) = ([rows as u32, 1, 1], bytemuck::bytes_of(&params));
        on.run(&Launch { kernel: "combine_rows", grid, threads: 256, shared_bytes: 0, params })?;
        Ok(y)
    }
}
