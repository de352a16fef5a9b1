//! Reads a file front to back; every length is checked against what is left.

use crate::error::GgufError;

/// Longest metadata key or tensor name, in bytes (the format's own bound).
const NAME_BYTES_MAX: u64 = 65_535;

/// A position in a file. Nothing is copied, so nothing is allocated on a file's word.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    file: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(file: &'a [u8]) -> Self {
        Self { file, offset: 0 }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset as u64
    }

    pub(crate) fn left(&self) -> u64 {
        (self.file.len() - self.offset) as u64
    }

    /// The next `bytes` bytes, which hold `what`.
    pub(crate) fn take(&mut self, bytes: u64, what: &str) -> Result<&'a [u8], GgufError> {
        if bytes > self.left() {
            let what = what.to_owned();
            let (offset, left) = (self.offset(), self.left());
            return Err(GgufError::Truncated { offset, what, needs: bytes, left });
        }
        let start = self.offset;
        self.offset += bytes as usize; // fits: not above what is left of a slice
        Ok(&self.file[start..self.offset])
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64, what)?);
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of things of which each takes at least `item_bytes` more bytes of the file.
    pub(crate) fn count(&mut self, item_bytes: u64, what: &str) -> Result<u64, GgufError> {
        let offset = self.offset();
        let count = self.u64(what)?;
        let needs = count.saturating_mul(item_bytes);
        if needs > self.left() {
            let left = self.left();
            return Err(GgufError::Truncated { offset, what: what.to_owned(), needs, left });
        }
        Ok(count)
    }

    /// A string: length, then UTF-8.
    pub(crate) fn string(&mut self, what: &str) -> Result<&'a str, GgufError> {
        let bytes = self.count(1, what)?;
        let offset = self.offset();
        let text = self.take(bytes, what)?;
        std::str::from_utf8(text).map_err(|err| GgufError::Malformed {
            offset: offset + err.valid_up_to() as u64,
            what: format!("{what} is not UTF-8"),
        })
    }

    /// A metadata key or a tensor name.
    pub(crate) fn name(&mut self, what: &str) -> Result<&'a str, GgufError> {
        let offset = self.offset();
        let name = self.string(what)?;
        let (value, bound) = (name.len() as u64, NAME_BYTES_MAX);
        if value > bound {
            let what = format!("length of {what}");
            return Err(GgufError::Bound { offset, what, value, bound });
        }
        Ok(name)
    }
}
