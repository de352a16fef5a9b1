//! What one coordinator sends another: a batch of messages, cut into frames. The messages are
//! raft's, and `aqueduct-journal` reads them. And what it says of itself to workers.

use aqueduct_core::{Addresses, Refusal, Tenure, limits};
use bytes::Bytes;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

use super::{Under, crc32_of, intact, required};
use crate::v1::{PeerFrame, PeerHeader};
use crate::{COORDINATORS_METADATA, REFUSED_METADATA, TERM_METADATA};

/// Whose batch it is, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// What the sender takes its group for.
    pub group: u64,
    /// A member.
    pub from: u64,
    /// Another one.
    pub to: u64,
    /// Where callers reach the sender.
    pub addresses: Addresses,
    /// Of the sender's journal: one that is made anew has another one.
    pub birth: u64,
}

/// The frames of a batch.
pub fn split(envelope: &Envelope, batch: Bytes) -> impl Iterator<Item = PeerFrame> + use<> {
    let Envelope { group, from, to, addresses, birth } = envelope.clone();
    let Addresses { http, grpc } = addresses;
    let (bytes, crc32) = (batch.len() as u64, crc32fast::hash(&batch));
    let header_crc32 = None;
    let mut header = PeerHeader { group, from, to, http, grpc, bytes, crc32, birth, header_crc32 };
    header.header_crc32 = Some(crc32_of(&header));
    let count = batch.len().div_ceil(limits::FRAME_BYTES_MAX).max(1);
    (0..count).map(move |idx| {
        let start = idx * limits::FRAME_BYTES_MAX;
        let end = (start + limits::FRAME_BYTES_MAX).min(batch.len());
        let header = (idx == 0).then(|| header.clone());
        PeerFrame { header, payload: batch.slice(start..end) }
    })
}

/// A batch that is coming. Its memory grows by what has come, and not by what was announced.
#[derive(Debug)]
pub struct Gathering {
    envelope: Envelope,
    bytes: u64,
    crc32: u32,
    batch: Vec<u8>,
}

impl Gathering {
    /// From the first frame.
    ///
    /// # Errors
    /// A header that is missing or out of bounds.
    pub fn begin(frame: PeerFrame) -> Result<Self, Refusal> {
        let header = required("header", frame.header)?;
        let (envelope, bytes, crc32) = read(header).under("header")?;
        let mut gathering = Self { envelope, bytes, crc32, batch: Vec::new() };
        gathering.take(&frame.payload)?;
        Ok(gathering)
    }

    /// Whose it is.
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// How many bytes it will have.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Any further frame.
    ///
    /// # Errors
    /// More than was announced, or another header.
    pub fn add(&mut self, frame: PeerFrame) -> Result<(), Refusal> {
        match frame.header {
            Some(_) => Err(Refusal::new("header", "present", "absent after the first frame")),
            None => self.take(&frame.payload),
        }
    }

    fn take(&mut self, payload: &[u8]) -> Result<(), Refusal> {
        Refusal::unless_within("payload", payload.len(), 0, limits::FRAME_BYTES_MAX)?;
        let bytes = (self.batch.len() + payload.len()) as u64;
        Refusal::unless_within("bytes so far", bytes, 0, self.bytes)?;
        self.batch.extend_from_slice(payload);
        Ok(())
    }

    /// The batch, when no frame follows.
    ///
    /// # Errors
    /// Less than was announced, or other bytes.
    pub fn finish(self) -> Result<(Envelope, Vec<u8>), Refusal> {
        let Self { envelope, bytes, crc32, batch } = self;
        Refusal::unless_within("bytes", batch.len() as u64, bytes, bytes)?;
        let seen = crc32fast::hash(&batch);
        match seen == crc32 {
            true => Ok((envelope, batch)),
            false => Err(Refusal::new("crc32", seen, format!("{crc32}, as was announced"))),
        }
    }
}

fn read(mut wire: PeerHeader) -> Result<(Envelope, u64, u32), Refusal> {
    let header_crc32 = wire.header_crc32.take();
    intact("header_crc32", &wire, header_crc32)?;
    let PeerHeader { group, from, to, http, grpc, bytes, crc32, birth, .. } = wire;
    for (field, member) in [("from", from), ("to", to)] {
        Refusal::unless_within(field, member, 1, limits::JOURNAL_MEMBERS_MAX as u64)?;
    }
    if from == to {
        return Err(Refusal::new("from", from, "another member than the receiver"));
    }
    Refusal::unless_within("bytes", bytes, 1, limits::PEER_BATCH_BYTES_MAX)?;
    let addresses = Addresses { http, grpc };
    addresses.validate()?;
    Ok((Envelope { group, from, to, addresses, birth }, bytes, crc32))
}

/// Says in the metadata of a session in which tenure it is opened.
pub fn put_tenure(tenure: Tenure, metadata: &mut MetadataMap) {
    metadata.insert(COORDINATORS_METADATA, MetadataValue::from(tenure.group));
    metadata.insert(TERM_METADATA, MetadataValue::from(tenure.term));
}

/// In which tenure a session is opened; `None` by a coordinator that is in no group.
///
/// # Errors
/// A group without a term, a term without a group, or what is no number.
pub fn tenure(metadata: &MetadataMap) -> Result<Option<Tenure>, Refusal> {
    let number = |field: &str| metadata.get(field).map(|value| number(field, value)).transpose();
    match (number(COORDINATORS_METADATA)?, number(TERM_METADATA)?) {
        (None, None) => Ok(None),
        (Some(group), Some(term)) => Ok(Some(Tenure { group, term })),
        (Some(_), None) => Err(Refusal::new(TERM_METADATA, "absent", "present beside a group")),
        (None, Some(_)) => {
            Err(Refusal::new(COORDINATORS_METADATA, "absent", "present beside a term"))
        }
    }
}

/// Most bytes of a reason that are sent, and characters that are read.
const REASON_MAX: usize = 512;

/// Says in the metadata of a session why its worker was refused.
pub fn put_refusal(reason: &str, metadata: &mut MetadataMap) {
    let end = reason.floor_char_boundary(REASON_MAX);
    let reason = &reason.as_bytes()[..end];
    metadata.insert_bin(REFUSED_METADATA, MetadataValue::from_bytes(reason));
}

/// Why the worker was refused, if it was; whoever said so, it is fit for a line of a log.
pub fn refusal(metadata: &MetadataMap) -> Option<String> {
    let reason = metadata.get_bin(REFUSED_METADATA)?.to_bytes().unwrap_or_default();
    let reason = String::from_utf8_lossy(&reason);
    Some(reason.chars().take(REASON_MAX).flat_map(char::escape_debug).collect())
}

fn number(field: &str, value: &MetadataValue<Ascii>) -> Result<u64, Refusal> {
    let text = value.to_str().unwrap_or_default();
    text.parse().map_err(|_| Refusal::new(field, format_args!("{value:?}"), "a decimal number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line_of_bounded_length() {
        let mut metadata = MetadataMap::new();
        assert_eq!(refusal(&metadata), None);
        let check = |metadata: &MetadataMap, want: &str| {
            assert_eq!(refusal(metadata).as_deref(), Some(want));
        };
        put_refusal("ä: another\nmodel", &mut metadata);
        check(&metadata, "ä: another\\nmodel");
        put_refusal(&("ä".repeat(255) + "aä"), &mut metadata);
        check(&metadata, &("ä".repeat(255) + "a")); // 511 bytes, and no half of a character
        let foreign = [&[0xff, 0x1b][..], &b"x".repeat(1000)].concat();
        metadata.insert_bin(REFUSED_METADATA, MetadataValue::from_bytes(&foreign));
        check(&metadata, &("\u{fffd}\\u{1b}".to_owned() + &"x".repeat(510)));
    }

    #[test]
    fn a_tenure_is_a_group_and_a_term() {
        let mut metadata = MetadataMap::new();
        assert_eq!(tenure(&metadata), Ok(None));
        let told = Tenure { group: u64::MAX, term: 7 };
        put_tenure(told, &mut metadata);
        assert_eq!(tenure(&metadata), Ok(Some(told)));
        let check = |change: fn(&mut MetadataMap), want: &str| {
            let mut metadata = metadata.clone();
            change(&mut metadata);
            assert_eq!(tenure(&metadata).unwrap_err().field, want);
        };
        check(|metadata| drop(metadata.remove(TERM_METADATA)), TERM_METADATA);
        check(|metadata| drop(metadata.remove(COORDINATORS_METADATA)), COORDINATORS_METADATA);
        check(
            |metadata| drop(metadata.insert(TERM_METADATA, "-1".parse().unwrap())),
            TERM_METADATA,
        );
        check(|metadata| drop(metadata.insert(TERM_METADATA, "x".parse().unwrap())), TERM_METADATA);
    }

    fn envelope() -> Envelope {
        let addresses = Addresses { http: "http://a:1".into(), grpc: "http://a:2".into() };
        Envelope { group: 9, from: 1, to: 2, addresses, birth: 5 }
    }

    fn gather(frames: Vec<PeerFrame>) -> Result<(Envelope, Vec<u8>), Refusal> {
        let mut frames = frames.into_iter();
        let mut gathering = Gathering::begin(frames.next().unwrap())?;
        frames.try_for_each(|frame| gathering.add(frame))?;
        gathering.finish()
    }

    #[test]
    fn a_batch_comes_as_it_was() {
        for bytes in [1, limits::FRAME_BYTES_MAX, 2 * limits::FRAME_BYTES_MAX + 1] {
            let batch: Vec<u8> = (0..bytes).map(|idx| (idx % 251) as u8).collect();
            let frames: Vec<_> = split(&envelope(), batch.clone().into()).collect();
            assert_eq!(frames.len(), bytes.div_ceil(limits::FRAME_BYTES_MAX));
            assert_eq!(gather(frames), Ok((envelope(), batch)));
        }
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        let check = |change: fn(&mut Vec<PeerFrame>), want: &str| {
            let batch = vec![7; limits::FRAME_BYTES_MAX + 5];
            let mut frames: Vec<_> = split(&envelope(), batch.into()).collect();
            header(&mut frames).header_crc32 = None;
            change(&mut frames);
            assert_eq!(gather(frames).unwrap_err().field, want);
        };
        fn header(frames: &mut [PeerFrame]) -> &mut PeerHeader {
            frames[0].header.as_mut().unwrap()
        }
        check(|frames| frames[0].header = None, "header");
        check(|frames| frames[1].header = frames[0].header.clone(), "header");
        check(|frames| header(frames).from = 0, "header.from");
        check(|frames| header(frames).to = 8, "header.to");
        check(|frames| header(frames).to = 1, "header.from");
        check(|frames| header(frames).bytes = 0, "header.bytes");
        check(|frames| header(frames).bytes = u64::MAX, "header.bytes");
        check(|frames| header(frames).bytes -= 1, "bytes so far");
        check(|frames| header(frames).bytes += 1, "bytes");
        check(|frames| header(frames).crc32 ^= 1, "crc32");
        let flipped = |frames: &mut Vec<PeerFrame>| {
            let header = header(frames);
            header.header_crc32 = Some(crc32_of(&*header));
            header.birth ^= 1;
        };
        check(flipped, "header.header_crc32");
        check(|frames| header(frames).http = "nowhere".into(), "header.http");
        check(|frames| frames.truncate(1), "bytes");
        check(|frames| frames[1].payload = vec![0; limits::FRAME_BYTES_MAX + 1].into(), "payload");
    }
}
