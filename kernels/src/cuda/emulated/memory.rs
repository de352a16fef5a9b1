//! Memory of the emulated device: each array ends where the next byte may not be touched.

use std::collections::BTreeMap;

use super::super::device::{Address, Fault};

/// What is there before anybody wrote: NaN as f32 and as bf16.
const POISON: u8 = 0xff;
const ALIGNMENT: usize = 256;
const PAGE: usize = 4096;
static POISONED: [u8; PAGE] = [POISON; PAGE];

/// Live arrays by their address.
#[derive(Default)]
pub(super) struct Memory {
    arrays: BTreeMap<u64, Pages>,
}

impl Memory {
    pub(super) fn allocate(&mut self, bytes: usize) -> Result<Address, Fault> {
        let pages = Pages::new(bytes)?;
        let at = pages.at();
        self.arrays.insert(at, pages);
        Ok(Address(at))
    }

    pub(super) fn release(&mut self, at: Address) {
        self.arrays.remove(&at.0);
    }

    pub(super) fn write(&mut self, to: Address, from: &[u8]) -> Result<(), Fault> {
        let (pages, offset) = self.find("write", to, from.len())?;
        // SAFETY: `find` has made sure that the bytes are inside of a live array, which nobody
        // else uses while the caller holds this.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), pages.byte(offset), from.len()) };
        Ok(())
    }

    pub(super) fn read(&self, from: Address, to: &mut [u8]) -> Result<(), Fault> {
        let (pages, offset) = self.find("read", from, to.len())?;
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(pages.byte(offset), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Whether `bytes` from `at` are all of one array.
    pub(super) fn holds(&self, at: Address, bytes: usize) -> Result<(), Fault> {
        self.find("an address", at, bytes).map(|_| ())
    }

    /// What is wrong around the arrays after a kernel ran.
    pub(super) fn check(&self) -> Result<(), String> {
        let written = self.arrays.values().find(|pages| pages.is_overrun());
        written.map_or(Ok(()), |pages| {
            Err(format!("bytes around an array of {} bytes were written", pages.bytes))
        })
    }

    /// `what` with the array that is next to the address in it.
    pub(super) fn explain(&self, what: &str) -> String {
        let digits = what.split("address 0x").nth(1).and_then(|rest| rest.split(' ').next());
        let Some(touched) = digits.and_then(|it| u64::from_str_radix(it, 16).ok()) else {
            return what.to_owned();
        };
        let near = self.arrays.range(..=touched).next_back();
        near.map_or_else(
            || what.to_owned(),
            |(at, pages)| {
                let offset = touched - at;
                format!("{what}; that is byte {offset} of an array of {} bytes", pages.bytes)
            },
        )
    }

    fn find(&self, call: &str, at: Address, bytes: usize) -> Result<(&Pages, usize), Fault> {
        let near = self.arrays.range(..=at.0).next_back();
        let inside = near.map(|(start, pages)| (pages, (at.0 - start) as usize));
        inside.filter(|(pages, offset)| offset + bytes <= pages.bytes).ok_or_else(|| {
            Fault::new(call, format!("no array holds {bytes} bytes at 0x{:x}", at.0))
        })
    }
}

/// An array at the end of its own pages, with a page before and after that nobody may touch.
struct Pages {
    map: *mut libc::c_void,
    map_bytes: usize,
    bytes: usize,
}

// SAFETY: the pages belong to this value alone.
unsafe impl Send for Pages {}

impl Pages {
    fn new(bytes: usize) -> Result<Self, Fault> {
        let inner = bytes.max(1).next_multiple_of(PAGE);
        let map_bytes = inner + 2 * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping overlaps no other.
        let map = unsafe { libc::mmap(none, map_bytes, libc::PROT_NONE, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(Fault::new("allocate", std::io::Error::last_os_error()));
        }
        let pages = Self { map, map_bytes, bytes };
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is inside of the mapping, whose first and last page stay closed.
        let opened = unsafe { libc::mprotect(map.byte_add(PAGE), inner, rights) };
        if opened != 0 {
            return Err(Fault::new("allocate", std::io::Error::last_os_error()));
        }
        // SAFETY: the range was opened for writing.
        unsafe { map.byte_add(PAGE).cast::<u8>().write_bytes(POISON, inner) };
        Ok(pages)
    }

    /// Address of the array.
    fn at(&self) -> u64 {
        let room = self.bytes.max(1).next_multiple_of(ALIGNMENT);
        (self.map as usize + self.map_bytes - PAGE - room) as u64
    }

    /// Byte `offset` of the array.
    fn byte(&self, offset: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.at() as usize + offset)
    }

    /// Whether anything but poison stands between the array and the closed pages.
    fn is_overrun(&self) -> bool {
        let opened = self.map as usize + PAGE;
        let (start, end) = (self.at() as usize, self.map as usize + self.map_bytes - PAGE);
        let outside = [(opened, start), (start + self.bytes, end)];
        outside.into_iter().any(|(from, to)| {
            let pointer = std::ptr::with_exposed_provenance::<u8>(from);
            // SAFETY: all between the closed pages is open, and was written when it was mapped.
            let around = unsafe { std::slice::from_raw_parts(pointer, to - from) };
            around.chunks(PAGE).any(|part| part != &POISONED[..part.len()])
        })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and it goes with it.
        unsafe { libc::munmap(self.map, self.map_bytes) };
    }
}
