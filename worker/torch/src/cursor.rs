//! Reads a pickle front to back; every length is checked against what is left.

use crate::error::TorchError;

/// Longest module or name that is read to its end, in bytes.
const LINE_BYTES_MAX: usize = 256;

/// A position in a pickle. Nothing is copied, so nothing is allocated on its word.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    pickle: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(pickle: &'a [u8]) -> Self {
        Self { pickle, offset: 0 }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset as u64
    }

    pub(crate) fn take(&mut self, bytes: u64) -> Result<&'a [u8], TorchError> {
        let left = &self.pickle[self.offset..];
        let taken = usize::try_from(bytes).ok().and_then(|bytes| left.get(..bytes));
        let Some(taken) = taken else {
            let what = format!("needs {bytes} bytes, {} are left", left.len());
            return Err(TorchError::Pickle { offset: self.offset(), what });
        };
        self.offset += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TorchError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64)?);
        Ok(bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, TorchError> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, TorchError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, TorchError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, TorchError> {
        self.array().map(u64::from_le_bytes)
    }

    /// An integer of so many bytes that says its length.
    pub(crate) fn long(&mut self) -> Result<i64, TorchError> {
        let (offset, bytes) = (self.offset(), self.u8()?);
        if bytes > 8 {
            let what = format!("an integer of {bytes} bytes: must be at most 8");
            return Err(TorchError::Pickle { offset, what });
        }
        let taken = self.take(bytes.into())?;
        let mut all = [if taken.last().is_some_and(|last| *last >= 0x80) { 0xff } else { 0 }; 8];
        all[..taken.len()].copy_from_slice(taken);
        Ok(i64::from_le_bytes(all))
    }

    pub(crate) fn text(&mut self, bytes: u64) -> Result<&'a str, TorchError> {
        let offset = self.offset();
        let text = self.take(bytes)?;
        let not_text = |_| TorchError::Pickle { offset, what: "text that is not UTF-8".to_owned() };
        std::str::from_utf8(text).map_err(not_text)
    }

    /// What stands before the next end of a line.
    pub(crate) fn line(&mut self) -> Result<&'a str, TorchError> {
        let left = &self.pickle[self.offset..];
        let Some(end) = left.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n') else {
            let what = format!("a name that does not end within {LINE_BYTES_MAX} bytes");
            return Err(TorchError::Pickle { offset: self.offset(), what });
        };
        let line = self.text(end as u64)?;
        self.offset += 1;
        Ok(line)
    }
}
