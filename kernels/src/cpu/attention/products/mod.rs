//! The two products of attention, dots = K q and o += p V, on what the processor has for them.

#[cfg(target_arch = "x86_64")]
mod dots;
mod fma;
#[cfg(target_arch = "x86_64")]
mod tiles;

use super::layouts::PairLanes;
use super::rows::{Lanes, RowTile};
use super::stored::{Form, Stored};
use crate::backend::Queries;
use crate::cpu::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::IsaLevel;
use crate::cpu::simd::{Kernel, Simd, Vector};
use crate::tensor::KvDtype;

/// How the products are computed, and with what in between.
pub(super) trait Products {
    /// Vectors for everything else.
    type Simd: Simd;
    /// What rounds p.
    type Rounder: Copy;
    /// Keys of a tile.
    const KEYS: usize;
    /// Whether [`values`](Self::values) reads p where the dot products were.
    const IN_PLACE: bool;

    /// The vectors.
    fn simd(&self) -> Self::Simd;

    /// Takes the queries of some tiles of rows of a KV head, and turns to the first.
    fn take(&mut self, queries: &Queries<'_>, tiles: &[RowTile], dtype: KvDtype);

    /// The rows of tile `idx` of those taken are multiplied from here on.
    fn turn_to(&mut self, idx: usize);

    /// `out` (`[keys, panels, 16]`) = dot products of the rows with keys `first..last`, none of
    /// which is below `tops` (`[panels, 16]`) then, where these are given.
    fn dots(
        &mut self,
        keys: &Stored<'_>,
        span: (usize, usize),
        out: &mut [Lanes],
        tops: Option<&mut [Lanes]>,
    );

    /// Where [`values`](Self::values) reads p if it is not [in place](Self::IN_PLACE), `[panels,
    /// KEYS / 2, 16]` pairs of keys, and what [writes](Self::pair) one.
    fn pairs(&mut self) -> (Self::Rounder, &mut [PairLanes]);

    /// Rounds p of an even key and the one behind it.
    fn pair(rounder: Self::Rounder, p: [<Self::Simd as Simd>::V; 2], to: &mut PairLanes);

    /// `o` (`[head_dim, panels, 16]`) = o * fade (`[panels, 16]`) + V p over keys
    /// `first..last`, for `p` as `[keys, panels, 16]`; without `fade` V p alone, and what was in
    /// `o` is not read.
    fn values(
        &mut self,
        keys: &Stored<'_>,
        span: (usize, usize),
        p: &[Lanes],
        fade: Option<&[Lanes]>,
        o: &mut [Lanes],
    );
}

/// Raises `tops` (`[panels, 16]`) to the largest of `dots` (`[keys, panels, 16]`) and itself.
#[inline(always)]
pub(super) fn raise<S: Simd>(simd: S, dots: &[Lanes], tops: &mut [Lanes]) {
    let panels = tops.len();
    for (panel, to) in tops.iter_mut().enumerate() {
        // Four chains hide the latency; a maximum has no rounding.
        let mut tops = [simd.load(to); 4];
        let (fours, rest) = dots.split_at(dots.len() / (4 * panels) * (4 * panels));
        for keys in fours.chunks_exact(4 * panels) {
            for (key, top) in tops.iter_mut().enumerate() {
                *top = top.max(simd.load(&keys[key * panels + panel]));
            }
        }
        for keys in rest.chunks_exact(panels) {
            tops[0] = tops[0].max(simd.load(&keys[panel]));
        }
        tops[0].max(tops[1]).max(tops[2].max(tops[3])).store(to);
    }
}

/// Something to be computed with the best products: see [`Path::run`]. As for [`Kernel`],
/// everything that it calls on vectors must be inlined.
pub(super) trait Work {
    /// What it returns.
    type Out;

    /// The computation.
    fn run<P: Products>(self, products: P) -> Self::Out;
}

/// Which products serve keys of a dtype on this processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// Multiply-adds of f32; bf16 is widened, queries beside it are rounded.
    Fma,
    /// Dot products of pairs of bf16.
    #[cfg(target_arch = "x86_64")]
    Dots,
    /// Tiles of bf16.
    #[cfg(target_arch = "x86_64")]
    Tiles,
}

impl Path {
    /// The fastest.
    pub(super) fn of(isa: Isa, dtype: KvDtype) -> Self {
        match (dtype, isa.level()) {
            #[cfg(target_arch = "x86_64")]
            (KvDtype::Bf16, IsaLevel::Amx) => Self::Tiles,
            #[cfg(target_arch = "x86_64")]
            (KvDtype::Bf16, IsaLevel::Avx512Bf16) => Self::Dots,
            _ => Self::Fma,
        }
    }

    /// What keys and values must look like.
    pub(super) fn form(self) -> Form {
        match self {
            Self::Fma => Form::Plain,
            #[cfg(target_arch = "x86_64")]
            Self::Dots => Form::Pairs,
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => Form::Tiles,
        }
    }

    /// Runs `work` on `isa`, which this is a path of.
    pub(super) fn run<W: Work>(self, isa: Isa, work: W) -> W::Out {
        match self {
            Self::Fma => isa.run(OnFma(work)),
            #[cfg(target_arch = "x86_64")]
            Self::Dots => match isa.run_dots(dots::OnDots(work)) {
                Ok(out) => out,
                Err(dots::OnDots(work)) => isa.run(OnFma(work)),
            },
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => match isa.run_dots(tiles::OnTiles(work)) {
                Ok(out) => out,
                Err(tiles::OnTiles(work)) => isa.run(OnFma(work)),
            },
        }
    }
}

struct OnFma<W>(W);

impl<W: Work> Kernel for OnFma<W> {
    type Out = W::Out;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> W::Out {
        self.0.run(fma::Fma::new(simd))
    }
}
