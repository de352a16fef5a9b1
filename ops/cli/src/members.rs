//! Membership: what connects workers and coordinators with etcd.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_members::{Etcd, Load, Members, Record, Registration, Roll};
use aqueduct_worker::Worker;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How often a worker tells its load, if that has changed.
const LOAD_EVERY: Duration = Duration::from_secs(5);

/// A worker's membership, with what it holds kept up to date.
pub(crate) struct Member {
    registration: Registration,
    load: JoinHandle<()>,
}

impl Member {
    /// Registers `worker`, whose model is on `device`.
    ///
    /// # Errors
    /// An address that others could not use.
    pub(crate) fn register(etcd: Etcd, worker: &Worker, device: &str) -> anyhow::Result<Self> {
        let info = worker.info();
        let (change, record) = watch::channel(Record {
            url: info.peer.0.clone(),
            fingerprint: info.fingerprint.clone(),
            device: device.to_owned(),
            pool_tokens: Some(info.pool_tokens).filter(|tokens| *tokens < u64::MAX),
            threads: info.threads,
            load: Load::default(),
        });
        let registration = Registration::start(etcd, record)?;
        Ok(Self { registration, load: tokio::spawn(tell_load(worker.clone(), change)) })
    }

    /// Ends the membership: coordinators hear of it before the worker goes.
    pub(crate) async fn end(self) {
        self.load.abort();
        self.registration.end().await;
    }
}

async fn tell_load(worker: Worker, change: watch::Sender<Record>) {
    loop {
        tokio::time::sleep(LOAD_EVERY).await;
        let stats = worker.stats();
        let bytes = stats.inbox_bytes + stats.outbox_bytes + stats.home_bytes + stats.shard_bytes;
        let load = Load { requests: stats.requests, bytes };
        change.send_if_modified(|record| std::mem::replace(&mut record.load, load) != load);
    }
}

/// The addresses of all members, followed for as long as the receiver lives.
pub(crate) fn addresses(etcd: Etcd) -> watch::Receiver<BTreeSet<String>> {
    let (publish, urls) = watch::channel(BTreeSet::new());
    tokio::spawn(async move {
        let roll = Roll::follow(etcd);
        let mut members = roll.members();
        loop {
            publish.send_replace(urls_of(&members.borrow_and_update()));
            tokio::select! {
                changed = members.changed() => if changed.is_err() { return },
                () = publish.closed() => return,
            }
        }
    });
    urls
}

fn urls_of(members: &Arc<Members>) -> BTreeSet<String> {
    members.values().map(|record| record.url.clone()).collect()
}
