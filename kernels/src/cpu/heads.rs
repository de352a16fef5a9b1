//! The stacked projection into queries, keys and values: QK norm, rotation, rounding, of sums
//! that are still in the cache.

mod latent;
mod rows;
mod stored;

use std::mem::MaybeUninit;
use std::ops::Range;

pub(super) use self::latent::project_latent;
pub(super) use self::rows::{norms_all_heads, project_rows};
use self::stored::{Kv, Stored};
use super::gemm::{
    Addends, Argument, Block, Finite, Outcome, Place, is_finite, neighbours, norm_row, norm_scale,
    whole,
};
use super::lines::Lines;
use super::simd::{LANES, Simd, Vector, load_front, store_front};
use super::unwritten::{unwritten, written};
use crate::backend::{BackendError, Qkv};
use crate::memory::Keys;
use crate::tensor::{Heads, KvHeads};
use crate::weights::{Angles, LayerSpec, LayerWeights, Turns};

/// `x` (`[tokens, E]`) as the block's keys and values at `start..`, and its queries, of all tokens
/// or of none.
pub(super) fn project_heads(
    place: Place<'_>,
    layer: &LayerWeights,
    x: Argument<'_>,
    (start, angles): (u32, &Angles),
    has_queries: bool,
) -> Result<Qkv, BackendError> {
    let (spec, tokens) = (layer.projected(), x.rows.rows());
    let (heads, kv_heads, head_dim) = (spec.heads, spec.kv_heads, spec.head_dim);
    let queries = if has_queries { tokens } else { 0 };
    let mut q = unwritten(heads * queries * head_dim);
    let [mut k, mut v] = [(); 2].map(|()| Kv::new(kv_heads * tokens * head_dim, spec.kv));

    let still = Treatment::still(layer);
    let treat_q = still.turned(layer.q_norm.as_deref(), angles.of_queries());
    let treat_k = still.turned(layer.k_norm.as_deref(), angles.of_keys());
    let addends = Addends::new(layer.qkv.bias.as_deref(), None);
    let heads_of = (&layer.qkv, head_dim, comes_whole(head_dim));
    whole("project", place, x, heads_of, |block, streams| {
        let first = if has_queries { 0 } else { heads };
        let mut cut = Cut::new((block, tokens, head_dim), first, addends);
        let q = if streams(size_of_val(&*q)) { Stored::Past(&mut q) } else { Stored::F32(&mut q) };
        cut.heads(q, treat_q);
        cut.heads(k.stored(), treat_k);
        cut.heads(v.stored(), still.normed(layer.v_norm.as_deref()));
        cut.parts
    })?;
    // SAFETY: parts cover all tokens of all heads, and their tasks wrote them.
    Ok(unsafe { qkv(spec, (q, k, v), (queries, tokens), start) })
}

/// What was written, as a block's at `start..`, of so many queries and keys.
///
/// # Safety
/// All elements were.
unsafe fn qkv(
    LayerSpec { heads, kv_heads, head_dim, .. }: LayerSpec,
    (q, k, v): (Vec<MaybeUninit<f32>>, Kv, Kv),
    (queries, tokens): (usize, usize),
    start: u32,
) -> Qkv {
    // SAFETY: the caller's.
    let (q, k, v) = unsafe { (written(q), k.written(), v.written()) };
    let stored = |data| KvHeads { kv_heads, tokens, head_dim, data };
    let positions: Vec<u32> = (start..).take(tokens).collect();
    Qkv {
        q: Heads { heads, tokens: queries, head_dim, data: q.into() },
        keys: Keys::new(positions.repeat(kv_heads), stored(k), stored(v)),
    }
}

/// What is done to a row before it is stored.
#[derive(Clone, Copy)]
struct Treatment<'a> {
    /// RMS norm with this weight, `[head_dim]`; of several heads, each of which has its own, before
    /// [`Self::of_head`].
    norm: Option<&'a [f32]>,
    eps: f32,
    /// Rotation by the row's angles.
    turns: Option<Turns<'a>>,
    /// The norm is of what is rotated already.
    norms_last: bool,
    /// What is further from 0 is cut off before rotation.
    clip: Option<f32>,
}

/// Cuts stacked heads into parts, each of whole blocks of rows and heads.
struct Cut<'a> {
    parts: Vec<Part<'a>>,
    block: Block,
    tokens: usize,
    head_dim: usize,
    /// The first head of all.
    first: usize,
    /// The next one.
    heads: usize,
    addends: Addends<'a>,
}

impl<'a> Cut<'a> {
    /// Of blocks of rows of so many tokens and heads of so many elements, from head `first` on.
    fn new(
        (block, tokens, head_dim): (Block, usize, usize),
        first: usize,
        addends: Addends<'a>,
    ) -> Self {
        Self { parts: Vec::new(), block, tokens, head_dim, first, heads: first, addends }
    }

    /// The next heads, as many as fill `to`.
    fn heads(&mut self, to: Stored<'a>, treatment: Treatment<'a>) {
        let Self { block, tokens, head_dim, first, addends, .. } = *self;
        for (idx, head) in to.pieces(tokens * head_dim).enumerate() {
            let of_head = treatment.of_head(idx, head_dim);
            // A panel may have begun before the first head of all.
            let skipped = self.first * head_dim % LANES;
            let column = self.heads * head_dim - skipped;
            let block_idx = (self.heads - first) * head_dim / block.columns;
            let first = block_idx * tokens.div_ceil(block.rows);
            for (idx, to) in head.pieces(block.rows * head_dim).enumerate() {
                if first + idx == self.parts.len() {
                    let row = idx * block.rows;
                    let rows = row..tokens.min(row + block.rows);
                    let heads = Vec::with_capacity(block.columns / head_dim);
                    let sums = Lines::default();
                    let finite = Finite::default();
                    self.parts.push(Part {
                        rows,
                        column,
                        skipped,
                        head_dim,
                        addends,
                        heads,
                        sums,
                        finite,
                    });
                }
                self.parts[first + idx].heads.push((to, of_head));
            }
            self.heads += 1;
        }
    }
}

/// Some tokens of neighbouring heads.
struct Part<'a> {
    rows: Range<usize>,
    /// First column of the first panel.
    column: usize,
    /// Columns between it and the first head.
    skipped: usize,
    /// D.
    head_dim: usize,
    addends: Addends<'a>,
    heads: Vec<(Stored<'a>, Treatment<'a>)>,
    /// `[rows, kept slots, 16]`, once the first was put.
    sums: Lines<f32>,
    finite: Finite,
}

impl Outcome for Part<'_> {
    #[inline(always)]
    fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    #[inline(always)]
    fn slots(&self) -> usize {
        (self.skipped + self.heads.len() * self.head_dim).div_ceil(LANES)
    }

    #[inline(always)]
    fn panels<const N: usize>(&self, slot: usize) -> [usize; N] {
        neighbours(self.column / LANES + slot)
    }

    #[inline(always)]
    fn put<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        sums: &mut [[S::V; N]; M],
        row: usize,
        slot: usize,
    ) {
        let kept = self.kept();
        self.addends.add(simd, sums, self.rows.start + row, self.column + slot * LANES);
        if self.sums.is_empty() {
            self.sums.resize(self.rows.len() * kept);
        }
        for (i, sums) in sums.iter().enumerate() {
            let to = &mut self.sums[(row + i) * kept + slot % kept..][..N];
            for (to, sum) in to.iter_mut().zip(sums) {
                sum.store(to);
            }
        }
    }

    #[inline(always)]
    fn turn<S: Simd>(&mut self, simd: S, slot: usize) {
        let kept = self.kept();
        if slot > 0 && slot.is_multiple_of(kept) {
            self.whole_head(simd, slot / kept - 1);
        }
    }

    #[inline(always)]
    fn end<S: Simd>(&mut self, simd: S) -> bool {
        match comes_whole(self.head_dim) {
            true => {
                self.whole_head(simd, self.heads.len() - 1);
                self.finite.holds()
            }
            false => self.any(simd),
        }
    }
}

/// Whether heads of so many elements are treated one after the other, each as soon as it is there.
fn comes_whole(head_dim: usize) -> bool {
    matches!(head_dim, 64 | 128 | 256)
}

impl Part<'_> {
    /// Slots whose sums are kept at a time.
    #[inline(always)]
    fn kept(&self) -> usize {
        if comes_whole(self.head_dim) { self.head_dim / LANES } else { self.slots() }
    }

    /// Treats and writes a head, whose sums are kept.
    #[inline(always)]
    fn whole_head<S: Simd>(&mut self, simd: S, head: usize) {
        match self.head_dim {
            64 => self.whole::<S, 4>(simd, head),
            128 => self.whole::<S, 8>(simd, head),
            _ => self.whole::<S, 16>(simd, head),
        }
    }

    /// The same of rows of N vectors, which stay in registers meanwhile.
    #[inline(always)]
    fn whole<S: Simd, const N: usize>(&mut self, simd: S, head: usize) {
        let (to, treatment) = &mut self.heads[head];
        let rows = self.sums.as_chunks::<N>().0;
        for (i, (t, sums)) in self.rows.clone().zip(rows).enumerate() {
            let row = treatment.whole::<S, N>(simd, t, sums);
            self.finite.see(simd, &[row]);
            to.write(simd, i * N * LANES, &row);
        }
    }

    /// The same of rows of any length.
    #[inline(always)]
    fn any<S: Simd>(&mut self, simd: S) -> bool {
        let (width, head_dim) = (self.slots() * LANES, self.head_dim);
        let mut finite = true;
        for (head, (to, treatment)) in self.heads.iter_mut().enumerate() {
            for (i, t) in self.rows.clone().enumerate() {
                let first = i * width + self.skipped + head * head_dim;
                let row = &mut self.sums.as_flattened_mut()[first..first + head_dim];
                finite &= treatment.any(simd, t, row);
                to.write_any(simd, i * head_dim, row);
            }
        }
        finite
    }
}

impl<'a> Treatment<'a> {
    /// Nothing is done to the rows of `layer`.
    fn still(layer: &LayerWeights) -> Self {
        let &LayerWeights { spec: LayerSpec { norm_eps: eps, .. }, norms_last, clip, .. } = layer;
        Self { norm: None, eps, turns: None, norms_last, clip }
    }

    /// Its values are treated so.
    fn normed(self, norm: Option<&'a [f32]>) -> Self {
        Self { norm, ..self }
    }

    /// Its queries or keys are treated so.
    fn turned(self, norm: Option<&'a [f32]>, turns: Turns<'a>) -> Self {
        Self { turns: Some(turns), ..self.normed(norm) }
    }

    /// What is done to head `head` of all these.
    fn of_head(self, head: usize, head_dim: usize) -> Self {
        let own = |norm: &'a [f32]| match norm.len() == head_dim {
            true => norm,
            false => &norm[head * head_dim..][..head_dim],
        };
        Self { norm: self.norm.map(own), ..self }
    }

    /// The row of token `t`, treated as [`Self::any`] does it, to the bit.
    #[inline(always)]
    fn whole<S: Simd, const N: usize>(
        &self,
        simd: S,
        t: usize,
        row: &[[f32; LANES]; N],
    ) -> [S::V; N] {
        let mut x = [simd.splat(0.0); N];
        for (x, row) in x.iter_mut().zip(row) {
            *x = simd.load(row);
        }
        if !self.norms_last {
            self.norm_whole(simd, &mut x);
        }
        if let Some(most) = self.clip {
            x = x.map(|x| clipped(simd, x, most));
        }
        if let Some(Turns { half, cos, sin }) = self.turns {
            let [cos, sin] = [cos, sin].map(|all| all[t * half..][..N / 2 * LANES].as_chunks().0);
            for j in 0..N / 2 {
                let turn = (simd.load(&cos[j]), simd.load(&sin[j]));
                (x[j], x[j + N / 2]) = rotated((x[j], x[j + N / 2]), turn);
            }
        }
        if self.norms_last {
            self.norm_whole(simd, &mut x);
        }
        x
    }

    /// The norm of a row in registers, if it has one.
    #[inline(always)]
    fn norm_whole<S: Simd, const N: usize>(&self, simd: S, x: &mut [S::V; N]) {
        let Some(weight) = self.norm else { return };
        let mut squares = simd.splat(0.0);
        for x in x.iter() {
            squares = x.fma(*x, squares);
        }
        let scale = norm_scale(simd, squares, N * LANES, self.eps);
        let weight: &[_; N] = weight.as_chunks().0.first_chunk().expect("N of a head");
        for (x, weight) in x.iter_mut().zip(weight) {
            *x = *x * scale * simd.load(weight);
        }
    }

    /// Treats the row of token `t`; returns whether it is finite then.
    #[inline(always)]
    fn any<S: Simd>(&self, simd: S, t: usize, row: &mut [f32]) -> bool {
        if let Some(weight) = self.norm.filter(|_| !self.norms_last) {
            norm_row(simd, row, weight, self.eps);
        }
        if let Some(most) = self.clip {
            for some in row.chunks_mut(LANES) {
                store_front(clipped(simd, load_front(simd, some), most), some);
            }
        }
        if let Some(turns) = self.turns {
            rotate(simd, row, turns, t);
        }
        if let Some(weight) = self.norm.filter(|_| self.norms_last) {
            norm_row(simd, row, weight, self.eps);
        }
        is_finite(simd, row)
    }
}

/// What is further from 0 than `most` cut off there; of what is infinite comes no number, so that
/// it is seen.
#[inline(always)]
fn clipped<S: Simd>(simd: S, x: S::V, most: f32) -> S::V {
    x.fma(simd.splat(0.0), simd.splat(-most).max(simd.splat(most).min(x)))
}

/// Rotates one head's row by the angles of token `t`, element i against i + head_dim / 2.
#[inline(always)]
fn rotate<S: Simd>(simd: S, row: &mut [f32], turns: Turns<'_>, t: usize) {
    let span = t * turns.half..(t + 1) * turns.half;
    let (first, second) = row.split_at_mut(turns.half);
    let turns = turns.cos[span.clone()].chunks(LANES).zip(turns.sin[span].chunks(LANES));
    let pairs = first.chunks_mut(LANES).zip(second.chunks_mut(LANES));
    for ((a, b), (cos, sin)) in pairs.zip(turns) {
        let turn = (load_front(simd, cos), load_front(simd, sin));
        let (x, y) = rotated((load_front(simd, a), load_front(simd, b)), turn);
        store_front(x, a);
        store_front(y, b);
    }
}

/// Sixteen pairs, rotated by angles of which these are cosine and sine.
#[inline(always)]
fn rotated<V: Vector>((x, y): (V, V), (cos, sin): (V, V)) -> (V, V) {
    (x * cos - y * sin, y.fma(cos, x * sin))
}
