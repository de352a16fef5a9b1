//! One conversion per file, and no other way from the wire inwards: wire to core is `TryFrom`
//! and refuses by the field's path (`assignment.policy.sinks`), core to wire is `From`.

pub mod ask;
pub mod call;
pub mod command;
pub mod directory;
pub mod event;
pub mod exchange;
pub mod frame;
pub mod generate;
pub mod grammar;
pub mod journal;
pub mod notice;
mod parts;
pub mod peers;
pub mod pieces;
pub mod policy;
pub mod quality;
pub mod sampling;
pub mod seen;
pub mod shape;
pub mod snapshot;
pub mod steering;
mod telling;

use aqueduct_core::{Refusal, limits};

use crate::v1;

/// The field a refusal names, seen from the message around it.
trait Under {
    /// `sinks` becomes `policy.sinks`.
    fn under(self, parent: &str) -> Self;
}

impl<T> Under for Result<T, Refusal> {
    fn under(self, parent: &str) -> Self {
        self.map_err(|refusal| Refusal { field: format!("{parent}.{}", refusal.field), ..refusal })
    }
}

/// `value` of a field that must be there.
fn required<T>(field: &str, value: Option<T>) -> Result<T, Refusal> {
    value.ok_or_else(|| Refusal::new(field, "absent", "present"))
}

/// CRC-32 (IEEE) of what `message` is on the wire.
fn crc32_of(message: &impl prost::Message) -> u32 {
    crc32fast::hash(&message.encode_to_vec())
}

/// Refuses a message that is not what its sender summed up in `field`, if it did.
fn intact(field: &str, message: &impl prost::Message, sent: Option<u32>) -> Result<(), Refusal> {
    let Some(sent) = sent else { return Ok(()) };
    let seen = crc32_of(message);
    match seen == sent {
        true => Ok(()),
        false => Err(Refusal::new(field, seen, format!("{sent}, as was sent"))),
    }
}

/// Refuses a list of more than `most` items.
fn bounded<T>(field: &str, list: &[T], most: usize) -> Result<(), Refusal> {
    Refusal::unless_within(field, list.len(), 0, most).map(drop)
}

/// A completion's index.
fn choice(value: u32) -> Result<u32, Refusal> {
    Refusal::unless_within("choice", value, 0, limits::CHOICES_MAX - 1)
}

impl From<aqueduct_core::ChunkKey> for v1::ChunkKey {
    fn from(key: aqueduct_core::ChunkKey) -> Self {
        Self { request: key.request.0, chunk_idx: key.chunk_idx, epoch: key.epoch.0 }
    }
}

impl TryFrom<v1::ChunkKey> for aqueduct_core::ChunkKey {
    type Error = Refusal;

    fn try_from(wire: v1::ChunkKey) -> Result<Self, Refusal> {
        // A grid has at most one chunk for each token.
        let most = limits::PROMPT_TOKENS_MAX - 1;
        Ok(Self {
            request: aqueduct_core::RequestId(wire.request),
            chunk_idx: Refusal::unless_within("chunk_idx", wire.chunk_idx, 0, most)?,
            epoch: aqueduct_core::Epoch(wire.epoch),
        })
    }
}

/// The key that a message must carry.
fn key(wire: Option<v1::ChunkKey>) -> Result<aqueduct_core::ChunkKey, Refusal> {
    required("key", wire)?.try_into().under("key")
}

#[cfg(test)]
pub(crate) mod arbitrary;
