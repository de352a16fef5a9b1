//! Bytes too long for one frame: cut into parts, and put together again.

use aqueduct_core::{Refusal, limits};
use bytes::{Bytes, BytesMut};

/// Bytes of a part that is not the last.
const FULL: u64 = limits::FRAME_BYTES_MAX as u64;

/// Parts that `bytes` bytes are cut into; no bytes are one empty part.
pub(super) const fn part_count(bytes: u64) -> u32 {
    let parts = bytes.div_ceil(FULL);
    if parts == 0 { 1 } else { parts as u32 }
}

/// Bytes of part `part_idx`: all parts but the last are full.
pub(super) const fn part_bytes(bytes: u64, part_idx: u32) -> u64 {
    let left = bytes.saturating_sub(part_idx as u64 * FULL);
    if left < FULL { left } else { FULL }
}

/// The parts of `payload`.
pub(super) fn cut(payload: Bytes) -> impl Iterator<Item = (u32, Bytes)> {
    (0..part_count(payload.len() as u64)).map(move |part_idx| {
        let from = part_idx as usize * limits::FRAME_BYTES_MAX;
        let to = from + part_bytes(payload.len() as u64, part_idx) as usize;
        (part_idx, payload.slice(from..to))
    })
}

/// One part, and its place in `bytes` bytes.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) idx: u32,
    pub(super) count: u32,
    pub(super) payload: Bytes,
}

impl Part {
    /// Whether place and length follow from the length of the whole.
    pub(super) fn validate(&self, bytes: u64) -> Result<(), Refusal> {
        let count = part_count(bytes);
        Refusal::unless_within("part_count", self.count, count, count)?;
        Refusal::unless_within("part_idx", self.idx, 0, count - 1)?;
        let want = part_bytes(bytes, self.idx);
        Refusal::unless_within("payload", self.payload.len() as u64, want, want)?;
        Ok(())
    }
}

/// Another part than the one that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutOfOrder {
    pub(super) seen: u32,
    pub(super) want: u32,
}

/// Puts parts together, whole after whole. Part 0 always begins anew. Grows by what arrived.
#[derive(Debug)]
pub(super) struct Gatherer<H> {
    underway: Option<Underway<H>>,
}

#[derive(Debug)]
struct Underway<H> {
    header: H,
    parts_done: u32,
    bytes: BytesMut,
}

impl<H> Default for Gatherer<H> {
    fn default() -> Self {
        Self { underway: None }
    }
}

impl<H: PartialEq> Gatherer<H> {
    /// Forgets what is under way.
    pub(super) fn reset(&mut self) {
        self.underway = None;
    }

    /// Takes the next part, which was validated; the whole is returned with its last.
    pub(super) fn accept(
        &mut self,
        header: H,
        part: Part,
    ) -> Result<Option<(H, Bytes)>, OutOfOrder> {
        let before = self.underway.take();
        if part.count == 1 {
            return Ok(Some((header, part.payload)));
        }
        let mut underway = match before {
            Some(underway) if part.idx > 0 && underway.header == header => underway,
            _ => Underway { header, parts_done: 0, bytes: BytesMut::new() },
        };
        if part.idx != underway.parts_done {
            return Err(OutOfOrder { seen: part.idx, want: underway.parts_done });
        }
        underway.bytes.extend_from_slice(&part.payload);
        underway.parts_done += 1;
        if underway.parts_done == part.count {
            return Ok(Some((underway.header, underway.bytes.freeze())));
        }
        self.underway = Some(underway);
        Ok(None)
    }
}
