//! One block in one layer whose past is in shards, from the queries that go out to the keys that
//! stay. What sends and what waits are apart, so that a batch of blocks waits for all at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::work::{MergeAudit, RetainedMass};
use aqueduct_kernels::fold::{Missing, Node, Sight, fold_seen};
use aqueduct_kernels::shard::cutoffs;
use aqueduct_kernels::{AttentionState, Backend, Heads, Passed, Qkv, Shard};

use super::audit::audit;
use super::place::leaves_of;
use super::port::{Found, ShardPort, Spent};
use super::states::{Masses, Whole};
use crate::error::{EngineError, PortError};
use crate::prefill::Step;

/// A block whose queries are under way.
pub(crate) struct Asked {
    idx: usize,
    q: Arc<Heads>,
    own: Arc<Shard>,
}

/// A block that has seen every key.
pub(crate) struct Merged {
    pub(crate) state: AttentionState,
    /// Where the port brought what it takes.
    pub(crate) audit: Option<MergeAudit>,
    /// Where keys are scored.
    pub(crate) weighed: Option<Weighed>,
}

/// A block of whose merged state the holders were told.
pub(crate) struct Weighed {
    asked: Asked,
    lse: Arc<[f32]>,
}

impl Asked {
    /// Sends the queries of layer `idx`, and keeps the own keys where all are kept.
    pub(crate) fn new(
        step: &Step<'_>,
        idx: usize,
        Qkv { q, keys }: Qkv,
        port: &mut dyn ShardPort,
    ) -> Result<Self, EngineError> {
        let q = Arc::new(q);
        port.ask(idx, &q)?;
        let own = Arc::new(Shard::new(keys, step.end()));
        if step.selection.keep_all {
            keep(step, idx, &own, port)?; // complete already: who waits for it waits no longer
        }
        Ok(Self { idx, q, own })
    }

    /// Waits for the states over the `chunks` chunks of the past; where keys are scored, has them
    /// weighed.
    pub(crate) fn merge(
        self,
        step: &Step<'_>,
        chunks: u32,
        port: &mut dyn ShardPort,
    ) -> Result<Merged, EngineError> {
        let Self { idx, q, own } = &self;
        let (backend, queries) = (step.model.backend(), step.queries(*idx, q));
        let (mut state, mut audited) = (own.attend(backend, queries)?, None);
        let mut torn = Vec::new();
        if chunks > 0 {
            let Found { mut states, first_seen, torn: fetched, shards } = port.states(*idx)?;
            torn = Whole::of_each(&fetched)?;
            for leaf in torn.iter().filter(|leaf| leaf.is_all_of(chunks)) {
                states.extend([leaf.state(backend, queries, chunks)?]);
            }
            let sight = match step.selection.keep_all {
                true => Sight { first: first_seen, chunks },
                false => Sight::of_all(leaves_of(chunks, true)),
            };
            // Merging cannot fail, and a device tells what went wrong to whoever reads.
            states.values().try_for_each(AttentionState::host)?;
            state.host()?;
            if let Some(past) = folded(backend, sight, states, *idx)? {
                state = backend.merge(past, &state);
            }
            if let Some(past) = shards {
                let all = past.values().chain([own]).map(Arc::as_ref);
                let row = (*idx, idx % q.tokens); // another one in each layer
                audited = Some(audit(row, queries, all, &state)?);
            }
        }
        state = state.on_host()?.with_sinks(step.model.parts.layers[*idx].sinks.as_deref());
        let mut weighed = None;
        if !step.selection.keep_all {
            let lse: Arc<[f32]> = state.lse().into();
            let mut masses = Masses::new();
            for leaf in torn {
                masses.extend(leaf.masses(backend, queries, &lse, &step.selection.ranking)?);
            }
            let spent = Spent { lse, masses: Arc::new(masses) };
            port.weigh(*idx, &spent)?;
            weighed = Some(Weighed { asked: self, lse: spent.lse });
        }
        Ok(Merged { state, audit: audited, weighed })
    }
}

impl Weighed {
    /// Round two: what the rows spend on every key, and what is kept of all. Returns the mass that
    /// the block's own keys have kept.
    pub(crate) fn settle(
        self,
        step: &Step<'_>,
        port: &mut dyn ShardPort,
    ) -> Result<RetainedMass, EngineError> {
        let Self { asked: Asked { idx, q, own }, lse } = self;
        let selection = &step.selection_in(idx);
        let queries = step.queries(idx, &q);
        let mass = own.weigh(step.model.backend(), queries, &lse, &selection.ranking)?;
        own.fetch_lists()?;
        let tally = own.count_own(&mass, &selection.ranking);
        let passed = Passed { selection, end: step.end() };
        let mut candidates = port.candidates(idx)?;
        candidates.push(own.candidates(&tally, passed));
        let cutoffs: Arc<[_]> = cutoffs(&candidates, own.kv_heads(), selection.heavy).into();
        port.settle(idx, &cutoffs)?;
        let total = own.mass_in(&tally, passed);
        let own = own.settle(tally, &cutoffs, passed)?;
        let kept = own.mass(passed);
        port.keep(idx, Arc::new(own))?;
        Ok(RetainedMass { kept, total })
    }
}

/// Keeps the own keys of a block where none are given up for their rank: of a layer with a window
/// those that rows behind the block see, as nobody will ask for the others. A token that is
/// generated is kept as it is, for more follow in the same shard.
pub(super) fn keep(
    step: &Step<'_>,
    idx: usize,
    own: &Arc<Shard>,
    port: &mut dyn ShardPort,
) -> Result<(), EngineError> {
    let window = step.model.window(idx).filter(|_| step.end() - step.start > 1);
    Ok(port.keep(idx, own.seen_behind(step.model.backend(), window)?)?)
}

/// The state over all of the past that is in sight.
fn folded(
    backend: &dyn Backend,
    sight: Sight,
    mut states: BTreeMap<Node, AttentionState>,
    layer: usize,
) -> Result<Option<AttentionState>, PortError> {
    let merge = |state, other: &_| backend.merge(state, other);
    fold_seen(Node::ROOT, sight, &merge, &mut |node| Ok::<_, Missing>(states.remove(&node)))
        .map_err(|missing| PortError::Peer { layer, what: missing.to_string() })
}
