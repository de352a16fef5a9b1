//! The same where keys and values come of a few numbers that heads share: three products, and then
//! heads of their sums.

use std::ops::Range;

use super::stored::{Kv, Stored};
use super::{Treatment, qkv};
use crate::backend::{BackendError, Qkv};
use crate::cpu::gemm::{Argument, Place, Prepare, linear};
use crate::cpu::simd::{Kernel, Simd};
use crate::cpu::unwritten::unwritten;
use crate::latent::{Latent, Raised};
use crate::tensor::Rows;
use crate::weights::{Angles, LayerWeights};

/// See [`super::project_heads`].
pub(in crate::cpu) fn project_latent(
    place: Place<'_>,
    (layer, latent): (&LayerWeights, &Latent),
    x: Argument<'_>,
    (start, angles): (u32, &Angles),
) -> Result<Qkv, BackendError> {
    let (spec, tokens) = (layer.spec, x.rows.rows());
    let made = linear("project", place, x, &layer.qkv, None)?;
    let [queries, keys, shared] = latent.columns(&spec);
    let raised = |Raised { norm, up }: &Raised, columns| {
        let prepare = Prepare::norm(Some(norm), latent.norm_eps);
        linear("project", place, Argument { rows: &part(&made, columns), prepare }, up, None)
    };
    let q_sums = latent.queries.as_ref().map(|it| raised(it, queries)).transpose()?;
    let kv_sums = raised(&latent.keys, keys)?;
    let (q_sums, kv_sums) = (q_sums.as_ref().unwrap_or(&made), &kv_sums);

    let size = tokens * spec.head_dim;
    let mut q = unwritten(spec.heads * size);
    let [mut k, mut v] = [(); 2].map(|()| Kv::new(spec.heads * size, spec.kv));
    let still = Treatment::still(layer);
    let turned_q = still.turned(None, angles.of_queries());
    let turned_k = still.turned(None, angles.of_keys());
    let queries = Stored::F32(&mut q).pieces(size).enumerate().map(|(head, to)| {
        let source = Source::Query { sums: q_sums, first: head * spec.head_dim };
        OneHead { to, treatment: turned_q, head_dim: spec.head_dim, source }
    });
    let keys = k.stored().pieces(size).enumerate().map(|(head, to)| {
        let [first, _] = latent.columns_of(&spec, head);
        let own = first..first + latent.own(&spec);
        let source = Source::Key { latent, sums: kv_sums, own, made: &made, shared: &shared };
        OneHead { to, treatment: turned_k, head_dim: spec.head_dim, source }
    });
    let values = v.stored().pieces(size).enumerate().map(|(head, to)| {
        let [_, first] = latent.columns_of(&spec, head);
        let source = Source::Value { sums: kv_sums, own: first..first + latent.value_dim };
        OneHead { to, treatment: still, head_dim: spec.head_dim, source }
    });
    let tasks = queries.chain(keys).chain(values).collect();
    let finite = place.crew.map(tasks, |head| place.isa.run(head));
    if !finite.into_iter().all(|finite| finite) {
        let what = "a rotated query or key";
        return Err(BackendError::NotFinite { op: "project", what });
    }
    // SAFETY: every head was written, each by its task.
    Ok(unsafe { qkv(spec, (q, k, v), (tokens, tokens), start) })
}

/// Some columns of all rows.
fn part(rows: &Rows, columns: Range<usize>) -> Rows {
    let mut data = Vec::with_capacity(rows.rows() * columns.len());
    for row in rows.data().chunks_exact(rows.cols()) {
        data.extend_from_slice(&row[columns.clone()]);
    }
    Rows::from_vec(rows.rows(), columns.len(), data)
}

/// What a head's rows are made of.
enum Source<'a> {
    Query {
        sums: &'a Rows,
        first: usize,
    },
    Key {
        latent: &'a Latent,
        sums: &'a Rows,
        own: Range<usize>,
        made: &'a Rows,
        shared: &'a Range<usize>,
    },
    /// Zeros follow.
    Value {
        sums: &'a Rows,
        own: Range<usize>,
    },
}

impl Source<'_> {
    fn tokens(&self) -> usize {
        let (Self::Query { sums, .. } | Self::Key { sums, .. } | Self::Value { sums, .. }) = self;
        sums.rows()
    }

    /// The row of token `t`.
    fn read(&self, t: usize, row: &mut [f32]) {
        match self {
            Self::Query { sums, first } => row.copy_from_slice(&sums.row(t)[*first..][..row.len()]),
            Self::Key { latent, sums, own, made, shared } => {
                latent.key(&sums.row(t)[own.clone()], &made.row(t)[(*shared).clone()], row);
            }
            Self::Value { sums, own } => {
                row[..own.len()].copy_from_slice(&sums.row(t)[own.clone()])
            }
        }
    }
}

/// A head of all tokens.
struct OneHead<'a> {
    to: Stored<'a>,
    treatment: Treatment<'a>,
    head_dim: usize,
    source: Source<'a>,
}

impl Kernel for OneHead<'_> {
    /// Whether all that was written is finite.
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) -> bool {
        let mut row = vec![0.0; self.head_dim];
        let mut finite = true;
        for t in 0..self.source.tokens() {
            self.source.read(t, &mut row);
            finite &= self.treatment.any(simd, t, &mut row);
            self.to.write_any(simd, t * row.len(), &row);
        }
        finite
    }
}
