//! Keys and values as the products read them.

use std::borrow::Cow;

use half::bf16;

use super::layouts::{self, Laying, PairLanes};
use crate::cells::{HeadRows, RowsOf};
use crate::cpu::lines::Lines;
use crate::cpu::simd::{Element, LANES, Pair, Simd, Vector};
use crate::cpu::threads::Crew;
use crate::memory::{Keys, LeafKeys};
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
    leaf: LeafKeys<'a>,
    /// Keys that every KV head has room for.
    len: usize,
    laid: Laid<'a>,
}

/// Keys and values as they are read; values only where they are asked for.
enum Laid<'a> {
    /// `None`: as the set has them.
    Plain(Option<Box<Keys>>),
    Pairs {
        /// `[G, N, D]`, a zero behind each where D is odd.
        k: Cow<'a, [bf16]>,
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
    /// `leaf` in `form`; values too where `with_values`.
    pub(super) fn new(form: Form, crew: Crew, leaf: LeafKeys<'a>, with_values: bool) -> Self {
        let (of, len) = (leaf.of, leaf.most());
        let laid = match (form, &of.k.data) {
            (Form::Pairs, KvData::Bf16(k)) => Laid::Pairs {
                k: match leaf.whole() {
                    Some(of) if of.lie_in_order() && of.k.head_dim % 2 == 0 => Cow::Borrowed(k),
                    _ => Cow::Owned(layouts::padded(crew, &Laying::keys(&leaf, len))),
                },
                v: match with_values {
                    true => layouts::paired(crew, &Laying::values(&leaf, len)),
                    false => Vec::new(),
                },
            },
            (Form::Tiles, KvData::Bf16(_)) => Laid::Tiles {
                k: layouts::cut(crew, &Laying::keys(&leaf, len)),
                v: match with_values {
                    true => layouts::transposed(crew, &Laying::values(&leaf, len)),
                    false => Lines::default(),
                },
            },
            _ => Laid::Plain(match leaf.picked() {
                Cow::Owned(picked) => Some(Box::new(picked)),
                Cow::Borrowed(of) if of.lie_in_order() => None,
                Cow::Borrowed(of) => Some(Box::new(of.in_order().into_owned())),
            }),
        };
        Self { leaf, len, laid }
    }

    /// Whose keys they are.
    pub(super) fn leaf(&self) -> &LeafKeys<'a> {
        &self.leaf
    }

    /// Number of keys of each KV head, or of the one that has most.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How they are stored.
    pub(super) fn dtype(&self) -> KvDtype {
        self.leaf.of.k.dtype()
    }

    fn plain(&self) -> &Keys {
        match &self.laid {
            Laid::Plain(keys) => keys.as_deref().unwrap_or(self.leaf.of),
            _ => unreachable!("keys were laid out otherwise"),
        }
    }

    /// Keys of KV head `g`.
    pub(super) fn k_rows(&self, g: usize) -> HeadRows<'_> {
        self.plain().k_rows(g)
    }

    /// Values of KV head `g`.
    pub(super) fn v_rows(&self, g: usize) -> HeadRows<'_> {
        self.plain().v_rows(g)
    }

    /// Keys of KV head `g` in whole pairs, and elements from one to the next.
    pub(super) fn padded_k(&self, g: usize) -> (&[bf16], usize) {
        let Laid::Pairs { k, .. } = &self.laid else {
            unreachable!("keys were not laid out in pairs");
        };
        let width = self.leaf.of.k.head_dim.next_multiple_of(2);
        (&k[g * self.len * width..][..self.len * width], width)
    }

    /// Values of KV head `g`, `[N / 2, D, 2]`.
    pub(super) fn paired_v(&self, g: usize) -> &[bf16] {
        let Laid::Pairs { v, .. } = &self.laid else {
            unreachable!("values were not laid out in pairs");
        };
        let size = v.len() / self.leaf.of.kv_heads();
        &v[g * size..(g + 1) * size]
    }

    /// Keys of KV head `g`, `[N / 32, D / 32, 32, 16]` pairs.
    pub(super) fn tiled_k(&self, g: usize) -> &[PairLanes] {
        let Laid::Tiles { k, .. } = &self.laid else {
            unreachable!("keys were not laid out in tiles");
        };
        let size = k.len() / self.leaf.of.kv_heads();
        &k[g * size..(g + 1) * size]
    }

    /// Values of KV head `g`, `[N / 32, D, 16]` pairs.
    pub(super) fn tiled_v(&self, g: usize) -> &[PairLanes] {
        let Laid::Tiles { v, .. } = &self.laid else {
            unreachable!("values were not laid out in tiles");
        };
        let size = v.len() / self.leaf.of.kv_heads();
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
