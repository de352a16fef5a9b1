//! The one inner loop of matrix products, attention and masses: a register tile.
//!
//! C[i][j] += sum over k of A[i][k] B[k][j], where a row of C is one or two vectors. Every
//! element is one chain of multiply-adds over k ascending, in tiles of any size, so its bits
//! do not depend on what is computed beside it.

use super::simd::{Element, LANES, LINES_AHEAD, Simd, Vector, prefetch_line};

/// The left factor of a tile, read one element at a time.
pub(super) trait Left: Copy {
    /// Panics unless rows `0..rows` and columns `0..inner` are there.
    fn check(self, rows: usize, inner: usize);

    /// A[i][k].
    ///
    /// # Safety
    /// `i` and `k` must be below what [`check`](Self::check) was asked for.
    unsafe fn at(self, i: usize, k: usize) -> f32;
}

/// A stored with k outermost: A[i][k] = data[k * stride + i].
#[derive(Clone, Copy)]
pub(super) struct ByColumn<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

/// A stored with i outermost: A[i][k] = data[i * stride + k].
#[derive(Clone, Copy)]
pub(super) struct ByRow<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

impl Left for ByColumn<'_> {
    #[inline(always)]
    fn check(self, rows: usize, inner: usize) {
        assert!(inner == 0 || (inner - 1) * self.stride + rows <= self.data.len());
    }

    #[inline(always)]
    unsafe fn at(self, i: usize, k: usize) -> f32 {
        // SAFETY: the caller keeps i and k inside what was checked.
        unsafe { *self.data.as_ptr().add(k * self.stride + i) }
    }
}

impl Left for ByRow<'_> {
    #[inline(always)]
    fn check(self, rows: usize, inner: usize) {
        assert!(rows == 0 || (rows - 1) * self.stride + inner <= self.data.len());
    }

    #[inline(always)]
    unsafe fn at(self, i: usize, k: usize) -> f32 {
        // SAFETY: the caller keeps i and k inside what was checked.
        unsafe { *self.data.as_ptr().add(i * self.stride + k) }
    }
}

/// The right factor: panel j is `inner` rows of sixteen elements, `stride` rows of sixteen
/// behind panel j - 1.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a, B> {
    pub(super) data: &'a [[B; LANES]],
    pub(super) stride: usize,
}

/// The right factor with its panels side by side: row k of panel j is `k * panels + j`.
#[derive(Clone, Copy)]
pub(super) struct SideBySide<'a> {
    pub(super) data: &'a [[f32; LANES]],
    pub(super) panels: usize,
}

/// Panels that come from far away: what is read later is asked for.
#[derive(Clone, Copy)]
pub(super) struct Far<'a, B>(pub(super) Panels<'a, B>);

/// The right factor of a tile, read one vector at a time.
pub(super) trait Right<S: Simd>: Copy {
    /// Panics unless panels `0..panels` of `inner` rows are there.
    fn check(self, panels: usize, inner: usize);

    /// B[k][j].
    ///
    /// # Safety
    /// `j` and `k` must be below what [`check`](Self::check) was asked for.
    unsafe fn at(self, simd: S, j: usize, k: usize) -> S::V;
}

impl<S: Simd, B: Element> Right<S> for Panels<'_, B> {
    #[inline(always)]
    fn check(self, panels: usize, inner: usize) {
        assert!((panels - 1) * self.stride + inner <= self.data.len());
    }

    #[inline(always)]
    unsafe fn at(self, simd: S, j: usize, k: usize) -> S::V {
        // SAFETY: the caller keeps j and k inside what was checked.
        B::load(simd, unsafe { &*self.data.as_ptr().add(j * self.stride + k) })
    }
}

impl<S: Simd, B: Element> Right<S> for Far<'_, B> {
    #[inline(always)]
    fn check(self, panels: usize, inner: usize) {
        Right::<S>::check(self.0, panels, inner);
    }

    #[inline(always)]
    unsafe fn at(self, simd: S, j: usize, k: usize) -> S::V {
        let Panels { data, stride } = self.0;
        prefetch_line(data.as_ptr().wrapping_add(j * stride + k + LINES_AHEAD));
        // SAFETY: the caller's.
        unsafe { self.0.at(simd, j, k) }
    }
}

impl<S: Simd> Right<S> for SideBySide<'_> {
    #[inline(always)]
    fn check(self, panels: usize, inner: usize) {
        assert!(inner == 0 || (inner - 1) * self.panels + panels <= self.data.len());
    }

    #[inline(always)]
    unsafe fn at(self, simd: S, j: usize, k: usize) -> S::V {
        // SAFETY: the caller keeps j and k inside what was checked.
        simd.load(unsafe { &*self.data.as_ptr().add(k * self.panels + j) })
    }
}

/// Steps between two jumps, where there are registers for them.
const UNROLLED: usize = 8;

/// `acc[i][j] += A[i][..inner] B[..inner][j]`.
#[inline(always)]
pub(super) fn multiply<S: Simd, A: Left, B: Right<S>, const M: usize, const N: usize>(
    simd: S,
    acc: &mut [[S::V; N]; M],
    left: A,
    right: B,
    inner: usize,
) {
    left.check(M, inner);
    right.check(N, inner);
    // A copy of its own stays in registers, whatever becomes of `acc` later.
    let mut sums = *acc;
    let mut k = 0;
    while S::PANELS > 1 && k + UNROLLED <= inner {
        for step in 0..UNROLLED {
            // SAFETY: k + step < inner, and both were checked above.
            unsafe { add(simd, &mut sums, left, right, k + step) };
        }
        k += UNROLLED;
    }
    for k in k..inner {
        // SAFETY: as above.
        unsafe { add(simd, &mut sums, left, right, k) };
    }
    *acc = sums;
}

/// `acc[i][j] += A[i][k] B[k][j]`.
///
/// # Safety
/// M, N and `k` must be what [`Left::check`] and [`Right::check`] were asked for, or below.
#[inline(always)]
unsafe fn add<S: Simd, A: Left, B: Right<S>, const M: usize, const N: usize>(
    simd: S,
    acc: &mut [[S::V; N]; M],
    left: A,
    right: B,
    k: usize,
) {
    let mut b = [simd.splat(0.0); N];
    for (j, b) in b.iter_mut().enumerate() {
        // SAFETY: the caller's.
        *b = unsafe { right.at(simd, j, k) };
    }
    for (i, acc) in acc.iter_mut().enumerate() {
        // SAFETY: the caller's.
        let a = simd.splat(unsafe { left.at(i, k) });
        for (acc, &b) in acc.iter_mut().zip(&b) {
            *acc = a.fma(b, *acc);
        }
    }
}

/// A computation on register tiles of rows `row..row + M` and panels `panel..panel + N`.
pub(super) trait Block {
    /// Computes one tile.
    fn run<S: Simd, const M: usize, const N: usize>(&mut self, simd: S, row: usize, panel: usize);
}

/// Covers `[rows, panels]` with the largest register tiles that fit.
#[inline(always)]
pub(super) fn sweep<S: Simd>(simd: S, rows: usize, panels: usize, block: &mut impl Block) {
    let mut panel = 0;
    while panel < panels {
        if S::PANELS >= 2 && panels - panel >= 2 {
            column::<S, 2>(simd, rows, panel, block);
            panel += 2;
        } else {
            column::<S, 1>(simd, rows, panel, block);
            panel += 1;
        }
    }
}

#[inline(always)]
fn column<S: Simd, const N: usize>(simd: S, rows: usize, panel: usize, block: &mut impl Block) {
    let mut row = 0;
    while row < rows {
        let taken = largest::<S>(rows - row);
        match taken {
            8 => block.run::<S, 8, N>(simd, row, panel),
            6 => block.run::<S, 6, N>(simd, row, panel),
            4 => block.run::<S, 4, N>(simd, row, panel),
            2 => block.run::<S, 2, N>(simd, row, panel),
            _ => block.run::<S, 1, N>(simd, row, panel),
        }
        row += taken;
    }
}

/// Rows of the register tile that is used where `rows` are left.
pub(super) const fn largest<S: Simd>(rows: usize) -> usize {
    match rows {
        8.. if S::ROWS == 8 => 8,
        6.. if S::ROWS == 6 => 6,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}
