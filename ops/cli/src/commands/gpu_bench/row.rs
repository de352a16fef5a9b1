//! Every row of the table, in the order in which they are measured: what others are measured by
//! first, what needs the whole device last.

use super::bench::Bench;
use super::{attention, decode, dense, whole};

/// One thing to time, made when its turn comes.
pub(super) struct Row {
    pub(super) kernel: &'static str,
    pub(super) make: fn(&Bench) -> anyhow::Result<Work>,
}

/// What is timed, and the least that it could take.
pub(super) struct Work {
    /// What the floor and the target are made of.
    pub(super) bound: String,
    pub(super) floor_us: f64,
    pub(super) target_us: Option<f64>,
    pub(super) flop: f64,
    pub(super) bytes: f64,
    pub(super) run: Box<dyn FnMut() -> anyhow::Result<()>>,
}

pub(super) const ALL: &[Row] = &[
    Row { kernel: "copy", make: dense::copy },
    Row { kernel: "read", make: dense::read },
    Row { kernel: "product of squares", make: dense::squares },
    Row { kernel: "attention, past and own", make: attention::both },
    Row { kernel: "attention, own alone", make: attention::own },
    Row { kernel: "attention, past behind own", make: attention::rest },
    Row { kernel: "masses", make: attention::masses },
    Row { kernel: "masses, last eighth of the rows", make: attention::window },
    Row { kernel: "attention and masses", make: attention::both_and_masses },
    Row { kernel: "merge", make: attention::merge },
    Row { kernel: "select and gather", make: decode::select },
    Row { kernel: "select, one token", make: decode::select_one },
    Row { kernel: "decode attention", make: decode::attention },
    Row { kernel: "decode attention, scattered cells", make: decode::scattered },
    Row { kernel: "decode attention and scores", make: decode::scores },
    Row { kernel: "product, queries keys values", make: |bench| dense::map(bench, 0) },
    Row { kernel: "product, output", make: |bench| dense::map(bench, 1) },
    Row { kernel: "product, gate and up", make: |bench| dense::map(bench, 2) },
    Row { kernel: "product, down", make: |bench| dense::map(bench, 3) },
    Row { kernel: "project and finish", make: dense::layer },
    Row { kernel: "one layer of a prefill", make: whole::layer },
    Row { kernel: "whole prefill", make: whole::prefill },
    Row { kernel: "one decoded token", make: whole::decode },
];
