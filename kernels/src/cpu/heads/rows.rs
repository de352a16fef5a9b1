//! The same where a norm is of all heads of a token: no head can be treated before the last one's
//! sums are there, so all sums are written first.

use super::stored::{Kv, Stored};
use super::{Treatment, qkv};
use crate::backend::{BackendError, Qkv};
use crate::cpu::gemm::{Argument, Place, linear, norm_row};
use crate::cpu::simd::{Kernel, Simd};
use crate::cpu::unwritten::unwritten;
use crate::tensor::Rows;
use crate::weights::{Angles, LayerWeights};

/// Rows that a task norms.
const ROWS: usize = 16;

/// Whether the layer has a norm of all heads of a token together.
pub(in crate::cpu) fn norms_all_heads(layer: &LayerWeights) -> bool {
    let mut norms = [&layer.q_norm, &layer.k_norm].into_iter().flatten();
    !layer.norms_apart && norms.any(|norm| norm.len() > layer.spec.head_dim)
}

/// See [`super::project_heads`].
pub(in crate::cpu) fn project_rows(
    place: Place<'_>,
    layer: &LayerWeights,
    x: Argument<'_>,
    (start, angles): (u32, &Angles),
) -> Result<Qkv, BackendError> {
    let (spec, tokens) = (layer.projected(), x.rows.rows());
    let size = tokens * spec.head_dim;
    let mut sums = linear("project", place, x, &layer.qkv, None)?;
    let cols = sums.cols().max(1);
    let tasks = sums.data_mut().chunks_mut(ROWS * cols).collect();
    place.crew.map(tasks, |rows| place.isa.run(NormAll { rows, cols, layer }));

    let mut q = unwritten(spec.heads * size);
    let [mut k, mut v] = [(); 2].map(|()| Kv::new(spec.kv_heads * size, spec.kv));
    let head_dim = spec.head_dim;
    let mut tasks = Vec::with_capacity(spec.heads + 2 * spec.kv_heads);
    let [q_norm, k_norm] = [&layer.q_norm, &layer.k_norm]
        .map(|norm| norm.as_deref().filter(|norm| norm.len() == head_dim));
    let still = Treatment::still(layer);
    for (to, treatment) in [
        (Stored::F32(&mut q), still.turned(q_norm, angles.of_queries())),
        (k.stored(), still.turned(k_norm, angles.of_keys())),
        (v.stored(), still.normed(layer.v_norm.as_deref())),
    ] {
        for to in to.pieces(size) {
            let first = tasks.len() * head_dim;
            tasks.push(OneHead { to, treatment, head_dim, sums: &sums, first });
        }
    }
    let finite = place.crew.map(tasks, |head| place.isa.run(head));
    if !finite.into_iter().all(|finite| finite) {
        let what = "a rotated query or key";
        return Err(BackendError::NotFinite { op: "project", what });
    }
    // SAFETY: every head was written, each by its task.
    Ok(unsafe { qkv(spec, (q, k, v), (tokens, tokens), start) })
}

/// Norms, in place, of what all heads of a row share.
struct NormAll<'a> {
    rows: &'a mut [f32],
    cols: usize,
    layer: &'a LayerWeights,
}

impl Kernel for NormAll<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let LayerWeights { spec, q_norm, k_norm, .. } = self.layer;
        for row in self.rows.chunks_exact_mut(self.cols) {
            for (norm, first) in [(q_norm, 0), (k_norm, spec.heads * spec.head_dim)] {
                if let Some(weight) = norm.as_ref().filter(|norm| norm.len() > spec.head_dim) {
                    norm_row(simd, &mut row[first..first + weight.len()], weight, spec.norm_eps);
                }
            }
        }
    }
}

/// A head of all tokens, of their sums.
struct OneHead<'a> {
    to: Stored<'a>,
    treatment: Treatment<'a>,
    head_dim: usize,
    sums: &'a Rows,
    /// Its first column of them.
    first: usize,
}

impl Kernel for OneHead<'_> {
    /// Whether all that was written is finite.
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) -> bool {
        let Self { sums, first, .. } = self;
        let mut row = vec![0.0; self.head_dim];
        let mut finite = true;
        for t in 0..sums.rows() {
            row.copy_from_slice(&sums.row(t)[first..first + self.head_dim]);
            finite &= self.treatment.any(simd, t, &mut row);
            self.to.write_any(simd, t * row.len(), &row);
        }
        finite
    }
}
