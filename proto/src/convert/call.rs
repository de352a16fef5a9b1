//! Asks about shards and their answers: what a message is about, and its bytes in parts that can
//! each be checked by itself.
//!
//! As with hand-offs nothing here believes a header: wherever the length follows from the shape
//! it must agree, memory grows only by bytes that arrived, and a part's checksum covers header
//! and payload.

mod assembler;

use aqueduct_core::work::CONVENTION;
use aqueduct_core::{Epoch, KvDtype, MemoryPolicy, Refusal, RequestId, WireDtype, limits};
use bytes::{Buf, Bytes};
use prost::Message;

use super::exchange::wire_dtype;
use super::parts::{self, Cut, Part};
use super::pieces::Pieces;
use super::shape::kv;
use super::{Under, required};
use crate::v1;
use crate::v1::ExchangeFrame;
use crate::v1::exchange_header::{LogBase, Normalisation};

pub use crate::v1::exchange_header::Kind;
pub use assembler::{Arrival, Assembler};

/// Most bytes of the text that says why there is no answer.
pub const TEXT_BYTES_MAX: u64 = 4096;
/// Most bytes of a header, which stands beside the payload in every frame.
const HEADER_BYTES_MAX: usize = 1024;

/// How a partial state travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// m, l and o, un-normalised.
    Raw,
    /// The same state with l = 1: log-sum-exp and o / l.
    Compact,
}

/// The block that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallBlock {
    /// The request.
    pub request: RequestId,
    /// Its continuation.
    pub branch: u32,
    /// Layer.
    pub layer: u32,
    /// Epoch of the block's own assignment.
    pub epoch: Epoch,
    /// Position of the block's first token.
    pub start: u32,
    /// Tokens of the block.
    pub tokens: u32,
    /// Chunks before the block, wherever they are.
    pub chunks: u32,
}

impl CallBlock {
    /// Of a message that is about no block.
    pub const NONE: Self = Self {
        request: RequestId(0),
        branch: 0,
        layer: 0,
        epoch: Epoch(0),
        start: 0,
        tokens: 0,
        chunks: 0,
    };
}

/// What a message is about, and its shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallHeader {
    /// The asker's number for the call.
    pub call: u64,
    /// What it is.
    pub kind: Kind,
    /// The block that asks.
    pub block: CallBlock,
    /// Elements of queries and outputs.
    pub dtype: WireDtype,
    /// How states travel.
    pub form: Form,
    /// Storage of keys and values.
    pub kv: KvDtype,
    /// Query heads of ATTEND, WEIGH and STATES, KV heads of others.
    pub heads: u32,
    /// D.
    pub head_dim: u32,
    /// Shards of an ask; what an answer lists.
    pub items: u32,
    /// Payload of all parts.
    pub bytes: u64,
    /// How long the asker waits for the answer; 0 in answers.
    pub deadline_ms: u64,
    /// What is remembered; of asks.
    pub policy: Option<MemoryPolicy>,
}

/// A frame that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CallFrameError {
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
    /// Not the part that comes next.
    #[error("part {seen} of call {call}: part {want} comes next")]
    Order {
        /// The call.
        call: u64,
        /// The part that came.
        seen: u32,
        /// The part that was to come.
        want: u32,
    },
    /// What was sent is whole, but a field is missing, out of bounds, or at odds with another.
    #[error("{refusal}")]
    Refused {
        /// The call.
        call: u64,
        /// What is wrong.
        refusal: Refusal,
    },
}

/// Whether a message of this kind is an ask.
pub fn is_ask(kind: Kind) -> bool {
    matches!(kind, Kind::Attend | Kind::Weigh | Kind::Settle | Kind::Keys)
}

impl CallHeader {
    /// A message of no shape about `block`.
    pub fn new(call: u64, kind: Kind, block: CallBlock) -> Self {
        Self {
            call,
            kind,
            block,
            dtype: WireDtype::F32,
            form: Form::Raw,
            kv: KvDtype::F32,
            heads: 0,
            head_dim: 0,
            items: 0,
            bytes: 0,
            deadline_ms: 0,
            policy: None,
        }
    }

    /// Payload that the shape implies; `None` where it implies none.
    pub fn payload_bytes(&self) -> Option<u64> {
        let [items, heads, tokens, head_dim] =
            [self.items, self.heads, self.block.tokens, self.head_dim].map(u64::from);
        let rows = heads * tokens;
        let elements = head_dim * self.dtype.bytes() as u64;
        Some(match self.kind {
            Kind::Attend => 8 * items + rows * elements,
            Kind::Settle => 8 * items + 12 * heads,
            Kind::Keys | Kind::Waiting => 8 * items,
            Kind::States => {
                let sums = if self.form == Form::Raw { 8 } else { 4 };
                items.saturating_mul(8 + rows * (sums + elements))
            }
            Kind::Standing => 4 * heads + 8 * items,
            Kind::Settled => 20 * items,
            Kind::Weigh | Kind::Shards | Kind::Refused | Kind::Lost | Kind::Unspecified => {
                return None;
            }
        })
    }

    fn validate(&self) -> Result<(), Refusal> {
        let end_max = limits::PROMPT_TOKENS_MAX + limits::OUTPUT_TOKENS_MAX;
        let CallBlock { layer, start, tokens, chunks, .. } = self.block;
        let least = u32::from(is_ask(self.kind));
        Refusal::unless_within("layer", layer, 0, limits::LAYERS_MAX - 1)?;
        Refusal::unless_within("tokens", tokens, least, limits::CHUNK_TOKENS_MAX)?;
        Refusal::unless_within("start", start, 0, end_max - tokens)?;
        Refusal::unless_within("chunks", chunks, 0, end_max)?;
        Refusal::unless_within("heads", self.heads, 0, limits::HEADS_MAX)?;
        Refusal::unless_within("head_dim", self.head_dim, 0, limits::HEAD_DIM_MAX)?;
        Refusal::unless_within("deadline_ms", self.deadline_ms, 0, limits::REQUEST_DEADLINE_MS)?;
        if is_ask(self.kind) {
            Refusal::unless_within("items", self.items, 0, chunks)?;
            required("policy", self.policy)?;
        }
        let (least, most) = match (self.payload_bytes(), self.kind) {
            (Some(bytes), _) => (bytes, bytes),
            (None, Kind::Weigh | Kind::Shards) => (0, limits::EXCHANGE_BYTES_MAX),
            (None, _) => (0, TEXT_BYTES_MAX),
        };
        Refusal::unless_within("bytes", self.bytes, 0, limits::EXCHANGE_BYTES_MAX)?;
        Refusal::unless_within("bytes", self.bytes, least, most)?;
        Ok(())
    }
}

impl From<&CallHeader> for v1::ExchangeHeader {
    fn from(header: &CallHeader) -> Self {
        let CallBlock { request, branch, layer, epoch, start, tokens, chunks } = header.block;
        let normalisation = match header.form {
            Form::Raw => Normalisation::None,
            Form::Compact => Normalisation::Unit,
        };
        Self {
            convention: CONVENTION,
            call: header.call,
            kind: header.kind.into(),
            request: request.0,
            branch,
            layer,
            epoch: epoch.0,
            start,
            tokens,
            chunks,
            log_base: LogBase::Natural.into(),
            normalisation: normalisation.into(),
            dtype: v1::WireDtype::from(header.dtype).into(),
            kv: v1::KvDtype::from(header.kv).into(),
            heads: header.heads,
            head_dim: header.head_dim,
            items: header.items,
            bytes: header.bytes,
            deadline_ms: header.deadline_ms,
            policy: header.policy.map(Into::into),
        }
    }
}

impl TryFrom<v1::ExchangeHeader> for CallHeader {
    type Error = Refusal;

    fn try_from(wire: v1::ExchangeHeader) -> Result<Self, Refusal> {
        let kind = match wire.kind() {
            Kind::Unspecified => return Err(Refusal::new("kind", wire.kind, "one that is known")),
            kind => kind,
        };
        if wire.log_base() != LogBase::Natural {
            return Err(Refusal::new("log_base", wire.log_base, "natural"));
        }
        let form = match wire.normalisation() {
            Normalisation::None => Form::Raw,
            Normalisation::Unit => Form::Compact,
            Normalisation::Unspecified => {
                return Err(Refusal::new("normalisation", wire.normalisation, "none or l = 1"));
            }
        };
        let header = Self {
            call: wire.call,
            kind,
            block: CallBlock {
                request: RequestId(wire.request),
                branch: wire.branch,
                layer: wire.layer,
                epoch: Epoch(wire.epoch),
                start: wire.start,
                tokens: wire.tokens,
                chunks: wire.chunks,
            },
            dtype: required("dtype", wire_dtype(wire.dtype)?)?,
            form,
            kv: kv(wire.kv)?,
            heads: wire.heads,
            head_dim: wire.head_dim,
            items: wire.items,
            bytes: wire.bytes,
            deadline_ms: wire.deadline_ms,
            policy: wire.policy.map(MemoryPolicy::try_from).transpose().under("policy")?,
        };
        header.validate()?;
        Ok(header)
    }
}

/// A message's frames, each made when it is asked for.
#[derive(Debug)]
pub struct Frames {
    header: Bytes,
    part_count: u32,
    parts: Cut,
}

impl Frames {
    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl Iterator for Frames {
    type Item = ExchangeFrame;

    fn next(&mut self) -> Option<ExchangeFrame> {
        let (part_idx, payload) = self.parts.next()?;
        let Self { header, part_count, .. } = self;
        let (header, part_count) = (header.clone(), *part_count);
        let mut frame = ExchangeFrame { header, part_idx, part_count, crc32: 0, payload };
        frame.crc32 = checksum(&frame);
        Some(frame)
    }
}

/// A message's frames, one after the other.
///
/// # Errors
/// A header out of bounds, or a payload of another length than it says.
pub fn split(header: &CallHeader, payload: Pieces) -> Result<Frames, Refusal> {
    header.validate()?;
    Refusal::unless_within("payload", payload.remaining() as u64, header.bytes, header.bytes)?;
    let part_count = parts::part_count(header.bytes);
    let header = v1::ExchangeHeader::from(header).encode_to_vec().into();
    Ok(Frames { header, part_count, parts: Cut::new(payload) })
}

/// CRC-32 over the header's length, the header, and the other fields; numbers are 4 bytes, little
/// endian.
fn checksum(frame: &ExchangeFrame) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&(frame.header.len() as u32).to_le_bytes());
    hasher.update(&frame.header);
    hasher.update(&frame.part_idx.to_le_bytes());
    hasher.update(&frame.part_count.to_le_bytes());
    hasher.update(&frame.payload);
    hasher.finalize()
}

/// Checks one frame by itself: checksum, convention, bounds, and that its payload is as long as
/// header and place imply.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(frame: &ExchangeFrame) -> Result<CallHeader, CallFrameError> {
    let (seen, carried) = (checksum(frame), frame.crc32);
    if seen != carried {
        return Err(CallFrameError::Checksum { seen, carried });
    }
    let refused = |call| move |refusal| CallFrameError::Refused { call, refusal };
    let most = HEADER_BYTES_MAX;
    Refusal::unless_within("frame.header", frame.header.len(), 0, most).map_err(refused(0))?;
    let header = v1::ExchangeHeader::decode(frame.header.clone()).map_err(|error| {
        refused(0)(Refusal::new("frame.header", error, "a header that can be read"))
    })?;
    if header.convention != CONVENTION {
        return Err(CallFrameError::Convention { seen: header.convention });
    }
    let call = header.call;
    let validate = || {
        let header = CallHeader::try_from(header)?;
        part(frame).validate(header.bytes)?;
        Ok(header)
    };
    validate().under("frame").map_err(refused(call))
}

fn part(frame: &ExchangeFrame) -> Part {
    let ExchangeFrame { part_idx, part_count, ref payload, .. } = *frame;
    Part { idx: part_idx, count: part_count, payload: payload.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::*;
    use proptest::prelude::*;

    fn block() -> CallBlock {
        let key = arbitrary::example_assignment().key;
        CallBlock {
            request: key.request,
            branch: 2,
            layer: 3,
            epoch: key.epoch,
            start: 4096,
            tokens: 16,
            chunks: 4,
        }
    }

    /// An ask about two shards, for 4 heads of `head_dim`.
    fn attend(head_dim: u32, dtype: WireDtype) -> CallHeader {
        let header = CallHeader {
            dtype,
            heads: 4,
            head_dim,
            items: 2,
            deadline_ms: 9,
            policy: Some(MemoryPolicy::default()),
            ..CallHeader::new(7, Kind::Attend, block())
        };
        CallHeader { bytes: header.payload_bytes().unwrap(), ..header }
    }

    fn shards(bytes: u64) -> CallHeader {
        CallHeader { bytes, items: 1, ..CallHeader::new(7, Kind::Shards, block()) }
    }

    fn frames(header: &CallHeader) -> Vec<ExchangeFrame> {
        split(header, payload(header).into()).unwrap().collect()
    }

    /// Bytes that differ everywhere, so that a part out of place shows.
    fn payload(header: &CallHeader) -> Bytes {
        (0..header.bytes).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
    }

    /// What the next frame makes of its message: its payload where that is whole.
    fn accept(
        assembler: &mut Assembler,
        frame: ExchangeFrame,
    ) -> Result<(CallHeader, Option<Bytes>), CallFrameError> {
        let part_idx = frame.part_idx;
        let arrival = assembler.accept(frame)?;
        assert_eq!(arrival.part_idx, part_idx);
        let whole = arrival.is_whole.then(|| std::mem::take(arrival.payload).into_bytes());
        Ok((arrival.header, whole))
    }

    /// Bytes of this many parts, the last of which is not full.
    const fn of_parts(count: u64) -> u64 {
        count * limits::FRAME_BYTES_MAX as u64 - 1000
    }

    #[test]
    fn messages_of_one_and_of_several_parts() {
        let check = |header: CallHeader, parts: usize| {
            let frames = frames(&header);
            assert_eq!(frames.len(), parts);
            assert!(frames.iter().all(|f| f.encoded_len() <= limits::GRPC_MESSAGE_BYTES_MAX));
            let mut assembler = Assembler::bounded(header.bytes);
            let mut got: Vec<_> =
                frames.into_iter().map(|one| accept(&mut assembler, one)).collect();
            assert_eq!(got.pop().unwrap(), Ok((header, Some(payload(&header)))));
            assert!(got.into_iter().all(|earlier| earlier == Ok((header, None))));
        };
        check(attend(64, WireDtype::F32), 1);
        check(attend(8, WireDtype::F16), 1);
        check(shards(0), 1);
        check(shards(of_parts(3)), 3);
        check(CallHeader::new(0, Kind::Waiting, CallBlock::NONE), 1);
    }

    #[test]
    fn a_payload_may_be_taken_as_it_comes() {
        let long = shards(of_parts(3));
        let (mut assembler, mut seen) = (Assembler::bounded(1 << 30), Pieces::default());
        for frame in frames(&long) {
            let came = frame.payload.clone();
            let Arrival { payload, .. } = assembler.accept(frame).unwrap();
            assert_eq!(payload.remaining(), came.len());
            seen.push(std::mem::take(payload).into_bytes());
        }
        assert_eq!(seen.into_bytes(), payload(&long));
    }

    #[test]
    fn frames_are_the_same_whatever_the_pieces() {
        let long = shards(of_parts(2));
        let mut pieces = Pieces::default();
        payload(&long).chunks(77_777).for_each(|some| pieces.push(some.to_vec().into()));
        assert!(split(&long, pieces).unwrap().eq(frames(&long)));
    }

    #[test]
    fn a_short_message_may_come_between_the_parts_of_a_long_one() {
        let (long, short) = (shards(of_parts(2)), attend(8, WireDtype::F32));
        let mut assembler = Assembler::bounded(1 << 30);
        let [first, second] = frames(&long).try_into().unwrap();
        assert_eq!(accept(&mut assembler, first.clone()), Ok((long, None)));
        let between = accept(&mut assembler, frames(&short).remove(0));
        assert_eq!(between, Ok((short, Some(payload(&short)))));
        let whole = accept(&mut assembler, second.clone());
        assert_eq!(whole, Ok((long, Some(payload(&long)))));
        let alone = accept(&mut assembler, second);
        assert_eq!(alone, Err(CallFrameError::Order { call: 7, seen: 1, want: 0 }));
        let refused = Assembler::bounded(1 << 18).accept(first).unwrap_err().to_string();
        assert!(refused.starts_with("frame.bytes = "), "{refused}");
    }

    #[test]
    fn refuses_by_field() {
        let refused = |change: fn(&mut v1::ExchangeHeader)| {
            let mut wire = v1::ExchangeHeader::from(&attend(8, WireDtype::F32));
            change(&mut wire);
            let mut frame = frames(&attend(8, WireDtype::F32)).remove(0);
            frame.header = wire.encode_to_vec().into();
            frame.crc32 = checksum(&frame);
            match check(&frame).unwrap_err() {
                CallFrameError::Refused { call: 7, refusal } => refusal.field,
                other => other.to_string(),
            }
        };
        assert_eq!(refused(|h| h.kind = 0), "frame.kind");
        assert_eq!(refused(|h| h.kind = 99), "frame.kind");
        assert_eq!(refused(|h| h.log_base = 0), "frame.log_base");
        assert_eq!(refused(|h| h.log_base = 2), "frame.log_base");
        assert_eq!(refused(|h| h.normalisation = 0), "frame.normalisation");
        assert_eq!(refused(|h| h.dtype = 0), "frame.dtype");
        assert_eq!(refused(|h| h.dtype = 9), "frame.wire");
        assert_eq!(refused(|h| h.kv = 0), "frame.kv");
        assert_eq!(refused(|h| h.layer = 512), "frame.layer");
        assert_eq!(refused(|h| h.tokens = 0), "frame.tokens");
        assert_eq!(refused(|h| h.start = u32::MAX), "frame.start");
        assert_eq!(refused(|h| h.heads = 5), "frame.bytes");
        assert_eq!(refused(|h| h.dtype = 2), "frame.bytes");
        assert_eq!(refused(|h| h.items = 5), "frame.items");
        assert_eq!(refused(|h| h.policy = None), "frame.policy");
        assert_eq!(refused(|h| h.bytes = u64::MAX), "frame.bytes");
        assert!(refused(|h| h.convention = 9).starts_with("convention 9"));
        assert!(split(&attend(8, WireDtype::F32), Bytes::from_static(b"short").into()).is_err());
    }

    fn some_header() -> impl Strategy<Value = v1::ExchangeHeader> {
        let numbers = prop::array::uniform8(any::<u32>());
        (numbers, 0..13i32, 0..4i32, any::<u64>(), prop::option::of(arbitrary::policy())).prop_map(
            |(
                [branch, layer, start, tokens, chunks, heads, head_dim, items],
                kind,
                small,
                bytes,
                policy,
            )| {
                v1::ExchangeHeader {
                    convention: CONVENTION,
                    call: bytes,
                    kind,
                    request: 1,
                    branch,
                    layer: layer % 600,
                    epoch: start,
                    start: start % (1 << 25),
                    tokens: tokens % (1 << 17),
                    chunks: chunks % (1 << 25),
                    log_base: 1,
                    normalisation: 1 + small % 2,
                    dtype: small,
                    kv: 1 + small % 2,
                    heads: heads % 1100,
                    head_dim: head_dim % 1100,
                    items,
                    bytes,
                    deadline_ms: 5,
                    policy: policy.map(Into::into),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn one_changed_byte_is_noticed(at in any::<prop::sample::Index>(), flip in 1u8..) {
            let frame = frames(&attend(8, WireDtype::Bf16)).remove(0);
            let mut bytes = frame.encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(changed) = ExchangeFrame::decode(bytes.as_slice()) {
                // A flipped tag may turn into an unknown field of the same content.
                prop_assert!(check(&changed).is_err() || changed == frame);
            }
        }

        #[test]
        fn garbage_never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            header in some_header(),
            (part_idx, part_count) in (any::<u32>(), any::<u32>()),
            payload in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            if let Ok(frame) = ExchangeFrame::decode(bytes.as_slice()) {
                let _ = Assembler::bounded(u64::MAX).accept(frame);
            }
            let header = header.encode_to_vec().into();
            let payload = payload.into();
            let mut frame = ExchangeFrame { header, part_idx, part_count, crc32: 0, payload };
            frame.crc32 = checksum(&frame);
            let _ = Assembler::bounded(u64::MAX).accept(frame);
        }
    }
}
