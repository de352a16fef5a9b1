//! Numbers as bytes, little endian and without padding, and back.

use aqueduct_core::{Refusal, WireDtype};
use aqueduct_proto::convert::call::CallHeader;
use aqueduct_proto::convert::pieces::Pieces;
use bytes::{Buf, Bytes};
use half::{bf16, f16};

use super::codec::Message;

/// Elements that are looked at and moved in one go: few enough to lie in the nearest cache.
const BLOCK: usize = 2048;

/// Appends numbers.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// What stands before `bytes`.
    pieces: Pieces,
    bytes: Vec<u8>,
}

impl Writer {
    /// The message of what was written.
    pub(super) fn finish(mut self, header: CallHeader) -> Message {
        self.pieces.push(self.bytes.into());
        (CallHeader { bytes: self.pieces.remaining() as u64, ..header }, self.pieces)
    }

    /// Appends `bytes` as they lie.
    pub(super) fn piece(&mut self, bytes: Bytes) {
        self.pieces.push(std::mem::take(&mut self.bytes).into());
        self.pieces.push(bytes);
    }

    pub(super) fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve_exact(bytes);
    }

    pub(super) fn u32s(&mut self, values: impl IntoIterator<Item = u32>) {
        values.into_iter().for_each(|value| self.bytes.extend_from_slice(&value.to_le_bytes()));
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn f64s(&mut self, values: impl IntoIterator<Item = f64>) {
        values.into_iter().for_each(|value| self.bytes.extend_from_slice(&value.to_le_bytes()));
    }

    pub(super) fn f32s(&mut self, values: &[f32]) {
        self.put(values, f32::to_le_bytes);
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// As much of `text` as fits.
    pub(super) fn text(&mut self, text: &str, most: usize) {
        self.raw(&text.as_bytes()[..text.floor_char_boundary(most)]);
    }

    /// `values` as `dtype`, rounded to nearest even.
    ///
    /// # Errors
    /// A value that `dtype` cannot hold.
    pub(super) fn elements(
        &mut self,
        field: &str,
        values: &[f32],
        dtype: WireDtype,
    ) -> Result<(), Refusal> {
        let most = dtype.most();
        self.bytes.reserve(values.len() * dtype.bytes());
        for block in values.chunks(BLOCK) {
            if let Some(value) = beyond(block, most) {
                return Err(Refusal::new(field, value, format!("a number that {dtype} can hold")));
            }
            match dtype {
                WireDtype::F32 => self.f32s(block),
                WireDtype::Bf16 => self.put(block, |value| bf16::from_f32(value).to_le_bytes()),
                WireDtype::F16 => self.put(block, |value| f16::from_f32(value).to_le_bytes()),
            }
        }
        Ok(())
    }

    /// Element by element into a slice of known length, which compiles to a copy.
    fn put<const N: usize>(&mut self, values: &[f32], to_bytes: impl Fn(f32) -> [u8; N]) {
        let start = self.bytes.len();
        self.bytes.resize(start + N * values.len(), 0);
        let (places, _) = self.bytes[start..].as_chunks_mut::<N>();
        for (place, &value) in places.iter_mut().zip(values) {
            *place = to_bytes(value);
        }
    }
}

/// A value that is no number, or is greater than `most` or less than `-most`. Looks at all of
/// them and only then for the one, which the compiler makes one pass without a branch of.
fn beyond(values: &[f32], most: f32) -> Option<f32> {
    let fits = |value: &f32| value.abs() <= most;
    if values.iter().fold(true, |all, value| all & fits(value)) {
        return None;
    }
    values.iter().copied().find(|value| !fits(value))
}

/// Reads what a [`Writer`] wrote; what is missing is an error.
#[derive(Debug)]
pub(super) struct Reader {
    payload: Pieces,
}

impl Reader {
    pub(super) fn new(payload: Pieces) -> Self {
        Self { payload }
    }

    /// Nothing may be left.
    pub(super) fn finish(self) -> Result<(), Refusal> {
        Refusal::unless_within("payload", self.payload.remaining(), 0, 0)
            .map(drop)
            .map_err(|refusal| Refusal { field: "payload.rest".to_owned(), ..refusal })
    }

    /// What is not read yet.
    pub(super) fn rest(&mut self) -> &mut Pieces {
        &mut self.payload
    }

    fn one<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        self.has(N)?;
        let mut word = [0; N];
        self.payload.copy_to_slice(&mut word);
        Ok(word)
    }

    fn has(&self, bytes: usize) -> Result<(), Refusal> {
        match self.payload.remaining() {
            left if left < bytes => Err(missing(left, bytes)),
            _ => Ok(()),
        }
    }

    pub(super) fn u32(&mut self) -> Result<u32, Refusal> {
        self.one().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Refusal> {
        self.one().map(u64::from_le_bytes)
    }

    pub(super) fn f32(&mut self) -> Result<f32, Refusal> {
        self.one().map(f32::from_le_bytes)
    }

    pub(super) fn f64(&mut self) -> Result<f64, Refusal> {
        self.one().map(f64::from_le_bytes)
    }

    pub(super) fn u32s(&mut self, count: usize) -> Result<Vec<u32>, Refusal> {
        self.take(count, u32::from_le_bytes, |_| Ok(()))
    }

    pub(super) fn f32s(&mut self, count: usize) -> Result<Vec<f32>, Refusal> {
        self.take(count, f32::from_le_bytes, |_| Ok(()))
    }

    /// Numbers that are neither infinite nor none.
    pub(super) fn finite(&mut self, field: &str, count: usize) -> Result<Vec<f32>, Refusal> {
        self.elements(field, count, WireDtype::F32)
    }

    /// The same, of `dtype`.
    pub(super) fn elements(
        &mut self,
        field: &str,
        count: usize,
        dtype: WireDtype,
    ) -> Result<Vec<f32>, Refusal> {
        let finite = |values: &[f32]| match beyond(values, f32::MAX) {
            Some(value) => Err(Refusal::new(field, value, "finite")),
            None => Ok(()),
        };
        match dtype {
            WireDtype::F32 => self.take(count, f32::from_le_bytes, finite),
            WireDtype::Bf16 => self.take(count, |word| bf16::from_le_bytes(word).to_f32(), finite),
            WireDtype::F16 => self.take(count, |word| f16::from_le_bytes(word).to_f32(), finite),
        }
    }

    /// Elements, which `check` sees a block at a time.
    fn take<T, const N: usize>(
        &mut self,
        count: usize,
        of_bytes: impl Fn([u8; N]) -> T,
        check: impl Fn(&[T]) -> Result<(), Refusal>,
    ) -> Result<Vec<T>, Refusal> {
        self.has(count.saturating_mul(N))?;
        let mut values = Vec::with_capacity(count);
        while values.len() < count {
            let before = values.len();
            self.payload.drain(&mut values, count.min(before + BLOCK), &of_bytes);
            check(&values[before..])?;
        }
        Ok(values)
    }
}

/// A payload that ends too early.
pub(super) fn missing(left: usize, want: usize) -> Refusal {
    Refusal::new("payload", left, format!("at least {want} more bytes"))
}
