//! A memory set as bytes, as docs/WIRE.md lays them out.

use std::ops::Range;

use aqueduct_core::work::CONVENTION;
use aqueduct_core::{ChunkKey, Refusal, WireDtype};
use aqueduct_kernels::tensor::KvData;
use aqueduct_kernels::{Keys, KvDtype, KvHeads, MemorySet, SetShape};
use aqueduct_proto::convert::frame::SetHeader;
use aqueduct_proto::convert::pieces::Pieces;
use bytes::Bytes;
use half::{bf16, f16};

/// The header under which the whole of `memory` travels.
pub fn header(key: ChunkKey, layer: u32, memory: &MemorySet) -> SetHeader {
    SetHeader {
        key,
        layer,
        convention: CONVENTION,
        kv: to_core(memory.keys.k.dtype()),
        kv_heads: memory.keys.kv_heads() as u32,
        head_dim: memory.keys.k.head_dim as u32,
        keys: memory.keys.len() as u32,
        state: memory.state.len() as u32,
        end: memory.end,
        wire: WireDtype::F32,
        spared: None,
    }
}

/// The shape of the set that `header` is about.
pub fn shape(header: &SetHeader) -> SetShape {
    SetShape {
        kv_heads: header.kv_heads as usize,
        keys: header.keys as usize,
        head_dim: header.head_dim as usize,
        kv: of_core(header.kv),
        state: header.state as usize,
        end: header.end,
    }
}

/// Positions, scores, votes, keys, values, state; little endian, no padding. Keys and values of
/// f32 are rounded to `wire`, which loses nothing of a set that was rounded to it before it was
/// given. A state is f32 always.
pub fn encode(memory: &MemorySet, wire: WireDtype) -> Bytes {
    let keys = memory.keys.in_order();
    let mut bytes = encode_lists(memory);
    bytes.reserve_exact(keys.k.bytes() + keys.v.bytes() + memory.state.bytes());
    for heads in [&keys.k, &keys.v] {
        match &heads.data {
            KvData::F32(data) => put_f32s(&mut bytes, data, wire),
            KvData::Bf16(data) => put_bf16s(&mut bytes, data),
        }
    }
    put(&mut bytes, &memory.state, f32::to_le_bytes);
    bytes.into()
}

/// Keys or values of f32, as `wire`.
pub(super) fn put_f32s(bytes: &mut Vec<u8>, values: &[f32], wire: WireDtype) {
    match wire {
        WireDtype::F32 => put(bytes, values, f32::to_le_bytes),
        WireDtype::Bf16 => put(bytes, values, |x| bf16::from_f32(x).to_le_bytes()),
        WireDtype::F16 => put(bytes, values, |x| f16::from_f32(x).to_le_bytes()),
    }
}

/// Keys or values of bf16.
pub(super) fn put_bf16s(bytes: &mut Vec<u8>, values: &[bf16]) {
    put(bytes, values, bf16::to_le_bytes);
}

/// Positions, scores and votes: the beginning of what [`encode`] makes.
pub fn encode_lists(memory: &MemorySet) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(3 * size_of::<u32>() * memory.keys.positions.len());
    put(&mut bytes, &memory.keys.positions, u32::to_le_bytes);
    put(&mut bytes, &memory.score, f32::to_le_bytes);
    put(&mut bytes, &memory.votes, f32::to_le_bytes);
    bytes
}

/// The set that `payload` spells under `header`.
///
/// # Errors
/// Another length than the header implies, and what [`validate`] refuses.
pub fn decode(header: &SetHeader, payload: Bytes) -> Result<MemorySet, Refusal> {
    let want = header.payload_bytes();
    Refusal::unless_within("payload", payload.len() as u64, want, want)?;
    let mut filling = Filling::new(shape(header), header.wire);
    filling.take(&mut payload.into());
    filling.finish()
}

/// A set that is read as its bytes come.
#[derive(Debug)]
pub(crate) struct Filling {
    shape: SetShape,
    positions: Vec<u32>,
    score: Vec<f32>,
    votes: Vec<f32>,
    k: Elements,
    v: Elements,
    state: Vec<f32>,
}

/// Keys or values, as they are stored and as they come.
#[derive(Debug)]
enum Elements {
    F32(Vec<f32>, WireDtype),
    Bf16(Vec<bf16>),
}

impl Elements {
    fn new(kv: KvDtype, wire: WireDtype) -> Self {
        match kv {
            KvDtype::F32 => Self::F32(Vec::new(), wire),
            KvDtype::Bf16 => Self::Bf16(Vec::new()),
        }
    }

    fn take(&mut self, payload: &mut Pieces, count: usize) -> bool {
        match self {
            Self::F32(data, WireDtype::F32) => payload.drain(data, count, f32::from_le_bytes),
            Self::F32(data, WireDtype::Bf16) => {
                payload.drain(data, count, |word| bf16::from_le_bytes(word).to_f32())
            }
            Self::F32(data, WireDtype::F16) => {
                payload.drain(data, count, |word| f16::from_le_bytes(word).to_f32())
            }
            Self::Bf16(data) => payload.drain(data, count, bf16::from_le_bytes),
        }
    }

    fn finish(self) -> KvData {
        match self {
            Self::F32(data, _) => KvData::F32(data.into()),
            Self::Bf16(data) => KvData::Bf16(data.into()),
        }
    }
}

impl Filling {
    /// A set of `shape`, of which nothing has come; f32 keys and values come as `wire`.
    pub(crate) fn new(shape: SetShape, wire: WireDtype) -> Self {
        let elements = || Elements::new(shape.kv, wire);
        let (k, v) = (elements(), elements());
        let (positions, score, votes, state) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { shape, positions, score, votes, k, v, state }
    }

    /// Reads on as far as `payload` and the set go; whether the set is whole.
    pub(crate) fn take(&mut self, payload: &mut Pieces) -> bool {
        let count = self.shape.kv_heads * self.shape.keys;
        let elements = count * self.shape.head_dim;
        payload.drain(&mut self.positions, count, u32::from_le_bytes)
            && payload.drain(&mut self.score, count, f32::from_le_bytes)
            && payload.drain(&mut self.votes, count, f32::from_le_bytes)
            && self.k.take(payload, elements)
            && self.v.take(payload, elements)
            && payload.drain(&mut self.state, self.shape.state, f32::from_le_bytes)
    }

    /// The set, which is whole.
    ///
    /// # Errors
    /// As [`validate`].
    pub(crate) fn finish(self) -> Result<MemorySet, Refusal> {
        let SetShape { kv_heads, keys: tokens, head_dim, end, .. } = self.shape;
        let heads = |data: Elements| KvHeads { kv_heads, tokens, head_dim, data: data.finish() };
        let memory = MemorySet {
            keys: Keys::new(self.positions, heads(self.k), heads(self.v)),
            score: self.score.into(),
            votes: self.votes.into(),
            state: self.state.into(),
            end,
        };
        validate(&memory)?;
        Ok(memory)
    }
}

/// Checks what can be wrong with a set of the right shape.
///
/// # Errors
/// Positions that do not ascend below `end`, scores or votes that are not finite or below 0, a
/// state that is not finite.
pub fn validate(memory: &MemorySet) -> Result<(), Refusal> {
    for g in 0..memory.keys.kv_heads() {
        let positions = memory.keys.head_positions(g);
        if let Some(pair) = positions.windows(2).find(|pair| pair[0] >= pair[1]) {
            let bound = format!("ascending within KV head {g}");
            return Err(Refusal::new("positions", format!("{pair:?}"), bound));
        }
        if let Some(&last) = positions.last().filter(|&&last| last >= memory.end) {
            return Err(Refusal::new("positions", last, format!("below end = {}", memory.end)));
        }
    }
    for (field, values) in [("score", &memory.score), ("votes", &memory.votes)] {
        if let Some(value) = values.iter().find(|&&value| !(0.0..=f32::MAX).contains(&value)) {
            return Err(Refusal::new(field, value, "finite and at least 0"));
        }
    }
    match memory.state.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(Refusal::new("state", value, "finite")),
        None => Ok(()),
    }
}

/// Element by element into a slice of known length, which compiles to a copy.
fn put<T: Copy, const N: usize>(
    bytes: &mut Vec<u8>,
    values: &[T],
    to_bytes: impl Fn(T) -> [u8; N],
) {
    let Range { start, end } = bytes.len()..bytes.len() + N * values.len();
    bytes.resize(end, 0);
    let (places, _) = bytes[start..].as_chunks_mut::<N>();
    for (place, &value) in places.iter_mut().zip(values) {
        *place = to_bytes(value);
    }
}

/// A dtype of `aqueduct-core` in the words of the kernels.
pub(crate) fn of_core(kv: aqueduct_core::KvDtype) -> KvDtype {
    match kv {
        aqueduct_core::KvDtype::F32 => KvDtype::F32,
        aqueduct_core::KvDtype::Bf16 => KvDtype::Bf16,
    }
}

/// A dtype in the words of `aqueduct-core`.
pub fn to_core(kv: KvDtype) -> aqueduct_core::KvDtype {
    match kv {
        KvDtype::F32 => aqueduct_core::KvDtype::F32,
        KvDtype::Bf16 => aqueduct_core::KvDtype::Bf16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::conformance::{key, set, state};
    use aqueduct_kernels::Array;
    use proptest::prelude::*;

    #[test]
    fn keeps_every_bit() {
        let check = |memory: MemorySet| {
            let header = header(key(1, 0), 0, &memory);
            let bytes = encode(&memory, WireDtype::F32);
            assert_eq!(bytes.len() as u64, header.payload_bytes());
            assert_eq!(decode(&header, bytes), Ok(memory));
        };
        check(set(0, 1));
        check(set(1, 2));
        check(set(300, 3));
        check(state(1));
        let odd = [f32::MIN_POSITIVE / 2.0, -0.0, 1e38, 0.1, 7.0, -1e-30];
        check(MemorySet {
            keys: Keys::new(
                vec![3, 9, 4],
                KvHeads::from_f32(3, 1, 2, &odd, KvDtype::F32),
                KvHeads::from_f32(3, 1, 2, &odd, KvDtype::F32),
            ),
            score: vec![0.0, 1e-20, 5.0].into(),
            votes: vec![1.0, 2.0, 3.0].into(),
            state: Array::default(),
            end: 10,
        });
        let odd = Array::from(odd.to_vec());
        check(MemorySet { state: odd, ..MemorySet::empty(2, 8, KvDtype::Bf16) });
    }

    #[test]
    fn a_state_is_not_rounded() {
        let mut memory = MemorySet::empty(2, 8, KvDtype::F32);
        memory.state = vec![0.1, -1e-30].into();
        for wire in [WireDtype::Bf16, WireDtype::F16] {
            let header = SetHeader { wire, ..header(key(1, 0), 0, &memory) };
            assert_eq!(decode(&header, encode(&memory, wire)), Ok(memory.clone()), "{wire}");
        }
    }

    #[test]
    fn cells_travel_in_order_of_position() {
        let rows = |data: &[f32]| KvHeads::from_f32(1, data.len(), 1, data, KvDtype::F32);
        let set = |keys| MemorySet {
            keys,
            score: vec![0.0; 3].into(),
            votes: vec![1.0; 3].into(),
            state: Array::default(),
            end: 9,
        };
        let lain = set(Keys::new(vec![2, 5, 7], rows(&[1.0, 2.0, 3.0]), rows(&[4.0, 5.0, 6.0])));
        let (k, v) = (rows(&[3.0, 1.0, 2.0, 8.0]), rows(&[6.0, 4.0, 5.0, 8.0]));
        let moved = set(Keys::scattered(vec![2, 5, 7], k, v, vec![1, 2, 0]));
        assert_eq!(encode(&moved, WireDtype::F32), encode(&lain, WireDtype::F32));
    }

    #[test]
    fn refuses_by_field() {
        let check_of = |mut memory: MemorySet, change: fn(&mut MemorySet), field: &str| {
            change(&mut memory);
            let header = header(key(1, 0), 0, &memory);
            let bytes = encode(&memory, WireDtype::F32);
            assert_eq!(decode(&header, bytes).unwrap_err().field, field);
        };
        let check = |change: fn(&mut MemorySet), field: &str| check_of(set(4, 1), change, field);
        check(|memory| memory.keys.positions.swap(0, 1), "positions");
        check(|memory| memory.end = 1, "positions");
        check(|memory| memory.score[0] = f32::NAN, "score");
        check(|memory| memory.score[0] = -1.0, "score");
        check(|memory| memory.votes[0] = f32::INFINITY, "votes");
        check_of(state(1), |memory| memory.state[0] = f32::NAN, "state");
        check_of(state(1), |memory| memory.state[1] = f32::NEG_INFINITY, "state");
        let header = header(key(1, 0), 0, &set(4, 1));
        assert_eq!(decode(&header, Bytes::from_static(b"short")).unwrap_err().field, "payload");
    }

    proptest! {
        #[test]
        fn states_come_back_bit_for_bit_or_are_refused(
            bits in prop::collection::vec(any::<u32>(), 0..50), end: u32,
        ) {
            let mut memory = MemorySet { end, ..MemorySet::empty(2, 8, KvDtype::Bf16) };
            memory.state = bits.iter().copied().map(f32::from_bits).collect();
            let header = header(key(1, 0), 0, &memory);
            let bytes = encode(&memory, WireDtype::F32);
            prop_assert_eq!(bytes.len() as u64, header.payload_bytes());
            let is_finite = memory.state.iter().all(|value| value.is_finite());
            let read = decode(&header, bytes).map(|read| {
                read.state.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            });
            prop_assert_eq!(read.ok(), is_finite.then_some(bits));
        }

        #[test]
        fn garbage_of_the_right_length_never_panics(
            seed: u64, keys in 0u32..9, state in 0u32..9, end: u32,
        ) {
            let header = SetHeader { keys, state, end, ..header(key(1, 0), 0, &set(4, 1)) };
            let mut state = seed;
            let bytes: Vec<u8> = (0..header.payload_bytes())
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    (state >> 33) as u8
                })
                .collect();
            if let Ok(memory) = decode(&header, bytes.clone().into()) {
                prop_assert_eq!(encode(&memory, WireDtype::F32).to_vec(), bytes);
            }
        }
    }
}
