//! What it costs to bring a block and one holder's shards together, and which way is chosen.

use aqueduct_core::exchange::{keys_bytes, queries_bytes};
use aqueduct_core::{Carry, WireDtype};
use aqueduct_engine::Model;
use aqueduct_engine::shards::Place;

use crate::link::codec;

/// Bytes of payload in one layer between a block and one holder, either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fares {
    /// Where the keys come.
    pub keys: u64,
    /// Where the queries go and states come back.
    pub queries: u64,
}

impl Fares {
    /// Of `place`, whose shards have at most `chunk_tokens` keys each.
    pub fn of(model: &Model, place: &Place, chunk_tokens: u32, wire: WireDtype) -> Self {
        let shape = model.shape_of(place.layer as usize);
        let keys_tokens = (place.shards.len() as u32).saturating_mul(chunk_tokens);
        let states = place.nodes().len() as u32;
        let kv = codec::to_core(model.kv());
        Self {
            keys: keys_bytes((&shape, kv), keys_tokens.min(place.start)),
            queries: queries_bytes(&shape, wire, place.tokens, states),
        }
    }

    /// Whether the keys come.
    pub fn keys_come(self, carry: Carry) -> bool {
        match carry {
            Carry::Queries => false,
            Carry::Keys => true,
            // Where the ways differ by little, keys: nobody waits for what a holder computes.
            Carry::Fewest => self.keys <= self.queries.saturating_add(self.queries / 20),
        }
    }

    /// Bytes of the way that is chosen.
    pub fn bytes(self, carry: Carry) -> u64 {
        if self.keys_come(carry) { self.keys } else { self.queries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_bytes_or_at_most_a_twentieth_more() {
        let check = |keys: u64, queries: u64, keys_come: bool| {
            let fares = Fares { keys, queries };
            assert_eq!(fares.keys_come(Carry::Fewest), keys_come, "{fares:?}");
            assert_eq!(fares.bytes(Carry::Fewest), if keys_come { keys } else { queries });
        };
        check(100, 101, true);
        check(100, 100, true);
        check(105, 100, true);
        check(106, 100, false);
        check(0, 0, true);
        check(u64::MAX, u64::MAX, true);
    }
}
