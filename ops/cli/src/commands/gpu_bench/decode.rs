//! Selection, and a decode step's attention.

use std::sync::Arc;

use aqueduct_kernels::{AttentionOps, Keys, MemorySet, SelectionOps};

use super::bench::{Bench, Block};
use super::row::Work;

const SELECT_TARGET_US: f64 = 20.0;
/// What one launch takes.
const LAUNCH_US: f64 = 3.0;
const READ_SHARE: f64 = 0.8;
/// What scores may add.
const SCORES: f64 = 1.06;

pub(super) fn select(bench: &Bench) -> anyhow::Result<Work> {
    let shape = bench.shape;
    let block = bench.block(shape.chunk, shape.memory)?;
    let weights = vec![1.0; shape.chunk];
    let attended = block.cuda.attend_all(block.queries(), block.scope(Some(&weights)))?;
    let (memory, selection) = (Arc::new(bench.memory()?), shape.selection());
    // Of what a selection has made it is known what it holds, as in a chain of chunks; of a set
    // from elsewhere the host would read all positions first, each time.
    let masses = (&attended.past_mass, &attended.own_mass);
    let memory = Arc::new(block.cuda.select(memory, &block.own, masses, &selection)?.memory);
    let own = bench.keys(memory.end..memory.end + shape.chunk as u32)?;
    let bytes = 2.0 * shape.kv_bytes(shape.memory) as f64;
    let copy = bench.copy_roof()?;
    Ok(Work {
        bound: format!(
            "{:.0} MB at {:.2} TB/s, as copied here; target 20 us",
            bytes / 1e6,
            copy / 1e12
        ),
        floor_us: bytes / copy * 1e6,
        target_us: Some(SELECT_TARGET_US),
        flop: 0.0,
        bytes,
        run: Box::new(move || {
            let masses = (&attended.past_mass, &attended.own_mass);
            Ok(block.cuda.select(memory.clone(), &own, masses, &selection).map(drop)?)
        }),
    })
}

/// A set that nobody else holds, one key after the other.
pub(super) fn select_one(bench: &Bench) -> anyhow::Result<Work> {
    let (cuda, shape) = (bench.cuda.clone(), bench.shape);
    let row = bench.keys(0..1)?;
    let ones = |count: usize| cuda.here(&vec![1.0; shape.kv_heads * count].into());
    let (past_mass, own_mass) = (ones(shape.memory)?, ones(1)?);
    let (mut set, selection) = (bench.memory()?, shape.selection());
    let run = move || {
        let own = Keys::new(vec![set.end; shape.kv_heads], row.k.clone(), row.v.clone());
        let empty = MemorySet::empty(shape.kv_heads, shape.head_dim, row.k.dtype());
        let past = Arc::new(std::mem::replace(&mut set, empty));
        set = cuda.select(past, &own, (&past_mass, &own_mass), &selection)?.memory;
        Ok(())
    };
    Ok(Work {
        bound: "one launch; no floor but its 3 us; target 20 us".into(),
        floor_us: LAUNCH_US,
        target_us: Some(SELECT_TARGET_US),
        flop: 0.0,
        bytes: (shape.kv_heads * shape.memory * 6 * 4) as f64,
        run: Box::new(run),
    })
}

/// One row behind the depth; weighed or not.
fn step(bench: &Bench, block: Block, weighed: bool) -> anyhow::Result<Work> {
    let (shape, read) = (bench.shape, bench.read_roof()?);
    let bytes = shape.kv_bytes(shape.depth) as f64;
    let floor_us = bytes / read * 1e6;
    let (more, words) = match weighed {
        true => (SCORES, "80 % and 6 % for the scores"),
        false => (1.0, "80 %"),
    };
    let weights = weighed.then(|| vec![1.0]);
    Ok(Work {
        bound: format!(
            "{:.0} MB at {:.2} TB/s, as read here; target {words}",
            bytes / 1e6,
            read / 1e12
        ),
        floor_us,
        target_us: Some(floor_us / READ_SHARE * more),
        flop: 4.0 * (shape.head_dim * shape.heads * shape.depth) as f64,
        bytes,
        run: Box::new(move || {
            let scope = block.scope(weights.as_deref());
            Ok(block.cuda.attend_all(block.queries(), scope).map(drop)?)
        }),
    })
}

pub(super) fn attention(bench: &Bench) -> anyhow::Result<Work> {
    step(bench, bench.block(1, bench.shape.depth)?, false)
}

pub(super) fn scores(bench: &Bench) -> anyhow::Result<Work> {
    step(bench, bench.block(1, bench.shape.depth)?, true)
}

/// Neighbours of every key are elsewhere.
pub(super) fn scattered(bench: &Bench) -> anyhow::Result<Work> {
    const STRIDE: usize = 4099; // a prime, so that it meets every cell
    let (mut block, depth) = (bench.block(1, bench.shape.depth)?, bench.shape.depth);
    let cells: Vec<u32> = (0..depth).map(|key| (key * STRIDE % depth) as u32).collect();
    let Keys { positions, k, v, .. } = block.past;
    let keys = Keys::scattered(positions, k, v, cells.repeat(bench.shape.kv_heads));
    block.past = bench.cuda.keys_here(&keys)?;
    step(bench, block, false)
}
