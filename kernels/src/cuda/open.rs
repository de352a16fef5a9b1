//! Finding devices, and opening one.

use super::device::Fault;
use super::{Cuda, CudaOptions};

/// Why there is no CUDA device to compute with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The machine has none, or none that can be reached.
    #[error("no CUDA device ({reason})")]
    None {
        /// What is missing.
        reason: String,
    },
    /// It has others.
    #[error("no CUDA device {index}: the last one is {last}")]
    Index {
        /// The one that was asked for.
        index: usize,
        /// The highest that there is.
        last: usize,
    },
    /// There is one, but it cannot be used.
    #[error("CUDA device {index} cannot be used: {what}")]
    Unusable {
        /// Which one.
        index: usize,
        /// Why, in the driver's words where they are the driver's.
        what: String,
    },
}

impl CudaError {
    fn none(reason: impl Into<String>) -> Self {
        Self::None { reason: reason.into() }
    }

    fn unusable(index: usize, fault: Fault) -> Self {
        Self::Unusable { index, what: fault.to_string() }
    }
}

#[cfg(not(feature = "cuda"))]
impl Cuda {
    /// No device, because this was built without the feature `cuda`.
    ///
    /// # Errors
    /// Always.
    pub fn devices() -> Result<Vec<String>, CudaError> {
        Err(CudaError::none("built without CUDA"))
    }

    /// As [`devices`](Self::devices).
    ///
    /// # Errors
    /// Always.
    pub fn open(_: usize, _: CudaOptions) -> Result<Self, CudaError> {
        Self::devices().and_then(|_| Err(CudaError::none("built without CUDA")))
    }
}

#[cfg(feature = "cuda")]
mod by_driver {
    use std::sync::Arc;

    use super::{Cuda, CudaError, CudaOptions};
    use crate::cuda::Shared;
    use crate::cuda::cublaslt::CublasLt;
    use crate::cuda::driver::{Driver, library};
    use crate::cuda::pool::Pool;

    impl Cuda {
        /// The names of the machine's devices, at least one. Starts the driver, where there is
        /// one, and opens no device.
        ///
        /// # Errors
        /// [`CudaError::None`]: there is no driver, it is too old, or it sees no device.
        pub fn devices() -> Result<Vec<String>, CudaError> {
            library::open().map_err(CudaError::none)?;
            let count = Driver::count().map_err(|fault| CudaError::none(fault.to_string()))?;
            if count == 0 {
                return Err(CudaError::none("the driver sees none"));
            }
            let name = |index| match Driver::describe(index) {
                Ok(properties) => Ok(properties.name),
                Err(fault) => Err(CudaError::unusable(index, fault)),
            };
            (0..count).map(name).collect()
        }

        /// Device `index` of [`devices`](Self::devices).
        ///
        /// # Errors
        /// There is no such device, or it cannot be used.
        pub fn open(index: usize, options: CudaOptions) -> Result<Self, CudaError> {
            let last = Self::devices()?.len() - 1;
            if index > last {
                return Err(CudaError::Index { index, last });
            }
            let unusable = |fault| CudaError::unusable(index, fault);
            let driver = Driver::open(index, options.patience).map_err(unusable)?;
            let driver = Arc::new(driver);
            let limit_bytes = match options.memory_bytes {
                Some(bytes) => bytes,
                None => driver.free_bytes().map_err(unusable)? / 10 * 9,
            };
            let pool = Arc::new(Pool::new(driver.clone(), limit_bytes));
            let mut shared = Shared::new(Box::new(pool.clone()), options).map_err(unusable)?;
            match CublasLt::open(&driver, &pool) {
                Ok(library) => shared.library = Some(Box::new(library)),
                Err(why) => tracing::warn!(%why, "cuBLASLt is not used: our own kernels multiply"),
            }
            shared.driver = Some((driver, pool));
            Ok(Self::new(shared))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the machine has, looking for devices never panics, and what is not there is said.
    #[test]
    fn there_are_devices_or_a_reason() {
        match Cuda::devices() {
            Ok(names) => {
                let beyond = Cuda::open(names.len(), CudaOptions::default()).err().unwrap();
                assert_eq!(beyond, CudaError::Index { index: names.len(), last: names.len() - 1 });
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with("no CUDA device (") && text.ends_with(')'), "{text}");
                assert_eq!(Cuda::open(0, CudaOptions::default()).err(), Some(error));
            }
        }
    }
}
