//! What a device tells of numbers that are not finite, in a batch.

use aqueduct_kernels::BackendError;

use crate::model::Model;

/// A device tells what it met to whoever reads next, whose it may not be. So a batch reads nothing
/// of its sequences before it has heard that itself, and finds out whose it was once all layers are
/// passed: rows have nothing to do with each other, so one goes on without harm until then.
pub(super) struct Told<'m> {
    model: &'m Model,
    /// Of one sequence alone everything is its own, and whoever reads it may hear.
    many: bool,
    met: Option<BackendError>,
}

impl<'m> Told<'m> {
    pub(super) fn new(model: &'m Model, sequences: usize) -> Self {
        Self { model, many: sequences > 1, met: None }
    }

    /// Waits for the device and hears what it has to tell, so that who reads next does not.
    pub(super) fn hear(&mut self) {
        if self.many
            && let Err(error) = self.model.backend().sound()
        {
            self.note(&error);
        }
    }

    /// What somebody heard in a read of all rows. Whoever reads from a device that is lost is told
    /// that anyway.
    pub(super) fn note(&mut self, error: &BackendError) {
        if self.many && matches!(error, BackendError::NotFinite { .. }) {
            self.met.get_or_insert_with(|| error.clone());
        }
    }

    /// What was met and of whom nobody knows, after all is heard.
    pub(super) fn take(&mut self) -> Option<BackendError> {
        self.hear();
        self.met.take()
    }
}
