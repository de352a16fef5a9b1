//! What measures need: arrays on the device before the clock starts, and the device's own clock.

use std::time::{Duration, Instant};

use bytemuck::Pod;

use super::Cuda;
use crate::array::Array;
use crate::backend::BackendError;
use crate::memory::Keys;
use crate::tensor::{KvData, KvHeads};

impl Cuda {
    /// The same elements on this device alone.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn here<T: Pod + Send + Sync>(&self, array: &Array<T>) -> Result<Array<T>, BackendError> {
        Ok(self.shared.place(array)?.into_array())
    }

    /// The same keys on this device alone.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn keys_here(&self, keys: &Keys) -> Result<Keys, BackendError> {
        let heads = |heads: &KvHeads| -> Result<KvHeads, BackendError> {
            let data = match &heads.data {
                KvData::F32(data) => KvData::F32(self.here(data)?),
                KvData::Bf16(data) => KvData::Bf16(self.here(data)?),
            };
            Ok(KvHeads { data, ..*heads })
        };
        let positions = self.shared.place(&keys.positions)?;
        let end = keys.positions.host()?.iter().max().map_or(0, |last| last + 1);
        let positions = positions.known_within(0..end).into_array();
        Ok(Keys { positions, k: heads(&keys.k)?, v: heads(&keys.v)?, ..keys.clone() })
    }

    /// How long the device takes for what `work` enqueues, by its own clock where it has one.
    ///
    /// # Errors
    /// What `work` says, and [`BackendError::Device`].
    pub fn time(
        &self,
        work: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<Duration, BackendError> {
        self.shared.broken()?; // nothing else is under way
        #[cfg(feature = "cuda")]
        if let Some((driver, _)) = &self.shared.driver {
            let failed = |fault| self.shared.fault(fault);
            let start = driver.mark().map_err(failed)?;
            work()?;
            let end = driver.mark().map_err(failed)?;
            return driver.between(&start, &end).map_err(failed);
        }
        let start = Instant::now();
        work()?;
        self.shared.broken()?;
        Ok(start.elapsed())
    }
}
