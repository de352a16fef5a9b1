//! A worker's side: its record, kept in etcd for as long as the worker lives.

use std::time::Duration;

use aqueduct_core::Refusal;
use etcd_client::{Client, KeyValue, LeaseKeepAliveStream, LeaseKeeper, PutOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::etcd::{Backoff, Etcd, EtcdError, asked};
use crate::record::Record;

/// How long the end of a registration may take: the lease ends by itself anyway.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// A worker that is a member: until this ends or is dropped or, should the process die first,
/// until its lease is over.
#[derive(Debug)]
pub struct Registration {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Registration {
    /// Registers what `record` holds, now and whenever it changes, on the current tokio runtime.
    /// While etcd is away it is tried again; that is no error.
    ///
    /// # Errors
    /// A URL that nobody could use.
    pub fn start(etcd: Etcd, record: watch::Receiver<Record>) -> Result<Self, Refusal> {
        let key = format!("{}{}", etcd.workers(), record.borrow().host()?);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(keep(etcd, key, record, stopped));
        Ok(Self { stop, task })
    }

    /// Ends the membership.
    pub async fn end(self) {
        self.stop.send_replace(true);
        if timeout(END_DEADLINE, self.task).await.is_err() {
            tracing::warn!("etcd did not hear in time that the worker goes: its lease will end");
        }
    }

    /// Ends it as the death of the process would: etcd hears nothing.
    pub fn kill(self) {
        self.task.abort();
    }
}

/// Until it is told to stop: registers, again and again.
async fn keep(
    etcd: Etcd,
    key: String,
    record: watch::Receiver<Record>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut member = Member { etcd, key, record, lease: None };
    tokio::select! {
        never = member.remain() => match never {},
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    if let Some((mut client, id)) = member.lease
        && let Err(error) = asked(client.lease_revoke(id)).await
    {
        tracing::warn!(%error, "the worker's lease could not be ended");
    }
}

struct Member {
    etcd: Etcd,
    key: String,
    record: watch::Receiver<Record>,
    /// What the key lies under, since it was put last.
    lease: Option<(Client, i64)>,
}

impl Member {
    async fn remain(&mut self) -> std::convert::Infallible {
        let mut backoff = Backoff::default();
        loop {
            let Err(error) = self.hold(&mut backoff).await;
            tracing::warn!(key = self.key, %error, "not registered in etcd, trying again");
            backoff.pause().await;
        }
    }

    /// Registers under a new lease, and keeps that alive.
    async fn hold(&mut self, backoff: &mut Backoff) -> Result<std::convert::Infallible, EtcdError> {
        let mut client = self.etcd.connect().await?;
        let granted = asked(client.lease_grant(self.etcd.ttl().as_secs() as i64, None)).await?;
        let id = granted.id();
        let (mut keeper, mut answers) = asked(client.lease_keep_alive(id)).await?;
        let before = self.lease.as_ref().map(|(_, id)| *id);
        self.put(&mut client, id).await?;
        if let Some(before) = before {
            // It has nothing any more; where etcd does not know it, it need not be ended.
            drop(asked(client.lease_revoke(before)).await);
        }
        tracing::info!(key = self.key, "registered in etcd");
        *backoff = Backoff::default();
        let mut due = tokio::time::interval(self.etcd.ttl() / 3);
        let mut is_another_told = false;
        loop {
            tokio::select! {
                _ = due.tick() => {
                    renew(&mut keeper, &mut answers).await?;
                    // Who may only write there cannot look; it is not needed to be a member.
                    if let Err(error) = self.look(&mut client, id, &mut is_another_told).await {
                        tracing::debug!(key = self.key, %error, "not known whether it is there");
                    }
                }
                Ok(()) = self.record.changed() => self.put(&mut client, id).await?,
            }
        }
    }

    /// Whoever registers under the same address takes the key, and takes it along when they go:
    /// then it is put again.
    async fn look(
        &mut self,
        client: &mut Client,
        id: i64,
        is_another_told: &mut bool,
    ) -> Result<(), EtcdError> {
        let found = asked(client.get(self.key.as_str(), None)).await?;
        match found.kvs().first().map(KeyValue::lease) {
            Some(lease) if lease == id => *is_another_told = false,
            Some(_) if *is_another_told => {}
            Some(_) => {
                tracing::warn!(key = self.key, "another process is registered under this address");
                *is_another_told = true;
            }
            None => {
                tracing::warn!(key = self.key, "the registration was gone; it is made again");
                self.put(client, id).await?;
            }
        }
        Ok(())
    }

    /// A key that lies under an earlier lease, of this process or of one before it, goes over to
    /// this one.
    async fn put(&mut self, client: &mut Client, id: i64) -> Result<(), EtcdError> {
        let json = self.record.borrow_and_update().to_json();
        self.lease = Some((client.clone(), id));
        asked(client.put(self.key.as_str(), json, Some(PutOptions::new().with_lease(id)))).await?;
        Ok(())
    }
}

async fn renew(
    keeper: &mut LeaseKeeper,
    answers: &mut LeaseKeepAliveStream,
) -> Result<(), EtcdError> {
    asked(keeper.keep_alive()).await?;
    match asked(answers.message()).await? {
        Some(answer) if answer.ttl() > 0 => Ok(()),
        Some(_) => Err(EtcdError::Ended("the lease is over".into())),
        None => Err(EtcdError::Ended("it closed the stream that keeps the lease".into())),
    }
}
