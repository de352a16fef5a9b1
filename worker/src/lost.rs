//! Whether a device can still be asked, after it could not do something.

use aqueduct_engine::Model;
use aqueduct_kernels::BackendError;

/// Whether `error` is of a device that this process has lost: the driver answers nothing but
/// errors any more, and every chunk after this one would fail too.
pub(crate) fn is_lost(model: &Model, error: &BackendError) -> bool {
    if !matches!(error, BackendError::Device { .. }) {
        return false;
    }
    match model.backend().alive() {
        Ok(()) => false,
        Err(lost) => {
            tracing::error!(error = %lost, "the device is lost to this process: its worker ends");
            true
        }
    }
}
