//! y = x Wᵀ + bias + residual, on packed weights.

mod argument;
#[cfg(target_arch = "x86_64")]
mod dots;
mod fma;
mod gates;
mod groups;
mod hidden;
mod huge;
mod int8;
mod pack;
mod product;
mod result;
#[cfg(target_arch = "x86_64")]
mod rounded;
mod split;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(target_arch = "x86_64")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use self::argument::{
    Argument, Prepare, gate_row, gated, norm_row, norm_scale, over_root,
};
#[cfg(target_arch = "x86_64")]
use self::dots::Dotted;
use self::fma::{Full, Paired};
#[cfg(target_arch = "x86_64")]
pub(super) use self::gates::Gates;
use self::groups::RowGroups;
pub(super) use self::hidden::{Hidden, down, up};
#[cfg(target_arch = "x86_64")]
use self::int8::LEAST_ROWS;
use self::int8::{Int8Inputs, Int8Weight, Integers};
use self::pack::PairPanels;
pub(super) use self::pack::{PackedWeight, pack, packed_weight};
use self::product::Product;
pub(super) use self::result::{Addends, Finite, Outcome, neighbours};
use self::result::{CHAINS, Sums};
#[cfg(target_arch = "x86_64")]
use self::rounded::RoundedRows;
#[cfg(target_arch = "x86_64")]
pub(super) use self::rounded::{RoundedTile, Rounding};
pub(super) use self::split::Block;
use self::split::split;
#[cfg(target_arch = "x86_64")]
use self::tiles::Tiled;
#[cfg(target_arch = "x86_64")]
use super::amx::BLOCK_ROWS;
use super::isa::{Isa, IsaLevel};
use super::peak::Factors;
use super::simd::{LANES, Simd, load_front};
use super::threads::Crew;
use super::unwritten::{unwritten, written};
use crate::backend::BackendError;
use crate::tensor::Rows;
use crate::weights::Linear;

/// Rows of a task: over one block of inputs its argument fills 96 KiB of the second level.
const ROWS_BLOCK: usize = 96;
/// Rows of a task on AMX in bf16: of up to 2,048 inputs they fill at most 1 MiB, half of a second
/// level.
#[cfg(target_arch = "x86_64")]
const TILED_ROWS_BLOCK: usize = 256;
/// Columns of a task there. At its begin neither rows nor the first panels are near, so a task is
/// large.
#[cfg(target_arch = "x86_64")]
const TILED_COLUMNS_BLOCK: usize = 1024;
/// Bytes of a result from which on it is written past the caches there: nobody reads it before they
/// have lost it, and lines that are written would have to be fetched first.
#[cfg(target_arch = "x86_64")]
const STREAMED_BYTES: usize = 1 << 20;
/// Rows of a task on AMX in integers, whose arguments are half as large.
#[cfg(target_arch = "x86_64")]
const INT8_ROWS_BLOCK: usize = 192;
/// What rows of a task are a multiple of, but on AMX in bf16: whole groups and blocks of every
/// layout.
const ROWS_STEP: usize = 96;
/// Columns of a task.
const COLUMNS_BLOCK: usize = 256;

/// Where a product is computed.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) isa: Isa,
    pub(super) crew: Crew<'a>,
}

/// `x` through `weight`, plus `residual` (`[rows, outputs]`) where there is one.
///
/// # Errors
/// A weight that another backend packed, a result that is not finite; both name `op`.
pub(super) fn linear(
    op: &'static str,
    place: Place,
    x: Argument<'_>,
    weight: &Linear,
    residual: Option<&Rows>,
) -> Result<Rows, BackendError> {
    let factors = PackedFactors::new(place, x, packed_weight(op, weight)?);
    factors.sums(op, place, x.rows.rows(), weight, residual)
}

/// `x` through `weight`, for outcomes that need `step` neighbouring columns, of which a task has
/// one or more: `cut` is told how large blocks should be, and asks whether a result of so many
/// bytes is written past the caches. Outcomes keep the sums of all their columns, unless they
/// `forget` a step when they turn to the next one.
///
/// # Errors
/// As [`linear`].
pub(super) fn whole<O: Outcome + Send>(
    op: &'static str,
    place: Place,
    x: Argument<'_>,
    (weight, step, forget): (&Linear, usize, bool),
    cut: impl FnOnce(Block, &dyn Fn(usize) -> bool) -> Vec<O>,
) -> Result<(), BackendError> {
    let factors = PackedFactors::new(place, x, packed_weight(op, weight)?);
    let mut block = factors.block(x.rows.rows(), place.crew, weight.outputs);
    if !forget {
        // What an outcome keeps of its sums should stay near.
        block.columns = block.columns.min(COLUMNS_BLOCK);
    }
    while !block.columns.is_multiple_of(step) {
        block.columns += LANES;
    }
    factors.compute(op, place, cut(block, &|bytes| factors.streams(bytes)))
}

/// Both factors of a product, in the forms that belong together.
enum PackedFactors<'a> {
    Full(RowGroups, &'a [[f32; LANES]]),
    Paired(RowGroups, &'a PairPanels),
    #[cfg(target_arch = "x86_64")]
    Dotted(Arc<RoundedRows>, &'a PairPanels),
    #[cfg(target_arch = "x86_64")]
    Tiled(Arc<RoundedRows>, &'a PairPanels),
    Integers(Int8Inputs, &'a Int8Weight),
    #[cfg(target_arch = "x86_64")]
    TiledIntegers(Int8Inputs, &'a Int8Weight),
}

impl<'a> PackedFactors<'a> {
    fn new(place: Place, x: Argument<'_>, weight: &'a PackedWeight) -> Self {
        match weight {
            PackedWeight::F32(panels) => Self::Full(RowGroups::full(place, x), panels),
            #[cfg(target_arch = "x86_64")]
            PackedWeight::Bf16(panels) if place.isa.level() >= IsaLevel::Avx512Bf16 => {
                Self::of_rounded(place.isa, RoundedRows::of(place, x), panels)
            }
            PackedWeight::Bf16(panels) => Self::Paired(RowGroups::rounded(place, x), panels),
            #[cfg(target_arch = "x86_64")]
            PackedWeight::Int8(weight)
                if place.isa.level() >= IsaLevel::Amx && x.rows.rows() >= LEAST_ROWS =>
            {
                Self::TiledIntegers(Int8Inputs::new(place, x, BLOCK_ROWS), weight)
            }
            PackedWeight::Int8(weight) => Self::Integers(Int8Inputs::new(place, x, 1), weight),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn of_rounded(isa: Isa, x: Arc<RoundedRows>, panels: &'a PairPanels) -> Self {
        match isa.level() >= IsaLevel::Amx {
            true => Self::Tiled(x, panels),
            false => Self::Dotted(x, panels),
        }
    }

    /// An argument that was rounded to bf16.
    #[cfg(target_arch = "x86_64")]
    fn rounded(&self) -> Option<&RoundedRows> {
        match self {
            Self::Tiled(x, _) | Self::Dotted(x, _) => Some(x),
            _ => None,
        }
    }

    /// Whether a register tile takes an even number of panels, wherever they lie.
    fn come_in_twos(&self, isa: Isa) -> bool {
        match self {
            Self::Full(..) => false,
            Self::Paired(..) | Self::Integers(..) => isa.level() >= IsaLevel::Avx512,
            #[cfg(target_arch = "x86_64")]
            Self::Dotted(..) | Self::Tiled(..) | Self::TiledIntegers(..) => true,
        }
    }

    /// Whether a result of so many bytes is written past the caches, by tasks that fence.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "tiles alone do"))]
    fn streams(&self, bytes: usize) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tiled(..) | Self::TiledIntegers(..) => bytes >= STREAMED_BYTES,
            _ => false,
        }
    }

    /// The product with what is added to it.
    fn sums(
        &self,
        op: &'static str,
        place: Place,
        rows: usize,
        weight: &Linear,
        residual: Option<&Rows>,
    ) -> Result<Rows, BackendError> {
        let outputs = weight.outputs;
        let addends = Addends::new(weight.bias.as_deref(), residual);
        let mut y = unwritten(rows * outputs);
        let streams = self.streams(size_of_val(&*y));
        let mut tiles = split(&mut y, outputs, self.block(rows, place.crew, outputs));
        tiles.iter_mut().for_each(|tile| tile.streams = streams);
        let outcomes = tiles.into_iter().map(|tile| Sums::new(tile, addends)).collect();
        self.compute(op, place, outcomes)?;
        // SAFETY: tiles cover the array, and their tasks wrote them.
        Ok(Rows::from_vec(rows, outputs, unsafe { written(y) }))
    }

    /// Computes all outcomes, each as a task.
    fn compute<O: Outcome + Send>(
        &self,
        op: &'static str,
        place: Place,
        outcomes: Vec<O>,
    ) -> Result<(), BackendError> {
        let finite = AtomicBool::new(true);
        place.crew.map(outcomes, |outcome| {
            finite.fetch_and(self.multiply(place.isa, outcome), Ordering::Relaxed);
        });
        if finite.into_inner() {
            Ok(())
        } else {
            Err(BackendError::NotFinite { op, what: "the result of a linear map" })
        }
    }

    /// Rows and columns of a task: fewer columns, and then rows, where there would be too few
    /// tasks, and rows that leave no small rest.
    fn block(&self, rows: usize, crew: Crew, outputs: usize) -> Block {
        // Rows, what they are a multiple of, columns, and tasks that each thread has at least.
        let (mut most, step, mut columns, least) = match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tiled(..) => (TILED_ROWS_BLOCK, BLOCK_ROWS, TILED_COLUMNS_BLOCK, 2),
            #[cfg(target_arch = "x86_64")]
            Self::TiledIntegers(..) => (INT8_ROWS_BLOCK, ROWS_STEP, COLUMNS_BLOCK, 4),
            _ => (ROWS_BLOCK, ROWS_STEP, COLUMNS_BLOCK, 4),
        };
        let tasks = |most: usize, columns| rows.div_ceil(most).max(1) * outputs.div_ceil(columns);
        while columns > 4 * LANES && tasks(most, columns) < least * crew.threads {
            columns /= 2;
        }
        // Rows are halved last: whatever passes them has to be read once more.
        while most >= 4 * step && tasks(most, columns) < 2 * crew.threads {
            most /= 2;
        }
        let blocks = rows.div_ceil(most).max(1);
        let rows_block = rows.div_ceil(blocks).next_multiple_of(step).max(step);
        Block { rows: rows_block, columns }
    }

    /// One task. Returns whether all sums are finite.
    fn multiply<O: Outcome>(&self, isa: Isa, outcome: O) -> bool {
        match self {
            Self::Full(x, panels) => isa.run(Product::new(Full { x, panels }, outcome)),
            Self::Paired(x, panels) => isa.run(Product::new(Paired { x, panels }, outcome)),
            #[cfg(target_arch = "x86_64")]
            Self::Dotted(x, panels) => {
                let product = Product::new(Dotted { x, panels }, outcome);
                isa.run_dots(product).ok().expect("such factors are made where they can be used")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Tiled(x, weight) => Tiled { x, weight }.multiply(isa, outcome),
            Self::Integers(x, weight) => {
                isa.run_int8(Product::new(Integers { x, weight }, outcome))
            }
            #[cfg(target_arch = "x86_64")]
            Self::TiledIntegers(x, weight) => {
                isa.run_tiles(Product::new(int8::Tiled { x, weight }, outcome))
            }
        }
    }
}

/// The set whose instructions multiply, as [`PackedFactors`] chooses them.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "tiles ask for rows"))]
pub(super) fn multiplying(isa: IsaLevel, factors: Factors, rows: usize) -> IsaLevel {
    match (factors, isa) {
        #[cfg(target_arch = "x86_64")]
        (Factors::Int8, IsaLevel::Amx) if rows >= LEAST_ROWS => IsaLevel::Amx,
        (Factors::Int8, isa) if isa >= IsaLevel::Avx512Vnni => IsaLevel::Avx512Vnni,
        (Factors::Int8, IsaLevel::AvxVnni) => isa,
        (Factors::Bf16, isa) if isa >= IsaLevel::Avx512Bf16 => isa,
        _ => isa.vectors(),
    }
}

/// Whether no element is infinite or NaN.
#[inline(always)]
pub(super) fn is_finite<S: Simd>(simd: S, values: &[f32]) -> bool {
    let mut finite = Finite::default();
    let (blocks, rest) = values.as_chunks::<{ CHAINS * LANES }>();
    for block in blocks {
        let mut loaded = [simd.splat(0.0); CHAINS];
        for (to, part) in loaded.iter_mut().zip(block.as_chunks().0) {
            *to = simd.load(part);
        }
        finite.see(simd, &[loaded]);
    }
    for part in rest.chunks(LANES) {
        finite.see(simd, &[[load_front(simd, part)]]);
    }
    finite.holds()
}
