//! A memory set without the keys and values that its receiver has.
//!
//! Sets of a request are nested: what the set after a chunk remembers of the tokens before the
//! end of an earlier one, the set after that one remembered too, with the same keys and values;
//! only scores, votes and states have changed. So a receiver that has given such a set itself, the
//! [`Base`], is sent positions, scores and votes of all keys, keys and values from the base's end
//! on, and the state. A checksum of the others says whether it has what the sender has.

use aqueduct_core::work::Base;
use aqueduct_core::{Refusal, WireDtype};
use aqueduct_kernels::tensor::KvData;
use aqueduct_kernels::{KvHeads, KvRow, MemorySet, SetShape};
use aqueduct_proto::convert::frame::{SetHeader, Spared};
use bytes::Bytes;
use crc32fast::Hasher;

use super::codec;

/// Why a set could not be put together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// What came is no part of a set.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The base is not what the sender takes it for: the whole set is needed.
    #[error("the base lacks a key, or has another")]
    Unlike,
}

/// Whether keys and values lie with the host, where they are put together. Sets that lie on a
/// device go whole, so that none is copied from there to be compared.
pub fn is_here(memory: &MemorySet) -> bool {
    let on_host = |heads: &KvHeads| match &heads.data {
        KvData::F32(data) => data.on_host().is_some(),
        KvData::Bf16(data) => data.on_host().is_some(),
    };
    memory.keys.pool().is_some() || (on_host(&memory.keys.k) && on_host(&memory.keys.v))
}

/// What of `memory` travels under `header` to a receiver that has `base`, and the header's word
/// for the rest; `None` where nothing is spared.
pub fn encode(memory: &MemorySet, header: &SetHeader, base: Base) -> Option<(Spared, Bytes)> {
    let shape = SetShape::of(memory);
    let held: Vec<usize> =
        (0..shape.kv_heads).map(|g| held(memory.keys.head_positions(g), base.end)).collect();
    if base.end > memory.end || held.iter().all(|&keys| keys == 0) {
        return None;
    }
    let whole = codec::encode(memory, header.wire);
    let (mut payload, mut crc32) = (Vec::with_capacity(whole.len()), Hasher::new());
    let (lists, rest) = whole.split_at(header.lists_bytes() as usize);
    let (rows, state) = rest.split_at(rest.len() - header.state_bytes() as usize);
    payload.extend_from_slice(lists);
    let row_bytes = header.row_bytes() as usize;
    for (head, held) in rows.chunks(shape.keys * row_bytes).zip(held.iter().cycle()) {
        let (held, rest) = head.split_at(held * row_bytes);
        crc32.update(held);
        payload.extend_from_slice(rest);
    }
    payload.extend_from_slice(state);
    let rows = held.iter().map(|held| (shape.keys - held) as u64).sum();
    Some((Spared { base, rows, crc32: crc32.finalize() }, payload.into()))
}

/// The set of which `payload` travelled, as [`codec::decode`] would have read the whole.
///
/// # Errors
/// [`DeltaError::Refused`] where `codec::decode` refuses, or `payload` is of another length or
/// of other rows than the header says; [`DeltaError::Unlike`] where `base` cannot supply the rest.
pub fn decode(
    header: &SetHeader,
    spared: &Spared,
    payload: &[u8],
    base: &MemorySet,
) -> Result<MemorySet, DeltaError> {
    let want = header.payload_bytes();
    Refusal::unless_within("payload", payload.len() as u64, want, want)?;
    let (shape, theirs) = (codec::shape(header), SetShape::of(base));
    let SetShape { keys, state, end, .. } = shape;
    if (SetShape { keys, state, end, ..theirs }) != shape {
        return Err(DeltaError::Unlike);
    }
    let (lists, mut rest) = payload.split_at(header.lists_bytes() as usize);
    let row_bytes = header.row_bytes() as usize;
    let held = held_rows(&shape, spared, lists, base)?;
    let (mut whole, mut crc32) = (Vec::with_capacity(shape.bytes()), Hasher::new());
    whole.extend_from_slice(lists);
    for heads in [&base.keys.k, &base.keys.v] {
        for rows in &held {
            let from = whole.len();
            rows.iter().for_each(|&row| put_row(&mut whole, heads, row, header.wire));
            crc32.update(&whole[from..]);
            let (own, later) = rest.split_at((shape.keys - rows.len()) * row_bytes);
            whole.extend_from_slice(own);
            rest = later;
        }
    }
    whole.extend_from_slice(rest); // the state
    if crc32.finalize() != spared.crc32 {
        return Err(DeltaError::Unlike);
    }
    Ok(codec::decode(&SetHeader { spared: None, ..*header }, whole.into())?)
}

/// For each KV head, rows of `base` for the keys that did not travel.
fn held_rows(
    shape: &SetShape,
    spared: &Spared,
    lists: &[u8],
    base: &MemorySet,
) -> Result<Vec<Vec<usize>>, DeltaError> {
    let positions: Vec<u32> =
        lists.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let row = |g: usize, position: &u32| {
        let found = base.keys.head_positions(g).binary_search(position);
        found.map(|j| base.keys.row(g, j)).map_err(|_| DeltaError::Unlike)
    };
    let head = |g: usize| {
        let positions = &positions[g * shape.keys..(g + 1) * shape.keys];
        positions[..held(positions, spared.base.end)].iter().map(|at| row(g, at)).collect()
    };
    let held = (0..shape.kv_heads).map(head).collect::<Result<Vec<Vec<_>>, _>>()?;
    let rows = held.iter().map(|held| (shape.keys - held.len()) as u64).sum();
    Refusal::unless_within("spared.rows", spared.rows, rows, rows)?;
    Ok(held)
}

/// How many of a KV head's positions are before `end`.
fn held(positions: &[u32], end: u32) -> usize {
    positions.partition_point(|&position| position < end)
}

fn put_row(bytes: &mut Vec<u8>, heads: &KvHeads, row: usize, wire: WireDtype) {
    match heads.row(row) {
        KvRow::F32(row) => codec::put_f32s(bytes, row, wire),
        KvRow::Bf16(row) => codec::put_bf16s(bytes, row),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::conformance::{key, nested};
    use aqueduct_core::Epoch;
    use aqueduct_kernels::Keys;
    use half::bf16;
    use proptest::prelude::*;

    fn base_of(base: &MemorySet) -> Base {
        Base { chunk_idx: 0, epoch: Epoch(0), end: base.end }
    }

    fn header(memory: &MemorySet, spared: Option<Spared>) -> SetHeader {
        SetHeader { spared, ..codec::header(key(1, 0), 0, memory) }
    }

    fn encode(memory: &MemorySet, base: Base) -> Option<(Spared, Bytes)> {
        super::encode(memory, &header(memory, None), base)
    }

    /// `memory` sent to somebody who has `theirs`.
    fn passed(memory: &MemorySet, theirs: &MemorySet) -> Result<MemorySet, DeltaError> {
        let (spared, payload) = encode(memory, base_of(theirs)).expect("something is spared");
        let header = header(memory, Some(spared));
        assert_eq!(payload.len() as u64, header.payload_bytes());
        decode(&header, &spared, &payload, theirs)
    }

    /// The same keys in other cells.
    fn scattered(memory: &MemorySet) -> MemorySet {
        let Keys { positions, k, v, .. } = &memory.keys;
        let cells = k.tokens as u32;
        let turned = |heads: &KvHeads| {
            let rows = heads.kv_heads * heads.tokens;
            let from = |row: usize| {
                row / heads.tokens * heads.tokens + heads.tokens - 1 - row % heads.tokens
            };
            let mut bytes = Vec::new();
            (0..rows).for_each(|row| put_row(&mut bytes, heads, from(row), WireDtype::F32));
            let data: Vec<f32> = bytes
                .as_chunks()
                .0
                .iter()
                .map(|&word| bf16::from_le_bytes(word).to_f32())
                .collect();
            KvHeads::from_f32(heads.kv_heads, heads.tokens, heads.head_dim, &data, heads.dtype())
        };
        let table = (0..k.kv_heads).flat_map(|_| (0..cells).rev()).collect();
        let keys = Keys::scattered(positions.clone(), turned(k), turned(v), table);
        MemorySet { keys, ..memory.clone() }
    }

    #[test]
    fn what_nothing_is_spared_of_goes_whole() {
        let [before, memory] = nested(4, 1);
        let base = base_of(&before);
        assert_eq!(encode(&memory, Base { end: 0, ..base }), None, "no key is so old");
        assert_eq!(encode(&memory, Base { end: memory.end + 1, ..base }), None, "no base yet");
        assert_eq!(
            encode(&MemorySet { end: 9, ..crate::link::conformance::set(0, 0) }, base),
            None
        );
        let (spared, payload) = encode(&memory, base_of(&memory)).unwrap();
        assert_eq!(spared.rows, 0, "who has the set itself is sent lists alone");
        assert_eq!(decode(&header(&memory, Some(spared)), &spared, &payload, &memory), Ok(memory));
    }

    #[test]
    fn a_state_travels_whole_whatever_the_receiver_has() {
        let [mut before, mut memory] = nested(8, 1);
        memory.state = vec![0.1, -0.0, 1e-40].into();
        for theirs in [vec![], vec![0.1, -0.0, 1e-40], vec![7.0; 5]] {
            before.state = theirs.into();
            assert_eq!(passed(&memory, &before), Ok(memory.clone()));
        }
    }

    #[test]
    fn another_base_is_noticed() {
        let [before, memory] = nested(8, 1);
        let check = |change: fn(&mut MemorySet)| {
            let mut theirs = before.clone();
            change(&mut theirs);
            assert_eq!(passed(&memory, &theirs), Err(DeltaError::Unlike));
        };
        check(|theirs| theirs.keys.positions[0] += 1); // lacks a key
        check(|theirs| theirs.keys = Keys::empty(2, 8, theirs.keys.k.dtype()));
        check(|theirs| theirs.keys = Keys::empty(1, 8, theirs.keys.k.dtype()));
        check(|theirs| {
            let KvData::Bf16(values) = &mut theirs.keys.v.data else { panic!() };
            let flip = |value: &mut bf16| *value = bf16::from_bits(value.to_bits() ^ 1);
            values.make_mut().iter_mut().for_each(flip);
        });
    }

    #[test]
    fn refuses_by_field() {
        let [before, memory] = nested(8, 1);
        let (spared, payload) = encode(&memory, base_of(&before)).unwrap();
        let refused = |spared: Spared, payload: &[u8]| match decode(
            &header(&memory, Some(spared)),
            &spared,
            payload,
            &before,
        )
        .unwrap_err()
        {
            DeltaError::Refused(refusal) => refusal.field,
            DeltaError::Unlike => "unlike".into(),
        };
        assert_eq!(refused(spared, &payload[1..]), "payload");
        let fewer = Spared { rows: spared.rows - 1, ..spared };
        let row = header(&memory, None).row_bytes() as usize;
        assert_eq!(refused(fewer, &payload[..payload.len() - 2 * row]), "spared.rows");
        let mut twice = payload.to_vec();
        twice.copy_within(6 * 4..7 * 4, 7 * 4); // the last position of KV head 0
        assert_eq!(refused(spared, &twice), "positions");
    }

    proptest! {
        #[test]
        fn gives_the_set_on_any_base_that_it_came_from(
            keys in 0u32..40, seed: u64, is_scattered: [bool; 2],
        ) {
            let [mut before, mut memory] = nested(keys, seed);
            let want = memory.clone();
            if is_scattered[0] {
                before = scattered(&before);
            }
            if is_scattered[1] {
                memory = scattered(&memory);
            }
            if encode(&memory, base_of(&before)).is_some() {
                prop_assert_eq!(passed(&memory, &before), Ok(want));
            }
        }

        #[test]
        fn garbage_is_no_set_and_never_panics(
            seed: u64, rows in 0u64..20, end in 1u32..40,
            payload in prop::collection::vec(any::<u8>(), 0..2000),
        ) {
            let [before, memory] = nested(8, seed);
            let spared = Spared { base: Base { end, ..base_of(&before) }, rows, crc32: 0 };
            let header = header(&memory, Some(spared));
            let mut payload = payload;
            payload.resize(header.payload_bytes() as usize, 7);
            prop_assert!(decode(&header, &spared, &payload, &before).is_err());
        }
    }
}
