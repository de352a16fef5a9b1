//! Shards as bytes: each a list of memory sets, in the byte form of hand-offs.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::{Refusal, WireDtype};
use aqueduct_engine::shards::{Place, Shards};
use aqueduct_kernels::{MemorySet, SetShape, Shard};
use aqueduct_proto::convert::call::{CallHeader, Kind};
use aqueduct_proto::convert::pieces::Pieces;
use bytes::Buf;

use super::bytes::{Reader, Writer, missing};
use crate::link::codec::{self, Filling};
use crate::link::views::views;

/// Of what stands before a shard, and before each of its parts.
const HEAD_BYTES: usize = 12;

/// One part of a shard that others hold too.
struct Part {
    shard: Arc<Shard>,
    idx: usize,
}

impl AsRef<MemorySet> for Part {
    fn as_ref(&self) -> &MemorySet {
        &self.shard.parts()[self.idx]
    }
}

/// Writes `held`, and their shape into `header`. Keys are not copied: the message holds on to
/// their shards until it is sent.
pub(super) fn put(
    header: &mut CallHeader,
    writer: &mut Writer,
    held: &Shards,
) -> Result<(), Refusal> {
    header.kind = Kind::Shards;
    header.items = held.len() as u32;
    if let Some(part) = held.values().find_map(|shard| shard.parts().first()) {
        header.kv = codec::to_core(part.keys.k.dtype());
        header.head_dim = part.keys.k.head_dim as u32;
    }
    for (&chunk, shard) in held {
        header.heads = shard.kv_heads() as u32;
        writer.u32s([chunk, shard.end(), shard.parts().len() as u32]);
        for (idx, part) in shard.parts().iter().enumerate() {
            writer.u32s([part.keys.kv_heads() as u32, part.keys.len() as u32, part.end]);
            let part = Arc::new(Part { shard: shard.clone(), idx });
            let unread = |error| Refusal::new("device", error, "one that can be read");
            views(&part).map_err(unread)?.into_iter().for_each(|view| writer.piece(view));
        }
    }
    Ok(())
}

/// The shards that answer the ask about `place`.
pub(super) fn take(
    header: &CallHeader,
    reader: &mut Reader,
    place: &Place,
) -> Result<Shards, Refusal> {
    let mut taking = Taking::new(header, place);
    taking.take(reader.rest())?;
    taking.finish(reader.rest())
}

/// Shards of which the first have come.
#[derive(Debug)]
pub(super) struct Taking {
    header: CallHeader,
    /// What was asked for.
    chunks: Vec<u32>,
    done: Shards,
    begun: Option<Begun>,
}

/// A shard of which the first parts have come.
#[derive(Debug)]
struct Begun {
    end: u32,
    count: u32,
    parts: Vec<MemorySet>,
    filling: Option<Filling>,
}

impl Taking {
    /// Shards of the message of `header`, which answers the ask about `place`.
    pub(super) fn new(header: &CallHeader, place: &Place) -> Self {
        let chunks = place.shards.iter().map(|shard| shard.0).collect();
        Self { header: *header, chunks, done: BTreeMap::new(), begun: None }
    }

    /// Of the message.
    pub(super) fn header(&self) -> &CallHeader {
        &self.header
    }

    /// Reads on as far as `payload` goes.
    ///
    /// # Errors
    /// What was not asked for, or cannot be.
    pub(super) fn take(&mut self, payload: &mut Pieces) -> Result<(), Refusal> {
        let count = self.chunks.len() as u32;
        Refusal::unless_within("items", self.header.items, count, count)?;
        while let Some(&chunk) = self.chunks.get(self.done.len()) {
            let begun = match &mut self.begun {
                Some(begun) => begun,
                none if payload.remaining() >= HEAD_BYTES => {
                    none.insert(Begun::read(&self.header, chunk, payload)?)
                }
                _ => return Ok(()),
            };
            if !begun.take(&self.header, payload)? {
                return Ok(());
            }
            let whole = self.begun.take().map(|begun| begun.finish(&self.header)).transpose()?;
            self.done.extend(whole.map(|shard| (chunk, Arc::new(shard))));
        }
        Ok(())
    }

    /// The shards, when `payload` has come to its end.
    ///
    /// # Errors
    /// A payload that is too short or too long.
    pub(super) fn finish(self, payload: &Pieces) -> Result<Shards, Refusal> {
        match self.done.len() == self.chunks.len() {
            false => Err(missing(payload.remaining(), payload.remaining() + 1)),
            true => Ok(self.done),
        }
    }
}

impl Begun {
    fn read(header: &CallHeader, want: u32, payload: &mut Pieces) -> Result<Self, Refusal> {
        let [chunk, end, count] = std::array::from_fn(|_| payload.get_u32_le());
        Refusal::unless_within("chunk", chunk, want, want)?;
        Refusal::unless_within("parts", count, 1, header.heads.max(1))?;
        Ok(Self { end, count, parts: Vec::new(), filling: None })
    }

    /// Reads on; whether the shard is whole.
    fn take(&mut self, header: &CallHeader, payload: &mut Pieces) -> Result<bool, Refusal> {
        while self.parts.len() < self.count as usize {
            let filling = match &mut self.filling {
                Some(filling) => filling,
                none if payload.remaining() >= HEAD_BYTES => {
                    none.insert(Filling::new(part_shape(header, payload)?, WireDtype::F32))
                }
                _ => return Ok(false),
            };
            if !filling.take(payload) {
                return Ok(false);
            }
            self.parts.extend(self.filling.take().map(Filling::finish).transpose()?);
        }
        Ok(true)
    }

    /// The shard: one set of all KV heads, or one for each. Who reads it counts on that.
    fn finish(self, header: &CallHeader) -> Result<Shard, Refusal> {
        let is_one = self.parts.len() == 1;
        self.parts.iter().filter(|_| !is_one).try_for_each(|part| {
            Refusal::unless_within("kv_heads", part.keys.kv_heads(), 1, 1).map(drop)
        })?;
        let shard = Shard::of_parts(self.parts, self.end);
        let (seen, want) = (shard.kv_heads() as u32, header.heads);
        Refusal::unless_within("kv_heads", seen, want, want)?;
        Ok(shard)
    }
}

fn part_shape(header: &CallHeader, payload: &mut Pieces) -> Result<SetShape, Refusal> {
    let [kv_heads, keys, end] = std::array::from_fn(|_| payload.get_u32_le());
    Refusal::unless_within("kv_heads", kv_heads, 1, header.heads)?;
    let (kv_heads, keys) = (kv_heads as usize, keys as usize);
    let (head_dim, kv) = (header.head_dim as usize, codec::of_core(header.kv));
    Ok(SetShape { kv_heads, keys, head_dim, kv, state: 0, end })
}
