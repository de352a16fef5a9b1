//! RMS norm.

use super::logits::dot;
use crate::tensor::Rows;

/// See [`crate::LayerOps::norm`].
pub(super) fn norm(x: &Rows, weight: &[f32], eps: f32) -> Rows {
    let mut y = x.clone();
    for i in 0..y.rows() {
        norm_row(y.row_mut(i), weight, eps);
    }
    y
}

/// x / sqrt(mean of x² + eps) * weight, in place  (Zhang and Sennrich 2019).
pub(super) fn norm_row(x: &mut [f32], weight: &[f32], eps: f32) {
    let mean_square = dot(x, x) / x.len() as f64;
    let scale = 1.0 / (mean_square + f64::from(eps)).sqrt();
    for (x, &weight) in x.iter_mut().zip(weight) {
        *x = (f64::from(*x) * scale * f64::from(weight)) as f32;
    }
}
