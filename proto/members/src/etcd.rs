//! How etcd is reached, with a deadline on everything that is asked of it.

use std::time::Duration;

use aqueduct_core::{Refusal, limits};
use etcd_client::{Client, ConnectOptions};

/// An answer that takes longer is none.
const CALL_DEADLINE: Duration = Duration::from_secs(3);
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);

/// What etcd could not do, or that it is away.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// In its own words, or the transport's.
    #[error("etcd: {0}")]
    Client(#[from] etcd_client::Error),
    /// It is silent.
    #[error("etcd: no answer within {} ms", CALL_DEADLINE.as_millis())]
    Silent,
    /// A stream that it ended.
    #[error("etcd: {0}")]
    Ended(String),
}

/// Where etcd is, and which of its keys are this cluster's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Etcd {
    endpoints: Vec<String>,
    prefix: String,
    ttl_s: u32,
}

impl Etcd {
    /// The etcd behind `endpoints` (`http://host:port`, any members of it). Keys of this cluster
    /// begin with `prefix`; a worker that says nothing for `ttl_s` seconds is no member.
    ///
    /// # Errors
    /// The first argument that is out of bounds.
    pub fn new(endpoints: Vec<String>, prefix: &str, ttl_s: u32) -> Result<Self, Refusal> {
        Refusal::unless_within("etcd", endpoints.len(), 1, limits::ETCD_ENDPOINTS_MAX)?;
        if let Some(bad) = endpoints.iter().find(|url| host_of(url).is_none()) {
            return Err(Refusal::new("etcd", bad, "a URL like http://host:port"));
        }
        let is_path = prefix.starts_with('/') && !prefix.ends_with('/') && prefix.len() <= 256;
        if !is_path {
            let bound = "a path like /aqueduct, of at most 256 bytes";
            return Err(Refusal::new("etcd_prefix", prefix, bound));
        }
        Refusal::unless_within("etcd_ttl_s", ttl_s, limits::ETCD_TTL_S_MIN, 3600)?;
        Ok(Self { endpoints, prefix: prefix.to_owned(), ttl_s })
    }

    /// What a worker's lease lasts without a word of it.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl_s.into())
    }

    /// What the keys of workers begin with.
    pub(crate) fn workers(&self) -> String {
        format!("{}/workers/", self.prefix)
    }

    pub(crate) async fn connect(&self) -> Result<Client, EtcdError> {
        let options = ConnectOptions::new()
            .with_connect_timeout(CALL_DEADLINE)
            .with_keep_alive(Duration::from_secs(2), CALL_DEADLINE)
            .with_keep_alive_while_idle(true)
            // A member that has lost its cluster says so instead of answering from the past.
            .with_require_leader(true);
        asked(Client::connect(&self.endpoints, Some(options))).await
    }
}

/// The answer, if it comes in time.
pub(crate) async fn asked<T>(
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, EtcdError> {
    let answer = tokio::time::timeout(CALL_DEADLINE, call).await;
    Ok(answer.map_err(|_| EtcdError::Silent)??)
}

/// `host:port` of `http://host:port`.
pub(crate) fn host_of(url: &str) -> Option<&str> {
    let host = url.strip_prefix("http://")?.trim_end_matches('/');
    let is_one = !host.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
    let (name, port) = host.rsplit_once(':')?;
    (is_one && !name.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(host)
}

/// Pauses between tries: each twice as long as the one before.
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(BACKOFF_FIRST)
    }
}

impl Backoff {
    pub(crate) async fn pause(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(BACKOFF_MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_by_field() {
        let check = |endpoints: &[&str], prefix: &str, ttl_s: u32, field: &str| {
            let endpoints = endpoints.iter().map(|url| (*url).to_owned()).collect();
            let seen = Etcd::new(endpoints, prefix, ttl_s).map_err(|refusal| refusal.field);
            assert_eq!(seen.err().as_deref().unwrap_or(""), field);
        };
        let one = ["http://127.0.0.1:2379"];
        check(&one, "/aqueduct", 10, "");
        check(&[], "/aqueduct", 10, "etcd");
        check(&["127.0.0.1:2379"], "/aqueduct", 10, "etcd");
        check(&["http://127.0.0.1"], "/aqueduct", 10, "etcd");
        check(&["http://127.0.0.1:0"], "/aqueduct", 10, "etcd");
        check(&["http://a b:1"], "/aqueduct", 10, "etcd");
        check(&one, "aqueduct", 10, "etcd_prefix");
        check(&one, "/aqueduct/", 10, "etcd_prefix");
        check(&one, "/aqueduct", 0, "etcd_ttl_s");
    }
}
