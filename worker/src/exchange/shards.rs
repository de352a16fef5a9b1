//! Shards as bytes: each a list of memory sets, in the byte form of hand-offs.

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::work::CONVENTION;
use aqueduct_core::{ChunkKey, Epoch, Refusal};
use aqueduct_engine::shards::{Place, Shards};
use aqueduct_kernels::{MemorySet, Shard};
use aqueduct_proto::convert::call::{CallHeader, Kind};
use aqueduct_proto::convert::frame::SetHeader;

use super::bytes::{Reader, Writer};
use crate::link::codec;

/// Writes `held`, and their shape into `header`.
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
        for part in shard.parts() {
            writer.u32s([part.keys.kv_heads() as u32, part.keys.len() as u32, part.end]);
            writer.raw(&codec::encode(part));
        }
    }
    Ok(())
}

/// The shards that answer the ask about `place`.
pub(super) fn take(
    header: &CallHeader,
    reader: &mut Reader<'_>,
    place: &Place,
) -> Result<Shards, Refusal> {
    let count = place.shards.len() as u32;
    Refusal::unless_within("items", header.items, count, count)?;
    let mut shards = BTreeMap::new();
    for &(want, _) in place.shards.iter() {
        let chunk = reader.u32()?;
        Refusal::unless_within("chunk", chunk, want, want)?;
        let key = ChunkKey { request: place.request, chunk_idx: chunk, epoch: Epoch(0) };
        shards.insert(chunk, Arc::new(take_shard(header, reader, key)?));
    }
    Ok(shards)
}

fn take_shard(
    header: &CallHeader,
    reader: &mut Reader<'_>,
    key: ChunkKey,
) -> Result<Shard, Refusal> {
    let (end, count) = (reader.u32()?, reader.u32()?);
    Refusal::unless_within("parts", count, 1, header.heads.max(1))?;
    let parts =
        (0..count).map(|_| take_part(header, reader, key)).collect::<Result<Vec<_>, _>>()?;
    let shard = Shard::of_parts(parts, end);
    let (seen, want) = (shard.kv_heads() as u32, header.heads);
    Refusal::unless_within("kv_heads", seen, want, want)?;
    Ok(shard)
}

fn take_part(
    header: &CallHeader,
    reader: &mut Reader<'_>,
    key: ChunkKey,
) -> Result<MemorySet, Refusal> {
    let [kv_heads, keys, end] = [reader.u32()?, reader.u32()?, reader.u32()?];
    Refusal::unless_within("kv_heads", kv_heads, 1, header.heads)?;
    let (layer, kv, head_dim) = (header.block.layer, header.kv, header.head_dim);
    let set = SetHeader {
        key,
        layer,
        convention: CONVENTION,
        kv,
        kv_heads,
        head_dim,
        keys,
        end,
        spared: None,
    };
    let bytes = usize::try_from(set.payload_bytes()).unwrap_or(usize::MAX);
    codec::decode(&set, reader.raw(bytes)?)
}
