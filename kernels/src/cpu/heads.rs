//! The stacked projection into queries, keys and values: QK norm, rotation, rounding, of sums
//! that are still in the cache.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

use half::bf16;

use super::gemm::{
    Addends, Argument, Block, Outcome, Place, is_finite, neighbours, norm_row, whole,
};
use super::simd::{LANES, Simd, Vector, load_front, store_front, store_front_bf16};
use super::unwritten::{unwritten, written};
use crate::backend::{BackendError, Qkv};
use crate::memory::Keys;
use crate::tensor::{Heads, KvData, KvDtype, KvHeads};
use crate::weights::{Angles, LayerWeights};

thread_local! {
    /// Sums of one task: kept, so that they stay in the cache.
    static SUMS: Cell<Vec<[f32; LANES]>> = const { Cell::new(Vec::new()) };
}

/// `x` (`[tokens, E]`) as the block's queries, keys and values at `start..`.
pub(super) fn project_heads(
    place: Place<'_>,
    layer: &LayerWeights,
    x: Argument<'_>,
    start: u32,
    angles: &Angles,
) -> Result<Qkv, BackendError> {
    let (spec, tokens) = (layer.spec, x.rows.rows());
    let (heads, kv_heads, head_dim) = (spec.heads, spec.kv_heads, spec.head_dim);
    let mut q = unwritten(heads * tokens * head_dim);
    let mut k = zeros(kv_heads, tokens, head_dim, spec.kv);
    let mut v = zeros(kv_heads, tokens, head_dim, spec.kv);

    let turned = |norm| Treatment { norm, eps: spec.norm_eps, angles: Some(angles) };
    let treat_q = turned(layer.q_norm.as_deref());
    let treat_k = turned(layer.k_norm.as_deref());
    let treat_v = Treatment { norm: None, eps: spec.norm_eps, angles: None };
    let addends = Addends { bias: layer.qkv.bias.as_deref(), residual: None };
    whole("project", place, x, (&layer.qkv, head_dim), |block| {
        let mut cut = Cut { parts: Vec::new(), block, tokens, head_dim, heads: 0, addends };
        cut.heads(Stored::Queries(&mut q), treat_q);
        cut.heads(stored(&mut k.data), treat_k);
        cut.heads(stored(&mut v.data), treat_v);
        cut.parts
    })?;
    // SAFETY: parts cover all tokens of all heads, and their tasks wrote them.
    let data = unsafe { written(q) }.into();
    let q = Heads { heads, tokens, head_dim, data };
    let positions: Vec<u32> = (start..).take(tokens).collect();
    Ok(Qkv { q, keys: Keys::new(positions.repeat(kv_heads), k, v) })
}

fn zeros(kv_heads: usize, tokens: usize, head_dim: usize, dtype: KvDtype) -> KvHeads {
    let elements = kv_heads * tokens * head_dim;
    let data = match dtype {
        KvDtype::F32 => KvData::F32(vec![0.0; elements].into()),
        KvDtype::Bf16 => KvData::Bf16(bytemuck::zeroed_vec::<bf16>(elements).into()),
    };
    KvHeads { kv_heads, tokens, head_dim, data }
}

fn stored(data: &mut KvData) -> Stored<'_> {
    match data {
        KvData::F32(data) => Stored::F32(data),
        KvData::Bf16(data) => Stored::Bf16(data),
    }
}

/// Where rows go: `[rows, head_dim]`.
enum Stored<'a> {
    Queries(&'a mut [MaybeUninit<f32>]),
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
}

impl<'a> Stored<'a> {
    /// In pieces of so many elements.
    fn pieces(self, size: usize) -> Vec<Self> {
        match self {
            Self::Queries(data) => data.chunks_mut(size.max(1)).map(Self::Queries).collect(),
            Self::F32(data) => data.chunks_mut(size.max(1)).map(Self::F32).collect(),
            Self::Bf16(data) => data.chunks_mut(size.max(1)).map(Self::Bf16).collect(),
        }
    }
}

/// What is done to a row before it is stored.
#[derive(Clone, Copy)]
struct Treatment<'a> {
    /// RMS norm with this weight, `[head_dim]`.
    norm: Option<&'a [f32]>,
    eps: f32,
    /// Rotation by the row's angles.
    angles: Option<&'a Angles>,
}

/// Cuts stacked heads into parts, each of whole blocks of rows and heads.
struct Cut<'a> {
    parts: Vec<Part<'a>>,
    block: Block,
    tokens: usize,
    head_dim: usize,
    /// Heads that were cut.
    heads: usize,
    addends: Addends<'a>,
}

impl<'a> Cut<'a> {
    /// The next heads, as many as fill `to`.
    fn heads(&mut self, to: Stored<'a>, treatment: Treatment<'a>) {
        let Self { block, tokens, head_dim, addends, .. } = *self;
        for head in to.pieces(tokens * head_dim) {
            let column = self.heads * head_dim;
            let first = column / block.columns * tokens.div_ceil(block.rows);
            for (idx, to) in head.pieces(block.rows * head_dim).into_iter().enumerate() {
                if first + idx == self.parts.len() {
                    let row = idx * block.rows;
                    let rows = row..tokens.min(row + block.rows);
                    let (heads, sums) = (Vec::new(), Vec::new());
                    self.parts.push(Part { rows, column, head_dim, addends, heads, sums });
                }
                self.parts[first + idx].heads.push((to, treatment));
            }
            self.heads += 1;
        }
    }
}

/// Some tokens of neighbouring heads.
struct Part<'a> {
    rows: Range<usize>,
    /// First column of the first head.
    column: usize,
    /// D.
    head_dim: usize,
    addends: Addends<'a>,
    heads: Vec<(Stored<'a>, Treatment<'a>)>,
    /// `[rows, slots, 16]`, once the first was put.
    sums: Vec<[f32; LANES]>,
}

impl Outcome for Part<'_> {
    #[inline(always)]
    fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    #[inline(always)]
    fn slots(&self) -> usize {
        (self.heads.len() * self.head_dim).div_ceil(LANES)
    }

    #[inline(always)]
    fn panels<const N: usize>(&self, slot: usize) -> [usize; N] {
        neighbours(self.column / LANES + slot)
    }

    #[inline(always)]
    fn put<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        sums: &[[S::V; N]; M],
        row: usize,
        slot: usize,
    ) {
        let (mut sums, slots) = (*sums, self.slots());
        self.addends.add(simd, &mut sums, self.rows.start + row, self.column + slot * LANES);
        if self.sums.is_empty() {
            self.sums = SUMS.take();
            self.sums.resize(self.rows.len() * slots, [0.0; LANES]);
        }
        for (i, sums) in sums.iter().enumerate() {
            let to = &mut self.sums[(row + i) * slots + slot..][..N];
            for (to, sum) in to.iter_mut().zip(sums) {
                sum.store(to);
            }
        }
    }

    #[inline(always)]
    fn end<S: Simd>(&mut self, simd: S) -> bool {
        let (width, head_dim) = (self.slots() * LANES, self.head_dim);
        let mut finite = true;
        for (head, (to, treatment)) in self.heads.iter_mut().enumerate() {
            for (i, t) in self.rows.clone().enumerate() {
                let row = &mut self.sums.as_flattened_mut()[i * width + head * head_dim..];
                let row = &mut row[..head_dim];
                finite &= treatment.apply(simd, t, row);
                match to {
                    Stored::Queries(to) => {
                        to[i * head_dim..][..head_dim].write_copy_of_slice(row);
                    }
                    Stored::F32(to) => to[i * head_dim..][..head_dim].copy_from_slice(row),
                    Stored::Bf16(to) => {
                        let to = to[i * head_dim..][..head_dim].chunks_mut(LANES);
                        for (to, from) in to.zip(row.chunks(LANES)) {
                            store_front_bf16(load_front(simd, from), to);
                        }
                    }
                }
            }
        }
        SUMS.set(std::mem::take(&mut self.sums));
        finite
    }
}

impl Treatment<'_> {
    /// Treats the row of token `t`; returns whether it is finite then.
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, t: usize, row: &mut [f32]) -> bool {
        if let Some(weight) = self.norm {
            norm_row(simd, row, weight, self.eps);
        }
        if let Some(angles) = self.angles {
            rotate(simd, row, angles, t);
        }
        is_finite(simd, row)
    }
}

/// Rotates one head's row by the angles of token `t`, element i against i + head_dim / 2.
#[inline(always)]
fn rotate<S: Simd>(simd: S, row: &mut [f32], angles: &Angles, t: usize) {
    let span = t * angles.half..(t + 1) * angles.half;
    let (first, second) = row.split_at_mut(angles.half);
    let turns = angles.cos[span.clone()].chunks(LANES).zip(angles.sin[span].chunks(LANES));
    let pairs = first.chunks_mut(LANES).zip(second.chunks_mut(LANES));
    for ((a, b), (cos, sin)) in pairs.zip(turns) {
        let (x, y) = (load_front(simd, a), load_front(simd, b));
        let (cos, sin) = (load_front(simd, cos), load_front(simd, sin));
        store_front(x * cos - y * sin, a);
        store_front(y.fma(cos, x * sin), b);
    }
}
