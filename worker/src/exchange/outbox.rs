//! What is left to send over one stream.

use std::collections::VecDeque;

use aqueduct_core::Refusal;
use aqueduct_proto::convert::call::{Frames, split};
use aqueduct_proto::v1::ExchangeFrame;

use super::codec::Message;

/// Messages one behind the other, cut into frames one by one: the first leaves before the last
/// was looked at.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    messages: VecDeque<Frames>,
}

impl Outbox {
    /// Messages that are not sent yet.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether no frame is left.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Puts a message behind the others.
    ///
    /// # Errors
    /// As [`split`].
    pub(super) fn push(&mut self, (header, payload): Message) -> Result<(), Refusal> {
        self.messages.push_back(split(&header, payload)?);
        Ok(())
    }

    /// The next frame.
    pub(super) fn pop(&mut self) -> Option<ExchangeFrame> {
        let first = self.messages.front_mut()?;
        let frame = first.next();
        if first.is_empty() {
            self.messages.pop_front();
        }
        frame
    }
}
