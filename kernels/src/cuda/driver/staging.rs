//! Pinned memory that copies go through, so that the device fetches and brings them itself.

use std::collections::VecDeque;
use std::mem;

use super::handles::{Event, Pinned, Stream};
use crate::cuda::device::Fault;

/// What one slot holds; longer copies are made in parts.
pub(super) const SLOT_BYTES: usize = 4 << 20;

/// Slots that copies to the device may be ahead of it by.
const SLOTS_MAX: usize = 8;

/// Copies begin at a multiple of this in a slot.
const ALIGN_BYTES: usize = 64;

/// A piece of pinned memory, and when the device was last done with it.
pub(super) struct Slot {
    memory: Pinned,
    done: Event,
}

impl Slot {
    pub(super) fn new() -> Result<Self, Fault> {
        Ok(Self { memory: Pinned::new(SLOT_BYTES)?, done: Event::new(false)? })
    }

    /// After the copy that uses it was enqueued.
    pub(super) fn used_by(&self, stream: &Stream) -> Result<(), Fault> {
        self.done.record(stream)
    }

    pub(super) fn done(&self) -> &Event {
        &self.done
    }

    /// Of byte `offset`.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < SLOT_BYTES);
        // SAFETY: inside the allocation, checked above.
        unsafe { self.memory.start().add(offset) }
    }
}

/// What is on its way to the device: slots are filled one after the other, small copies share one.
#[derive(Default)]
pub(super) struct Outbox {
    /// The oldest first; the last is being filled.
    slots: VecDeque<Slot>,
    /// Bytes of the last slot that copies have taken.
    filled: usize,
}

impl Outbox {
    /// Room for `bytes`, at most [`SLOT_BYTES`], in a slot; `wait` waits for the device.
    pub(super) fn room(
        &mut self,
        bytes: usize,
        wait: impl Fn(&Event) -> Result<(), Fault>,
    ) -> Result<(&Slot, usize), Fault> {
        let full = self.filled + bytes > SLOT_BYTES;
        if full || self.slots.is_empty() {
            let slot = self.next(wait)?;
            self.slots.push_back(slot);
            self.filled = 0;
        }
        let offset = self.filled;
        self.filled = (offset + bytes).next_multiple_of(ALIGN_BYTES);
        let slot = self.slots.back().ok_or_else(|| Fault::new("staging", "no slot"))?;
        Ok((slot, offset))
    }

    /// Never uses the slot of the last [`room`](Self::room) again, nor frees it.
    pub(super) fn forget_last(&mut self) {
        mem::forget(self.slots.pop_back());
        self.filled = SLOT_BYTES;
    }

    /// A slot that the device is done with.
    fn next(&mut self, wait: impl Fn(&Event) -> Result<(), Fault>) -> Result<Slot, Fault> {
        let Some(oldest) = self.slots.front() else { return Slot::new() };
        if !oldest.done.reached()? {
            if self.slots.len() < SLOTS_MAX {
                return Slot::new();
            }
            wait(&oldest.done)?;
        }
        self.slots.pop_front().ok_or_else(|| Fault::new("staging", "no slot"))
    }
}
