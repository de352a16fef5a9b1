//! Rows of a stacked projection into queries, keys and values: QK norm, rotation, rounding.

use half::bf16;

use super::gemm::{Place, is_finite, norm_row};
use super::simd::{Kernel, LANES, Simd, Vector, load_front, store_front, store_front_bf16};
use crate::backend::{BackendError, Qkv};
use crate::memory::Keys;
use crate::tensor::{Heads, KvData, KvDtype, KvHeads, Rows};
use crate::weights::{Angles, LayerWeights};

/// Tokens of one head that a task turns.
const TOKENS: usize = 64;

/// `qkv` (`[tokens, (H + 2G) D]`) as the block's queries, keys and values at `start..`.
pub(super) fn split_heads(
    place: Place<'_>,
    layer: &LayerWeights,
    qkv: &Rows,
    start: u32,
    angles: &Angles,
) -> Result<Qkv, BackendError> {
    let (spec, tokens) = (layer.spec, qkv.rows());
    let (heads, kv_heads, head_dim) = (spec.heads, spec.kv_heads, spec.head_dim);
    let mut q = Heads::zeros(heads, tokens, head_dim);
    let mut k = zeros(kv_heads, tokens, head_dim, spec.kv);
    let mut v = zeros(kv_heads, tokens, head_dim, spec.kv);

    let turned = |norm| Treatment { norm, eps: spec.norm_eps, angles: Some(angles) };
    let treat_q = turned(layer.q_norm.as_deref());
    let treat_k = turned(layer.k_norm.as_deref());
    let treat_v = Treatment { norm: None, eps: spec.norm_eps, angles: None };
    let mut tasks = Vec::new();
    let mut source = Source { qkv, head_dim, head: 0 };
    source.cut(Stored::F32(&mut q.data), treat_q, &mut tasks);
    source.cut(stored(&mut k.data), treat_k, &mut tasks);
    source.cut(stored(&mut v.data), treat_v, &mut tasks);
    let finite = place.crew.map(tasks, |task| place.isa.run(task));
    if finite.contains(&false) {
        let what = "a rotated query or key";
        return Err(BackendError::NotFinite { op: "project", what });
    }
    let positions: Vec<u32> = (start..).take(tokens).collect();
    Ok(Qkv { q, keys: Keys::new(positions.repeat(kv_heads), k, v) })
}

fn zeros(kv_heads: usize, tokens: usize, head_dim: usize, dtype: KvDtype) -> KvHeads {
    let elements = kv_heads * tokens * head_dim;
    let data = match dtype {
        KvDtype::F32 => KvData::F32(vec![0.0; elements].into()),
        KvDtype::Bf16 => KvData::Bf16(vec![bf16::ZERO; elements].into()),
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
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
}

impl Stored<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::Bf16(data) => data.len(),
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

/// Where rows come from.
struct Source<'a> {
    qkv: &'a Rows,
    head_dim: usize,
    /// The stacked head that is cut next.
    head: usize,
}

impl<'a> Source<'a> {
    /// Cuts the next heads, as many as fill `to`, into tasks.
    fn cut(&mut self, to: Stored<'a>, treatment: Treatment<'a>, tasks: &mut Vec<Task<'a>>) {
        let tokens = self.qkv.rows();
        let size = tokens * self.head_dim;
        let heads = to.len() / size.max(1);
        let rows: Vec<Stored<'a>> = match to {
            Stored::F32(data) => pieces(data, size, self.head_dim).map(Stored::F32).collect(),
            Stored::Bf16(data) => pieces(data, size, self.head_dim).map(Stored::Bf16).collect(),
        };
        let per_head = tokens.div_ceil(TOKENS).max(1);
        tasks.extend(rows.into_iter().enumerate().map(|(idx, to)| Task {
            qkv: self.qkv,
            column: (self.head + idx / per_head) * self.head_dim,
            head_dim: self.head_dim,
            first: idx % per_head * TOKENS,
            treatment,
            to,
        }));
        self.head += heads;
    }
}

/// Heads of `size` elements in pieces of [`TOKENS`] rows.
fn pieces<T>(data: &mut [T], size: usize, head_dim: usize) -> impl Iterator<Item = &mut [T]> {
    data.chunks_mut(size.max(1)).flat_map(move |head| head.chunks_mut(TOKENS * head_dim))
}

/// Some tokens of one head. Returns whether the rows are finite.
struct Task<'a> {
    qkv: &'a Rows,
    /// First column of the head.
    column: usize,
    /// D.
    head_dim: usize,
    /// First token.
    first: usize,
    treatment: Treatment<'a>,
    to: Stored<'a>,
}

impl Kernel for Task<'_> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        let Self { qkv, column, head_dim, first, treatment, to } = self;
        let columns = column..column + head_dim;
        let mut finite = true;
        match to {
            Stored::F32(to) => {
                for (t, to) in (first..).zip(to.chunks_exact_mut(head_dim)) {
                    to.copy_from_slice(&qkv.row(t)[columns.clone()]);
                    finite &= treatment.apply(simd, t, to);
                }
            }
            Stored::Bf16(to) => {
                let mut row = vec![0.0; head_dim];
                for (t, to) in (first..).zip(to.chunks_exact_mut(head_dim)) {
                    row.copy_from_slice(&qkv.row(t)[columns.clone()]);
                    finite &= treatment.apply(simd, t, &mut row);
                    for (to, from) in to.chunks_mut(LANES).zip(row.chunks(LANES)) {
                        store_front_bf16(load_front(simd, from), to);
                    }
                }
            }
        }
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
