//! Workers that come and go: a session begins when a member joins, and ends after it has left.

use std::collections::BTreeSet;

use aqueduct_core::{Tenure, WorkerId, limits};
use aqueduct_tls::ClientTls;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::dispatch::{Notice, Session};
use crate::runtime::{Cluster, WorkerState};

/// Keeps a session with every member.
///
/// Who is a member decides whom to look for, not who works: a worker that is not listed any more
/// but whose session goes on remains until that ends, so that a mishap of the registry stops
/// nothing. Ids of workers that have left are given again.
pub(crate) struct Discovery {
    members: Members,
    cluster: watch::Receiver<Cluster>,
    notices: mpsc::Sender<(WorkerId, Notice)>,
    /// In what sessions are opened; `None` by a coordinator that is in no group.
    tenure: Option<Tenure>,
    /// By worker id.
    places: Vec<Place>,
}

/// Who is a worker of the cluster.
#[derive(Debug, Clone)]
pub struct Members {
    /// As `http://host:port`, or `https://host:port` where there are certificates.
    pub urls: watch::Receiver<BTreeSet<String>>,
    /// How they are spoken to; plaintext if `None`.
    pub tls: Option<ClientTls>,
}

/// A worker id, and who has it or had it last.
struct Place {
    url: String,
    /// `None`: it has left.
    session: Option<AbortHandle>,
}

/// The runtime is gone.
struct Closed;

impl Discovery {
    pub(crate) fn new(
        members: Members,
        cluster: watch::Receiver<Cluster>,
        notices: mpsc::Sender<(WorkerId, Notice)>,
        tenure: Option<Tenure>,
    ) -> Self {
        Self { members, cluster, notices, tenure, places: Vec::new() }
    }

    /// Follows the members for as long as the runtime listens.
    pub(crate) async fn run(mut self) {
        loop {
            self.cluster.mark_unchanged();
            let members = self.members.urls.borrow_and_update().clone();
            let done = match self.let_go(&members).await {
                Ok(()) => self.take_in(&members).await,
                Err(closed) => Err(closed),
            };
            if done.is_err() {
                return;
            }
            tokio::select! {
                Ok(()) = self.members.urls.changed() => {}
                Ok(()) = self.cluster.changed() => {}
                () = self.notices.closed() => return,
            }
        }
    }

    /// Ends the sessions with those that are no members and not up.
    async fn let_go(&mut self, members: &BTreeSet<String>) -> Result<(), Closed> {
        for idx in 0..self.places.len() {
            let worker = WorkerId(idx as u32);
            if members.contains(&self.places[idx].url) || self.is_up(worker) {
                continue;
            }
            if let Some(session) = self.places[idx].session.take() {
                session.abort();
                self.say(worker, Notice::Left).await?;
            }
        }
        Ok(())
    }

    /// Begins sessions with members that have none.
    async fn take_in(&mut self, members: &BTreeSet<String>) -> Result<(), Closed> {
        for url in members {
            let known = self.places.iter().position(|place| place.url == *url);
            if known.is_some_and(|idx| self.places[idx].session.is_some()) {
                continue;
            }
            let session = Session::connect_in(self.tenure, url, self.members.tls.clone());
            let session = match session {
                Ok(session) => session,
                Err(refusal) => {
                    tracing::warn!(url, %refusal, "a member that cannot be reached");
                    continue;
                }
            };
            let Some(idx) = known.or_else(|| self.free_place()) else {
                tracing::warn!(url, most = limits::WORKERS_MAX, "no room for another worker");
                continue;
            };
            let worker = WorkerId(idx as u32);
            self.say(worker, Notice::Joined { name: url.clone() }).await?;
            let session = Some(session.spawn(worker, self.notices.clone(), self.cluster.clone()));
            self.places[idx] = Place { url: url.clone(), session };
        }
        Ok(())
    }

    /// An id that nobody has.
    fn free_place(&mut self) -> Option<usize> {
        let left = self.places.iter().position(|place| place.session.is_none());
        left.or_else(|| {
            let idx = self.places.len();
            (idx < limits::WORKERS_MAX).then(|| {
                self.places.push(Place { url: String::new(), session: None });
                idx
            })
        })
    }

    fn is_up(&self, worker: WorkerId) -> bool {
        let cluster = self.cluster.borrow();
        let status = cluster.workers.get(worker.0 as usize);
        status.is_some_and(|status| status.state == WorkerState::Up)
    }

    async fn say(&self, worker: WorkerId, notice: Notice) -> Result<(), Closed> {
        self.notices.send((worker, notice)).await.map_err(|_| Closed)
    }
}
