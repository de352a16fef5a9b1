//! How an etcd is, for somebody who looks before it is relied on.

use etcd_client::GetOptions;
use futures::future::join_all;

use crate::etcd::{Etcd, EtcdError, asked};

/// What a member says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Its version.
    pub version: String,
    /// How many members there are.
    pub members: usize,
    /// Workers of this cluster that are registered.
    pub workers: u64,
    /// What it complains of, such as want of room.
    pub errors: Vec<String>,
}

impl Etcd {
    /// Asks each endpoint by itself, all at the same time.
    pub async fn examine(&self) -> Vec<(String, Result<Health, EtcdError>)> {
        let asked = self.endpoints().iter().map(async |url| {
            let health = self.only(url).health().await;
            (url.clone(), health)
        });
        join_all(asked).await
    }

    async fn health(&self) -> Result<Health, EtcdError> {
        let mut client = self.connect().await?;
        let status = asked(client.status()).await?;
        let members = asked(client.member_list()).await?.members().len();
        let counted = GetOptions::new().with_prefix().with_count_only();
        let workers = asked(client.get(self.workers(), Some(counted))).await?.count();
        Ok(Health {
            version: status.version().to_owned(),
            members,
            workers: u64::try_from(workers).unwrap_or(0),
            errors: status.errors().to_vec(),
        })
    }
}
