//! Column mass: what a block's queries spend on each key.

use super::logits::{beside, logits_in_sight};
use crate::backend::{BackendError, Queries};
use crate::memory::Keys;
use crate::shapes;

/// See [`crate::AttentionOps::weigh`].
pub(super) fn weigh(
    queries: &Queries<'_>,
    keys: &Keys,
    lse: &[f32],
    row_weights: &[f32],
) -> Result<Vec<f32>, BackendError> {
    shapes::weighing(queries, keys, lse, row_weights)?;
    let q = &*beside(queries.q, keys.k.dtype());
    let queries = &Queries { q, ..*queries };
    let group = q.heads / keys.kv_heads();
    let mut masses = Vec::with_capacity(keys.positions.len());
    for g in 0..keys.kv_heads() {
        let (positions, k) = (keys.head_positions(g), keys.k_rows(g).to_f32());
        let mut mass = vec![0.0_f64; keys.len()];
        for h in g * group..(g + 1) * group {
            for (t, &weight) in row_weights.iter().enumerate() {
                let lse = lse[h * q.tokens + t];
                if lse == f32::NEG_INFINITY {
                    continue; // a row that saw nothing spends nothing
                }
                for (j, z) in logits_in_sight(queries, (h, t), positions, &k) {
                    mass[j] += f64::from(weight) * (z - f64::from(lse)).exp();
                }
            }
        }
        masses.extend(mass.iter().map(|&mass| mass as f32));
    }
    shapes::finite("weigh", "a column mass", &masses)?;
    Ok(masses)
}
