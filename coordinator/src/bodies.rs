//! What bodies of calls may take up while they come: room, of all of them together, and time.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// What room is counted in. The first of each body is not counted, so that a chat never finds the
/// room taken.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;
/// What a sender has to keep up, on average, beyond the first silence that it is allowed.
const BYTES_PER_S_MIN: f64 = 1024.0;
/// When all of it must have come.
const DEADLINE: Duration = Duration::from_millis(limits::REQUEST_DEADLINE_MS);

/// Room for all bodies that are being read or prepared, whichever way they come. Clones are the
/// same one.
#[derive(Debug, Clone)]
pub struct Room {
    bytes: usize,
    blocks: Arc<Semaphore>,
}

/// What a body has of it, which others have when this is dropped.
pub(crate) type Held = Option<OwnedSemaphorePermit>;

impl Default for Room {
    fn default() -> Self {
        Self::new(limits::BODIES_BYTES_MAX)
    }
}

impl Room {
    /// For so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, blocks: Arc::new(Semaphore::new(bytes / BLOCK_BYTES)) }
    }

    /// What the sender of a body is told for which there is no room.
    pub(crate) fn refusal(&self, bytes: usize) -> String {
        let Self { bytes: all, blocks } = self;
        let left = blocks.available_permits() * BLOCK_BYTES;
        format!("body = {bytes} bytes: must fit into the {left} that other calls leave of {all}")
    }

    /// Makes `held` enough for a body of so many bytes; whether there was room.
    pub(crate) fn grow(&self, held: &mut Held, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(1) / BLOCK_BYTES;
        let has = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Ok(missing) = u32::try_from(wanted.saturating_sub(has)) else { return false };
        if missing == 0 {
            return true;
        }
        let Ok(more) = self.blocks.clone().try_acquire_many_owned(missing) else { return false };
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        true
    }
}

/// How a body comes: never silent for longer than it may be, nor slower than
/// [`BYTES_PER_S_MIN`].
#[derive(Debug)]
pub(crate) struct Pace {
    silence: Duration,
    start: Instant,
    /// That have come.
    pub(crate) bytes: usize,
}

impl Pace {
    /// Of a body that may be silent for so long.
    pub(crate) fn new(silence: Duration) -> Self {
        Self { silence, start: Instant::now(), bytes: 0 }
    }

    /// When the next part must have come.
    pub(crate) fn until(&self) -> Instant {
        let earned = Duration::from_secs_f64(self.bytes as f64 / BYTES_PER_S_MIN);
        let latest = self.start + (self.silence + earned).min(DEADLINE);
        latest.min(Instant::now() + self.silence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_as_a_body_grows() {
        let room = Room::new(4 * BLOCK_BYTES);
        let (mut first, mut second) = (None, None);
        let grow = |held: &mut _, blocks: usize| room.grow(held, blocks * BLOCK_BYTES);
        assert!(grow(&mut first, 1) && first.is_none(), "the first block is not counted");
        assert!(grow(&mut first, 3) && grow(&mut first, 4));
        assert!(grow(&mut second, 2));
        assert!(!grow(&mut second, 3), "three of four blocks are the other's");
        assert!(grow(&mut second, 1), "and what it has is enough for less");
        drop(first);
        assert!(grow(&mut second, 5));
        assert!(!grow(&mut None, 2) && grow(&mut None, 1));
    }
}
