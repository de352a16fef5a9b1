//! Where a block's rows of output are written, each by the task of its KV head and segment.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::rows::RowTile;
#[cfg(target_arch = "x86_64")]
use crate::cpu::gemm::{Block, Gates, RoundedTile, Rounding};
use crate::cpu::isa::Isa;
use crate::cpu::simd::Simd;
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::{LANES, load_front};
use crate::cpu::unwritten::{unwritten, written};
use crate::tensor::Rows;

/// `[outputs, heads * head_dim]`, nothing of which is written yet.
pub(super) enum Output {
    Plain {
        outputs: usize,
        width: usize,
        data: Vec<MaybeUninit<f32>>,
    },
    /// As the next product reads it, which never stands in memory as f32.
    #[cfg(target_arch = "x86_64")]
    Rounded(Rounding),
}

impl Output {
    /// Of the last `outputs` of so many tokens, of so many heads.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "for bf16 alone"))]
    pub(super) fn new(
        isa: Isa,
        (tokens, outputs): (usize, usize),
        (heads, head_dim): (usize, usize),
        rounded: bool,
    ) -> Self {
        let width = heads * head_dim;
        #[cfg(target_arch = "x86_64")]
        if rounded
            && tokens == outputs
            && head_dim.is_multiple_of(LANES)
            && let Some(rounding) = Rounding::of_argument(isa, (outputs, width))
        {
            return Self::Rounded(rounding);
        }
        Self::Plain { outputs, width, data: unwritten(outputs * width) }
    }

    /// The piece of each of these segments, the first `silent` of whose tokens have none.
    pub(super) fn cut(
        &mut self,
        segments: &[RowTile],
        silent: usize,
        kv_heads: usize,
    ) -> Vec<Piece<'_>> {
        match self {
            Self::Plain { width, data, .. } => plain(data, (*width, silent), segments, kv_heads),
            #[cfg(target_arch = "x86_64")]
            Self::Rounded(rounding) => {
                // As segments are cut: some tokens of a KV head, and those of a head together.
                let rows = segments.first().map_or(1, |rows| rows.tokens.len());
                let columns = rounding.inputs() / kv_heads;
                rounding.split(Block { rows, columns }).into_iter().map(Piece::Rounded).collect()
            }
        }
    }

    /// The rows.
    ///
    /// # Safety
    /// Every element of every piece was written.
    pub(super) unsafe fn written(self) -> Rows {
        match self {
            // SAFETY: the caller's; pieces cover the array.
            Self::Plain { outputs, width, data } => unsafe {
                Rows::from_vec(outputs, width, written(data))
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's.
            Self::Rounded(rounding) => unsafe { rounding.written() }.into_rows(),
        }
    }
}

/// For every segment: of each of its tokens' rows, the columns of its KV head.
fn plain<'a>(
    output: &'a mut [MaybeUninit<f32>],
    (cols, silent): (usize, usize),
    segments: &[RowTile],
    kv_heads: usize,
) -> Vec<Piece<'a>> {
    let rows = output.len() / cols;
    let mut heads: Vec<Vec<_>> = Vec::new();
    heads.resize_with(kv_heads, || Vec::with_capacity(rows));
    for row in output.chunks_exact_mut(cols) {
        let columns = row.chunks_exact_mut(cols / kv_heads);
        heads.iter_mut().zip(columns).for_each(|(head, columns)| head.push(columns));
    }
    let mut heads: Vec<_> = heads.into_iter().map(Vec::into_iter).collect();
    let wanted = |rows: &RowTile| rows.tokens.clone().filter(|t| *t >= silent).count();
    let piece = |rows: &RowTile| heads[rows.g].by_ref().take(wanted(rows)).collect();
    segments.iter().map(piece).map(Piece::Plain).collect()
}

/// What one task writes: the columns of a KV head in the rows of some tokens.
pub(super) enum Piece<'a> {
    /// `[tokens]` of `[group * head_dim]`.
    Plain(Vec<&'a mut [MaybeUninit<f32>]>),
    #[cfg(target_arch = "x86_64")]
    Rounded(RoundedTile<'a>),
}

impl Piece<'_> {
    /// Writes what belongs to row `row` of the piece and to these of its columns.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "for bf16 alone"))]
    pub(super) fn write<S: Simd>(&mut self, simd: S, row: usize, columns: Range<usize>, o: &[f32]) {
        match self {
            Self::Plain(rows) => {
                rows[row][columns].write_copy_of_slice(o);
            }
            #[cfg(target_arch = "x86_64")]
            Self::Rounded(tile) => {
                let first = tile.columns().start + columns.start;
                for (i, o) in o.chunks(LANES).enumerate() {
                    tile.write(simd, row, first + i * LANES, load_front(simd, o));
                }
            }
        }
    }
}
