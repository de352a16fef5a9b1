//! Layers that remember in a state, and gates behind attention (`recurrent.cu`,
//! `recurrent_walk.cu`). Rows and states stay on the device; a batch of sequences is one launch of
//! each kernel.

mod walk;

use std::sync::Arc;

use self::walk::Plan;
use super::device::Launch;
use super::layers::Block;
use super::linear::packed;
use super::operands::Elements;
use super::params::recurrent::{GateParams, Sequence};
use super::prepare::Prepare;
use super::resident::OnDevice;
use super::{Broken, Cuda, Shared, batch, input};
use crate::array::Array;
use crate::backend::{BackendError, MixerOps, recur_on_host};
use crate::recurrent::{Recurred, Recurrent};
use crate::shapes;
use crate::tensor::Rows;
use crate::weights::{LayerInput, LayerWeights, Linear};

/// Columns that a block gates: a thread each.
const GATE_THREADS: u32 = 256;

impl MixerOps for Cuda {
    fn mix(&self, layer: &LayerWeights, x: &Rows) -> Result<Rows, BackendError> {
        shapes::mixing(layer, x)?;
        let (rows, outputs) = (x.rows(), layer.qkv.outputs);
        if rows == 0 {
            return Ok(Rows::zeros(0, outputs));
        }
        let y = normed_product("mix", self, layer, (x, &layer.qkv))?;
        self.shared.done(Rows::new(rows, outputs, y.into_array()))
    }

    fn recur(
        &self,
        recurrent: &Recurrent,
        columns: &Rows,
        state: Array<f32>,
    ) -> Result<Recurred, BackendError> {
        shapes::recurring(recurrent, columns, &state)?;
        let rows = columns.rows();
        let plan = Plan::of(recurrent).filter(|_| rows > 0);
        let Some(plan) = plan else { return recur_on_host(recurrent, columns, state) };
        let placed = self.shared.place(columns.array())?;
        let begun = Begun::new(&self.shared, recurrent, (placed.address(), rows), &state)?;
        plan.run(self, recurrent, rows, &[begun.sequence()])?;
        self.shared.done(begun.into_recurred(rows))
    }

    fn recur_each(
        &self,
        recurrent: &Recurrent,
        columns: &Rows,
        states: Vec<Array<f32>>,
    ) -> Vec<Result<Recurred, BackendError>> {
        let Some(plan) = Plan::of(recurrent) else {
            let on_host = |(i, state)| {
                shapes::at_most("recur", "states", i + 1, columns.rows())?;
                // Whose a number is that the first read may tell of is seen in each row's state.
                columns.array().host().or_else(|_| columns.array().host())?;
                recur_on_host(recurrent, &columns.part(i..i + 1), state)
            };
            return states.into_iter().enumerate().map(on_host).collect();
        };
        let placed = self.shared.place(columns.array());
        let row_bytes = columns.cols() * size_of::<f32>();
        let begin = |(i, state): (usize, Array<f32>)| {
            shapes::at_most("recur", "states", i + 1, columns.rows())?;
            shapes::recurring(recurrent, columns, &state)?;
            let first = placed.as_ref().map_err(Clone::clone)?.address() + (i * row_bytes) as u64;
            Begun::new(&self.shared, recurrent, (first, 1), &state)
        };
        let begun: Vec<_> = states.into_iter().enumerate().map(begin).collect();
        let sequences: Vec<_> = begun.iter().flatten().map(Begun::sequence).collect();
        let together = plan.run(self, recurrent, 1, &sequences);
        let ended = |begun: Result<Begun, BackendError>| {
            let begun = begun?;
            if together.is_err() {
                // There is too little room for all at once, perhaps; nothing has begun.
                plan.run(self, recurrent, 1, &[begun.sequence()])?;
            }
            self.shared.done(begun.into_recurred(1))
        };
        begun.into_iter().map(ended).collect()
    }

    fn stack(&self, cols: usize, parts: Vec<Rows>) -> Result<Rows, BackendError> {
        batch::stack(self, cols, parts)
    }

    fn gate(&self, layer: &LayerWeights, x: &Rows, attention: Rows) -> Result<Rows, BackendError> {
        let Some(weight) = &layer.gate else { return Ok(attention) };
        shapes::gating(layer, x, &attention)?;
        let (shared, rows, columns) = (&self.shared, attention.rows(), attention.cols());
        if rows * columns == 0 {
            return Ok(attention);
        }
        let gates = normed_product("gate", self, layer, (x, weight))?;
        let from = Elements::of_rows(shared, attention.array())?;
        let y = OnDevice::room(shared, rows * columns)?;
        let params = GateParams {
            x: from.address(),
            gates: gates.address(),
            y: y.address(),
            columns: columns as u32,
            each: (columns / weight.outputs) as u32,
        };
        shared.run(&Launch {
            kernel: from.of_dtype("recur_gate_f32", "recur_gate_bf16"),
            grid: [rows as u32, (columns as u32).div_ceil(GATE_THREADS), 1],
            threads: GATE_THREADS,
            shared_bytes: 0,
            params: bytemuck::bytes_of(&params),
        })?;
        shared.done(Rows::new(rows, columns, y.into_array()))
    }

    fn take(
        &self,
        layer: &LayerWeights,
        own: &LayerInput,
        x: &Rows,
        input: &Rows,
    ) -> Result<Rows, BackendError> {
        input::take(self, &layer.spec, own, [x, input])
    }
}

/// At least one row, normed where the layer does that, through `weight`.
fn normed_product(
    op: &'static str,
    cuda: &Cuda,
    layer: &LayerWeights,
    (x, weight): (&Rows, &Linear),
) -> Result<OnDevice<f32>, BackendError> {
    let shared = &cuda.shared;
    let weight = packed(op, shared, weight)?;
    let norm = cuda.norms.each_on_device(shared, &layer.attn_norm)?;
    let prepare = Prepare::norm(norm.as_ref(), layer.spec.norm_eps);
    let block = Block { shared, rows: x.rows(), broken: Broken::Linear, own: false };
    let source = Elements::F32(shared.place(x.array())?);
    let x = block.prepared(source, prepare, weight)?;
    block.product(&x, weight).sums()
}

/// A sequence's rows on the device, and room for what becomes of them.
struct Begun {
    /// Where its first row lies.
    columns: u64,
    /// Nothing where there are only zeros.
    before: Option<OnDevice<f32>>,
    after: OnDevice<f32>,
    output: OnDevice<f32>,
}

impl Begun {
    fn new(
        shared: &Arc<Shared>,
        recurrent: &Recurrent,
        (columns, rows): (u64, usize),
        state: &Array<f32>,
    ) -> Result<Self, BackendError> {
        let before = (!state.is_empty()).then(|| shared.place(state)).transpose()?;
        let after = OnDevice::room(shared, recurrent.state_len())?;
        let output = OnDevice::room(shared, rows * recurrent.outputs())?;
        Ok(Self { columns, before, after, output })
    }

    /// As kernels take it.
    fn sequence(&self) -> Sequence {
        Sequence {
            columns: self.columns,
            before: self.before.as_ref().map_or(0, OnDevice::address),
            after: self.after.address(),
            output: self.output.address(),
        }
    }

    fn into_recurred(self, rows: usize) -> Recurred {
        let cols = self.output.len() / rows;
        Recurred {
            output: Rows::new(rows, cols, self.output.into_array()),
            state: self.after.into_array(),
        }
    }
}
