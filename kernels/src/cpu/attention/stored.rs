//! Keys and values as the products read them.

use std::borrow::Cow;

use half::bf16;

use super::layouts::{self, PairLanes};
use crate::cells::{HeadRows, RowsOf};
use crate::cpu::lines::Lines;
use crate::cpu::simd::{Element, LANES, Pair, Simd, Vector};
use crate::cpu::threads::Crew;
use crate::memory::Keys;
use crate::tensor::{KvData, KvDtype};

/// What products ask of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As they are.
    Plain,
    /// bf16: rows of keys in pairs, values of two keys side by side.
    Pairs,
    /// bf16: blocks of 32 keys and transposed values, both cut into steps of 32 elements.
    Tiles,
}

/// Keys in order of position; in a form that was asked for.
pub(super) struct Stored<'a> {
    keys: Cow<'a, Keys>,
    laid: Laid,
}

/// What is laid out besides the keys themselves; values only where they are asked for.
enum Laid {
    Plain,
    Pairs {
        /// `[G, N, D + 1]` where D is odd; else the keys themselves will do.
        k: Option<Vec<bf16>>,
        /// `[G, N / 2, D, 2]`, the last one zero where N is odd.
        v: Vec<bf16>,
    },
    Tiles {
        /// `[G, N / 32, D / 32, 32, 16]` pairs: a line is 32 elements of D of one key.
        k: Lines<Pair>,
        /// `[G, N / 32, D, 16]` pairs: a line is one element of 32 keys' values.
        v: Lines<Pair>,
    },
}

impl<'a> Stored<'a> {
    /// `keys` in `form`; values too where `with_values`.
    pub(super) fn new(form: Form, crew: Crew, keys: &'a Keys, with_values: bool) -> Self {
        let keys = keys.in_order();
        let laid = match (form, &keys.k.data, &keys.v.data) {
            (Form::Pairs, KvData::Bf16(k), KvData::Bf16(v)) => {
                let width = keys.k.head_dim;
                Laid::Pairs {
                    k: (!width.is_multiple_of(2)).then(|| layouts::padded(k, width)),
                    v: if with_values { layouts::paired(crew, &keys.v, v) } else { Vec::new() },
                }
            }
            (Form::Tiles, KvData::Bf16(k), KvData::Bf16(v)) => {
                let cut = |v| layouts::transposed(crew, &keys.v, v);
                Laid::Tiles {
                    k: layouts::cut(crew, &keys.k, k),
                    v: if with_values { cut(v) } else { Lines::default() },
                }
            }
            _ => Laid::Plain,
        };
        Self { keys, laid }
    }

    /// Number of keys of each KV head.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// How they are stored.
    pub(super) fn dtype(&self) -> KvDtype {
        self.keys.k.dtype()
    }

    /// Positions of KV head `g`.
    pub(super) fn positions(&self, g: usize) -> &[u32] {
        self.keys.head_positions(g)
    }

    /// Keys of KV head `g`.
    pub(super) fn k_rows(&self, g: usize) -> HeadRows<'_> {
        self.keys.k_rows(g)
    }

    /// Values of KV head `g`.
    pub(super) fn v_rows(&self, g: usize) -> HeadRows<'_> {
        self.keys.v_rows(g)
    }

    /// Keys of KV head `g` in whole pairs, and elements from one to the next.
    pub(super) fn padded_k(&self, g: usize) -> (&[bf16], usize) {
        let width = self.keys.k.head_dim.next_multiple_of(2);
        let data: &[bf16] = match (&self.laid, &self.keys.k.data) {
            (Laid::Pairs { k: Some(k), .. }, _) => k,
            (Laid::Pairs { .. }, KvData::Bf16(k)) => k,
            _ => unreachable!("keys were not laid out in pairs"),
        };
        (&data[g * self.len() * width..][..self.len() * width], width)
    }

    /// Values of KV head `g`, `[N / 2, D, 2]`.
    pub(super) fn paired_v(&self, g: usize) -> &[bf16] {
        let Laid::Pairs { v, .. } = &self.laid else {
            unreachable!("values were not laid out in pairs");
        };
        let size = v.len() / self.keys.kv_heads();
        &v[g * size..(g + 1) * size]
    }

    /// Keys of KV head `g`, `[N / 32, D / 32, 32, 16]` pairs.
    pub(super) fn tiled_k(&self, g: usize) -> &[PairLanes] {
        let Laid::Tiles { k, .. } = &self.laid else {
            unreachable!("keys were not laid out in tiles");
        };
        let size = k.len() / self.keys.kv_heads();
        &k[g * size..(g + 1) * size]
    }

    /// Values of KV head `g`, `[N / 32, D, 16]` pairs.
    pub(super) fn tiled_v(&self, g: usize) -> &[PairLanes] {
        let Laid::Tiles { v, .. } = &self.laid else {
            unreachable!("values were not laid out in tiles");
        };
        let size = v.len() / self.keys.kv_heads();
        &v[g * size..(g + 1) * size]
    }
}

/// Widens tiles of stored keys or values into order; f32 that is in order is passed through.
#[derive(Default)]
pub(super) struct Widener(Lines<f32>);

impl Widener {
    /// Rows `first..last` of a KV head, `[last - first, head_dim]`.
    #[inline(always)]
    pub(super) fn tile<'a, S: Simd>(
        &'a mut self,
        simd: S,
        rows: HeadRows<'a>,
        (first, last): (usize, usize),
    ) -> &'a [f32] {
        match rows {
            HeadRows::F32(rows) => match rows.span((first, last)) {
                Some(span) => span,
                None => self.each(rows, (first, last), |from, to| to.copy_from_slice(from)),
            },
            HeadRows::Bf16(rows) => match rows.span((first, last)) {
                Some(span) => {
                    let to = self.room(span.len());
                    widen(simd, span, to);
                    to
                }
                None => self.each(rows, (first, last), |from, to| widen(simd, from, to)),
            },
        }
    }

    /// Memory for so many elements, to be written.
    #[inline(always)]
    fn room(&mut self, elements: usize) -> &mut [f32] {
        self.0.resize(elements.div_ceil(LANES));
        &mut self.0.as_flattened_mut()[..elements]
    }

    /// Row by row.
    #[inline(always)]
    fn each<E: Element>(
        &mut self,
        rows: RowsOf<'_, E>,
        (first, last): (usize, usize),
        widen: impl Fn(&[E], &mut [f32]),
    ) -> &[f32] {
        let all = self.room((last - first) * rows.width());
        for (j, to) in (first..last).zip(all.chunks_exact_mut(rows.width())) {
            widen(rows.row(j), to);
        }
        all
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
