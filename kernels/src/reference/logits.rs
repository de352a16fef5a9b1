//! Scaled dot products of the keys in sight.

use std::borrow::Cow;

use half::bf16;

use crate::backend::Queries;
use crate::tensor::{Heads, KvDtype};

/// `q` as it is multiplied with keys of `dtype`.
pub(super) fn beside(q: &Heads, dtype: KvDtype) -> Cow<'_, Heads> {
    match dtype {
        KvDtype::F32 => Cow::Borrowed(q),
        KvDtype::Bf16 => {
            let data = q.data.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
            Cow::Owned(Heads { data, ..*q })
        }
    }
}

/// Index and logit of every key that row `t` of head `h` sees, ascending. `positions` and `k`,
/// `[keys, head_dim]`, belong to the head's KV head.
pub(super) fn logits_in_sight<'a>(
    queries: &Queries<'a>,
    (h, t): (usize, usize),
    positions: &'a [u32],
    k: &'a [f32],
) -> impl Iterator<Item = (usize, f64)> {
    let Queries { q, scale, softcap, slopes, .. } = *queries;
    let slope = slopes.map_or(0.0, |slopes| f64::from(slopes[h]));
    let sees = queries.sight(t);
    let row = q.row(h, t);
    let keys = positions.iter().zip(k.chunks_exact(q.head_dim)).enumerate();
    keys.filter({
        let sees = sees.clone();
        move |(_, (position, _))| sees.contains(position)
    })
    .map(move |(j, (position, key))| {
        let z = capped(dot(row, key) * f64::from(scale), softcap);
        (j, z - slope * f64::from(sees.end() - position))
    })
}

fn capped(z: f64, cap: Option<f32>) -> f64 {
    let Some(cap) = cap.map(f64::from) else { return z };
    cap * (z / cap).tanh() + 0.0 * z // what is not finite stays so
}

/// a · b.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}
