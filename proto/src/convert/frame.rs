//! Frames of the hand-off: a memory set's bytes cut into parts, each of which can be checked
//! by itself, and put together again.
//!
//! Nothing here believes a header: lengths follow from the shape, memory grows only by bytes
//! that arrived, and every part's checksum covers header and payload.

use aqueduct_core::work::{Base, CONVENTION};
use aqueduct_core::{ChunkKey, KvDtype, Refusal, WireDtype, limits};
use bytes::Bytes;

use super::exchange::wire_dtype;
use super::parts::{self, Cut, Gatherer, OutOfOrder, Part};
use super::shape::kv;
use super::{Under, key, required};
use crate::v1::{self, HandOffFrame};

/// Most tokens a sequence can have seen.
const END_MAX: u32 = limits::PROMPT_TOKENS_MAX + limits::OUTPUT_TOKENS_MAX;

/// Whose memory set it is, and its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetHeader {
    /// The chunk that receives.
    pub key: ChunkKey,
    /// Layer.
    pub layer: u32,
    /// Version of the merge and hand-off convention.
    pub convention: u32,
    /// Storage of keys and values.
    pub kv: KvDtype,
    /// G.
    pub kv_heads: u32,
    /// D.
    pub head_dim: u32,
    /// Keys of each KV head.
    pub keys: u32,
    /// Elements of the state of a layer that has no keys.
    pub state: u32,
    /// Tokens processed before the set was made.
    pub end: u32,
    /// Elements of f32 keys and values on their way; `F32` for those that are stored as bf16.
    pub wire: WireDtype,
    /// What does not travel because the receiver has it; `None`: the set is whole.
    pub spared: Option<Spared>,
}

/// What a set lacks on its way: keys and values at positions below the end of a set that the
/// receiver has given itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spared {
    /// Which set that is.
    pub base: Base,
    /// Keys that do travel, over all KV heads.
    pub rows: u64,
    /// CRC-32 of the keys and values that do not, in byte form.
    pub crc32: u32,
}

/// A set's header and the place of one part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The whole set.
    pub set: SetHeader,
    /// Index of the part.
    pub part_idx: u32,
    /// Parts of the set; at least 1.
    pub part_count: u32,
}

/// A frame that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The sender speaks another convention: nothing it sends can be used.
    #[error("convention {seen}, this worker speaks {CONVENTION}")]
    Convention {
        /// The sender's.
        seen: u32,
    },
    /// Bits changed on the way.
    #[error("checksum {seen:08x}, the frame carries {carried:08x}")]
    Checksum {
        /// Of what arrived.
        seen: u32,
        /// Of what was sent.
        carried: u32,
    },
    /// A field is missing, out of bounds, or at odds with another.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Not the part that comes next.
    #[error("part {seen} of {key} layer {layer}: part {want} comes next")]
    Order {
        /// The chunk.
        key: ChunkKey,
        /// The layer.
        layer: u32,
        /// The part that came.
        seen: u32,
        /// The part that was to come.
        want: u32,
    },
}

impl SetHeader {
    /// Bytes of the set as it is stored: positions, scores and votes (4 bytes each), K and V, and
    /// the state.
    pub const fn set_bytes(&self) -> u64 {
        let row_bytes = self.head_dim as u64 * self.kv.bytes() as u64;
        self.lists_bytes() + 2 * self.rows() * row_bytes + self.state_bytes()
    }

    /// Bytes that travel.
    pub const fn payload_bytes(&self) -> u64 {
        let rows = match &self.spared {
            None => self.rows(),
            Some(spared) => spared.rows,
        };
        self.lists_bytes() + 2 * rows * self.row_bytes() + self.state_bytes()
    }

    /// Bytes of keys and values that do not travel because the receiver has them.
    pub const fn spared_bytes(&self) -> u64 {
        match &self.spared {
            None => 0,
            Some(spared) => 2 * self.rows().saturating_sub(spared.rows) * self.row_bytes(),
        }
    }

    /// Bytes of one key, or of one value, on the wire.
    pub const fn row_bytes(&self) -> u64 {
        self.head_dim as u64 * self.wire.of_keys(self.kv).bytes() as u64
    }

    /// Bytes of positions, scores and votes.
    pub const fn lists_bytes(&self) -> u64 {
        3 * 4 * self.rows()
    }

    /// Bytes of the state, which is f32 always and travels whole.
    pub const fn state_bytes(&self) -> u64 {
        4 * self.state as u64
    }

    /// Parts that what travels is cut into; nothing is one empty part.
    pub const fn part_count(&self) -> u32 {
        parts::part_count(self.payload_bytes())
    }

    const fn rows(&self) -> u64 {
        self.kv_heads as u64 * self.keys as u64
    }

    pub(super) fn validate(&self) -> Result<(), Refusal> {
        Refusal::unless_within("layer", self.layer, 0, limits::LAYERS_MAX - 1)?;
        Refusal::unless_within("kv_heads", self.kv_heads, 1, limits::HEADS_MAX)?;
        Refusal::unless_within("head_dim", self.head_dim, 1, limits::HEAD_DIM_MAX)?;
        Refusal::unless_within("end", self.end, 0, END_MAX)?;
        Refusal::unless_within("keys", self.keys, 0, self.end)?;
        Refusal::unless_within("state", self.state, 0, limits::STATE_LEN_MAX)?;
        if self.state > 0 && self.keys > 0 {
            return Err(Refusal::new("state", self.state, "absent where there are keys"));
        }
        if self.kv == KvDtype::Bf16 && self.wire != WireDtype::F32 {
            return Err(Refusal::new("wire", self.wire, "absent: keys travel as they are stored"));
        }
        if let Some(spared) = &self.spared {
            Refusal::unless_within("spared.base.end", spared.base.end, 1, self.end)?;
            Refusal::unless_within("spared.rows", spared.rows, 0, self.rows())?;
        }
        Ok(())
    }
}

impl From<Spared> for v1::Spared {
    fn from(spared: Spared) -> Self {
        Self { base: Some(spared.base.into()), rows: spared.rows, crc32: spared.crc32 }
    }
}

impl TryFrom<v1::Spared> for Spared {
    type Error = Refusal;

    fn try_from(wire: v1::Spared) -> Result<Self, Refusal> {
        let base = required("base", wire.base)?.try_into().under("base")?;
        Ok(Self { base, rows: wire.rows, crc32: wire.crc32 })
    }
}

/// Cuts what travels of a set into frames of at most [`limits::FRAME_BYTES_MAX`] payload bytes.
///
/// # Errors
/// A header out of bounds, or a payload of another length than the header implies.
pub fn split(set: &SetHeader, payload: Bytes) -> Result<Vec<HandOffFrame>, Refusal> {
    set.validate()?;
    let want = set.payload_bytes();
    Refusal::unless_within("payload", payload.len() as u64, want, want)?;
    let part_count = set.part_count();
    let frame = |(part_idx, part)| to_wire(&FrameHeader { set: *set, part_idx, part_count }, part);
    Ok(Cut::new(payload.into()).map(frame).collect())
}

pub(super) fn to_wire(header: &FrameHeader, payload: Bytes) -> HandOffFrame {
    let FrameHeader { set, part_idx, part_count } = *header;
    let mut frame = HandOffFrame {
        key: Some(set.key.into()),
        layer: set.layer,
        convention: set.convention,
        kv: v1::KvDtype::from(set.kv).into(),
        kv_heads: set.kv_heads,
        head_dim: set.head_dim,
        keys: set.keys,
        end: set.end,
        part_idx,
        part_count,
        crc32: 0,
        payload,
        spared: set.spared.map(Into::into),
        wire: match set.wire {
            WireDtype::F32 => v1::WireDtype::Unspecified,
            wire => wire.into(),
        }
        .into(),
        state: set.state,
    };
    frame.crc32 = checksum(&frame);
    frame
}

/// CRC-32 over the header fields, little endian and of fixed width, and the payload.
fn checksum(frame: &HandOffFrame) -> u32 {
    let key = frame.key.unwrap_or_default();
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&key.request.to_le_bytes());
    for field in [
        key.chunk_idx,
        key.epoch,
        frame.layer,
        frame.convention,
        frame.kv as u32,
        frame.kv_heads,
        frame.head_dim,
        frame.keys,
        frame.end,
        frame.part_idx,
        frame.part_count,
    ] {
        hasher.update(&field.to_le_bytes());
    }
    if let Some(v1::Spared { base, rows, crc32 }) = frame.spared {
        let v1::Base { chunk_idx, epoch, end } = base.unwrap_or_default();
        for field in [chunk_idx, epoch, end, crc32] {
            hasher.update(&field.to_le_bytes());
        }
        hasher.update(&rows.to_le_bytes());
    }
    if frame.wire != v1::WireDtype::Unspecified as i32 {
        hasher.update(&frame.wire.to_le_bytes());
    }
    if frame.state > 0 {
        // Eight bytes, or a `wire` whose tag was damaged could pass for it.
        hasher.update(&u64::from(frame.state).to_le_bytes());
    }
    hasher.update(&frame.payload);
    hasher.finalize()
}

/// Checks one frame by itself: convention, checksum, bounds, and that its payload is as long
/// as its shape and place imply.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(frame: &HandOffFrame) -> Result<FrameHeader, FrameError> {
    intact(frame)?;
    Ok(header(frame).under("frame")?)
}

/// Checks a frame's convention and checksum.
pub(super) fn intact(frame: &HandOffFrame) -> Result<(), FrameError> {
    if frame.convention != CONVENTION {
        return Err(FrameError::Convention { seen: frame.convention });
    }
    let seen = checksum(frame);
    if seen != frame.crc32 {
        return Err(FrameError::Checksum { seen, carried: frame.crc32 });
    }
    Ok(())
}

/// The set that a frame is about.
pub(super) fn set_header(frame: &HandOffFrame) -> Result<SetHeader, Refusal> {
    let set = SetHeader {
        key: key(frame.key)?,
        layer: frame.layer,
        convention: frame.convention,
        kv: kv(frame.kv)?,
        kv_heads: frame.kv_heads,
        head_dim: frame.head_dim,
        keys: frame.keys,
        end: frame.end,
        wire: wire(frame.wire)?,
        state: frame.state,
        spared: frame.spared.map(Spared::try_from).transpose().under("spared")?,
    };
    set.validate()?;
    Ok(set)
}

/// How keys and values travel. What is f32 travels as it is stored, which has one encoding: a
/// frame that was read is written with the same bytes again.
fn wire(wire: i32) -> Result<WireDtype, Refusal> {
    match wire_dtype(wire)? {
        Some(WireDtype::F32) => Err(Refusal::new("wire", "f32", "unspecified, bf16 or f16")),
        wire => Ok(wire.unwrap_or_default()),
    }
}

fn header(frame: &HandOffFrame) -> Result<FrameHeader, Refusal> {
    let set = set_header(frame)?;
    part(frame).validate(set.payload_bytes())?;
    Ok(FrameHeader { set, part_idx: frame.part_idx, part_count: frame.part_count })
}

fn part(frame: &HandOffFrame) -> Part {
    let HandOffFrame { part_idx, part_count, ref payload, .. } = *frame;
    Part { idx: part_idx, count: part_count, payload: payload.clone() }
}

/// Puts the frames of one stream together, set after set. Part 0 always begins a set anew, so
/// a sender that was refused may send the set again.
#[derive(Debug, Default)]
pub struct Assembler {
    bytes_max: Option<u64>,
    sets: Gatherer<SetHeader>,
}

impl Assembler {
    /// Refuses sets of more than `bytes_max` bytes before their first part is kept.
    pub fn bounded(bytes_max: u64) -> Self {
        Self { bytes_max: Some(bytes_max), ..Self::default() }
    }

    /// Takes the next frame; a set is returned with its last part.
    ///
    /// # Errors
    /// A frame that fails [`check`], or that is not the next part of the set under way; the
    /// set is then forgotten.
    pub fn accept(
        &mut self,
        frame: HandOffFrame,
    ) -> Result<Option<(SetHeader, Bytes)>, FrameError> {
        let FrameHeader { set, .. } = self.check(&frame).inspect_err(|_| self.sets.reset())?;
        let gathered = self.sets.accept(set, part(&frame));
        let (payload, is_whole) = gathered.map_err(|OutOfOrder { seen, want }| {
            FrameError::Order { key: set.key, layer: set.layer, seen, want }
        })?;
        Ok(is_whole.then(|| (set, std::mem::take(payload).into_bytes())))
    }

    fn check(&self, frame: &HandOffFrame) -> Result<FrameHeader, FrameError> {
        let header = check(frame)?;
        let bytes_max = self.bytes_max.unwrap_or(u64::MAX);
        Refusal::unless_within("set_bytes", header.set.set_bytes(), 0, bytes_max).under("frame")?;
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use aqueduct_core::Epoch;
    use proptest::prelude::*;
    use prost::Message;

    fn header_of(keys: u32, kv: KvDtype) -> SetHeader {
        let key = arbitrary::example_assignment().key;
        let (kv_heads, head_dim, end) = (2, 64, keys + 5);
        SetHeader {
            key,
            layer: 3,
            convention: CONVENTION,
            kv,
            kv_heads,
            head_dim,
            keys,
            end,
            wire: WireDtype::F32,
            state: 0,
            spared: None,
        }
    }

    /// A set that is a state of so many elements.
    fn state_of(state: u32) -> SetHeader {
        SetHeader { state, ..header_of(0, KvDtype::Bf16) }
    }

    /// The same set, of which `rows` keys travel.
    fn sparing(set: SetHeader, rows: u64) -> SetHeader {
        let base = Base { chunk_idx: 0, epoch: Epoch(4), end: 3 };
        SetHeader { spared: Some(Spared { base, rows, crc32: 0x1234_5678 }), ..set }
    }

    /// Bytes that differ everywhere, so that a part out of place shows.
    fn payload_of(set: &SetHeader) -> Bytes {
        (0..set.payload_bytes()).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
    }

    fn assemble(frames: Vec<HandOffFrame>) -> Vec<Result<Option<(SetHeader, Bytes)>, FrameError>> {
        let mut assembler = Assembler::default();
        frames.into_iter().map(|frame| assembler.accept(frame)).collect()
    }

    #[test]
    fn sets_of_one_and_of_several_parts() {
        let check = |set: SetHeader, parts: usize| {
            let payload = payload_of(&set);
            let frames = split(&set, payload.clone()).unwrap();
            assert_eq!(frames.len(), parts);
            assert!(frames.iter().all(|f| f.encoded_len() <= limits::GRPC_MESSAGE_BYTES_MAX));
            let mut got = assemble(frames);
            assert_eq!(got.pop().unwrap(), Ok(Some((set, payload))));
            assert!(got.into_iter().all(|earlier| earlier == Ok(None)));
        };
        check(header_of(0, KvDtype::F32), 1);
        check(header_of(1, KvDtype::Bf16), 1);
        check(header_of(512, KvDtype::Bf16), 1);
        check(header_of(1_200, KvDtype::F32), 3);
        check(SetHeader { wire: WireDtype::F16, ..header_of(1_200, KvDtype::F32) }, 2);
        check(sparing(header_of(512, KvDtype::Bf16), 0), 1);
        check(sparing(header_of(1_200, KvDtype::F32), 1_500), 2);
        check(state_of(1), 1);
        check(state_of(300_000), 3);
    }

    #[test]
    fn a_state_is_counted_as_it_travels() {
        let set = state_of(5);
        assert_eq!((set.set_bytes(), set.payload_bytes(), set.lists_bytes()), (20, 20, 0));
        assert_eq!(sparing(set, 0).payload_bytes(), 20, "it is spared nobody");
        let narrow = SetHeader { wire: WireDtype::F16, kv: KvDtype::F32, ..set };
        assert_eq!(narrow.payload_bytes(), 20, "and is never rounded");
    }

    #[test]
    fn parts_come_in_order_and_once() {
        let set = header_of(1_200, KvDtype::F32);
        let frames = split(&set, payload_of(&set)).unwrap();
        let check = |order: &[usize], whole: bool| {
            let got = assemble(order.iter().map(|&idx| frames[idx].clone()).collect());
            assert_eq!(matches!(got.last(), Some(Ok(Some(_)))), whole, "{order:?}");
            assert_eq!(
                got.iter().filter(|got| matches!(got, Ok(Some(_)))).count(),
                usize::from(whole)
            );
        };
        check(&[0, 1, 2], true);
        check(&[0, 1, 0, 1, 2], true);
        check(&[0, 2, 1], false);
        check(&[0, 0, 2], false);
        check(&[1, 2], false);
        check(&[0, 1, 1, 2], false);
    }

    #[test]
    fn a_set_over_the_bound_is_refused_at_its_first_part() {
        let set = header_of(1_200, KvDtype::F32);
        let first = split(&set, payload_of(&set)).unwrap().remove(0);
        let little = sparing(set, 0);
        let spared = split(&little, payload_of(&little)).unwrap().remove(0);
        for first in [&first, &spared] {
            let mut assembler = Assembler::bounded(set.set_bytes() - 1);
            let refused = assembler.accept(first.clone()).unwrap_err().to_string();
            assert!(refused.starts_with("frame.set_bytes = "), "{refused}");
        }
        assert_eq!(Assembler::bounded(set.set_bytes()).accept(first), Ok(None));
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let set = sparing(header_of(8, KvDtype::F32), 5);
        let good = split(&set, payload_of(&set)).unwrap().remove(0);
        let refused = |change: fn(&mut HandOffFrame)| {
            let mut frame = good.clone();
            change(&mut frame);
            frame.crc32 = checksum(&frame);
            match check(&frame).unwrap_err() {
                FrameError::Refused(refusal) => refusal.field,
                other => other.to_string(),
            }
        };
        assert_eq!(refused(|f| f.key = None), "frame.key");
        assert_eq!(refused(|f| f.keys = u32::MAX), "frame.keys");
        assert_eq!(refused(|f| f.state = 1), "frame.state");
        assert_eq!(refused(|f| f.state = limits::STATE_LEN_MAX + 1), "frame.state");
        assert_eq!(refused(|f| (f.keys, f.spared, f.state) = (0, None, 1)), "frame.payload");
        assert_eq!(refused(|f| f.kv = 0), "frame.kv");
        assert_eq!(refused(|f| f.head_dim = 32), "frame.payload");
        assert_eq!(refused(|f| f.part_count = 2), "frame.part_count");
        assert_eq!(refused(|f| f.part_idx = 1), "frame.part_idx");
        assert_eq!(refused(|f| f.layer = 512), "frame.layer");
        assert_eq!(refused(|f| f.wire = v1::WireDtype::F16.into()), "frame.payload");
        assert_eq!(refused(|f| f.wire = 9), "frame.wire");
        // What a frame without this field says already.
        assert_eq!(refused(|f| f.wire = v1::WireDtype::F32.into()), "frame.wire");
        assert_eq!(refused(|f| f.spared = None), "frame.payload");
        assert_eq!(refused(|f| f.spared.as_mut().unwrap().rows = 4), "frame.payload");
        assert_eq!(refused(|f| f.spared.as_mut().unwrap().rows = 17), "frame.spared.rows");
        assert_eq!(refused(|f| f.spared.as_mut().unwrap().base = None), "frame.spared.base");
        fn base_end(f: &mut HandOffFrame, end: u32) {
            f.spared.as_mut().unwrap().base.as_mut().unwrap().end = end;
        }
        assert_eq!(refused(|f| base_end(f, 0)), "frame.spared.base.end");
        assert_eq!(refused(|f| base_end(f, 14)), "frame.spared.base.end");
        let mismatched = |f: &mut HandOffFrame| {
            (f.kv, f.wire) = (v1::KvDtype::Bf16.into(), v1::WireDtype::Bf16.into());
        };
        assert_eq!(refused(mismatched), "frame.wire");
        assert!(refused(|f| f.convention = 9).starts_with("convention 9"));
        assert!(split(&set, Bytes::from_static(b"short")).is_err());
    }

    proptest! {
        #[test]
        fn one_changed_byte_is_noticed(
            at in any::<prop::sample::Index>(), flip in 1u8.., rows in prop::option::of(0..16u64),
            state in prop::option::of(1..300u32),
        ) {
            let set = state.map_or_else(|| header_of(8, KvDtype::Bf16), state_of);
            let rows = rows.map(|rows| rows.min(u64::from(set.kv_heads * set.keys)));
            let set = rows.map_or(set, |rows| sparing(set, rows));
            let frame = split(&set, payload_of(&set)).unwrap().remove(0);
            let mut bytes = frame.encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(changed) = HandOffFrame::decode(bytes.as_slice()) {
                // A flipped tag may turn into an unknown field of the same content.
                prop_assert!(check(&changed).is_err() || changed == frame);
            }
        }

        #[test]
        fn garbage_never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            numbers in prop::array::uniform9(any::<u32>()), state in 0u32..4,
            payload in prop::collection::vec(any::<u8>(), 0..64),
            (key, base) in (arbitrary::key(), prop::option::of(arbitrary::base())),
        ) {
            if let Ok(frame) = HandOffFrame::decode(bytes.as_slice()) {
                let _ = Assembler::default().accept(frame);
            }
            let [layer, kv, kv_heads, head_dim, keys, end, part_idx, part_count, rows] = numbers;
            let mut frame = HandOffFrame {
                key: Some(key.into()), layer: layer % 512, convention: CONVENTION,
                kv: (kv % 4) as i32, kv_heads: kv_heads % 1025, head_dim: head_dim % 1025,
                keys: keys % (1 << 25), end: end % (1 << 25), part_idx, part_count,
                crc32: 0, payload: payload.into(), wire: (rows % 5) as i32, state,
                spared: base.map(|base| {
                    Spared { base, rows: u64::from(rows), crc32: layer }.into()
                }),
            };
            frame.crc32 = checksum(&frame);
            let _ = Assembler::default().accept(frame);
        }
    }
}
