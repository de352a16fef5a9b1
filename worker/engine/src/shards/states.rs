//! What queries see of shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_kernels::fold::{Node, cover, fold};
use aqueduct_kernels::shard::apart;
use aqueduct_kernels::{
    AttentionState, Backend, BackendError, Heads, Leaves, Queries, Ranking, Shard,
};

use super::place::{Place, chunks_of_leaf, leaves_of};
use super::store::{ShardError, Shards, States};
use crate::model::Model;

/// What rows spend on the keys of each chunk, KV head after KV head.
pub type Masses = BTreeMap<u32, Vec<f32>>;

/// The states of the queries `q` over `shards`, of the fewest nodes.
///
/// # Errors
/// What the backend refuses.
pub fn states_over(
    model: &Model,
    place: &Place,
    q: &Heads,
    shards: &Shards,
) -> Result<States, ShardError> {
    let (leaves, queries) = (place.leaves(), model.queries(place.layer as usize, q, place.start));
    let whole: Shards = match place.is_scored() {
        true => {
            Whole::of_each(shards)?.into_iter().map(|whole| (whole.leaf, whole.joined)).collect()
        }
        false => shards.clone(),
    };
    let backend = model.backend();
    let mut leaf = |node: Node| -> Result<Option<AttentionState>, ShardError> {
        let whole = node.is_leaf(leaves).then(|| whole.get(&node.first)).flatten();
        Ok(whole.map(|whole| whole.attend(backend, queries)?.on_host()).transpose()?)
    };
    let merge = |state, other: &_| backend.merge(state, other);
    let mut of_node = |node: Node| -> Result<AttentionState, ShardError> {
        let keys = node.leaves(leaves).map(|leaf| whole.get(&leaf)?.of_all_heads());
        match keys.collect::<Option<Vec<_>>>() {
            Some(keys) => Ok(backend.attend_folded(queries, &keys, (node, leaves))?),
            None => fold(node, leaves, &merge, &mut leaf),
        }
    };
    place.nodes().into_iter().map(|node| Ok((node, of_node(node)?.on_host()?))).collect()
}

/// Shards of the same leaf of a memory, as they are attended to: all of that leaf, and one.
pub(super) struct Whole {
    leaf: u32,
    chunks: Vec<u32>,
    shards: Vec<Arc<Shard>>,
    joined: Arc<Shard>,
}

impl Whole {
    /// Of each leaf of which there are any in `shards`.
    ///
    /// # Errors
    /// What lies on a device and cannot be read.
    pub(super) fn of_each<'s>(
        shards: impl IntoIterator<Item = (&'s u32, &'s Arc<Shard>)>,
    ) -> Result<Vec<Self>, BackendError> {
        let mut leaves: BTreeMap<u32, (Vec<u32>, Vec<Arc<Shard>>)> = BTreeMap::new();
        for (&chunk, shard) in shards {
            let (chunks, shards) = leaves.entry(Leaves::of(chunk)).or_default();
            chunks.push(chunk);
            shards.push(shard.clone());
        }
        let whole = |(leaf, (chunks, shards)): (u32, (Vec<u32>, Vec<_>))| {
            let joined = Shard::joined(&shards)?;
            Ok::<_, BackendError>(Self { leaf, chunks, shards, joined })
        };
        leaves.into_iter().map(whole).collect()
    }

    /// Whether it is all that `chunks` chunks have of the leaf.
    pub(super) fn is_all_of(&self, chunks: u32) -> bool {
        self.chunks.len() as u32 == chunks_of_leaf(self.leaf, chunks)
    }

    /// The state over its keys, with its node of the fold over `chunks` chunks.
    pub(super) fn state(
        &self,
        backend: &dyn Backend,
        queries: Queries<'_>,
        chunks: u32,
    ) -> Result<(Node, AttentionState), BackendError> {
        let node = cover(leaves_of(chunks, true), |leaf| leaf == self.leaf);
        let node = node.first().copied().unwrap_or(Node::ROOT);
        Ok((node, self.joined.attend(backend, queries)?))
    }

    /// What the rows of `queries` spend on each chunk's keys.
    pub(super) fn masses(
        &self,
        backend: &dyn Backend,
        queries: Queries<'_>,
        lse: &[f32],
        ranking: &Ranking,
    ) -> Result<Masses, BackendError> {
        let masses = self.joined.weigh(backend, queries, lse, ranking)?;
        Ok(self.chunks.iter().copied().zip(apart(&self.shards, &masses)).collect())
    }
}
