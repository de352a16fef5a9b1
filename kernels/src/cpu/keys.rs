//! Tiles of keys and values as f32.

use half::bf16;

use super::simd::{LANES, Simd, Vector};
use crate::cells::HeadRows;
use crate::tensor::KvData;

/// Keys that are looked at together.
pub(super) const KEYS: usize = 64;

/// Widens tiles of stored keys or values into order; f32 that is in order is passed through.
#[derive(Default)]
pub(super) struct Widener(Vec<f32>);

impl Widener {
    /// Rows `first..last` of a KV head, `[last - first, head_dim]`.
    #[inline(always)]
    pub(super) fn tile<'a, S: Simd>(
        &'a mut self,
        simd: S,
        rows: HeadRows<'a>,
        (first, last): (usize, usize),
    ) -> &'a [f32] {
        match (rows.data(), rows.span((first, last))) {
            (KvData::F32(data), Some(span)) => return &data[span],
            (KvData::Bf16(data), Some(span)) => {
                self.0.resize(span.len(), 0.0);
                widen(simd, &data[span], &mut self.0);
            }
            (data, None) => {
                let width = rows.row(first).len();
                self.0.resize((last - first) * width, 0.0);
                for (j, to) in (first..last).zip(self.0.chunks_exact_mut(width)) {
                    match data {
                        KvData::F32(data) => to.copy_from_slice(&data[rows.row(j)]),
                        KvData::Bf16(data) => widen(simd, &data[rows.row(j)], to),
                    }
                }
            }
        }
        &self.0
    }
}

/// Widens exactly.
#[inline(always)]
fn widen<S: Simd>(simd: S, from: &[bf16], to: &mut [f32]) {
    let (full, rest) = from.as_chunks::<LANES>();
    let (to, to_rest) = to.as_chunks_mut::<LANES>();
    for (to, from) in to.iter_mut().zip(full) {
        simd.load_bf16(from).store(to);
    }
    for (to, from) in to_rest.iter_mut().zip(rest) {
        *to = from.to_f32();
    }
}

/// The tiles that cover `reach`. They start at multiples of [`KEYS`] wherever it starts, so a
/// row is summed alike beside any others.
pub(super) fn key_tiles(reach: std::ops::Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let first = reach.start / KEYS;
    (first..reach.end.div_ceil(KEYS))
        .map(move |idx| (idx * KEYS, (idx + 1) * KEYS))
        .map(move |(first, last)| (first, last.min(reach.end)))
}
