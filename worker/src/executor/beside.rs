//! Two things at once: a part of a layer, and what is urgent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::Executor;
use super::schedule::Boundary;
use crate::doorbell::Doorbell;

/// Tells the device thread that the part is computed, also when it panicked.
struct Done<'a> {
    flag: &'a AtomicBool,
    doorbell: &'a Doorbell,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::Release);
        self.doorbell.ring();
    }
}

impl Executor {
    /// Runs `compute` on a thread of its own while this one decodes, where rounds go first and
    /// the device lets them; a layer can be many times as long as a round. Where there can be no
    /// such thread at the moment, rounds wait.
    pub(super) fn beside(&mut self, compute: &mut (dyn FnMut() + Send)) {
        if !self.model.backend().makes_way() || !self.goes_first() {
            return compute();
        }
        let (flag, doorbell) = (AtomicBool::new(false), self.shared.doorbell.clone());
        let done = Done { flag: &flag, doorbell: &doorbell };
        let compute = Mutex::new(compute);
        let run = || (compute.lock().unwrap_or_else(PoisonError::into_inner))();
        thread::scope(|scope| {
            let part = move || {
                let _done = done;
                run();
            };
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, part) {
                tracing::warn!(%error, "no thread for a part of a layer");
                return run();
            }
            while !flag.load(Ordering::Acquire) {
                if !self.attend(Boundary::Layer) {
                    doorbell.wait_until(None);
                }
            }
        });
    }
}
