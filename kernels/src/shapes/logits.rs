//! What makes logits of dot products.

use super::{Checked, ensure, same};
use crate::backend::Queries;

/// The numbers beside the queries.
pub(super) fn numbers(op: &'static str, queries: &Queries<'_>) -> Checked {
    let Queries { q, scale, softcap, slopes, .. } = *queries;
    ensure(op, scale > 0.0 && scale.is_finite(), || {
        format!("scale is {scale}, and must be finite and above 0")
    })?;
    if let Some(cap) = softcap {
        ensure(op, cap > 0.0 && cap.is_finite(), || {
            format!("softcap is {cap}, and must be finite and above 0")
        })?;
    }
    let Some(slopes) = slopes else { return Ok(()) };
    same(op, "slopes", slopes.len(), q.heads)?;
    ensure(op, slopes.iter().all(|&slope| slope >= 0.0 && slope.is_finite()), || {
        format!("slopes are {slopes:?}, and must be finite and at least 0")
    })
}
