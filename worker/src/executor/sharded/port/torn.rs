//! Shards of leaves that lie with several holders: they come here themselves.

use aqueduct_engine::PortError;
use aqueduct_engine::shards::{Place, Shards};

use super::{Part, ShardsPort, Wait};
use crate::exchange::Ask;

/// One holder's shards of such leaves.
pub(super) struct Torn {
    place: Place,
    /// `None` for this worker's own.
    pub(super) call: Option<u64>,
}

impl<W: Wait> ShardsPort<'_, W> {
    /// Asks the holder of `part` for the shards of whose leaves others have a part.
    pub(super) fn ask_for_torn(
        &mut self,
        layer: usize,
        part: &Part,
        is_here: bool,
    ) -> Result<Option<Torn>, PortError> {
        let place = Place { shards: part.place.torn(), ..part.place.clone() };
        if place.shards.is_empty() {
            return Ok(None);
        }
        let mut call = None;
        if !is_here {
            self.report.traffic.fetched += 1;
            call = Some(self.call(layer, &part.peer, Ask::Keys { place: place.clone() })?);
        }
        Ok(Some(Torn { place, call }))
    }

    /// What part `idx` has of them.
    pub(super) fn torn_of(&mut self, layer: usize, idx: usize) -> Result<Shards, PortError> {
        let part = &mut self.parts[idx];
        let Some(Torn { place, call }) = part.torn.take() else { return Ok(Shards::new()) };
        let peer = part.peer.clone();
        self.shards_of(layer, (&peer, place), call)
    }
}
