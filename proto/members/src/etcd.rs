//! How etcd is reached, with a deadline on everything that is asked of it.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aqueduct_core::{Refusal, limits};
use aqueduct_tls::ClientTls;
use etcd_client::{Channel, Client, ConnectOptions};
use tonic::transport::Endpoint;

/// An answer that takes longer is none.
const CALL_DEADLINE: Duration = Duration::from_secs(3);
/// Whoever pings more often than each five seconds, or while nothing is under way, is cut off by
/// an etcd with its own defaults (`--grpc-keepalive-min-time`).
const PING_INTERVAL: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);

/// What etcd could not do, or that it is away.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// In its own words, or the transport's.
    #[error("etcd: {0}")]
    Client(#[from] etcd_client::Error),
    /// None of its members lets us in.
    #[error("etcd: {url}: {reason}")]
    Unreachable {
        /// The last that was tried.
        url: String,
        /// Its words, or the transport's.
        reason: String,
    },
    /// It is silent.
    #[error("etcd: no answer within {} ms", CALL_DEADLINE.as_millis())]
    Silent,
    /// A stream that it ended.
    #[error("etcd: {0}")]
    Ended(String),
}

/// Where etcd is, and which of its keys are this cluster's.
#[derive(Debug, Clone)]
pub struct Etcd {
    endpoints: Vec<String>,
    tls: Option<ClientTls>,
    prefix: String,
    ttl_s: u32,
    /// Connections so far, of all clones: each begins at another endpoint.
    connections: Arc<AtomicUsize>,
}

impl Etcd {
    /// The etcd behind `endpoints`, any members of it: `https://host:port` where there is `tls`,
    /// `http://host:port` where not. Keys of this cluster begin with `prefix`; a worker that says
    /// nothing for `ttl_s` seconds is no member.
    ///
    /// # Errors
    /// The first argument that is out of bounds.
    pub fn new(
        endpoints: Vec<String>,
        prefix: &str,
        ttl_s: u32,
        tls: Option<ClientTls>,
    ) -> Result<Self, Refusal> {
        Refusal::unless_within("etcd", endpoints.len(), 1, limits::ETCD_ENDPOINTS_MAX)?;
        for url in &endpoints {
            aqueduct_tls::scheme_of("etcd", url, tls.is_some())?;
        }
        if let Some(bad) = endpoints.iter().find(|url| host_of(url).is_none()) {
            return Err(Refusal::new("etcd", bad, "a URL like http://host:port"));
        }
        let is_path = prefix.starts_with('/') && !prefix.ends_with('/') && prefix.len() <= 256;
        if !is_path {
            let bound = "a path like /aqueduct, of at most 256 bytes";
            return Err(Refusal::new("etcd_prefix", prefix, bound));
        }
        Refusal::unless_within("etcd_ttl_s", ttl_s, limits::ETCD_TTL_S_MIN, 3600)?;
        Ok(Self { endpoints, tls, prefix: prefix.to_owned(), ttl_s, connections: Arc::default() })
    }

    pub(crate) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The same, of which this member alone is asked.
    pub(crate) fn only(&self, url: &str) -> Self {
        Self { endpoints: vec![url.to_owned()], ..self.clone() }
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
            // A member that has lost its cluster says so instead of answering from the past.
            .with_require_leader(true);
        asked(Client::from_channel(self.dial().await?, Some(options))).await
    }

    /// A connection to a member that lets us in. One that did, and then had no answers, is not
    /// the first to be tried again.
    async fn dial(&self) -> Result<Channel, EtcdError> {
        let mut last = EtcdError::Silent;
        let first = self.connections.fetch_add(1, Ordering::Relaxed) % self.endpoints.len();
        let (before, from_there) = self.endpoints.split_at(first);
        for url in from_there.iter().chain(before) {
            let failed = |reason: String| EtcdError::Unreachable { url: url.clone(), reason };
            let endpoint = Endpoint::from_shared(url.clone());
            let endpoint = endpoint
                .map_err(|error| failed(error.to_string()))?
                .connect_timeout(CALL_DEADLINE)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(CALL_DEADLINE);
            let connection = aqueduct_tls::connect(&endpoint, self.tls.as_ref());
            match tokio::time::timeout(CALL_DEADLINE, connection).await {
                Ok(Ok(channel)) => return Ok(Channel::Tonic(channel)),
                Ok(Err(error)) => last = failed(innermost(&error)),
                Err(_) => last = failed(EtcdError::Silent.to_string()),
            }
        }
        Err(last)
    }
}

/// The answer, if it comes in time.
pub(crate) async fn asked<T>(
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, EtcdError> {
    let answer = tokio::time::timeout(CALL_DEADLINE, call).await;
    Ok(answer.map_err(|_| EtcdError::Silent)??)
}

/// What went wrong in the end: tonic's own text is only "transport error".
fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => innermost(cause),
        None => error.to_string(),
    }
}

/// `host:port` of `http://host:port` or `https://host:port`; a host that is an address of IPv6
/// stands in brackets.
pub fn host_of(url: &str) -> Option<&str> {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    let host = host.trim_end_matches('/');
    let is_one = !host.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
    let (name, port) = host.rsplit_once(':')?;
    let is_name = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !name.is_empty() && !name.contains([':', '[', ']']),
    };
    (is_one && is_name && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(host)
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
            let seen = Etcd::new(endpoints, prefix, ttl_s, None).map_err(|refusal| refusal.field);
            assert_eq!(seen.err().as_deref().unwrap_or(""), field);
        };
        let one = ["http://127.0.0.1:2379"];
        check(&one, "/aqueduct", 10, "");
        check(&[], "/aqueduct", 10, "etcd");
        check(&["127.0.0.1:2379"], "/aqueduct", 10, "etcd");
        check(&["http://127.0.0.1"], "/aqueduct", 10, "etcd");
        check(&["http://127.0.0.1:0"], "/aqueduct", 10, "etcd");
        check(&["https://127.0.0.1:2379"], "/aqueduct", 10, "etcd");
        check(&["http://a b:1"], "/aqueduct", 10, "etcd");
        check(&["http://[::1]:2379"], "/aqueduct", 10, "");
        check(&["http://::1:2379"], "/aqueduct", 10, "etcd");
        check(&["http://[::g]:2379"], "/aqueduct", 10, "etcd");
        check(&one, "aqueduct", 10, "etcd_prefix");
        check(&one, "/aqueduct/", 10, "etcd_prefix");
        check(&one, "/aqueduct", 0, "etcd_ttl_s");
    }
}
