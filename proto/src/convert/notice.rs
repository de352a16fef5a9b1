//! Notice of a memory set that goes from device to device: a frame with no part of the set.
//!
//! Its `part_count` is 0. Its payload is a checksum of the set's lists (positions, scores and
//! votes in the set's byte form), by which the receiver knows what has come.

use aqueduct_core::{Refusal, WireDtype};
use bytes::Bytes;

use super::Under;
use super::frame::{FrameError, FrameHeader, SetHeader, intact, set_header, to_wire};
use crate::v1::HandOffFrame;

/// What is said of a set before it moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// Whose set it is, and its shape.
    pub set: SetHeader,
    /// CRC-32 of its lists.
    lists_crc32: u32,
}

impl Notice {
    /// Of a set with these lists.
    pub fn new(set: SetHeader, lists: &[u8]) -> Self {
        Self { set, lists_crc32: crc32fast::hash(lists) }
    }

    /// Whether `frame` is a notice; any other holds a part of a set.
    pub fn is_in(frame: &HandOffFrame) -> bool {
        frame.part_count == 0
    }

    /// As a frame.
    ///
    /// # Errors
    /// A header out of bounds.
    pub fn to_frame(&self) -> Result<HandOffFrame, Refusal> {
        self.set.validate()?;
        let header = FrameHeader { set: self.set, part_idx: 0, part_count: 0 };
        Ok(to_wire(&header, Bytes::copy_from_slice(&self.lists_crc32.to_le_bytes())))
    }

    /// The notice that `frame` holds, of a set of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// Another convention, a wrong checksum, or a field out of bounds.
    pub fn of(frame: &HandOffFrame, bytes_max: u64) -> Result<Self, FrameError> {
        intact(frame)?;
        Ok(Self::read(frame, bytes_max).under("frame")?)
    }

    fn read(frame: &HandOffFrame, bytes_max: u64) -> Result<Self, Refusal> {
        let set = set_header(frame)?;
        Refusal::unless_within("part_count", frame.part_count, 0, 0)?;
        Refusal::unless_within("part_idx", frame.part_idx, 0, 0)?;
        Refusal::unless_within("set_bytes", set.set_bytes(), 0, bytes_max)?;
        if set.spared.is_some() || set.wire != WireDtype::F32 {
            let field = if set.spared.is_some() { "spared" } else { "wire" };
            return Err(Refusal::new(field, "present", "absent: devices exchange what they have"));
        }
        Refusal::unless_within("state", set.state, 0, 0)?; // pairs of devices carry keys alone
        let seen = frame.payload.len();
        let crc32 = frame.payload.first_chunk().filter(|_| seen == size_of::<u32>());
        let crc32 = crc32.ok_or_else(|| Refusal::new("payload", seen, "4 bytes"))?;
        Ok(Self { set, lists_crc32: u32::from_le_bytes(*crc32) })
    }

    /// Whether what came has these lists.
    ///
    /// # Errors
    /// [`FrameError::Checksum`].
    pub fn check(&self, lists: &[u8]) -> Result<(), FrameError> {
        let (seen, carried) = (crc32fast::hash(lists), self.lists_crc32);
        if seen == carried { Ok(()) } else { Err(FrameError::Checksum { seen, carried }) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Spared;
    use super::super::{arbitrary, frame};
    use super::*;
    use aqueduct_core::work::{Base, CONVENTION};
    use aqueduct_core::{Epoch, KvDtype, WireDtype};
    use proptest::prelude::*;
    use prost::Message;

    const BASE: Base = Base { chunk_idx: 0, epoch: Epoch(0), end: 8 };

    fn notice() -> Notice {
        let key = arbitrary::example_assignment().key;
        let set = SetHeader {
            key,
            layer: 3,
            convention: CONVENTION,
            kv: KvDtype::Bf16,
            kv_heads: 2,
            head_dim: 64,
            keys: 512,
            end: 517,
            wire: WireDtype::F32,
            state: 0,
            spared: None,
        };
        Notice::new(set, b"positions, scores, votes")
    }

    #[test]
    fn says_what_will_come_and_knows_it() {
        let frame = notice().to_frame().unwrap();
        assert!(Notice::is_in(&frame));
        let read = Notice::of(&frame, u64::MAX).unwrap();
        assert_eq!(read, notice());
        assert_eq!(read.check(b"positions, scores, votes"), Ok(()));
        let other = read.check(b"positions, scores, Votes");
        assert!(matches!(other, Err(FrameError::Checksum { .. })));
    }

    #[test]
    fn refuses_by_field() {
        let refused = |change: fn(&mut Notice), bytes_max: u64| {
            let mut notice = notice();
            change(&mut notice);
            let header = FrameHeader { set: notice.set, part_idx: 0, part_count: 0 };
            let payload = notice.lists_crc32.to_le_bytes();
            let frame = to_wire(&header, Bytes::copy_from_slice(&payload));
            match Notice::of(&frame, bytes_max).unwrap_err() {
                FrameError::Refused(refusal) => refusal.field,
                other => other.to_string(),
            }
        };
        let bytes = notice().set.payload_bytes();
        assert_eq!(Notice::of(&notice().to_frame().unwrap(), bytes), Ok(notice()));
        assert_eq!(refused(|_| {}, bytes - 1), "frame.set_bytes");
        assert_eq!(refused(|it| it.set.keys = 518, u64::MAX), "frame.keys");
        assert_eq!(refused(|it| it.set.layer = 512, u64::MAX), "frame.layer");
        assert_eq!(refused(|it| (it.set.keys, it.set.state) = (0, 9), u64::MAX), "frame.state");
        let lacking = |it: &mut Notice| {
            it.set.spared = Some(Spared { base: BASE, rows: 1024, crc32: 0 });
        };
        assert_eq!(refused(lacking, u64::MAX), "frame.spared");
        let longer = FrameHeader { set: notice().set, part_idx: 0, part_count: 0 };
        let longer = to_wire(&longer, Bytes::from_static(b"12345"));
        assert!(Notice::of(&longer, u64::MAX).is_err());
    }

    #[test]
    fn is_no_part_of_a_set_and_no_part_is_a_notice() {
        let frame = notice().to_frame().unwrap();
        assert!(frame::check(&frame).is_err());
        let set = SetHeader { keys: 0, ..notice().set };
        let part = frame::split(&set, Bytes::new()).unwrap().remove(0);
        assert!(!Notice::is_in(&part) && Notice::of(&part, u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn one_changed_byte_is_noticed(at in any::<prop::sample::Index>(), flip in 1u8..) {
            let frame = notice().to_frame().unwrap();
            let mut bytes = frame.encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(changed) = HandOffFrame::decode(bytes.as_slice()) {
                // A flipped tag may turn into an unknown field of the same content.
                prop_assert!(Notice::of(&changed, u64::MAX).is_err() || changed == frame);
            }
        }
    }
}
