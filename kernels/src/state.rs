//! The partial softmax state `(m, l, o)` and its max-rescaled merge.

use crate::array::Array;
use crate::backend::BackendError;
use crate::tensor::Rows;

/// What T queries know after seeing some of the keys: for every head and row,
/// m = the maximum logit, l = sum of exp(z - m), o = sum of exp(z - m) v, un-normalised.
///
/// Natural logarithm, logits already scaled. A row that saw no key is empty:
/// m = -inf, l = 0, o = 0, and is the identity of [`merge`](Self::merge).
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionState {
    /// H.
    pub heads: usize,
    /// T.
    pub tokens: usize,
    /// D.
    pub head_dim: usize,
    /// `[heads, tokens]`.
    pub m: Array<f32>,
    /// `[heads, tokens]`.
    pub l: Array<f32>,
    /// `[heads, tokens, head_dim]`.
    pub o: Array<f32>,
}

/// The maximum of two rows that saw something, and what brings l and o of either to it.
pub(crate) fn common(ma: f32, mb: f32) -> (f32, f32, f32) {
    // exp(0) is 1.
    if ma >= mb { (ma, 1.0, (mb - ma).exp()) } else { (mb, (ma - mb).exp(), 1.0) }
}

/// One row of [`AttentionState::merge`]: m, l and o of either.
#[inline(always)]
pub(crate) fn merge_row(
    (ma, la, oa): (&mut f32, &mut f32, &mut [f32]),
    (mb, lb, ob): (f32, f32, &[f32]),
) {
    if mb == f32::NEG_INFINITY {
        return; // also avoids -inf - -inf
    }
    if *ma == f32::NEG_INFINITY {
        // A copy, because 0 * 0 + x * 1 would lose the sign of a zero.
        (*ma, *la) = (mb, lb);
        oa.copy_from_slice(ob);
        return;
    }
    let (m, sa, sb) = common(*ma, mb);
    *ma = m;
    *la = *la * sa + lb * sb;
    for (a, b) in oa.iter_mut().zip(ob) {
        *a = *a * sa + b * sb;
    }
}

/// Log-sum-exp of a row.
pub(crate) fn lse(m: f32, l: f32) -> f32 {
    m + l.ln()
}

impl AttentionState {
    /// The state of queries that saw nothing.
    pub fn empty(heads: usize, tokens: usize, head_dim: usize) -> Self {
        Self {
            heads,
            tokens,
            head_dim,
            m: vec![f32::NEG_INFINITY; heads * tokens].into(),
            l: vec![0.0; heads * tokens].into(),
            o: vec![0.0; heads * tokens * head_dim].into(),
        }
    }

    /// Brings m, l and o to the host. What reads them here (all but this) panics where that fails,
    /// so it comes first wherever a device may have made them.
    ///
    /// # Errors
    /// As [`Array::host`] has it.
    pub fn host(&self) -> Result<(), BackendError> {
        self.m.host()?;
        self.l.host()?;
        self.o.host().map(drop)
    }

    /// The same state, which is on the [host](Self::host) then.
    ///
    /// # Errors
    /// As there.
    pub fn on_host(self) -> Result<Self, BackendError> {
        self.host()?;
        Ok(self)
    }

    /// The state over the keys of both. Commutative bit for bit; associative up to rounding,
    /// so callers merge in a fixed order (see [`crate::fold`]).
    ///
    /// With m = max(m_a, m_b), s_x = exp(m_x - m):  l = l_a s_a + l_b s_b,
    /// o = o_a s_a + o_b s_b  (Milakov and Gimelshein 2018; Dao et al. 2022).
    ///
    /// # Panics
    /// When the shapes differ: a bug of the caller; wire data is validated before.
    #[must_use]
    pub fn merge(mut self, other: &Self) -> Self {
        self.check_shape(other);
        let (m, l, o) = (self.m.make_mut(), self.l.make_mut(), self.o.make_mut());
        for i in 0..m.len() {
            let span = i * self.head_dim..(i + 1) * self.head_dim;
            merge_row(
                (&mut m[i], &mut l[i], &mut o[span.clone()]),
                (other.m[i], other.l[i], &other.o[span]),
            );
        }
        self
    }

    /// The state once its rows have also seen what gives them nothing, where there is that: to each
    /// row of head h the state (sinks\[h\], 1, 0) is merged  (OpenAI 2025, gpt-oss; Xiao et al.
    /// 2023).
    ///
    /// # Panics
    /// When `sinks` is not `[heads]`: a bug of the caller.
    #[must_use]
    pub fn with_sinks(mut self, sinks: Option<&[f32]>) -> Self {
        let Some(sinks) = sinks else { return self };
        assert_eq!(sinks.len(), self.heads, "a sink for each head");
        let nothing = vec![0.0; self.head_dim];
        let (m, l, o) = (self.m.make_mut(), self.l.make_mut(), self.o.make_mut());
        for i in 0..m.len() {
            let o = &mut o[i * self.head_dim..(i + 1) * self.head_dim];
            merge_row((&mut m[i], &mut l[i], o), (sinks[i / self.tokens], 1.0, &nothing));
        }
        self
    }

    pub(crate) fn check_shape(&self, other: &Self) {
        assert_eq!(
            (self.heads, self.tokens, self.head_dim),
            (other.heads, other.tokens, other.head_dim),
            "states of different shapes do not merge"
        );
    }

    /// Log-sum-exp of every row, `[heads, tokens]`: m + ln l; -inf where nothing was seen.
    pub fn lse(&self) -> Vec<f32> {
        self.m.iter().zip(self.l.iter()).map(|(&m, &l)| lse(m, l)).collect()
    }

    /// Attention output as activations, `[tokens, heads * head_dim]`: o / l, and zero where
    /// nothing was seen.
    pub fn output(&self) -> Rows {
        let width = self.heads * self.head_dim;
        let mut out = Rows::zeros(self.tokens, width);
        for h in 0..self.heads {
            for t in 0..self.tokens {
                let i = h * self.tokens + t;
                let l = self.l[i];
                if l > 0.0 {
                    let from = &self.o[i * self.head_dim..(i + 1) * self.head_dim];
                    let to = &mut out.row_mut(t)[h * self.head_dim..(h + 1) * self.head_dim];
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = from / l;
                    }
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::array::Lost;
    use crate::backend::{AttentionOps, Queries, Scope, StateOps};
    use crate::fold::Node;
    use crate::memory::{Keys, Leaves};
    use crate::tensor::{Heads, KvDtype, KvHeads};

    /// A device that says only to who reads what went wrong.
    struct Breaks;

    impl StateOps for Breaks {}

    impl AttentionOps for Breaks {
        fn attend(&self, queries: Queries<'_>, _: &Keys) -> Result<AttentionState, BackendError> {
            let Heads { heads, tokens, head_dim, .. } = *queries.q;
            let o = Array::<f32>::on_device(Arc::new(Lost(heads * tokens * head_dim)));
            Ok(AttentionState { o, ..AttentionState::empty(heads, tokens, head_dim) })
        }

        fn weigh(
            &self,
            _: Queries<'_>,
            keys: &Keys,
            _: &[f32],
            _: &[f32],
        ) -> Result<Array<f32>, BackendError> {
            Ok(vec![0.0; keys.positions.len()].into())
        }
    }

    fn is_told<T>(seen: Result<T, BackendError>) -> bool {
        matches!(seen, Err(BackendError::NotFinite { op: "test", .. }))
    }

    #[test]
    fn a_state_that_cannot_be_read_is_an_error_before_it_is_merged() {
        let q = Heads::zeros(1, 1, 2);
        let queries =
            Queries { q: &q, start: 4, scale: 1.0, window: None, softcap: None, slopes: None };
        let row = KvHeads::from_f32(1, 1, 2, &[0.0; 2], KvDtype::F32);
        let [past, own] = [0_u32, 4].map(|at| Keys::new(vec![at], row.clone(), row.clone()));
        let state = Breaks.attend(queries, &own).unwrap();
        assert!(is_told(state.host()) && is_told(state.clone().on_host()));
        assert!(is_told(Breaks.attend_folded(queries, &[&past, &past], (Node::ROOT, 2))));
        let scope = Scope {
            past: &past,
            leaves: Leaves::ONE,
            own: &own,
            row_weights: Some(&[1.0]),
            sinks: None,
            outputs: 1,
            rounded: false,
        };
        assert!(is_told(Breaks.attend_all(queries, scope)));
        let own = AttentionState::empty(1, 1, 2);
        assert!(is_told(Breaks.attend_rest(queries, scope, &own)), "of past keys");
    }
}
