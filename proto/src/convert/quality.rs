//! What a caller demands of the memory.

use aqueduct_core::{BelowFloor, Floor, Quality, QualityKind, Refusal};

use crate::v1;
use crate::v1::quality::{BelowFloor as WireBelow, Kind};

impl From<Quality> for v1::Quality {
    fn from(quality: Quality) -> Self {
        let kind = match quality {
            Quality::Exact => Kind::Exact,
            Quality::Memory(_) => Kind::Memory,
        };
        let below = |floor: Floor| match floor.below {
            BelowFloor::Escalate => WireBelow::Escalate,
            BelowFloor::Report => WireBelow::Report,
        };
        Self {
            kind: kind.into(),
            min_retained_mass: quality.floor().map(|floor| floor.min_retained_mass),
            below_floor: quality.floor().map_or(WireBelow::Unspecified, below).into(),
        }
    }
}

/// The quality that was asked for; [`Quality::default`] where the sender left it open.
///
/// # Errors
/// A number that stands for nothing, and whatever [`Quality::of`] refuses.
pub fn quality(wire: Option<v1::Quality>) -> Result<Quality, Refusal> {
    let wire = wire.unwrap_or_default();
    let kind = match Kind::try_from(wire.kind) {
        Ok(Kind::Unspecified) => None,
        Ok(Kind::Exact) => Some(QualityKind::Exact),
        Ok(Kind::Memory) => Some(QualityKind::Memory),
        Err(_) => return Err(Refusal::new("quality", wire.kind, "exact or memory")),
    };
    let below = match WireBelow::try_from(wire.below_floor) {
        Ok(WireBelow::Unspecified) => None,
        Ok(WireBelow::Escalate) => Some(BelowFloor::Escalate),
        Ok(WireBelow::Report) => Some(BelowFloor::Report),
        Err(_) => return Err(Refusal::new("below_floor", wire.below_floor, "escalate or report")),
    };
    Quality::of(kind, wire.min_retained_mass, below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualities_are_read_back_and_gaps_left_open() {
        let floor = |below| Quality::Memory(Some(Floor { min_retained_mass: 0.75, below }));
        let floors = [floor(BelowFloor::Escalate), floor(BelowFloor::Report)];
        for one in [Quality::Exact, Quality::Memory(None)].into_iter().chain(floors) {
            assert_eq!(quality(Some(one.into())), Ok(one));
        }
        assert_eq!(quality(None), Ok(Quality::default()));
        let refused = |wire| quality(Some(wire)).unwrap_err().field;
        assert_eq!(refused(v1::Quality { kind: 3, ..Default::default() }), "quality");
        assert_eq!(refused(v1::Quality { below_floor: -1, ..Default::default() }), "below_floor");
    }
}
