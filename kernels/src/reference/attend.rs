//! Partial softmax state of queries over keys.

use super::logits::{beside, logits_in_sight};
use crate::backend::{BackendError, Queries};
use crate::memory::Keys;
use crate::shapes;
use crate::state::AttentionState;

/// See [`crate::AttentionOps::attend`].
pub(super) fn attend(queries: &Queries<'_>, keys: &Keys) -> Result<AttentionState, BackendError> {
    shapes::attention("attend", queries, keys)?;
    let q = &*beside(queries.q, keys.k.dtype());
    let queries = &Queries { q, ..*queries };
    let mut state = AttentionState::empty(q.heads, q.tokens, q.head_dim);
    let group = q.heads / keys.kv_heads();
    for g in 0..keys.kv_heads() {
        let (positions, k, v) =
            (keys.head_positions(g), keys.k_rows(g).to_f32(), keys.v_rows(g).to_f32());
        for h in g * group..(g + 1) * group {
            for t in 0..q.tokens {
                let seen: Vec<_> = logits_in_sight(queries, (h, t), positions, &k).collect();
                if !seen.is_empty() {
                    fill_row(&mut state, h * q.tokens + t, &seen, &v);
                }
            }
        }
    }
    shapes::finite("attend", "a sum of exponentials", &state.l)?;
    shapes::finite("attend", "a weighted sum of values", &state.o)?;
    Ok(state)
}

/// Row `i` of the state from the logits it saw and `v`, `[keys, head_dim]`.
fn fill_row(state: &mut AttentionState, i: usize, seen: &[(usize, f64)], v: &[f32]) {
    let d = state.head_dim;
    // Rounded before it is subtracted: l and o belong to the m that is stored.
    let m = seen.iter().map(|&(_, z)| z).fold(f64::NEG_INFINITY, f64::max) as f32;
    let (mut l, mut o) = (0.0_f64, vec![0.0_f64; d]);
    for &(j, z) in seen {
        let p = (z - f64::from(m)).exp();
        l += p;
        for (o, &v) in o.iter_mut().zip(&v[j * d..(j + 1) * d]) {
            *o += p * f64::from(v);
        }
    }
    state.m[i] = m;
    state.l[i] = l as f32;
    for (to, from) in state.o[i * d..(i + 1) * d].iter_mut().zip(o) {
        *to = from as f32;
    }
}
