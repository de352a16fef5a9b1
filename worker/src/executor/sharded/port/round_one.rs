//! Round one: what is asked of each holder, and what its answers are.

use aqueduct_core::Epoch;
use aqueduct_core::work::Peer;
use aqueduct_engine::PortError;
use aqueduct_engine::shards::{Place, Shards, States, states_over};

use super::failures::{failed, unexpected};
use super::{Part, ShardsPort, Wait};
use crate::exchange::{Ask, CallError, Reply};

impl<W: Wait> ShardsPort<'_, W> {
    /// Round one with one holder, where keys are scored.
    pub(super) fn part(
        &mut self,
        layer: usize,
        (peer, shards): &(Peer, Vec<(u32, Epoch)>),
    ) -> Result<Part, PortError> {
        let (peer, place) = (peer.clone(), self.place(layer, shards).of_last(self.q.tokens));
        let mut part = Part { peer, place, call: None, states: None, torn: None, audit: None };
        let place = part.place.clone();
        let is_here = self.wait.exchange().is_here(&part.peer);
        part.torn = self.ask_for_torn(layer, &part, is_here)?;
        if !is_here {
            if !place.nodes().is_empty() {
                let keys_come = self.fares(&place).keys_come(self.holders.carry);
                self.count_round_one(keys_come);
                let ask = self.round_one(place, keys_come);
                part.call = Some(self.call(layer, &part.peer, ask)?);
            }
            self.ask_to_audit(layer, &mut part)?;
        } else if self.asker.own < self.asker.chunks {
            // What is kept from now on goes into one of these shards.
            part.states = Some(self.own_states(layer, place)?);
        }
        Ok(part)
    }

    /// Another holder is asked for keys, or to compute, once a layer in however many slices.
    pub(super) fn count_round_one(&mut self, keys_come: bool) {
        let traffic = &mut self.report.traffic;
        let asks = if keys_come { &mut traffic.fetched } else { &mut traffic.asked };
        *asks += 1;
    }

    /// What another holder is asked in round one.
    pub(super) fn round_one(&self, place: Place, keys_come: bool) -> Ask {
        match keys_come {
            true => Ask::Keys { place },
            false => Ask::Attend { place, q: self.q.clone() },
        }
    }

    /// What the queries see of this worker's own shards.
    pub(super) fn own_states(&mut self, layer: usize, place: Place) -> Result<States, PortError> {
        match self.own(layer, &Ask::Attend { place, q: self.q.clone() })? {
            Reply::States(states) => Ok(states),
            other => Err(unexpected(layer, &other)),
        }
    }

    /// The states of part `idx`.
    pub(super) fn states_of(&mut self, layer: usize, idx: usize) -> Result<States, PortError> {
        let part = &mut self.parts[idx];
        if let Some(states) = part.states.take() {
            return Ok(states);
        }
        let (peer, place) = (part.peer.clone(), part.place.clone());
        let Some(call) = part.call.take() else {
            return match place.nodes().is_empty() {
                true => Ok(States::new()),
                false => self.own_states(layer, place),
            };
        };
        let reply = self.reply(layer, &peer, call)?;
        self.states_in(layer, (&peer, &place), reply)
    }

    /// The shards of `place` themselves: what `peer` answers to `call`, or this worker's own.
    pub(super) fn shards_of(
        &mut self,
        layer: usize,
        (peer, place): (&Peer, Place),
        call: Option<u64>,
    ) -> Result<Shards, PortError> {
        let reply = match call {
            Some(call) => self.reply(layer, peer, call)?,
            None => self.own(layer, &Ask::Keys { place })?,
        };
        match reply {
            Reply::Keys(shards) => Ok(shards),
            other => Err(unexpected(layer, &other)),
        }
    }

    /// The states that `peer` has sent, or those over the keys that it has sent.
    pub(super) fn states_in(
        &mut self,
        layer: usize,
        (peer, place): (&Peer, &Place),
        reply: Reply,
    ) -> Result<States, PortError> {
        match reply {
            Reply::States(states) => Ok(states),
            Reply::Keys(shards) => {
                let model = self.wait.exchange().holder.model().clone();
                states_over(&model, place, &self.q, &shards)
                    .map_err(|error| failed(layer, peer, &CallError::Refused(error.to_string())))
            }
            other => Err(unexpected(layer, &other)),
        }
    }
}
