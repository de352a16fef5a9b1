//! Keys and values as the products read them.

use std::borrow::Cow;

use half::bf16;

use crate::cells::HeadRows;
use crate::cpu::simd::{LANES, Simd, Vector};
use crate::cpu::threads::Crew;
use crate::memory::Keys;
use crate::tensor::{KvData, KvDtype, KvHeads};

/// Keys of a task that lays values out anew; even.
const CUT: usize = 256;

/// What products ask of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As they are.
    Plain,
    /// bf16: rows of keys in pairs, values of two keys side by side.
    Pairs,
}

/// Keys in order of position; in a form that was asked for.
pub(super) struct Stored<'a> {
    keys: Cow<'a, Keys>,
    /// `[G, N, D rounded up to pairs]`; `None` where the keys themselves are that.
    k: Option<Vec<bf16>>,
    /// `[G, N / 2, D, 2]`, the last one zero where N is odd; empty unless asked for.
    v: Vec<bf16>,
}

impl<'a> Stored<'a> {
    /// `keys` in `form`; values too where `with_values`.
    pub(super) fn new(form: Form, crew: Crew, keys: &'a Keys, with_values: bool) -> Self {
        let keys = keys.in_order();
        let (mut k, mut v) = (None, Vec::new());
        if let (Form::Pairs, KvData::Bf16(keys_data), KvData::Bf16(values)) =
            (form, &keys.k.data, &keys.v.data)
        {
            if !keys.k.head_dim.is_multiple_of(2) {
                k = Some(padded(keys_data, keys.k.head_dim));
            }
            if with_values {
                v = paired(crew, &keys.v, values);
            }
        }
        Self { keys, k, v }
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
        let data = match (&self.k, &self.keys.k.data) {
            (Some(k), _) => k,
            (None, KvData::Bf16(k)) => k,
            (None, KvData::F32(_)) => return (&[], width),
        };
        (&data[g * self.len() * width..][..self.len() * width], width)
    }

    /// Values of KV head `g`, `[N / 2, D, 2]`.
    pub(super) fn paired_v(&self, g: usize) -> &[bf16] {
        let size = self.len().div_ceil(2) * 2 * self.keys.v.head_dim;
        &self.v[g * size..(g + 1) * size]
    }
}

/// Rows of an odd `width` with a zero behind each.
fn padded(rows: &[bf16], width: usize) -> Vec<bf16> {
    rows.chunks_exact(width).flat_map(|row| row.iter().copied().chain([bf16::ZERO])).collect()
}

/// The values of every two keys side by side, by all threads.
fn paired(crew: Crew, heads: &KvHeads, values: &[bf16]) -> Vec<bf16> {
    let KvHeads { tokens, head_dim, .. } = *heads;
    let size = tokens.next_multiple_of(2) * head_dim;
    let mut pairs = vec![bf16::ZERO; heads.kv_heads * size];
    let tasks = pairs
        .chunks_mut(size.max(1))
        .zip(values.chunks((tokens * head_dim).max(1)))
        .flat_map(|(to, from)| to.chunks_mut(CUT * head_dim).zip(from.chunks(CUT * head_dim)))
        .collect();
    crew.map(tasks, |(to, from): (&mut [bf16], &[bf16])| {
        for (to, from) in to.chunks_mut(2 * head_dim).zip(from.chunks(2 * head_dim)) {
            let (to, _) = to.as_chunks_mut::<2>();
            let (even, odd) = from.split_at(head_dim);
            if odd.is_empty() {
                to.iter_mut().zip(even).for_each(|(to, &even)| *to = [even, bf16::ZERO]);
            } else {
                let both = even.iter().zip(odd);
                to.iter_mut().zip(both).for_each(|(to, (&even, &odd))| *to = [even, odd]);
            }
        }
    });
    pairs
}

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
