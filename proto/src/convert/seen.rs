//! What a memory holds and what is looked at, for people to see.

use aqueduct_core::work::{Seen, SeenHead};
use aqueduct_core::{Refusal, RequestId, limits};

use super::{Under, bounded};
use crate::v1;

impl From<Seen> for v1::Seen {
    fn from(seen: Seen) -> Self {
        let head = |SeenHead { positions, weights, left_out }| v1::SeenHead {
            positions,
            weights,
            left_out,
        };
        Self {
            request: seen.request.0,
            token_idx: seen.token_idx,
            layer: seen.layer,
            heads: seen.heads.into_iter().map(head).collect(),
        }
    }
}

impl TryFrom<v1::Seen> for Seen {
    type Error = Refusal;

    fn try_from(wire: v1::Seen) -> Result<Self, Refusal> {
        let tokens_max = limits::LOOKED_TOKENS_MAX;
        let within = |idx| Refusal::unless_within("token_idx", idx, 0, tokens_max - 1);
        bounded("heads", &wire.heads, limits::HEADS_MAX as usize)?;
        let heads = wire.heads.into_iter().map(head).collect::<Result<_, _>>();
        Ok(Self {
            request: RequestId(wire.request),
            token_idx: wire.token_idx.map(within).transpose()?,
            layer: Refusal::unless_within("layer", wire.layer, 0, limits::LAYERS_MAX - 1)?,
            heads: heads.under("heads")?,
        })
    }
}

fn head(wire: v1::SeenHead) -> Result<SeenHead, Refusal> {
    let v1::SeenHead { positions, weights, left_out } = wire;
    bounded("positions", &positions, limits::SEEN_KEYS_MAX)?;
    if !positions.is_sorted_by(|left, right| left < right) {
        return Err(Refusal::new("positions", "in no order", "ascending"));
    }
    if weights.len() != positions.len() {
        let bound = format!("as many as positions, {}", positions.len());
        return Err(Refusal::new("weights", weights.len(), bound));
    }
    for &weight in &weights {
        Refusal::unless_within("weights", weight, 0.0, f32::MAX)?;
    }
    Ok(SeenHead { positions, weights, left_out })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::convert) fn seen() -> impl Strategy<Value = Seen> {
        let keys = prop::collection::btree_map(any::<u32>(), 0.0f32..=1e9, 0..4);
        let head = (keys, any::<u32>()).prop_map(|(keys, left_out)| {
            let (positions, weights) = keys.into_iter().unzip();
            SeenHead { positions, weights, left_out }
        });
        let token_idx = prop::option::of(0..limits::LOOKED_TOKENS_MAX);
        (any::<u64>(), token_idx, 0..limits::LAYERS_MAX, prop::collection::vec(head, 1..4))
            .prop_map(|(request, token_idx, layer, heads)| Seen {
                request: RequestId(request),
                token_idx,
                layer,
                heads,
            })
    }

    #[test]
    fn refuses_by_field() {
        let check = |positions: &[u32], weights: &[f32], field: &str| {
            let (positions, weights) = (positions.to_vec(), weights.to_vec());
            let heads = vec![v1::SeenHead { positions, weights, left_out: 0 }];
            let refused = Seen::try_from(v1::Seen { heads, ..v1::Seen::default() }).unwrap_err();
            assert_eq!(refused.field, field);
        };
        check(&[3, 3], &[1.0, 1.0], "heads.positions");
        check(&[3, 4], &[1.0], "heads.weights");
        check(&[3], &[f32::NAN], "heads.weights");
        check(&vec![0; limits::SEEN_KEYS_MAX + 1], &[], "heads.positions");
        let late = v1::Seen { token_idx: Some(u32::MAX), ..v1::Seen::default() };
        assert_eq!(Seen::try_from(late).unwrap_err().field, "token_idx");
    }
}
