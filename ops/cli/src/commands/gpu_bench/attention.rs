//! A chunk's attention, masses and merging.

use aqueduct_kernels::{Array, AttentionOps, AttentionState};

use super::bench::{Bench, Block, PEAK};
use super::row::Work;

/// FLOP a second that the issue asks of attention.
const TARGET: f64 = 420e12;
const MASSES_TARGET_US: f64 = 260.0;
const WINDOW_TARGET_US: f64 = 40.0;
const MERGE_SHARE: f64 = 0.8;

fn chunk(bench: &Bench) -> anyhow::Result<Block> {
    Ok(bench.block(bench.shape.chunk, bench.shape.memory)?)
}

/// A row that is bound by products.
fn bound(flop: f64, target_us: f64, what: &str) -> Work {
    Work {
        bound: format!("{:.0} GFLOP at 989 TFLOP/s; target {what}", flop / 1e9),
        floor_us: flop / PEAK * 1e6,
        target_us: Some(target_us),
        flop,
        bytes: 0.0,
        run: Box::new(|| Ok(())),
    }
}

fn attention(flop: f64, run: impl FnMut() -> anyhow::Result<()> + 'static) -> Work {
    Work { run: Box::new(run), ..bound(flop, flop / TARGET * 1e6, "420 TFLOP/s") }
}

pub(super) fn both(bench: &Bench) -> anyhow::Result<Work> {
    let block = chunk(bench)?;
    Ok(attention(bench.shape.attention_flop(bench.shape.memory), move || {
        Ok(block.cuda.attend_all(block.queries(), block.scope(None)).map(drop)?)
    }))
}

pub(super) fn own(bench: &Bench) -> anyhow::Result<Work> {
    let block = bench.block(bench.shape.chunk, 0)?;
    Ok(attention(bench.shape.attention_flop(0), move || {
        Ok(block.cuda.attend_all(block.queries(), block.scope(None)).map(drop)?)
    }))
}

pub(super) fn rest(bench: &Bench) -> anyhow::Result<Work> {
    let block = chunk(bench)?;
    let own = block.cuda.attend(block.queries(), &block.own)?;
    Ok(attention(bench.shape.past_flop(), move || {
        Ok(block.cuda.attend_rest(block.queries(), block.scope(None), &own).map(drop)?)
    }))
}

/// States over past and over own keys.
fn states(block: &Block) -> anyhow::Result<[AttentionState; 2]> {
    let state = |keys| block.cuda.attend(block.queries(), keys);
    Ok([state(&block.past)?, state(&block.own)?])
}

/// Masses of the last `rows`.
fn masses_of(bench: &Bench, rows: usize, target_us: f64) -> anyhow::Result<Work> {
    let block = chunk(bench)?;
    let [past, own] = states(&block)?;
    let lse: Array<f32> = block.cuda.here(&Array::from(past.merge(&own).lse()))?;
    let silent = bench.shape.chunk - rows;
    let weights: Vec<f32> =
        (0..bench.shape.chunk).map(|row| f32::from(u8::from(row >= silent))).collect();
    Ok(Work {
        run: Box::new(move || {
            let scope = block.scope(Some(&weights));
            Ok(block.cuda.weigh_all(block.queries(), scope, &lse).map(drop)?)
        }),
        ..bound(bench.shape.masses_flop(rows), target_us, &format!("{target_us} us"))
    })
}

pub(super) fn masses(bench: &Bench) -> anyhow::Result<Work> {
    masses_of(bench, bench.shape.chunk, MASSES_TARGET_US)
}

pub(super) fn window(bench: &Bench) -> anyhow::Result<Work> {
    masses_of(bench, bench.shape.chunk / 8, WINDOW_TARGET_US)
}

pub(super) fn both_and_masses(bench: &Bench) -> anyhow::Result<Work> {
    let (block, shape) = (chunk(bench)?, bench.shape);
    let weights = vec![1.0; shape.chunk];
    let attention_flop = shape.attention_flop(shape.memory);
    let target_us = attention_flop / TARGET * 1e6 + MASSES_TARGET_US;
    Ok(Work {
        run: Box::new(move || {
            let scope = block.scope(Some(&weights));
            Ok(block.cuda.attend_all(block.queries(), scope).map(drop)?)
        }),
        ..bound(
            attention_flop + shape.masses_flop(shape.chunk),
            target_us,
            "420 TFLOP/s and 260 us",
        )
    })
}

/// Two states, f32, become an output, bf16.
pub(super) fn merge(bench: &Bench) -> anyhow::Result<Work> {
    let block = chunk(bench)?;
    let [past, own] = states(&block)?;
    let rows = (bench.shape.heads * bench.shape.chunk) as f64;
    let bytes = rows * (2.0 * (4.0 * bench.shape.head_dim as f64 + 8.0) + 4.0)
        + rows * 2.0 * bench.shape.head_dim as f64;
    let copy = bench.copy_roof()?;
    let floor_us = bytes / copy * 1e6;
    Ok(Work {
        bound: format!(
            "{:.0} MB at {:.2} TB/s, as copied here; target 80 %",
            bytes / 1e6,
            copy / 1e12
        ),
        floor_us,
        target_us: Some(floor_us / MERGE_SHARE),
        flop: 0.0,
        bytes,
        run: Box::new(move || {
            Ok(block.cuda.merge_states(block.queries(), [&past, &own]).map(drop)?)
        }),
    })
}
