//! A payload in pieces: as its sources lie before it is cut into parts, as its parts came before
//! it is read. Nobody makes a copy of the whole.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// What is set aside for elements before they have come, in bytes; beyond it, as much as came.
const AHEAD_BYTES: usize = 4 << 20;

/// Bytes, one piece after the other; what is read is gone.
#[derive(Debug, Clone, Default)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Pieces {
    /// Appends a piece.
    pub fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    /// All bytes; copied if they are of several pieces.
    pub fn into_bytes(mut self) -> Bytes {
        self.copy_to_bytes(self.bytes)
    }

    /// Moves elements to the end of `values` until those are `count`, as far as there are bytes
    /// of whole ones; whether they are `count` now. An element may lie across pieces.
    pub fn drain<T, const N: usize>(
        &mut self,
        values: &mut Vec<T>,
        count: usize,
        of_bytes: impl Fn([u8; N]) -> T,
    ) -> bool {
        while values.len() < count && self.bytes >= N {
            let left = count - values.len();
            let words = self.chunk().as_chunks::<N>().0;
            let words = &words[..words.len().min(left)];
            if values.capacity() - values.len() < words.len().max(1) {
                let ahead = values.len().max(words.len()).max(AHEAD_BYTES / N);
                values.reserve_exact(left.min(ahead));
            }
            values.extend(words.iter().map(|&word| of_bytes(word)));
            match words.len() {
                0 => {
                    let mut word = [0; N];
                    self.copy_to_slice(&mut word);
                    values.push(of_bytes(word));
                }
                count => self.advance(N * count),
            }
        }
        values.len() >= count
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |first| first)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.bytes, "{count} bytes of {}", self.bytes);
        self.bytes -= count;
        while let Some(first) = self.pieces.front_mut() {
            if count < first.len() {
                return first.advance(count);
            }
            count -= first.len();
            self.pieces.pop_front();
        }
    }

    /// Without a copy where they are of one piece.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        assert!(count <= self.bytes, "{count} bytes of {}", self.bytes);
        match self.pieces.front_mut() {
            Some(first) if count < first.len() => {
                self.bytes -= count;
                first.split_to(count)
            }
            Some(first) if count == first.len() => {
                self.bytes -= count;
                self.pieces.pop_front().unwrap_or_default()
            }
            _ => {
                let mut bytes = BytesMut::with_capacity(count);
                bytes.put(self.take(count));
                bytes.freeze()
            }
        }
    }
}

impl From<Bytes> for Pieces {
    fn from(bytes: Bytes) -> Self {
        let mut pieces = Self::default();
        pieces.push(bytes);
        pieces
    }
}

impl From<Vec<u8>> for Pieces {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(pieces: &[Vec<u8>]) -> Pieces {
        let mut all = Pieces::default();
        pieces.iter().for_each(|piece| all.push(piece.clone().into()));
        all
    }

    #[test]
    fn what_is_of_one_piece_is_not_copied() {
        let piece = Bytes::from(vec![7; 100]);
        let mut pieces = Pieces::from(piece.clone());
        pieces.push(Bytes::from_static(b"more"));
        assert_eq!(pieces.copy_to_bytes(60).as_ptr(), piece.as_ptr());
        assert_eq!(pieces.copy_to_bytes(40).as_ptr(), piece[60..].as_ptr());
        assert_eq!(pieces.into_bytes(), "more");
    }

    #[test]
    fn memory_grows_by_what_came() {
        let mut pieces = Pieces::from(vec![1; 10]);
        let mut values: Vec<u32> = Vec::new();
        assert!(!pieces.drain(&mut values, usize::MAX / 8, u32::from_le_bytes));
        assert_eq!((values.len(), pieces.remaining()), (2, 2));
        assert!(values.capacity() <= AHEAD_BYTES / 4);
    }

    proptest! {
        #[test]
        fn however_they_are_cut_they_are_the_same_bytes(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
            cuts in prop::collection::vec(0usize..20, 0..9),
        ) {
            let whole = pieces.concat();
            prop_assert_eq!(of(&pieces).into_bytes(), whole.clone());
            let (mut left, mut seen) = (of(&pieces), Vec::new());
            for cut in cuts {
                let cut = cut.min(left.remaining());
                seen.extend_from_slice(&left.copy_to_bytes(cut));
                prop_assert_eq!(left.remaining(), whole.len() - seen.len());
            }
            seen.extend_from_slice(&left.into_bytes());
            prop_assert_eq!(seen, whole);
        }

        #[test]
        fn elements_come_as_they_would_of_one_piece(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
            count in 0usize..12,
        ) {
            let whole = pieces.concat();
            let want: Vec<u32> =
                whole.as_chunks().0.iter().map(|&w| u32::from_le_bytes(w)).take(count).collect();
            let (mut left, mut seen, mut done) = (Pieces::default(), Vec::new(), count == 0);
            for piece in pieces {
                prop_assert!(!done || seen.len() == count);
                left.push(piece.into());
                done = left.drain(&mut seen, count, u32::from_le_bytes);
            }
            prop_assert_eq!(&seen, &want);
            prop_assert_eq!(done, want.len() == count);
            prop_assert_eq!(left.remaining(), whole.len() - 4 * want.len());
        }
    }
}
