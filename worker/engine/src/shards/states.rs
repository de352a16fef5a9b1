//! What queries see of a holder's shards.

use aqueduct_kernels::fold::{Node, cover, fold};
use aqueduct_kernels::{AttentionState, Heads};

use super::place::Place;
use super::store::{ShardError, Shards, States};
use crate::model::Model;

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
    let queries = model.queries(place.layer as usize, q, place.start);
    let mut leaf = |node: Node| -> Result<Option<AttentionState>, ShardError> {
        let shard = node.is_leaf(place.chunks).then(|| shards.get(&node.first)).flatten();
        Ok(shard.map(|shard| shard.attend(model.backend(), queries)).transpose()?)
    };
    let merge = |state, other: &_| model.backend().merge(state, other);
    let nodes = cover(place.chunks, |chunk| shards.contains_key(&chunk));
    nodes.into_iter().map(|node| Ok((node, fold(node, place.chunks, &merge, &mut leaf)?))).collect()
}
