//! Addresses of hosts, as the name service said last. Members know each other by name, and a name
//! service that is away must not part those that are there: what it said before is used then.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tokio::net::lookup_host;
use tokio::time::timeout;
use tonic::codegen::Service;

/// Hosts that are remembered; beyond these, what was heard of longest ago is forgotten.
const HOSTS_MAX: usize = 1024;
/// How long the name service is waited for where it has answered before. One that is away may
/// take longer to fail than a connection may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// That there is no such host is an answer, and its old address may be another's by now. It has no
/// kind of its own in [`io::ErrorKind`]: as glibc, musl and macOS word it.
const NO_SUCH_HOST: [&str; 5] = [
    "Name or service not known",
    "No address associated with hostname",
    "Name does not resolve",
    "Name has no usable address",
    "nodename nor servname provided",
];

/// Of this process.
static NAMES: Names = Names::new();

/// The addresses of `host`; their port is 0.
pub(crate) async fn resolve(host: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, 0).into()]);
    }
    let asked = host.to_owned();
    let look_up = async move {
        let found = lookup_host((asked.as_str(), 0)).await?;
        Ok::<Vec<SocketAddr>, io::Error>(found.collect())
    };
    NAMES.resolve(host, look_up).await
}

/// The same, for connections in plaintext.
#[derive(Debug, Clone)]
pub(crate) struct Resolver;

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move { Ok(resolve(name.as_str()).await?.into_iter()) })
    }
}

/// What was heard of hosts.
#[derive(Debug)]
struct Names(Mutex<BTreeMap<String, Known>>);

#[derive(Debug)]
struct Known {
    addresses: Vec<SocketAddr>,
    heard: Instant,
    /// Whether it was said that they are used though the name service is away.
    is_told: bool,
}

impl Names {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// What `look_up` finds of `host`; if it fails, or takes long, what it found last.
    async fn resolve(
        &'static self,
        host: &str,
        look_up: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let name = host.to_owned();
        // A task of its own: an answer too late for this connection is there for the next one.
        let asked = tokio::spawn(async move {
            let found = look_up.await;
            found.inspect(|addresses| self.learn(name, addresses))
        });
        let asked = async { asked.await.unwrap_or_else(|error| Err(io::Error::other(error))) };
        let is_known = self.lock().contains_key(host);
        let found = match is_known {
            true => timeout(ANSWERS_WITHIN, asked).await,
            false => Ok(asked.await),
        };
        let found = found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        found.or_else(|error| self.recall(host, error))
    }

    fn learn(&self, host: String, addresses: &[SocketAddr]) {
        if addresses.is_empty() {
            return;
        }
        let mut known = self.lock();
        if known.len() >= HOSTS_MAX && !known.contains_key(&host) {
            let oldest = known.iter().min_by_key(|(_, known)| known.heard);
            if let Some(oldest) = oldest.map(|(host, _)| host.clone()) {
                known.remove(&oldest);
            }
        }
        let (addresses, heard) = (addresses.to_vec(), Instant::now());
        let now = Known { addresses, heard, is_told: false };
        let before = known.insert(host.clone(), now);
        drop(known);
        if before.is_some_and(|before| before.is_told) {
            tracing::info!(host, "the name service answers again");
        }
    }

    /// What is used in place of an answer, unless `error` is one.
    fn recall(&self, host: &str, error: io::Error) -> io::Result<Vec<SocketAddr>> {
        let text = error.to_string();
        if NO_SUCH_HOST.iter().any(|words| text.contains(words)) {
            return Err(error);
        }
        let mut known = self.lock();
        let Some(known) = known.get_mut(host) else { return Err(error) };
        if !std::mem::replace(&mut known.is_told, true) {
            let addresses = &known.addresses;
            let what = "the name service is away: the last addresses of a host are used";
            tracing::warn!(host, %error, ?addresses, what);
        }
        Ok(known.addresses.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        // Every change is whole before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn address(last: u8) -> Vec<SocketAddr> {
        vec![SocketAddr::from(([127, 0, 0, last], 0))]
    }

    fn fails(words: &str) -> io::Error {
        io::Error::other(format!("failed to lookup address information: {words}"))
    }

    #[tokio::test]
    async fn what_was_heard_last_is_used_while_nothing_is_heard() {
        static HEARD: Names = Names::new();
        let check = async |found: io::Result<Vec<SocketAddr>>, want: Option<u8>| {
            let context = format!("{found:?}");
            let used = HEARD.resolve("w0", ready(found)).await;
            assert_eq!(used.ok(), want.map(address), "{context}");
        };
        let away = || Err(fails("Temporary failure in name resolution"));
        check(away(), None).await;
        check(Ok(address(1)), Some(1)).await;
        check(away(), Some(1)).await;
        check(Ok(address(2)), Some(2)).await;
        check(away(), Some(2)).await;
        check(Err(io::Error::from_raw_os_error(24)), Some(2)).await;
        for words in NO_SUCH_HOST {
            check(Err(fails(words)), None).await;
        }
        assert_eq!(HEARD.resolve("w0", pending()).await.unwrap(), address(2), "it hangs");
        HEARD.resolve("w1", ready(away())).await.unwrap_err();
    }

    #[tokio::test]
    async fn an_answer_that_comes_late_is_there_for_the_next_one() {
        static HEARD: Names = Names::new();
        let (answer, answered) = tokio::sync::oneshot::channel();
        let look_up = async move { Ok::<Vec<SocketAddr>, io::Error>(answered.await.unwrap()) };
        // Whoever wanted to connect has given up.
        timeout(Duration::from_millis(1), HEARD.resolve("w0", look_up)).await.unwrap_err();
        answer.send(address(1)).unwrap();
        let used = async {
            while HEARD.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            HEARD.resolve("w0", pending()).await
        };
        assert_eq!(timeout(Duration::from_secs(30), used).await.unwrap().unwrap(), address(1));
    }

    #[tokio::test]
    async fn an_address_needs_no_name_service() {
        for host in ["127.0.0.1", "::1"] {
            let found = resolve(host).await.unwrap();
            assert_eq!(found[0].ip().to_string(), host);
        }
        assert!(!NAMES.lock().contains_key("::1"));
    }

    #[test]
    fn hosts_are_bounded() {
        let heard = Names::new();
        for idx in 0..=HOSTS_MAX {
            heard.learn(format!("w{idx}"), &address(1));
        }
        let known = heard.lock();
        assert_eq!(known.len(), HOSTS_MAX);
        assert!(known.contains_key(&format!("w{HOSTS_MAX}")));
    }
}
