//! Bytes too long for one frame: cut into parts, and put together again.

use aqueduct_core::{Refusal, limits};
use bytes::{Buf, Bytes};

use super::pieces::Pieces;

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

/// The parts of a payload, each cut when it is asked for.
#[derive(Debug)]
pub(super) struct Cut {
    payload: Pieces,
    part_idx: u32,
    part_count: u32,
}

impl Cut {
    pub(super) fn new(payload: Pieces) -> Self {
        let part_count = part_count(payload.remaining() as u64);
        Self { payload, part_idx: 0, part_count }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.part_idx == self.part_count
    }
}

impl Iterator for Cut {
    type Item = (u32, Bytes);

    fn next(&mut self) -> Option<(u32, Bytes)> {
        let part_idx = (!self.is_empty()).then_some(self.part_idx)?;
        self.part_idx += 1;
        let bytes = limits::FRAME_BYTES_MAX.min(self.payload.remaining());
        Some((part_idx, self.payload.copy_to_bytes(bytes)))
    }
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

/// Puts parts together, whole after whole. Part 0 always begins anew.
#[derive(Debug)]
pub(super) struct Gatherer<H> {
    underway: Option<Underway<H>>,
}

#[derive(Debug)]
struct Underway<H> {
    header: H,
    parts_done: u32,
    payload: Pieces,
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

    /// Takes the next part, which was validated; what was gathered and not taken from here yet,
    /// and whether this part was the last.
    pub(super) fn accept(
        &mut self,
        header: H,
        part: Part,
    ) -> Result<(&mut Pieces, bool), OutOfOrder> {
        let goes_on =
            |one: &Underway<H>| part.idx > 0 && one.parts_done < part.count && one.header == header;
        let mut underway = match self.underway.take() {
            Some(one) if goes_on(&one) => one,
            _ => Underway { header, parts_done: 0, payload: Pieces::default() },
        };
        if part.idx != underway.parts_done {
            return Err(OutOfOrder { seen: part.idx, want: underway.parts_done });
        }
        underway.payload.push(part.payload);
        underway.parts_done += 1;
        let is_whole = underway.parts_done == part.count;
        Ok((&mut self.underway.insert(underway).payload, is_whole))
    }
}
