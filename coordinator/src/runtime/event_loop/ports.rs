//! What the loop listens to, and where others hear of it.

use std::sync::Arc;

use aqueduct_core::{RequestId, WorkerId};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::super::keeping::Found;
use super::super::live::Asked;
use super::super::mailbox::Mailbox;
use super::super::scribe::Written;
use super::super::status::{Cluster, Stats};
use super::{DrainOrder, Inquiry};
use crate::dispatch::Notice;
use crate::generation::Claim;
use crate::submit::{RequestError, Submission};

/// A validated request on its way in.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) asked: Asked,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) reply: Answer,
}

/// A caller who comes back to a request, perhaps of a coordinator that is gone.
#[derive(Debug)]
pub(crate) struct Comeback {
    pub(crate) request: RequestId,
    pub(crate) claim: Claim,
    pub(crate) mailbox: Arc<Mailbox>,
    /// What was asked for.
    pub(crate) reply: oneshot::Sender<Result<Submission, RequestError>>,
}

/// Whether a request is accepted.
pub(super) type Answer = oneshot::Sender<Result<RequestId, RequestError>>;

/// What comes from outside.
#[derive(Debug)]
pub(crate) enum Inbound {
    Request(Box<Arrival>),
    Attach(Comeback),
    /// A journal to be kept from now on.
    Keep(Box<Found>),
    /// Behind it, if there is a journal: an order counts when it is written down.
    Drain(DrainOrder),
}

/// What the loop listens to.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub(crate) inbound: mpsc::Receiver<Inbound>,
    pub(crate) notices: mpsc::Receiver<(WorkerId, Notice)>,
    pub(crate) written: mpsc::Receiver<Written>,
    pub(crate) wished: Arc<Notify>,
    pub(crate) stopping: Arc<Notify>,
    /// Another coordinator leads, or none.
    pub(crate) deposed: Arc<Notify>,
    pub(crate) inquiries: mpsc::Receiver<Inquiry>,
}

/// What others see of it.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub(crate) shown: Shown,
    pub(crate) written: mpsc::Sender<Written>,
    pub(crate) wished: Arc<Notify>,
}

/// What everybody may see, of whichever loop there is.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) cluster: watch::Sender<Cluster>,
    pub(crate) stats: watch::Sender<Stats>,
}

impl Shown {
    /// Nothing but these workers, and where it is seen.
    pub(crate) fn new(known: Cluster) -> (Self, watch::Receiver<Cluster>, watch::Receiver<Stats>) {
        let (cluster_sender, cluster) = watch::channel(known);
        let (stats_sender, stats) = watch::channel(Stats::default());
        (Self { cluster: cluster_sender, stats: stats_sender }, cluster, stats)
    }

    /// There is no loop any more: what was counted stays, and nothing else.
    pub(crate) fn clear(&self) {
        self.cluster.send_replace(Cluster::default());
        self.stats.send_modify(|stats| *stats = stats.counted());
    }
}
