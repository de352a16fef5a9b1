//! Where rows of heads are written.

use std::mem::MaybeUninit;

use half::bf16;

use crate::cpu::simd::{LANES, Simd, Vector, load_front};
use crate::cpu::unwritten::{unwritten, written};
use crate::tensor::{KvData, KvDtype};

/// Keys or values to be written.
pub(super) enum Kv {
    F32(Vec<MaybeUninit<f32>>),
    Bf16(Vec<MaybeUninit<bf16>>),
}

impl Kv {
    /// So many of them.
    pub(super) fn new(elements: usize, dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::F32 => Self::F32(unwritten(elements)),
            KvDtype::Bf16 => Self::Bf16(unwritten(elements)),
        }
    }

    /// Where they go.
    pub(super) fn stored(&mut self) -> Stored<'_> {
        match self {
            Self::F32(data) => Stored::F32(data),
            Self::Bf16(data) => Stored::Bf16(data),
        }
    }

    /// What was written.
    ///
    /// # Safety
    /// All elements were.
    pub(super) unsafe fn written(self) -> KvData {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::F32(data) => KvData::F32(written(data).into()),
                Self::Bf16(data) => KvData::Bf16(written(data).into()),
            }
        }
    }
}

/// Where rows go: `[rows, head_dim]`, nothing of which is written yet.
pub(super) enum Stored<'a> {
    F32(&'a mut [MaybeUninit<f32>]),
    /// f32 that is written past the caches.
    Past(&'a mut [MaybeUninit<f32>]),
    Bf16(&'a mut [MaybeUninit<bf16>]),
}

impl<'a> Stored<'a> {
    /// In pieces of so many elements.
    pub(super) fn pieces(mut self, size: usize) -> impl Iterator<Item = Self> {
        let size = size.max(1);
        std::iter::from_fn(move || match &mut self {
            Self::F32([]) | Self::Past([]) | Self::Bf16([]) => None,
            Self::Past(data) => data.split_off_mut(..size.min(data.len())).map(Self::Past),
            Self::F32(data) => data.split_off_mut(..size.min(data.len())).map(Self::F32),
            Self::Bf16(data) => data.split_off_mut(..size.min(data.len())).map(Self::Bf16),
        })
    }

    /// Writes a row of whole vectors from element `first` on.
    #[inline(always)]
    pub(super) fn write<S: Simd, const N: usize>(
        &mut self,
        simd: S,
        first: usize,
        row: &[S::V; N],
    ) {
        let span = first..first + N * LANES;
        match self {
            Self::F32(to) => {
                for (to, x) in to[span].as_chunks_mut().0.iter_mut().zip(row) {
                    x.store(filled(to, 0.0));
                }
            }
            Self::Past(to) => {
                for (to, x) in to[span].as_chunks_mut::<LANES>().0.iter_mut().zip(row) {
                    // SAFETY: sixteen elements, which are written and not read.
                    simd.stream(*x, unsafe { &mut *to.as_mut_ptr().cast() });
                }
            }
            Self::Bf16(to) => {
                for (to, x) in to[span].as_chunks_mut().0.iter_mut().zip(row) {
                    x.store_bf16(filled(to, bf16::ZERO));
                }
            }
        }
    }

    /// Writes a row of any length from element `first` on.
    #[inline(always)]
    pub(super) fn write_any<S: Simd>(&mut self, simd: S, first: usize, row: &[f32]) {
        let span = first..first + row.len();
        match self {
            Self::F32(to) | Self::Past(to) => {
                to[span].write_copy_of_slice(row);
            }
            Self::Bf16(to) => {
                for (to, x) in to[span].chunks_mut(LANES).zip(row.chunks(LANES)) {
                    let mut lanes = [bf16::ZERO; LANES];
                    load_front(simd, x).store_bf16(&mut lanes);
                    to.write_copy_of_slice(&lanes[..to.len()]);
                }
            }
        }
    }
}

/// Sixteen elements to be written, which are `x` until then.
#[inline(always)]
fn filled<T: Copy>(to: &mut [MaybeUninit<T>; LANES], x: T) -> &mut [T; LANES] {
    *to = [MaybeUninit::new(x); LANES];
    // SAFETY: all of them were written just now.
    unsafe { &mut *std::ptr::from_mut(to).cast() }
}
