//! Round one where every key is kept: the past is gone through in the order of the fold.
//!
//! All states over a long past can be more than memory: where holders are not two, four or eight,
//! nearly every chunk is a state of its own. So holders are asked for slices of their shards, a
//! few at a time and in the order in which the fold comes to them, and what has come is merged at
//! once. No message is longer than a slice, and no bit differs.

use std::collections::{BTreeMap, VecDeque};

use aqueduct_core::WireDtype;
use aqueduct_core::exchange::{keys_bytes, queries_bytes};
use aqueduct_core::work::Peer;
use aqueduct_engine::PortError;
use aqueduct_engine::shards::{Answer, Place};
use aqueduct_kernels::AttentionState;
use aqueduct_kernels::fold::{Missing, Node, fold};

use super::failures::{unanswered, unexpected};
use super::{Holders, ShardsPort, Wait};
use crate::exchange::{Ask, Reply};
use crate::link::codec;

/// Slices that a holder is asked for before the first has come: it computes one while another is
/// on its way.
const WINDOW: usize = 2;
/// Slices of a holder that are here or on their way, at most.
const SLICES: u64 = WINDOW as u64 + 1;
/// Slices that the bound on what is here and on its way is never cut into more than: each is
/// asked for, however many holders there are.
const SLICES_MAX: u64 = 32;

/// The past of one layer, by holder.
#[derive(Default)]
pub(super) struct Walk {
    stretches: Vec<Stretch>,
    /// Which of them has a node.
    owners: BTreeMap<Node, usize>,
}

/// What one holder has of it.
struct Stretch {
    peer: Peer,
    way: Way,
    /// What was not asked for yet.
    left: VecDeque<Place>,
    /// What is on its way, the first to come first.
    calls: VecDeque<(u64, Place)>,
    /// What is here before its turn.
    states: BTreeMap<Node, AttentionState>,
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

/// Why there is no whole.
enum Failed {
    Port(PortError),
    Missing(Missing),
}

impl From<Missing> for Failed {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

impl Walk {
    /// The calls under way.
    pub(super) fn calls(&self) -> impl Iterator<Item = u64> {
        self.stretches.iter().flat_map(|stretch| stretch.calls.iter().map(|call| call.0))
    }
}

impl<W: Wait> ShardsPort<'_, W> {
    /// Sends what `peer` is asked for first.
    pub(super) fn begin_stretch(
        &mut self,
        layer: usize,
        peer: &Peer,
        place: &Place,
    ) -> Result<(), PortError> {
        let is_here = self.wait.exchange().is_here(peer);
        let way = match is_here {
            true => Way::Own,
            false if self.keys_come(place) => Way::Keys,
            false => Way::Queries,
        };
        let slices = self.slices(place, way);
        let idx = self.walk.stretches.len();
        self.walk.owners.extend(slices.iter().flat_map(Place::nodes).map(|node| (node, idx)));
        self.walk.stretches.push(Stretch {
            peer: peer.clone(),
            way,
            left: slices.into(),
            calls: VecDeque::new(),
            states: BTreeMap::new(),
        });
        match way {
            // What is kept from now on goes into one of these shards.
            Way::Own if self.asker.own < self.asker.chunks => {
                while self.compute(layer, idx)? {}
                Ok(())
            }
            Way::Own => Ok(()),
            Way::Queries | Way::Keys => self.ask_on(layer, idx),
        }
    }

    /// The merged state of all that is before the block.
    pub(super) fn walked(&mut self, layer: usize) -> Result<AttentionState, PortError> {
        let (model, chunks) = (self.wait.exchange().holder.model().clone(), self.asker.chunks);
        let merge = |state, other: &_| model.backend().merge(state, other);
        let mut state = |node| self.state(layer, node).map_err(Failed::Port);
        fold(Node::ROOT, chunks, &merge, &mut state).map_err(|failed| match failed {
            Failed::Port(error) => error,
            Failed::Missing(missing) => PortError::Peer { layer, what: missing.to_string() },
        })
    }

    /// The state of `node`, if it is one that comes as a whole.
    fn state(&mut self, layer: usize, node: Node) -> Result<Option<AttentionState>, PortError> {
        let Some(&idx) = self.walk.owners.get(&node) else { return Ok(None) };
        loop {
            let state = self.walk.stretches[idx].states.remove(&node);
            if state.is_some() || !self.come(layer, idx)? {
                return Ok(state);
            }
        }
    }

    /// Waits for the next slice of stretch `idx`; `false` if there is none.
    fn come(&mut self, layer: usize, idx: usize) -> Result<bool, PortError> {
        let stretch = &self.walk.stretches[idx];
        if stretch.way == Way::Own {
            return self.compute(layer, idx);
        }
        let Some((call, place)) = stretch.calls.front().cloned() else { return Ok(false) };
        let peer = stretch.peer.clone();
        let reply = loop {
            if let Some(reply) = self.answered(layer, &peer, call)? {
                break reply;
            }
            if !self.compute_ahead(layer)? {
                self.pass_time(layer, call)?;
            }
        };
        self.walk.stretches[idx].calls.pop_front();
        self.ask_on(layer, idx)?;
        let states = self.states_in(layer, (&peer, &place), reply)?;
        self.walk.stretches[idx].states.extend(states);
        Ok(true)
    }

    /// Asks the holder of stretch `idx` for as much as may be on its way.
    fn ask_on(&mut self, layer: usize, idx: usize) -> Result<(), PortError> {
        while self.walk.stretches[idx].calls.len() < WINDOW {
            let stretch = &mut self.walk.stretches[idx];
            let Some(place) = stretch.left.pop_front() else { break };
            let (peer, keys_come) = (stretch.peer.clone(), stretch.way == Way::Keys);
            self.begin_round();
            let ask = self.round_one(place.clone(), keys_come);
            let call = self.call(layer, &peer, ask)?;
            self.walk.stretches[idx].calls.push_back((call, place));
        }
        Ok(())
    }

    /// Computes the next slice of this worker's own shards, stretch `idx`; `false` if none is left.
    fn compute(&mut self, layer: usize, idx: usize) -> Result<bool, PortError> {
        let Some(place) = self.walk.stretches[idx].left.pop_front() else { return Ok(false) };
        let states = self.own_states(layer, place)?;
        self.walk.stretches[idx].states.extend(states);
        Ok(true)
    }

    /// The same before its turn, while others are waited for: if there is room, and the shards are
    /// there already.
    fn compute_ahead(&mut self, layer: usize) -> Result<bool, PortError> {
        let is_own = |stretch: &Stretch| stretch.way == Way::Own;
        let Some(idx) = self.walk.stretches.iter().position(is_own) else { return Ok(false) };
        let own = &self.walk.stretches[idx];
        let Some(place) = own.left.front().cloned() else { return Ok(false) };
        let here = own.states.values().map(|state| (state.o.bytes() + state.m.bytes()) as u64);
        if here.sum::<u64>() >= self.wait.exchange().ahead_bytes {
            return Ok(false);
        }
        let answer = self.wait.exchange().own(&Ask::Attend { place, q: self.q.clone() });
        match answer.map_err(|error| unanswered(layer, error))? {
            Answer::NotYet => Ok(false),
            Answer::Ready(Reply::States(states)) => {
                let own = &mut self.walk.stretches[idx];
                own.left.pop_front();
                own.states.extend(states);
                Ok(true)
            }
            Answer::Ready(other) => Err(unexpected(layer, &other)),
        }
    }

    /// The shards of `place` in slices such that what is here and on its way of all holders
    /// together is bounded.
    fn slices(&mut self, place: &Place, way: Way) -> Vec<Place> {
        let Holders { wire, chunk_tokens, .. } = *self.holders;
        let exchange = self.wait.exchange();
        let (ahead, model) = (exchange.ahead_bytes, exchange.holder.model().clone());
        drop(exchange);
        let (shape, kv) = (model.shape(), codec::to_core(model.kv()));
        // Of many holders each slice is short, but not so short that asking takes the time.
        let most = ahead / (SLICES * self.holders.shards.len() as u64);
        let most = most.max(ahead / SLICES_MAX);
        let state = queries_bytes(shape, WireDtype::F32, place.tokens, 1)
            - queries_bytes(shape, WireDtype::F32, place.tokens, 0);
        let shard = keys_bytes((shape, kv), chunk_tokens);
        match way {
            Way::Own => place.slices(most, &|_| state),
            // The queries go out with every slice.
            Way::Queries => {
                let queries = queries_bytes(shape, wire, place.tokens, 0);
                place.slices(most.max(4 * queries), &|_| state)
            }
            Way::Keys => place.slices(most, &|leaves| state + u64::from(leaves) * shard),
        }
    }
}
