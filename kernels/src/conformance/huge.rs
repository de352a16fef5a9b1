//! Numbers whose squares are beyond f32.

use super::layers::{angles, rows};
use super::plain::{Look, PLAIN, PlainLayer};
use crate::backend::{Backend, BackendError};

/// Of rows whose squares are beyond f32 come what f64 makes of them, an error or no numbers: zeros,
/// which 1 / infinity makes, could not be told from a good row.
pub fn huge_rows_are_no_zeros(backend: &dyn Backend) {
    let looks = [PLAIN, Look { qk_norm: true, ..PLAIN }, Look { gemma: true, ..PLAIN }];
    for look in looks.into_iter().chain([Look { olmo: true, qk_norm: true, ..PLAIN }]) {
        let layer = PlainLayer::new(look);
        let (packed, d) = (layer.pack(backend), layer.spec.head_dim);
        let mut x = rows(8, 2, layer.width());
        x.row_mut(0).iter_mut().for_each(|x| *x *= 1e25);
        let mut attention = rows(9, 2, layer.attended());
        attention.row_mut(0).iter_mut().for_each(|x| *x *= 1e25);
        let is_told = |what: &str, seen: Result<Vec<f32>, BackendError>| {
            let has_numbers = |seen: &[f32]| seen.iter().all(|x| x.is_finite());
            let zeros = |seen: &[f32]| seen.iter().filter(|x| **x == 0.0).count();
            let Ok(seen) = seen else { return };
            assert!(!has_numbers(&seen) || zeros(&seen) < seen.len() / 2, "{what}: {seen:?}");
        };
        let qkv = backend.project(&packed, &x, (0, &angles(0, 2, d)), 2);
        let keys = qkv.and_then(|qkv| Ok(qkv.q.data.host()?[..d].to_vec()));
        is_told("project", keys);
        let x = rows(8, 2, layer.width());
        let made = backend.finish(&packed, &x, &attention).and_then(|y| {
            y.array().host()?;
            // What was added to the stream.
            Ok(y.row(0).iter().zip(x.row(0)).map(|(y, x)| y - x).collect())
        });
        is_told("finish", made);
    }
}
