//! The frames of one stream, put together message after message.

use aqueduct_core::Refusal;

use super::{CallFrameError, CallHeader, check, part};
use crate::convert::parts::{Gatherer, OutOfOrder};
use crate::convert::pieces::Pieces;
use crate::v1::ExchangeFrame;

/// What has come of a message.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// What the message is.
    pub header: CallHeader,
    /// The part that came last; 0 begins the message, also where one like it was under way.
    pub part_idx: u32,
    /// What came and was not taken from here: whoever takes it early has it early.
    pub payload: &'a mut Pieces,
    /// Whether the message has come to its end.
    pub is_whole: bool,
}

/// Puts the frames of one stream together, message after message. Messages of one frame may come
/// between the parts of another.
#[derive(Debug)]
pub struct Assembler {
    bytes_max: u64,
    messages: Gatherer<CallHeader>,
    /// Of the last message of one frame.
    alone: Pieces,
}

impl Assembler {
    /// Refuses messages of more than `bytes_max` bytes before their first part is kept.
    pub fn bounded(bytes_max: u64) -> Self {
        Self { bytes_max, messages: Gatherer::default(), alone: Pieces::default() }
    }

    /// Takes the next frame.
    ///
    /// # Errors
    /// A frame that fails [`check`], or that is not the next part of the message under way; that
    /// message is then forgotten.
    pub fn accept(&mut self, frame: ExchangeFrame) -> Result<Arrival<'_>, CallFrameError> {
        let header = self.check(&frame).inspect_err(|_| self.messages.reset())?;
        let part_idx = frame.part_idx;
        if frame.part_count == 1 {
            self.alone = frame.payload.into();
            return Ok(Arrival { header, part_idx, payload: &mut self.alone, is_whole: true });
        }
        let gathered = self.messages.accept(header, part(&frame));
        let (payload, is_whole) = gathered.map_err(|OutOfOrder { seen, want }| {
            CallFrameError::Order { call: header.call, seen, want }
        })?;
        Ok(Arrival { header, part_idx, payload, is_whole })
    }

    fn check(&self, frame: &ExchangeFrame) -> Result<CallHeader, CallFrameError> {
        let header = check(frame)?;
        Refusal::unless_within("frame.bytes", header.bytes, 0, self.bytes_max)
            .map_err(|refusal| CallFrameError::Refused { call: header.call, refusal })?;
        Ok(header)
    }
}
