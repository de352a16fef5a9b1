//! What a selection retained, summed when somebody asks.

use super::super::resident::OnDevice;
use crate::array::{Array, Resident};
use crate::backend::BackendError;

/// `[kv_heads, 2]` on the device, read as the sums over the heads.
struct PerHead(OnDevice<f64>);

impl Resident<f64> for PerHead {
    fn count(&self) -> usize {
        2
    }

    fn fetch(&self) -> Result<Vec<f64>, BackendError> {
        let sums = self.0.read()?;
        let sum = |first: usize| sums.iter().skip(first).step_by(2).sum();
        Ok(vec![sum(0), sum(1)])
    }
}

/// [`Selected::retained`](crate::Selected) of what each KV head retains.
pub(super) fn retained(per_head: OnDevice<f64>) -> Array<f64> {
    Array::on_device(std::sync::Arc::new(PerHead(per_head)))
}
