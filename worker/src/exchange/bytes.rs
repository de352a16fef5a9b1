//! Numbers as bytes, little endian and without padding, and back.

use aqueduct_core::{Refusal, WireDtype};
use aqueduct_proto::convert::call::CallHeader;
use half::{bf16, f16};

use super::codec::Message;

/// Appends numbers.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// The message of what was written.
    pub(super) fn finish(self, header: CallHeader) -> Message {
        (CallHeader { bytes: self.bytes.len() as u64, ..header }, self.bytes.into())
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
        // Of the greatest value that does not round to infinity.
        let (most, name) = match dtype {
            WireDtype::F32 => (f32::MAX, "f32"),
            WireDtype::Bf16 => (f32::from_bits(0x7f7f_7fff), "bf16"),
            WireDtype::F16 => (65519.996, "f16"),
        };
        if let Some(value) = values.iter().find(|value| value.is_nan() || value.abs() > most) {
            return Err(Refusal::new(field, value, format!("a number that {name} can hold")));
        }
        match dtype {
            WireDtype::F32 => self.f32s(values),
            WireDtype::Bf16 => self.put(values, |value| bf16::from_f32(value).to_le_bytes()),
            WireDtype::F16 => self.put(values, |value| f16::from_f32(value).to_le_bytes()),
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

/// Reads what a [`Writer`] wrote; what is missing is an error.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Nothing may be left.
    pub(super) fn finish(self) -> Result<(), Refusal> {
        Refusal::unless_within("payload", self.bytes.len(), 0, 0)
            .map(drop)
            .map_err(|refusal| Refusal { field: "payload.rest".to_owned(), ..refusal })
    }

    /// The next `count` bytes.
    pub(super) fn raw(&mut self, count: usize) -> Result<&'a [u8], Refusal> {
        let Some((now, later)) = self.bytes.split_at_checked(count) else {
            let bound = format!("at least {count} more bytes");
            return Err(Refusal::new("payload", self.bytes.len(), bound));
        };
        self.bytes = later;
        Ok(now)
    }

    fn one<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        self.raw(N)?.try_into().map_err(|_| Refusal::new("payload", N, "as many bytes"))
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
        self.take(count, u32::from_le_bytes)
    }

    pub(super) fn f32s(&mut self, count: usize) -> Result<Vec<f32>, Refusal> {
        self.take(count, f32::from_le_bytes)
    }

    /// Numbers that are neither infinite nor none.
    pub(super) fn finite(&mut self, field: &str, count: usize) -> Result<Vec<f32>, Refusal> {
        finite(field, self.f32s(count)?)
    }

    /// The same, of `dtype`.
    pub(super) fn elements(
        &mut self,
        field: &str,
        count: usize,
        dtype: WireDtype,
    ) -> Result<Vec<f32>, Refusal> {
        let values = match dtype {
            WireDtype::F32 => self.f32s(count),
            WireDtype::Bf16 => self.take(count, |word| bf16::from_le_bytes(word).to_f32()),
            WireDtype::F16 => self.take(count, |word| f16::from_le_bytes(word).to_f32()),
        };
        finite(field, values?)
    }

    fn take<T, const N: usize>(
        &mut self,
        count: usize,
        of_bytes: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Refusal> {
        let bytes = self.raw(count.saturating_mul(N))?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|&word| of_bytes(word)).collect())
    }
}

fn finite(field: &str, values: Vec<f32>) -> Result<Vec<f32>, Refusal> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(Refusal::new(field, value, "finite")),
        None => Ok(values),
    }
}
