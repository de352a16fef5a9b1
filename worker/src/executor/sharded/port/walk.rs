//! Round one where every key is kept: the past is gone through in slices.
//!
//! All states over a long past can be more than memory: where holders are not two, four or eight,
//! nearly every chunk is a state of its own. So holders are asked for slices of their shards, in
//! the order in which the fold comes to them, for as long as there is room; what comes is merged
//! with what is there already, so that little is. No message is longer than a slice, and no bit
//! differs.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use aqueduct_core::WireDtype;
use aqueduct_core::exchange::{keys_bytes, queries_bytes};
use aqueduct_core::work::Peer;
use aqueduct_engine::PortError;
use aqueduct_engine::shards::{Answer, Place, Slice, States};
use aqueduct_kernels::AttentionState;
use aqueduct_kernels::fold::{self, Node, Sight};

use super::failures::{unanswered, unexpected};
use super::{Holders, OWN_POLL, ShardsPort, Wait};
use crate::exchange::{Ask, Fares, Reply};
use crate::link::codec;

/// Slices that a holder is asked for before the first has come, where there is room: it computes
/// one while another is on its way.
const WINDOW: usize = 2;
/// Slices that the room is cut into, at most: each is asked for, however many holders there are.
const SLICES_MAX: u64 = 64;
/// Slices of each holder for which there is room at least. Where holders are no power of two, some
/// come to other halves of the fold than others, and their first states wait for each other: with
/// less room most holders would stand idle.
const EACH: u64 = 4;

/// The past of one layer.
#[derive(Default)]
pub(super) struct Walk {
    /// What of it rows see.
    sight: Sight,
    /// What each holder has of it.
    stretches: Vec<Stretch>,
    /// What is here and not whole yet.
    states: BTreeMap<Node, AttentionState>,
    state_bytes: u64,
    /// What may be here and on its way.
    bytes_max: u64,
}

/// What one holder has of it.
struct Stretch {
    peer: Peer,
    way: Way,
    /// What was not asked for yet.
    left: VecDeque<Slice>,
    /// What is on its way, the first to come first.
    calls: VecDeque<(u64, Slice)>,
}

/// How its states come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// They are computed of this worker's own shards.
    Own,
    /// The queries go out.
    Queries,
    /// The keys come.
    Keys,
}

impl Stretch {
    /// When the fold comes to what is not here of it.
    fn turn(&self) -> Option<u32> {
        let coming = self.calls.front().map(|(_, slice)| slice);
        coming.or(self.left.front()).map(|slice| slice.turn)
    }
}

impl Walk {
    /// This worker's own stretch, where it has any of the past.
    fn own(&self) -> Option<usize> {
        self.stretches.iter().position(|stretch| stretch.way == Way::Own)
    }

    /// The calls under way.
    pub(super) fn calls(&self) -> impl Iterator<Item = u64> {
        self.stretches.iter().flat_map(|stretch| stretch.calls.iter().map(|call| call.0))
    }

    /// Bytes that are here or on their way.
    fn bytes(&self) -> u64 {
        let coming = self.stretches.iter().flat_map(|stretch| &stretch.calls);
        let coming: u64 = coming.map(|(_, slice)| slice.bytes).sum();
        coming + self.states.len() as u64 * self.state_bytes
    }

    /// Whether the next slice of stretch `idx` may come: if there is room for it, or the fold
    /// comes to it next, so that there is always one that may.
    fn may_come(&self, idx: usize) -> bool {
        let Some(next) = self.stretches[idx].left.front() else { return false };
        let first = self.stretches.iter().filter_map(Stretch::turn).min();
        first == Some(next.turn) || self.bytes() + next.bytes <= self.bytes_max
    }
}

impl<W: Wait> ShardsPort<'_, W> {
    /// Asks for the first slices of what `places` have: others compute while this worker does.
    pub(super) fn begin_walk(
        &mut self,
        layer: usize,
        places: &[(Peer, Place)],
    ) -> Result<(), PortError> {
        let mut stretches = Vec::with_capacity(places.len());
        let (first, chunks) = match places.first() {
            Some((_, place)) => (self.first_seen(place), place.chunks),
            None => (0, 0),
        };
        for (peer, place) in places {
            let seen = place.from_chunk(first);
            if seen.shards.is_empty() {
                continue;
            }
            if self.wait.exchange().is_here(peer) {
                stretches.push((peer, seen, Way::Own));
                continue;
            }
            let (mut asked, mut fares) = (&seen, self.fares(&seen));
            if seen.shards.len() < place.shards.len() {
                // What is out of sight may make fewer states whole, and is next to no work.
                let Fares { queries, .. } = self.fares(place);
                if queries < fares.queries {
                    (asked, fares.queries) = (place, queries);
                }
            }
            let keys_come = fares.keys_come(self.holders.carry);
            self.count_round_one(keys_come);
            stretches.push(match keys_come {
                true => (peer, seen, Way::Keys),
                false => (peer, asked.clone(), Way::Queries),
            });
        }
        self.walk = self.cut(&stretches);
        self.walk.sight = Sight { first, chunks };
        self.ask_on(layer)?;
        if self.asker.own < self.asker.chunks {
            // What is kept from now on goes into one of this worker's shards.
            let own = self.walk.own();
            while let Some(slice) = own.and_then(|idx| self.walk.stretches[idx].left.pop_front()) {
                let states = self.own_states(layer, slice.place)?;
                self.put(states);
            }
        }
        Ok(())
    }

    /// What there is of all that is before the block, merged as far as it can be, and the first
    /// chunk of it that is in sight.
    pub(super) fn walked(
        &mut self,
        layer: usize,
    ) -> Result<(BTreeMap<Node, AttentionState>, u32), PortError> {
        self.ask_on(layer)?;
        loop {
            if self.take_answers(layer)? || self.compute(layer)? {
                self.ask_on(layer)?; // before others go first
                self.wait.breathe()?;
                continue;
            }
            if self.walk.stretches.iter().all(|stretch| stretch.turn().is_none()) {
                return Ok((std::mem::take(&mut self.walk.states), self.walk.sight.first));
            }
            self.check(layer)?;
            // No bell is rung here for this worker's own shards.
            let waits_here = self.walk.own().is_some_and(|idx| self.walk.may_come(idx));
            let soon = Instant::now() + OWN_POLL;
            self.wait.rest(if waits_here { soon.min(self.deadline) } else { self.deadline })?;
        }
    }

    /// Asks every other holder for as much as may be on its way: each for one slice, then for more,
    /// and first for what the fold comes to first.
    fn ask_on(&mut self, layer: usize) -> Result<(), PortError> {
        let turn = |idx: &usize| self.walk.stretches[*idx].left.front().map(|slice| slice.turn);
        let mut in_turn: Vec<usize> = (0..self.walk.stretches.len()).collect();
        in_turn.sort_by_key(turn);
        for (under_way, idx) in (0..WINDOW).flat_map(|it| in_turn.iter().map(move |idx| (it, *idx)))
        {
            let stretch = &self.walk.stretches[idx];
            let is_wanted = stretch.way != Way::Own && stretch.calls.len() <= under_way;
            if !is_wanted || !self.walk.may_come(idx) {
                continue;
            }
            let Stretch { peer, way, left, .. } = &mut self.walk.stretches[idx];
            let (peer, keys_come) = (peer.clone(), *way == Way::Keys);
            let Some(slice) = left.pop_front() else { continue };
            self.begin_round();
            let ask = self.round_one(slice.place.clone(), keys_come);
            let call = self.call(layer, &peer, ask)?;
            self.walk.stretches[idx].calls.push_back((call, slice));
        }
        Ok(())
    }

    /// Takes what has come of each holder; `false` if nothing has.
    fn take_answers(&mut self, layer: usize) -> Result<bool, PortError> {
        let mut has_come = false;
        for idx in 0..self.walk.stretches.len() {
            let Stretch { peer, calls, .. } = &self.walk.stretches[idx];
            let Some((call, peer)) = calls.front().map(|(call, _)| (*call, peer.clone())) else {
                continue;
            };
            let Some(reply) = self.answered(layer, &peer, call)? else { continue };
            let Some((_, slice)) = self.walk.stretches[idx].calls.pop_front() else { continue };
            let states = self.states_in(layer, (&peer, &slice.place), reply)?;
            self.put(states);
            has_come = true;
        }
        Ok(has_come)
    }

    /// Computes a slice of this worker's own shards; `false` if there is none, no room for it, or
    /// its shards are not there yet.
    fn compute(&mut self, layer: usize) -> Result<bool, PortError> {
        let Some(idx) = self.walk.own() else { return Ok(false) };
        let Some(slice) = self.walk.stretches[idx].left.front().cloned() else { return Ok(false) };
        if !self.walk.may_come(idx) {
            return Ok(false);
        }
        let ask = Ask::Attend { place: slice.place, q: self.q.clone() };
        let answer = self.wait.exchange().own(&ask);
        match answer.map_err(|error| unanswered(layer, error))? {
            Answer::NotYet => Ok(false),
            Answer::Ready(Reply::States(states)) => {
                self.walk.stretches[idx].left.pop_front();
                self.put(states);
                Ok(true)
            }
            Answer::Ready(other) => Err(unexpected(layer, &other)),
        }
    }

    fn put(&mut self, states: States) {
        let model = self.wait.exchange().holder.model().clone();
        let merge = |state, other: &_| model.backend().merge(state, other);
        for (node, state) in states {
            fold::put(&mut self.walk.states, (node, state), self.walk.sight, &merge);
        }
    }

    /// The past of one layer, in slices of which every holder may have one or two on their way; in
    /// one for each, if there is room for all.
    fn cut(&mut self, places: &[(&Peer, Place, Way)]) -> Walk {
        let Holders { wire, chunk_tokens, .. } = *self.holders;
        let exchange = self.wait.exchange();
        let (ahead, model) = (exchange.ahead_bytes, exchange.holder.model().clone());
        drop(exchange);
        let layer = places.first().map_or(0, |(_, place, _)| place.layer as usize);
        let (shape, kv) = (&model.shape_of(layer), codec::to_core(model.kv()));
        let tokens = self.q.tokens as u32;
        let queries = queries_bytes(shape, wire, tokens, 0);
        let state_bytes = queries_bytes(shape, WireDtype::F32, tokens, 1)
            - queries_bytes(shape, WireDtype::F32, tokens, 0);
        let shard_bytes = keys_bytes((shape, kv), chunk_tokens);
        let bytes = |way: Way| {
            let shard_bytes = if way == Way::Keys { shard_bytes } else { 0 };
            move |leaves: u32| state_bytes + u64::from(leaves) * shard_bytes
        };
        // Of a step's one row there is room for each shard's, and nobody need look how they lie.
        let each = |way: Way, place: &Place| place.shards.len() as u64 * bytes(way)(1);
        let has_room = places.iter().map(|(_, place, way)| each(*way, place)).sum::<u64>() <= ahead;
        let whole = |(_, place, way): &(&Peer, Place, Way)| {
            let nodes = place.nodes().into_iter().map(|node| node.leaf_count(place.leaves()));
            nodes.map(bytes(*way)).sum::<u64>()
        };
        let others = places.iter().filter(|(.., way)| *way != Way::Own).count() as u64;
        let most = match has_room || places.iter().map(whole).sum::<u64>() <= ahead {
            true => ahead,
            false => (ahead / (WINDOW as u64 * others.max(1))).max(ahead / SLICES_MAX),
        };
        let stretch = |&(peer, ref place, way): &(&Peer, Place, Way)| {
            // The queries go out with every slice, which should not be most of what travels.
            let least = if way == Way::Queries { (2 * queries).min(ahead / 4) } else { 0 };
            let left = match has_room {
                true if place.shards.is_empty() => VecDeque::new(),
                true => [Slice { place: place.clone(), turn: 0, bytes: each(way, place) }].into(),
                false => place.slices(most.max(least), &bytes(way)).into(),
            };
            Stretch { peer: peer.clone(), way, left, calls: VecDeque::new() }
        };
        let stretches: Vec<Stretch> = places.iter().map(stretch).collect();
        let slices = stretches.iter().flat_map(|stretch| &stretch.left);
        let largest = slices.map(|slice| slice.bytes).max().unwrap_or(0);
        let least = EACH * places.len() as u64 * largest.min(2 * state_bytes + shard_bytes);
        Walk { stretches, state_bytes, bytes_max: ahead.max(least), ..Walk::default() }
    }
}
