//! Hand-offs from device to device: a gRPC link whose payload goes past the hosts.
//!
//! Sender and receiver agree in the metadata of their `HandOff` call: the sender says what its
//! device brings (the name of its [`Fabric`]), and a receiver whose device brings the same answers
//! with a group of two, which both join while sets go over gRPC as ever. Once the sender has
//! joined, a set is one frame of [notice](aqueduct_proto::convert::notice), an answer to it, the
//! exchange of both devices, and a second answer.
//!
//! gRPC is never given up: what the devices do not do within their patience, or do wrong, ends the
//! pair for as long as the link lives, and the set goes over gRPC at once. A set that had arrived
//! after all is then dropped as a duplicate.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::limits;
use aqueduct_engine::Model;
use aqueduct_kernels::{End, Fabric, FabricError, GroupId, Pair};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

pub(crate) use receiver::Dock;
pub(crate) use sender::{Bond, Departure};

/// What takes sets from this worker's device to those of its peers.
#[derive(Clone)]
pub struct Direct {
    fabric: Arc<dyn Fabric>,
    patience: Duration,
    /// One for each peer that may be joining at once.
    joins: Arc<Semaphore>,
}

impl Direct {
    /// Hand-offs through `fabric`, with the patience of [`limits::EXCHANGE_DEADLINE_MS`].
    pub fn new(fabric: Arc<dyn Fabric>) -> Self {
        let joins = Arc::new(Semaphore::new(limits::JOINS_MAX));
        Self { fabric, patience: Duration::from_millis(limits::EXCHANGE_DEADLINE_MS), joins }
    }

    /// Hand-offs through what the device of `model` brings; `None` where sets lie with the host,
    /// and where the device brings nothing, which is said in the log.
    pub fn of(model: &Model) -> Option<Self> {
        match model.fabric() {
            Ok(Some(fabric)) => {
                let fabric_name = fabric.name();
                tracing::info!(fabric_name, "memory sets go from device to device where peers can");
                Some(Self::new(fabric))
            }
            Ok(None) => None,
            Err(error) => {
                tracing::info!(%error, "memory sets go over gRPC");
                None
            }
        }
    }

    /// The same, but joining and exchanging a set may take no longer than `patience`.
    pub fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Leave to join; `None` when too many peers are joining.
    fn leave(&self) -> Option<OwnedSemaphorePermit> {
        self.joins.clone().try_acquire_owned().ok()
    }

    /// Begins to join.
    fn join(&self, leave: OwnedSemaphorePermit, id: GroupId, end: End) -> Joining {
        let Self { fabric, patience, .. } = self.clone();
        spawn_blocking(move || {
            let joined = fabric.join(&id, end, patience);
            drop(leave);
            joined
        })
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Direct({}, {:?})", self.fabric.name(), self.patience)
    }
}

/// A pair to be.
type Joining = JoinHandle<Result<Arc<dyn Pair>, FabricError>>;

/// A pair that is given up when whoever holds it lets go of it, whatever is under way.
pub(crate) struct Held(Arc<dyn Pair>);

impl Drop for Held {
    fn drop(&mut self) {
        let pair = self.0.clone();
        // Giving up may take a while, and this may be a thread that serves others.
        let aborts = std::thread::Builder::new().name("abort".into()).spawn(move || pair.abort());
        if let Err(error) = aborts {
            tracing::warn!(%error, "a pair of devices ends by its deadline");
        }
    }
}

/// Waits for what blocks a thread of its own; a panic there is an error.
async fn wait<R>(
    work: impl Future<Output = Result<Result<R, FabricError>, JoinError>>,
) -> Result<R, FabricError> {
    let panicked =
        |error: JoinError| FabricError::Failed { call: "hand-off", what: error.to_string() };
    work.await.unwrap_or_else(|error| Err(panicked(error)))
}
