//! A coordinator's side: who is a member, at any moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use etcd_client::{Client, Event, EventType, GetOptions, KeyValue, WatchOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::etcd::{Backoff, Etcd, EtcdError, asked};
use crate::grace::Grace;
use crate::record::Record;

/// Members by `host:port`.
pub type Members = BTreeMap<String, Record>;

/// The members, followed for as long as this lives.
#[derive(Debug)]
pub struct Roll {
    members: watch::Receiver<Arc<Members>>,
    task: JoinHandle<()>,
}

impl Roll {
    /// Follows the workers of `etcd` on the current tokio runtime; nobody is a member before the
    /// first answer.
    ///
    /// While etcd is away the roll stays as it was. When it is back, whoever it does not list any
    /// more remains for two leases' time: an etcd that has lost its data, or that was away for
    /// longer than leases last, learns from the workers who is there.
    pub fn follow(etcd: Etcd) -> Self {
        let (publish, members) = watch::channel(Arc::default());
        Self { members, task: tokio::spawn(follow(etcd, publish)) }
    }

    /// To be watched.
    pub fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.members.clone()
    }
}

impl Drop for Roll {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(etcd: Etcd, publish: watch::Sender<Arc<Members>>) {
    let mut backoff = Backoff::default();
    let mut follower = Follower { workers: etcd.workers(), publish, grace: Grace::new(etcd.ttl()) };
    loop {
        let Err(error) = follower.run(&etcd, &mut backoff).await;
        follower.grace.lost(Instant::now());
        tracing::warn!(%error, members = follower.publish.borrow().len(),
            "etcd is away: members stay as they are");
        backoff.pause().await;
    }
}

struct Follower {
    /// What the keys begin with.
    workers: String,
    publish: watch::Sender<Arc<Members>>,
    /// For those that were not listed after a break.
    grace: Grace,
}

impl Follower {
    /// Lists, and then follows changes for as long as etcd tells of them.
    async fn run(
        &mut self,
        etcd: &Etcd,
        backoff: &mut Backoff,
    ) -> Result<std::convert::Infallible, EtcdError> {
        let mut client = etcd.connect().await?;
        let (listed, revision) = self.list(&mut client).await?;
        let missed = self.publish.borrow().keys().any(|host| !listed.contains_key(host));
        self.grace.listed(missed, revision, Instant::now());
        self.change(|members| members.extend(listed));
        *backoff = Backoff::default();
        let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
        let mut changes = asked(client.watch(self.workers.as_str(), Some(options))).await?;
        loop {
            let over_at = self.grace.over_at();
            tokio::select! {
                message = changes.message() => self.hear(message?)?,
                () = tokio::time::sleep_until(over_at.unwrap_or_else(Instant::now)),
                    if over_at.is_some() =>
                {
                    let (listed, _) = self.list(&mut client).await?;
                    self.grace.end();
                    self.change(|members| members.retain(|host, _| listed.contains_key(host)));
                }
            }
        }
    }

    /// Whoever is registered, and as of which revision.
    async fn list(&self, client: &mut Client) -> Result<(Members, i64), EtcdError> {
        let options = GetOptions::new().with_prefix();
        let answer = asked(client.get(self.workers.as_str(), Some(options))).await?;
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok((answer.kvs().iter().filter_map(|entry| self.member(entry)).collect(), revision))
    }

    fn hear(&self, message: Option<etcd_client::WatchResponse>) -> Result<(), EtcdError> {
        let Some(message) = message else {
            return Err(EtcdError::Ended("it closed the watch".into()));
        };
        if message.canceled() {
            // Also where the revision to go on from is not there any more: then all are listed.
            let why = format!("it ended the watch: {}", message.cancel_reason());
            return Err(EtcdError::Ended(why));
        }
        self.change(|members| message.events().iter().for_each(|event| self.apply(event, members)));
        Ok(())
    }

    fn apply(&self, event: &Event, members: &mut Members) {
        let Some(entry) = event.kv() else { return };
        match event.event_type() {
            EventType::Put => members.extend(self.member(entry)),
            EventType::Delete => drop(members.remove(self.host(entry))),
        }
    }

    fn member(&self, entry: &KeyValue) -> Option<(String, Record)> {
        let host = self.host(entry);
        match Record::parse(host, entry.value()) {
            Ok(record) => Some((host.to_owned(), record)),
            Err(refusal) => {
                tracing::warn!(host, %refusal, "a registration in etcd is ignored");
                None
            }
        }
    }

    /// `host:port` of a key; empty, which is nobody's, for a key that is no text.
    fn host<'e>(&self, entry: &'e KeyValue) -> &'e str {
        entry.key_str().ok().and_then(|key| key.strip_prefix(&self.workers)).unwrap_or_default()
    }

    fn change(&self, change: impl FnOnce(&mut Members)) {
        self.publish.send_if_modified(|members| {
            let mut changed = Members::clone(members);
            change(&mut changed);
            let is_new = **members != changed;
            *members = Arc::new(changed);
            is_new
        });
    }
}
