//! The spine of a block whose past is in shards.

use std::sync::Arc;

use aqueduct_core::MemoryPolicy;
use aqueduct_core::work::RetainedMass;
use aqueduct_kernels::Shard;

use super::layer::{Asked, keep};
use super::port::ShardPort;
use crate::error::EngineError;
use crate::model::Model;
use crate::prefill::{Block, Prefilled, Step};
use crate::want::Want;

/// Everything before a block.
pub struct Past<'a> {
    /// How many chunks it is.
    pub chunks: u32,
    /// The way to them.
    pub port: &'a mut dyn ShardPort,
}

/// Sends `block` through every layer, as [`prefill`](crate::prefill()) does, where the past stays
/// in shards. The merged state is the fold over all chunks before the block or, where keys are
/// given up, over their [leaves](aqueduct_kernels::LEAVES), then the block's own; so the bits
/// depend on the chunks alone, not on who holds them, and in the second case are those of a memory
/// set that travels.
///
/// # Errors
/// A model with states, tokens outside the vocabulary, what the backend refuses, what the port
/// could not do.
pub fn prefill_sharded(
    model: &Model,
    block: Block<'_>,
    policy: &MemoryPolicy,
    past: Past<'_>,
    want: Want,
) -> Result<Prefilled, EngineError> {
    model.check_shards()?;
    let step = Step::new(model, (block.start, block.tokens.len()), policy, block.leaves);
    let angles = model.angles(block);
    let Past { chunks, port } = past;
    let mut x = model.embed_block(block)?;
    let inputs = model.inputs(block.tokens, &x)?;
    let mut retained = vec![RetainedMass::default(); model.layers()];
    let mut audits = Vec::new();
    for (idx, layer) in model.parts.layers.iter().enumerate() {
        let outputs = step.outputs(idx, want);
        let qkv = step.project(layer, &x, angles.of(idx), outputs)?;
        if qkv.q.tokens == 0 {
            keep(&step, idx, &Arc::new(Shard::new(qkv.keys, step.end())), port)?;
            x = x.of_last(0)?;
            continue; // nobody asks, and nobody waits
        }
        let asked = Asked::new(&step, idx, qkv, port)?;
        let merged = asked.merge(&step, chunks, port)?;
        let output = model.backend().output(&merged.state).of_last(outputs)?;
        audits.extend(merged.audit);
        if let Some(weighed) = merged.weighed {
            retained[idx] = weighed.settle(&step, port)?;
        }
        x = step.finish((idx, layer), inputs.as_ref(), x, output)?;
    }
    for (retained, past) in retained.iter_mut().zip(port.finish()?) {
        retained.add(past);
    }
    let sums = |mass: &RetainedMass| vec![mass.kept, mass.total].into();
    let hidden = want.of(x)?;
    Ok(Prefilled { hidden, retained: retained.iter().map(sums).collect(), audits })
}
