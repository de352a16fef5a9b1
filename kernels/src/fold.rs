//! The one order in which the states of a prompt's chunks are merged, wherever they are.
//!
//! Merging is associative up to rounding only, so the order is a fixed tree over chunk indices:
//! a node stands for the chunks that are equal to `first` modulo 2^level, and is the merge of
//! the two nodes of the next level. Chunks are laid over workers in turn; with two, four or
//! eight of them everything that one worker holds is then a single node, and a single state
//! crosses the network however long the prompt. Any other placement gives the same bits with
//! more states. A sum in ascending order would need every chunk's state on the wire.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;

/// The chunks equal to `first` modulo 2^`level`, of those that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// At most 31.
    pub level: u32,
    /// Below 2^`level`, and the smallest of the chunks.
    pub first: u32,
}

impl Node {
    /// All chunks.
    pub const ROOT: Self = Self { level: 0, first: 0 };

    /// Whether `first` is the only one of `chunks` chunks.
    pub fn is_leaf(self, chunks: u32) -> bool {
        u64::from(self.first) + (1 << self.level) >= u64::from(chunks)
    }

    /// Whether it is a node of the tree over `chunks` chunks; what a peer names may not be.
    pub fn is_of(self, chunks: u32) -> bool {
        let parent_is_leaf = |level: u32| {
            let parent = Self { level, first: self.first % (1 << level) };
            parent.is_leaf(chunks)
        };
        self.level < u32::BITS
            && self.first < chunks
            && u64::from(self.first) < 1 << self.level
            && self.level.checked_sub(1).is_none_or(|level| !parent_is_leaf(level))
    }

    /// The chunks that it stands for, ascending.
    pub fn leaves(self, chunks: u32) -> impl Iterator<Item = u32> {
        (self.first..chunks).step_by(1 << self.level)
    }

    /// Which of its [`leaves`](Self::leaves) `chunk` is.
    pub(crate) fn index(self, chunk: u32) -> usize {
        ((chunk - self.first) >> self.level) as usize
    }

    /// How many chunks it stands for.
    pub fn leaf_count(self, chunks: u32) -> u32 {
        chunks.saturating_sub(self.first).div_ceil(1 << self.level)
    }

    /// The order in which [`fold`] comes to nodes of which none is part of another: every half
    /// differs from the other in a bit of its first chunk, the whole's in the lowest.
    pub fn turn(self) -> u32 {
        self.first.reverse_bits()
    }

    /// The node that it is a half of.
    fn parent(self) -> Option<Self> {
        let level = self.level.checked_sub(1)?;
        Some(Self { level, first: self.first % (1 << level) })
    }

    /// The two nodes that it is the merge of, where it is no leaf.
    pub fn halves(self) -> [Self; 2] {
        let level = self.level + 1;
        [Self { level, ..self }, Self { level, first: self.first + (1 << self.level) }]
    }
}

/// The chunks of a fold of which there are states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sight {
    /// Chunks before this one are out of sight: their states are empty, and nobody gives them.
    pub first: u32,
    /// All chunks.
    pub chunks: u32,
}

impl Sight {
    /// Of all of so many chunks.
    pub const fn of_all(chunks: u32) -> Self {
        Self { first: 0, chunks }
    }

    /// Whether nothing of `node` is in sight.
    fn is_past(self, node: Node) -> bool {
        let behind = self.chunks.saturating_sub(1).saturating_sub(node.first);
        node.first + (behind >> node.level << node.level) < self.first
    }
}

/// Puts the state of `node` to those that there are, and merges what that makes whole, as [`fold`]
/// does: in whatever order states come, what is left at the end are the same bits.
pub fn put<S>(
    states: &mut BTreeMap<Node, S>,
    (node, state): (Node, S),
    sight: Sight,
    merge: &impl Fn(S, &S) -> S,
) {
    let (mut node, mut state) = (node, state);
    while let Some(parent) = node.parent() {
        let [left, right] = parent.halves();
        let other = if node == left { right } else { left };
        match states.remove(&other) {
            Some(there) if node == left => state = merge(state, &there),
            Some(there) => state = merge(there, &state),
            None if sight.is_past(other) => {}
            None => break,
        }
        node = parent;
    }
    states.insert(node, state);
}

/// The fewest nodes that together are the chunks for which `held` says yes, of `chunks` in all.
pub fn cover(chunks: u32, held: impl Fn(u32) -> bool) -> Vec<Node> {
    let mut nodes = Vec::new();
    if chunks > 0 && gather(Node::ROOT, chunks, &held, &mut nodes) {
        nodes.push(Node::ROOT);
    }
    nodes
}

/// Whether all of `node` is held; otherwise `nodes` gets what is held of it.
fn gather(node: Node, chunks: u32, held: &impl Fn(u32) -> bool, nodes: &mut Vec<Node>) -> bool {
    if node.is_leaf(chunks) {
        return held(node.first);
    }
    let [left, right] = node.halves();
    let whole_left = gather(left, chunks, held, nodes);
    let whole_right = gather(right, chunks, held, nodes);
    match (whole_left, whole_right) {
        (true, true) => return true,
        (true, false) => nodes.push(left),
        (false, true) => nodes.push(right),
        (false, false) => {}
    }
    false
}

/// The state of `node`, made of what `state` has: a node that it has not is merged from its
/// halves, by [`AttentionState::merge`](crate::AttentionState::merge) or what gives the same bits.
///
/// # Errors
/// What `state` says, or the leaf that it has not.
pub fn fold<S, E: From<Missing>>(
    node: Node,
    chunks: u32,
    merge: &impl Fn(S, &S) -> S,
    state: &mut impl FnMut(Node) -> Result<Option<S>, E>,
) -> Result<S, E> {
    let whole = fold_seen(node, Sight::of_all(chunks), merge, state)?;
    whole.ok_or_else(|| Missing { chunk_idx: node.first }.into())
}

/// The same of the chunks in sight; `None` if there are none. An empty state changes nothing that
/// it is merged with, so these are the bits of the fold over all.
///
/// # Errors
/// As there.
pub fn fold_seen<S, E: From<Missing>>(
    node: Node,
    sight: Sight,
    merge: &impl Fn(S, &S) -> S,
    state: &mut impl FnMut(Node) -> Result<Option<S>, E>,
) -> Result<Option<S>, E> {
    if sight.is_past(node) {
        return Ok(None);
    }
    if let Some(state) = state(node)? {
        return Ok(Some(state));
    }
    if node.is_leaf(sight.chunks) {
        return Err(Missing { chunk_idx: node.first }.into());
    }
    let [left, right] = node.halves();
    let left = fold_seen(left, sight, merge, state)?;
    let right = fold_seen(right, sight, merge, state)?;
    Ok(match (left, right) {
        (Some(left), Some(right)) => Some(merge(left, &right)),
        (left, right) => left.or(right),
    })
}

/// What is folded of a node all whose leaves there are: as [`fold`].
///
/// # Errors
/// What `state` says.
///
/// # Panics
/// `state` has not got a leaf: a bug of the caller.
pub(crate) fn fold_all<S, E>(
    node: Node,
    chunks: u32,
    merge: &impl Fn(S, &S) -> S,
    state: &mut impl FnMut(Node) -> Result<Option<S>, E>,
) -> Result<S, E> {
    match fold(node, chunks, merge, &mut |node| state(node).map_err(Failed::State)) {
        Ok(whole) => Ok(whole),
        Err(Failed::State(error)) => Err(error),
        Err(Failed::Missing(missing)) => unreachable!("every leaf is there: {missing}"),
    }
}

/// The merges of which the fold of `node` consists, in their order, over its leaves as
/// [`Node::leaves`] counts them: the first takes in the second, and leaf 0 at last the whole.
pub(crate) fn merges(node: Node, chunks: u32) -> Vec<(usize, usize)> {
    let merges = RefCell::new(Vec::new());
    let merge = |into: usize, of: &usize| {
        merges.borrow_mut().push((into, *of));
        into
    };
    let mut leaf = |at: Node| Ok(at.is_leaf(chunks).then(|| node.index(at.first)));
    let Ok::<_, Infallible>(_) = fold_all(node, chunks, &merge, &mut leaf);
    merges.into_inner()
}

/// Why there is no whole.
enum Failed<E> {
    State(E),
    Missing(Missing),
}

impl<E> From<Missing> for Failed<E> {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

/// Nobody gave the state of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no state of chunk {chunk_idx}")]
pub struct Missing {
    /// The chunk.
    pub chunk_idx: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::AttentionState;
    use proptest::prelude::*;

    fn nodes(list: &[(u32, u32)]) -> Vec<Node> {
        list.iter().map(|&(level, first)| Node { level, first }).collect()
    }

    #[test]
    fn one_node_for_all_that_a_worker_holds() {
        let check = |chunks, workers, worker, want: &[(u32, u32)]| {
            assert_eq!(cover(chunks, |chunk| chunk % workers == worker), nodes(want));
        };
        check(64, 1, 0, &[(0, 0)]);
        check(64, 4, 3, &[(2, 3)]);
        check(61, 8, 5, &[(3, 5)]);
        check(2, 4, 1, &[(1, 1)]);
        check(2, 4, 3, &[]);
        check(1, 1, 0, &[(0, 0)]);
        check(0, 1, 0, &[]);
        check(5, 3, 0, &[(3, 0), (2, 3)]);
    }

    #[test]
    fn merges_are_those_of_the_fold() {
        let check = |node: (u32, u32), chunks, want: &[(usize, usize)]| {
            let [node] = nodes(&[node])[..] else { unreachable!() };
            assert_eq!(merges(node, chunks), want, "{node:?} of {chunks}");
            let leaves: Vec<usize> = node.leaves(chunks).map(|leaf| node.index(leaf)).collect();
            assert_eq!(leaves, (0..=want.len()).collect::<Vec<_>>());
        };
        check((0, 0), 4, &[(0, 2), (1, 3), (0, 1)]);
        check((0, 0), 3, &[(0, 2), (0, 1)]);
        check((1, 1), 7, &[(0, 2), (0, 1)]);
        check((1, 1), 9, &[(0, 2), (1, 3), (0, 1)]);
        check((3, 5), 9, &[]);
    }

    /// States whose merges round, so that another order shows.
    fn state(chunk: u32) -> AttentionState {
        let x = f64::from(chunk + 1);
        let mut state = AttentionState::empty(1, 1, 2);
        state.m[0] = (x * 0.37).sin() as f32 * 3.0;
        state.l[0] = 1.0 + (x * 1.3).cos().abs() as f32;
        state.o[0] = (x * 2.1).sin() as f32;
        state.o[1] = (x * 0.7).cos() as f32;
        state
    }

    fn whole(chunks: u32) -> AttentionState {
        fold(Node::ROOT, chunks, &AttentionState::merge, &mut |node| {
            Ok::<_, Missing>(node.is_leaf(chunks).then(|| state(node.first)))
        })
        .unwrap()
    }

    proptest! {
        #[test]
        fn every_placement_gives_the_same_bits(places in prop::collection::vec(0u32..5, 1..70)) {
            let chunks = places.len() as u32;
            let mut parts = BTreeMap::new();
            for worker in 0..5 {
                for node in cover(chunks, |chunk| places[chunk as usize] == worker) {
                    prop_assert!(node.is_of(chunks));
                    let part = fold(node, chunks, &AttentionState::merge, &mut |node| {
                        Ok::<_, Missing>(node.is_leaf(chunks).then(|| state(node.first)))
                    });
                    prop_assert!(parts.insert(node, part.unwrap()).is_none());
                }
            }
            let mut part = |node| Ok::<_, Missing>(parts.remove(&node));
            let got = fold(Node::ROOT, chunks, &AttentionState::merge, &mut part);
            prop_assert_eq!(got.unwrap(), whole(chunks));
            prop_assert!(parts.is_empty());
        }

        #[test]
        fn states_that_come_in_any_order_give_the_same_bits(
            places in prop::collection::vec((0u32..4, any::<u32>()), 1..70),
        ) {
            let chunks = places.len() as u32;
            let mut parts = Vec::new();
            for worker in 0..4 {
                for node in cover(chunks, |chunk| places[chunk as usize].0 == worker) {
                    let part = fold(node, chunks, &AttentionState::merge, &mut |node| {
                        Ok::<_, Missing>(node.is_leaf(chunks).then(|| state(node.first)))
                    });
                    parts.push((places[node.first as usize].1, node, part.unwrap()));
                }
            }
            parts.sort_by_key(|(random, ..)| *random);
            let mut states = BTreeMap::new();
            for (_, node, part) in parts {
                put(&mut states, (node, part), Sight::of_all(chunks), &AttentionState::merge);
            }
            prop_assert_eq!(states, BTreeMap::from([(Node::ROOT, whole(chunks))]));
        }

        #[test]
        fn what_is_out_of_sight_changes_no_bit(
            places in prop::collection::vec((0u32..4, any::<u32>()), 1..70),
            out_of_sight in 0u32..72,
            asked_about_all in 0u32..5,
        ) {
            let chunks = places.len() as u32;
            let first = out_of_sight.min(chunks);
            let sight = Sight { first, chunks };
            let mut leaf = |node: Node| {
                let empty = AttentionState::empty(1, 1, 2);
                let state = if node.first < first { empty } else { state(node.first) };
                Ok::<_, Missing>(node.is_leaf(chunks).then_some(state))
            };
            let whole = fold(Node::ROOT, chunks, &AttentionState::merge, &mut leaf).unwrap();
            let mut parts = Vec::new();
            for worker in 0..4 {
                // Some give states of all that they have, some of what is in sight alone.
                let all = worker < asked_about_all;
                let held = |chunk: u32| {
                    places[chunk as usize].0 == worker && (all || chunk >= first)
                };
                for node in cover(chunks, held) {
                    let part = fold(node, chunks, &AttentionState::merge, &mut leaf).unwrap();
                    parts.push((places[node.first as usize].1, node, part));
                }
            }
            parts.sort_by_key(|(random, ..)| *random);
            let mut states = BTreeMap::new();
            for (_, node, part) in parts {
                put(&mut states, (node, part), sight, &AttentionState::merge);
            }
            prop_assert!(first == chunks || states.contains_key(&Node::ROOT));
            let mut part = |node| Ok::<_, Missing>(states.remove(&node));
            let got = fold_seen(Node::ROOT, sight, &AttentionState::merge, &mut part).unwrap();
            prop_assert_eq!(got.is_none(), first == chunks);
            prop_assert_eq!(got.unwrap_or_else(|| AttentionState::empty(1, 1, 2)), whole);
        }

        #[test]
        fn a_state_in_sight_that_nobody_gives_is_missed(chunks in 1u32..70, lost in 0u32..70) {
            let (lost, first) = (lost % chunks, lost % chunks / 2);
            let mut leaf = |node: Node| {
                let is_there = node.is_leaf(chunks) && node.first != lost;
                Ok::<_, Missing>(is_there.then(|| state(node.first)))
            };
            let sight = Sight { first, chunks };
            let missed = fold_seen(Node::ROOT, sight, &AttentionState::merge, &mut leaf);
            prop_assert_eq!(missed, Err(Missing { chunk_idx: lost }));
        }

        #[test]
        fn nodes_have_their_turn_as_the_fold_comes_to_them(
            places in prop::collection::vec(0u32..3, 1..70),
        ) {
            let chunks = places.len() as u32;
            let mut all = Vec::new();
            for worker in 0..3 {
                all.extend(cover(chunks, |chunk| places[chunk as usize] == worker));
            }
            let mut came = Vec::new();
            let mut come = |node| {
                came.extend(all.contains(&node).then_some(node));
                Ok::<_, Missing>(all.contains(&node).then_some(()))
            };
            fold(Node::ROOT, chunks, &|(), ()| (), &mut come).unwrap();
            let leaves: u32 = all.iter().map(|node| node.leaf_count(chunks)).sum();
            all.sort_by_key(|node| node.turn());
            prop_assert_eq!(came, all);
            prop_assert_eq!(leaves, chunks);
        }

        #[test]
        fn a_node_of_the_tree_is_recognised(
            chunks in 1u32..40, level in 0u32..40, first in 0u32..50,
        ) {
            let mut all = Vec::new();
            let mut open = vec![Node::ROOT];
            while let Some(node) = open.pop() {
                all.push(node);
                if !node.is_leaf(chunks) {
                    open.extend(node.halves());
                }
            }
            let node = Node { level, first };
            prop_assert_eq!(node.is_of(chunks), all.contains(&node));
        }
    }

    #[test]
    fn a_chunk_without_a_state_is_named() {
        let none = |_: Node| Ok::<_, Missing>(None);
        assert_eq!(
            fold(Node::ROOT, 3, &AttentionState::merge, &mut { none }),
            Err(Missing { chunk_idx: 0 })
        );
    }
}
