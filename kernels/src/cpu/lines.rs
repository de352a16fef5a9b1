//! Rows of sixteen, each a line of the cache, in memory that its thread keeps: a task writes tens
//! of KiB before it reads them, and neither asks the system for them nor clears them first.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable, cast_slice, cast_slice_mut};

use crate::cpu::simd::LANES;

/// Bytes that a thread keeps at most: keys and values of 1,024 keys of eight heads of 128 in
/// bf16, twice (past and own), and what a tile of rows needs besides.
const KEPT_BYTES: usize = 16 << 20;

/// Pieces that a thread keeps at most, the largest: one that drops what others made would gather
/// more and more, among which whoever wants one has to look.
const KEPT_PIECES: usize = 64;

#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    /// What this thread's rows stood in.
    static KEPT: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Rows of sixteen elements of four bytes that no read or write of a row tears apart.
pub(in crate::cpu) struct Lines<T> {
    /// The first `count` are the rows.
    lines: Vec<Line>,
    count: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> Lines<T> {
    /// `count` rows of zeros.
    pub(in crate::cpu) fn zeros(count: usize) -> Self {
        let mut lines = Self::left_over(count);
        lines.clear();
        lines
    }

    /// `count` rows, to be written before they are read: their content is left over from others.
    pub(in crate::cpu) fn left_over(count: usize) -> Self {
        let mut lines = Self::default();
        lines.resize(count);
        lines
    }

    /// `count` rows, of which those that are new are to be written before they are read.
    pub(in crate::cpu) fn resize(&mut self, count: usize) {
        let before = std::mem::replace(&mut self.count, count);
        if count > self.lines.len() {
            match self.lines.is_empty() {
                true => self.lines = taken(count),
                false => self.lines.resize(count, Line::zeroed()),
            }
        }
        if cfg!(debug_assertions) && before < count {
            self.lines[before..count].fill(Line([0xff; 64])); // NaN: tests see who reads it
        }
    }

    /// All rows become zeros.
    pub(in crate::cpu) fn clear(&mut self) {
        self.lines[..self.count].fill(Line::zeroed());
    }
}

/// The smallest memory that this thread keeps and that has room for `count` rows, or new one.
fn taken(count: usize) -> Vec<Line> {
    let kept = KEPT.with_borrow_mut(|kept| {
        let fits = kept.iter().enumerate().filter(|(_, lines)| lines.len() >= count);
        let (idx, _) = fits.min_by_key(|(_, lines)| lines.len())?;
        Some(kept.swap_remove(idx))
    });
    kept.unwrap_or_else(|| vec![Line::zeroed(); count])
}

impl<T> Drop for Lines<T> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        if lines.is_empty() {
            return;
        }
        // A thread that ends keeps nothing any more.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() == KEPT_PIECES {
                let sizes = kept.iter().map(Vec::len).enumerate();
                match sizes.min_by_key(|(_, size)| *size) {
                    Some((idx, size)) if size < lines.len() => drop(kept.swap_remove(idx)),
                    _ => return,
                }
            }
            let bytes = |lines: &Vec<Line>| size_of_val(lines.as_slice());
            if kept.iter().map(bytes).sum::<usize>() + bytes(&lines) <= KEPT_BYTES {
                kept.push(lines);
            }
        });
    }
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { lines: Vec::new(), count: 0, elements: PhantomData }
    }
}

impl<T: Pod> Deref for Lines<T> {
    type Target = [[T; LANES]];

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        cast_slice(&self.lines[..self.count])
    }
}

impl<T: Pod> DerefMut for Lines<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        cast_slice_mut(&mut self.lines[..self.count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again() {
        let lines = Lines::<f32>::zeros(40);
        let at = lines.as_ptr();
        drop(lines);
        let fewer = Lines::<u32>::left_over(30);
        assert_eq!((fewer.as_ptr().cast(), fewer.len()), (at, 30));
        assert_ne!(Lines::<f32>::left_over(30).as_ptr(), at, "in use");
        drop(fewer);
        assert_eq!(Lines::<f32>::zeros(40)[..], [[0.0; LANES]; 40], "cleared of what was there");
        assert_ne!(Lines::<f32>::left_over(41).as_ptr(), at, "too small");
    }

    #[test]
    fn rows_stay_while_others_come() {
        let mut lines = Lines::<f32>::zeros(2);
        lines[1][3] = 7.0;
        lines.resize(5000);
        assert_eq!((lines[1][3], lines.len()), (7.0, 5000));
        lines.resize(1);
        assert_eq!(lines.len(), 1);
    }

    #[test]
    fn a_thread_keeps_so_many_pieces() {
        let sizes = || KEPT.with_borrow(|kept| kept.iter().map(Vec::len).collect::<Vec<_>>());
        drop((1..=KEPT_PIECES).map(Lines::<f32>::left_over).collect::<Vec<_>>());
        drop([100, 1].map(Lines::<f32>::left_over));
        let mut kept = sizes();
        kept.sort_unstable();
        assert_eq!(kept, (2..=KEPT_PIECES).chain([100]).collect::<Vec<_>>(), "the largest stay");
    }

    #[test]
    fn a_thread_keeps_so_many_bytes() {
        let most = KEPT_BYTES / size_of::<Line>();
        drop([Lines::<f32>::left_over(most / 2), Lines::left_over(most / 2), Lines::left_over(1)]);
        let kept = KEPT.with_borrow(|kept| kept.iter().map(Vec::len).sum::<usize>());
        assert_eq!(kept, most);
        drop(Lines::<f32>::left_over(most + 1));
        assert_eq!(KEPT.with_borrow(|kept| kept.iter().map(Vec::len).max()), Some(most / 2));
    }
}
