//! Elements of one dtype as those of another.

use std::sync::Arc;

use half::bf16;

use super::Shared;
use super::device::Launch;
use super::params::attention::Convert;
use super::resident::OnDevice;
use crate::backend::BackendError;

impl Shared {
    pub(super) fn narrowed(
        self: &Arc<Self>,
        from: &OnDevice<f32>,
    ) -> Result<OnDevice<bf16>, BackendError> {
        let to = OnDevice::room(self, from.len())?;
        self.convert("convert_to_bf16", from.len(), (from.address(), to.address()))?;
        Ok(to)
    }

    pub(super) fn widened(
        self: &Arc<Self>,
        from: &OnDevice<bf16>,
    ) -> Result<OnDevice<f32>, BackendError> {
        let to = OnDevice::room(self, from.len())?;
        self.convert("convert_to_f32", from.len(), (from.address(), to.address()))?;
        Ok(to)
    }

    fn convert(
        &self,
        kernel: &'static str,
        count: usize,
        (from, to): (u64, u64),
    ) -> Result<(), BackendError> {
        const THREADS: u32 = 256;
        let params = Convert { from, to, count: count as u64 };
        self.run(&Launch {
            kernel,
            grid: [count.div_ceil(THREADS as usize) as u32, 1, 1],
            threads: THREADS,
            shared_bytes: 0,
            params: bytemuck::bytes_of(&params),
        })
    }
}
