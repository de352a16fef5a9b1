//! The door between a block and the workers that hold its past.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::work::RetainedMass;
use aqueduct_kernels::fold::Node;
use aqueduct_kernels::{AttentionState, Candidate, Cutoff, Heads, Shard};

use super::states::Masses;
use super::store::Shards;
use crate::error::PortError;

/// What came back from the shards of one layer.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Each of a node of the fold.
    pub states: BTreeMap<Node, AttentionState>,
    /// Chunks before this one no row of the block sees: there need be no state of them.
    pub first_seen: u32,
    /// The shards themselves of leaves that no holder has [whole](super::Place::torn).
    pub torn: Shards,
    /// All shards themselves, where the merge is to be audited.
    pub shards: Option<Shards>,
}

/// What the rows of a block spend on all keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Spent {
    /// `[heads, tokens]` of the merged state: what a holder counts by.
    pub lse: Arc<[f32]>,
    /// What was counted for the holders: of every chunk of [`Found::torn`].
    pub masses: Arc<Masses>,
}

/// How a block reaches the shards of everything before it.
///
/// Per layer, ascending: `ask`, `states`; where keys are scored also `weigh`, `candidates` and
/// `settle`, in this order; `keep` once, at any time after `ask`, or alone where nothing comes of
/// what the rows see. Then `finish`. What only sends returns at once; what waits must have a
/// deadline.
pub trait ShardPort {
    /// Sends the queries of `layer`, of the block's tokens or of the last of them. What is kept
    /// after this is not part of what they see.
    ///
    /// # Errors
    /// A holder that cannot be reached; a request that is not wanted any more.
    fn ask(&mut self, layer: usize, q: &Arc<Heads>) -> Result<(), PortError>;

    /// Waits for the states over all shards, and for the torn ones themselves.
    ///
    /// # Errors
    /// What did not come, or cannot be used.
    fn states(&mut self, layer: usize) -> Result<Found, PortError>;

    /// Sends what every holder needs to count what the rows spend on its keys.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    fn weigh(&mut self, layer: usize, spent: &Spent) -> Result<(), PortError>;

    /// Waits for the best candidates, `[some shards together][kv_heads]`.
    ///
    /// # Errors
    /// As [`states`](Self::states).
    fn candidates(&mut self, layer: usize) -> Result<Vec<Vec<Vec<Candidate>>>, PortError>;

    /// Sends what stays, one for each KV head.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    fn settle(&mut self, layer: usize, cutoffs: &Arc<[Cutoff]>) -> Result<(), PortError>;

    /// The block's own keys, which stay here.
    ///
    /// # Errors
    /// No room for them.
    fn keep(&mut self, layer: usize, own: Arc<Shard>) -> Result<(), PortError>;

    /// Waits until every holder has settled; the mass that their shards kept, per layer, or
    /// nothing where no mass was counted.
    ///
    /// # Errors
    /// As [`states`](Self::states).
    fn finish(&mut self) -> Result<Vec<RetainedMass>, PortError>;
}
