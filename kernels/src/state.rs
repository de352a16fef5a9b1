//! The partial softmax state `(m, l, o)` and its max-rescaled merge.

use crate::array::Array;
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
