//! What the kernels of recurrent layers are launched with.

use std::sync::Arc;

use bytemuck::Zeroable;

use super::super::device::Launch;
use super::super::params::recurrent::{Recurrence, Sequence};
use super::super::resident::OnDevice;
use super::super::{Broken, Cuda};
use crate::backend::BackendError;
use crate::recurrent::{Delta, Recurrent, Rule, Scan, States};

/// What `recurrent.cuh` calls rules.
const GATED: u32 = 0;
const DELTA: u32 = 1;
const SCAN: u32 = 2;

/// Tokens that a block convolves: a warp each.
const WARPS: usize = 8;
/// Channels of a gated convolution that a warp has.
const SPAN: usize = 256;
/// Columns of a state that a block walks with, and its threads.
const COLUMNS: usize = 32;
const WALKERS: u32 = 128;
/// Tokens that are copied to shared memory together, at most.
const TILE: usize = 16;
/// Decay and step, as they are copied.
const STEP: usize = 4;
/// Elements of a part of a row for which one warp is enough.
const PART: usize = 256;

/// Kernels for states of at most so many rows: of the delta rule, and of scans.
const WALKS: [(usize, &str, &str); 5] = [
    (32, "recur_delta_32", "recur_scan_32"),
    (64, "recur_delta_64", "recur_scan_64"),
    (96, "recur_delta_96", "recur_scan_96"),
    (128, "recur_delta_128", "recur_scan_128"),
    (256, "recur_delta_256", "recur_scan_256"),
];

/// The kernel that walks.
#[derive(Clone, Copy)]
struct Walk {
    kernel: &'static str,
    padded_rows: usize,
    padded_cols: usize,
}

impl Walk {
    fn of(rule: &Rule, states: States) -> Option<Self> {
        let &(padded_rows, delta, scan) = WALKS.iter().find(|(rows, ..)| states.rows <= *rows)?;
        let kernel = if matches!(rule, Rule::Delta(_)) { delta } else { scan };
        Some(Self { kernel, padded_rows, padded_cols: states.cols.next_multiple_of(COLUMNS) })
    }
}

/// What is launched for a layer.
pub(super) struct Plan {
    /// Nothing where there are no states but the convolution's.
    walk: Option<Walk>,
}

impl Plan {
    /// `None` where the layer has nothing to do, or states of more rows than a kernel is made for.
    pub(super) fn of(recurrent: &Recurrent) -> Option<Self> {
        if recurrent.outputs() == 0 {
            return None;
        }
        let rule = &recurrent.rule;
        let walk = match rule.states() {
            Some(states) if states.rows > 0 => Some(Walk::of(rule, states)?),
            Some(_) => return None,
            None => None,
        };
        Some(Self { walk })
    }

    /// Enqueues the kernels for sequences of `rows` rows each.
    pub(super) fn run(
        &self,
        cuda: &Cuda,
        recurrent: &Recurrent,
        rows: usize,
        sequences: &[Sequence],
    ) -> Result<(), BackendError> {
        let Some(&one) = sequences.first() else { return Ok(()) };
        let (shared, tokens) = (&cuda.shared, rows * sequences.len());
        let is_one = sequences.len() == 1;
        let shape = self.shape(recurrent);
        let weights = Weights::of(cuda, recurrent)?;
        let many = (!is_one).then(|| OnDevice::of(shared, sequences)).transpose()?;
        let room = |each: usize| OnDevice::<f32>::room(shared, tokens * each);
        let (convolved, steps) = (room(width(&shape))?, room(STEP * shape.heads as usize)?);
        let walked = room(shape.heads as usize * shape.state_cols as usize)?;
        let params = Recurrence {
            one,
            many: address(&many),
            convolved: convolved.address(),
            steps: steps.address(),
            walked: walked.address(),
            // Whose output it is cannot be told where there are many: who reads it on will say.
            broken: if is_one { shared.broken_at() } else { 0 },
            code: Broken::Recur as u32,
            sequences: sequences.len() as u32,
            rows: rows as u32,
            tile: rows.min(TILE) as u32,
            ..weights.put(shape)
        };
        self.launches(&params).iter().try_for_each(|launch| shared.run(launch))
    }

    /// What the layer's shape alone decides.
    fn shape(&self, recurrent: &Recurrent) -> Recurrence {
        let common = Recurrence {
            rule: GATED,
            taps: recurrent.conv.taps as u32,
            channels: recurrent.channels() as u32,
            columns: recurrent.columns() as u32,
            outputs: recurrent.outputs() as u32,
            padded_rows: self.walk.map_or(0, |walk| walk.padded_rows as u32),
            padded_cols: self.walk.map_or(0, |walk| walk.padded_cols as u32),
            ..Recurrence::zeroed()
        };
        match &recurrent.rule {
            Rule::Gated => common,
            Rule::Delta(delta) => of_delta(delta, common),
            Rule::Scan(scan) => of_scan(scan, common),
        }
    }

    fn launches<'p>(&self, params: &'p Recurrence) -> Vec<Launch<'p>> {
        let tokens = params.sequences as usize * params.rows as usize;
        let launch = |kernel, grid, (threads, shared_bytes)| {
            let params = bytemuck::bytes_of(params);
            Launch { kernel, grid, threads, shared_bytes, params }
        };
        let blocks = tokens.div_ceil(WARPS) as u32;
        let threads = 32 * WARPS as u32;
        let convolve = |units| launch("recur_convolve", [blocks, units, 1], (threads, 0));
        let Some(walk) = self.walk else {
            return vec![convolve(params.channels.div_ceil(SPAN as u32))];
        };
        let tiles = if params.rows > params.tile { 2 } else { 1 };
        let token = 2 * walk.padded_rows + COLUMNS + STEP;
        let walk_bytes = tiles * params.tile as usize * token * size_of::<f32>();
        let walk_blocks = (walk.padded_cols / COLUMNS) as u32;
        let parts = tokens * params.parts as usize;
        let finish = match (params.outputs / params.parts) as usize {
            ..=PART => {
                let blocks = parts.div_ceil(WARPS) as u32;
                launch("recur_finish_1", [blocks, 1, 1], (threads, 0))
            }
            _ => {
                let sums_bytes = WARPS * size_of::<f32>();
                launch("recur_finish_8", [parts as u32, 1, 1], (threads, sums_bytes))
            }
        };
        let grid = [walk_blocks, params.heads, params.sequences];
        vec![
            convolve(2 * params.groups + params.heads + 1),
            launch(walk.kernel, grid, (WALKERS, walk_bytes)),
            finish,
        ]
    }
}

/// Floats of a token in `convolved`.
fn width(shape: &Recurrence) -> usize {
    let [groups, heads] = [shape.groups, shape.heads].map(|count| count as usize);
    2 * groups * shape.padded_rows as usize + heads * shape.padded_cols as usize
}

fn of_delta(delta: &Delta, common: Recurrence) -> Recurrence {
    let ([z, b, _], keys) = (delta.gates(), delta.keys() as u32);
    Recurrence {
        rule: DELTA,
        inputs: 0,
        z: z.start as u32,
        gates: b.start as u32,
        heads: delta.value_heads as u32,
        groups: delta.key_heads as u32,
        tiled: delta.tiled.into(),
        state_rows: delta.key_dim as u32,
        state_cols: delta.value_dim as u32,
        q: 0,
        k: keys,
        v: 2 * keys,
        parts: delta.value_heads as u32,
        eps: delta.norm_eps,
        most: delta.steps,
        ..common
    }
}

fn of_scan(scan: &Scan, common: Recurrence) -> Recurrence {
    let (outputs, keys) = (scan.outputs() as u32, (scan.groups * scan.state_dim) as u32);
    let (parts, eps) = match &scan.norm {
        Some(norm) => (norm.groups, norm.eps),
        None => (scan.heads, 0.0),
    };
    Recurrence {
        rule: SCAN,
        inputs: outputs,
        z: 0,
        gates: scan.steps().start as u32,
        heads: scan.heads as u32,
        groups: scan.groups as u32,
        state_rows: scan.state_dim as u32,
        state_cols: scan.head_dim as u32,
        q: outputs + keys,
        k: outputs,
        v: 0,
        parts: parts as u32,
        eps,
        least: scan.limits[0],
        most: scan.limits[1],
        dt_scale: scan.dt_scale,
        x_scale: scan.x_scale,
        ..common
    }
}

fn address<T: bytemuck::Pod + Send + Sync>(array: &Option<OnDevice<T>>) -> u64 {
    array.as_ref().map_or(0, OnDevice::address)
}

/// A layer's few weights; held until what reads them is enqueued.
struct Weights {
    taps: OnDevice<f32>,
    bias: Option<OnDevice<f32>>,
    rate: Option<OnDevice<f32>>,
    shift: Option<OnDevice<f32>>,
    skip: Option<OnDevice<f32>>,
    norm: Option<OnDevice<f32>>,
}

impl Weights {
    fn of(cuda: &Cuda, recurrent: &Recurrent) -> Result<Self, BackendError> {
        let (conv, shared) = (&recurrent.conv, &cuda.shared);
        let some = |array: Option<&Arc<[f32]>>| {
            array.map(|array| cuda.norms.on_device(shared, array)).transpose()
        };
        let [rate, shift, skip, norm] = match &recurrent.rule {
            Rule::Gated => [None; 4],
            Rule::Delta(delta) => [Some(&delta.rate), Some(&delta.shift), None, Some(&delta.norm)],
            Rule::Scan(scan) => {
                let norm = scan.norm.as_ref().map(|norm| &norm.weights);
                [Some(&scan.rate), Some(&scan.shift), Some(&scan.skip), norm]
            }
        };
        Ok(Self {
            taps: cuda.norms.on_device(shared, &conv.weights)?,
            bias: some(conv.bias.as_ref())?,
            rate: some(rate)?,
            shift: some(shift)?,
            skip: some(skip)?,
            norm: some(norm)?,
        })
    }

    fn put(&self, shape: Recurrence) -> Recurrence {
        Recurrence {
            taps_of: self.taps.address(),
            bias: address(&self.bias),
            rate: address(&self.rate),
            shift: address(&self.shift),
            skip: address(&self.skip),
            norm: address(&self.norm),
            ..shape
        }
    }
}
