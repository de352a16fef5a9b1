//! The spine of a block whose past is in shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::MemoryPolicy;
use aqueduct_core::work::RetainedMass;
use aqueduct_kernels::fold::{Missing, Node, fold};
use aqueduct_kernels::shard::cutoffs;
use aqueduct_kernels::{AttentionState, Heads, Passed, Qkv, Shard};

use super::audit::audit;
use super::port::{Found, ShardPort};
use crate::error::{EngineError, PortError};
use crate::model::Model;
use crate::prefill::{Block, Prefilled, Step, Want};

/// Everything before a block.
pub struct Past<'a> {
    /// How many chunks it is, and leaves of the fold.
    pub chunks: u32,
    /// The way to them.
    pub port: &'a mut dyn ShardPort,
}

/// Sends `block` through every layer, as [`prefill`](crate::prefill()) does, where the past stays
/// in shards. The merged state is the fold over all chunks before the block, then the block's
/// own; so the bits depend on the chunks alone, not on who holds them.
///
/// # Errors
/// Tokens outside the vocabulary, what the backend refuses, what the port could not do.
pub fn prefill_sharded(
    model: &Model,
    block: Block<'_>,
    policy: &MemoryPolicy,
    past: Past<'_>,
    want: Want,
) -> Result<Prefilled, EngineError> {
    let step = Step::new(model, block, policy);
    let Past { chunks, port } = past;
    let mut x = model.embed(block.tokens)?;
    let mut retained = vec![RetainedMass::default(); model.layers()];
    let mut audits = Vec::new();
    for (idx, layer) in model.parts.layers.iter().enumerate() {
        let Qkv { q, keys } = step.project(layer, &x)?;
        let q = Arc::new(q);
        port.ask(idx, &q)?;
        let own = Arc::new(Shard::new(keys, step.end()));
        if step.selection.keep_all {
            port.keep(idx, own.clone())?; // complete already: who waits for it waits no longer
        }
        let mut state = own.attend(model.backend(), step.queries(idx, &q))?;
        if chunks > 0 {
            let Found { states, shards } = port.states(idx)?;
            state = folded(chunks, states, idx)?.merge(&state);
            if let Some(past) = shards {
                let all = past.values().chain([&own]).map(Arc::as_ref);
                let row = (idx, idx % block.tokens.len()); // another one in each layer
                audits.push(audit(row, step.queries(idx, &q), all, &state)?);
            }
        }
        if !step.selection.keep_all {
            retained[idx] = settle(&step, (idx, &q), own, &state, port)?;
        }
        let last = idx + 1 == model.layers();
        x = step.finish(layer, x, &state.output(), if last { want } else { Want::All })?;
    }
    for (retained, past) in retained.iter_mut().zip(port.finish()?) {
        retained.add(past);
    }
    let sums = |mass: &RetainedMass| vec![mass.kept, mass.total].into();
    Ok(Prefilled { hidden: x, retained: retained.iter().map(sums).collect(), audits })
}

fn folded(
    chunks: u32,
    mut states: BTreeMap<Node, AttentionState>,
    layer: usize,
) -> Result<AttentionState, PortError> {
    fold(Node::ROOT, chunks, &mut |node| Ok::<_, Missing>(states.remove(&node)))
        .map_err(|missing| PortError::Peer { layer, what: missing.to_string() })
}

/// Round two: what the rows spend on every key, and what is kept of all. Returns the mass that
/// the block's own keys have kept.
fn settle(
    step: &Step<'_>,
    (idx, q): (usize, &Arc<Heads>),
    own: Arc<Shard>,
    state: &AttentionState,
    port: &mut dyn ShardPort,
) -> Result<RetainedMass, EngineError> {
    let selection = &step.selection;
    let lse: Arc<[f32]> = state.lse().into();
    port.weigh(idx, &lse)?;
    let mass = own.weigh(step.model.backend(), step.queries(idx, q), &lse, &selection.ranking)?;
    let tally = own.count_own(&mass, &selection.ranking);
    let passed = Passed { selection, end: step.end() };
    let mut candidates = port.candidates(idx)?;
    candidates.push(own.candidates(&tally, passed));
    let cutoffs: Arc<[_]> = cutoffs(&candidates, own.kv_heads(), selection.heavy).into();
    port.settle(idx, &cutoffs)?;
    let total = tally.mass();
    let own = own.settle(tally, &cutoffs, passed);
    let kept = own.mass();
    port.keep(idx, Arc::new(own))?;
    Ok(RetainedMass { kept, total })
}
