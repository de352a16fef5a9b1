//! Addresses of hosts, as the name service said last. Members know each other by name, and a name
//! service that is away must not part those that are there: what it said before is used then.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use hyper_util::client::legacy::connect::dns::Name;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::oneshot;
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

/// Connects to `port` of `host`, which is a name, or an address with or without brackets: to the
/// first of its addresses where somebody is. Nothing is encrypted yet. It takes as long as the
/// system tries; who cannot wait sets a deadline.
///
/// # Errors
/// No such host, or nobody there.
pub async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut addresses = resolve(host.trim_matches(['[', ']'])).await?;
    addresses.iter_mut().for_each(|address| address.set_port(port));
    TcpStream::connect(addresses.as_slice()).await
}

/// The addresses of `host`; their port is 0.
async fn resolve(host: &str) -> io::Result<Vec<SocketAddr>> {
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

/// How a look-up went, for all who wait for it.
type Answer = Result<Vec<SocketAddr>, Arc<io::Error>>;
type Asked = Shared<BoxFuture<'static, Answer>>;

/// What was heard of hosts, and what is asked.
#[derive(Debug)]
struct Names(Mutex<Heard>);

#[derive(Debug)]
struct Heard {
    known: BTreeMap<String, Known>,
    /// Each look-up holds a thread for as long as the name service hangs: one for each host.
    asked: BTreeMap<String, Asked>,
}

#[derive(Debug)]
struct Known {
    addresses: Vec<SocketAddr>,
    heard: Instant,
    /// Whether it was said that they are used though the name service is away.
    is_told: bool,
}

/// A look-up under way. However it ends, the next one may begin then.
struct Asking {
    names: &'static Names,
    host: String,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.names.lock().asked.remove(&self.host);
    }
}

impl Names {
    const fn new() -> Self {
        Self(Mutex::new(Heard { known: BTreeMap::new(), asked: BTreeMap::new() }))
    }

    /// What `look_up` finds of `host`, or one that is under way; if it fails, or takes long, what
    /// was found last.
    async fn resolve(
        &'static self,
        host: &str,
        look_up: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let (asked, is_known) = self.ask(host, look_up);
        let found = match is_known {
            true => timeout(ANSWERS_WITHIN, asked).await,
            false => Ok(asked.await),
        };
        let found = found.unwrap_or_else(|_| Err(Arc::new(io::ErrorKind::TimedOut.into())));
        found.or_else(|error| self.recall(host, error))
    }

    /// The look-up of `host` that is under way, or else `look_up`; and whether `host` is known.
    fn ask(
        &'static self,
        host: &str,
        look_up: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> (Asked, bool) {
        let mut heard = self.lock();
        let is_known = heard.known.contains_key(host);
        if let Some(asked) = heard.asked.get(host) {
            return (asked.clone(), is_known);
        }
        let (teller, told) = oneshot::channel::<Answer>();
        let told = async move {
            // Nothing is told where the look-up panicked, or its runtime ended.
            told.await.unwrap_or_else(|error| Err(Arc::new(io::Error::other(error))))
        };
        let asked = told.boxed().shared();
        heard.asked.insert(host.to_owned(), asked.clone());
        // Else a task that is dropped at once would wait for ourselves.
        drop(heard);
        let asking = Asking { names: self, host: host.to_owned() };
        // A task of its own: an answer too late for this connection is there for the next one.
        tokio::spawn(async move {
            let found = look_up.await;
            asking.names.hear(&asking.host, &found);
            drop(asking);
            let _ = teller.send(found.map_err(Arc::new)); // who asked may have given up
        });
        (asked, is_known)
    }

    /// Minds an answer, whether or not anybody still waits for it.
    fn hear(&self, host: &str, found: &io::Result<Vec<SocketAddr>>) {
        match found {
            Ok(addresses) => self.learn(host.to_owned(), addresses),
            Err(error) if is_no_such_host(error) => {
                let before = self.lock().known.remove(host);
                tell_answered(host, before.as_ref());
            }
            Err(_) => {}
        }
    }

    fn learn(&self, host: String, addresses: &[SocketAddr]) {
        if addresses.is_empty() {
            return;
        }
        let mut heard = self.lock();
        let known = &mut heard.known;
        if known.len() >= HOSTS_MAX && !known.contains_key(&host) {
            let oldest = known.iter().min_by_key(|(_, known)| known.heard);
            if let Some(oldest) = oldest.map(|(host, _)| host.clone()) {
                known.remove(&oldest);
            }
        }
        let now = Known { addresses: addresses.to_vec(), heard: Instant::now(), is_told: false };
        let before = known.insert(host.clone(), now);
        drop(heard);
        tell_answered(&host, before.as_ref());
    }

    /// What is used in place of an answer; after one that there is no such host, there is nothing.
    fn recall(&self, host: &str, error: Arc<io::Error>) -> io::Result<Vec<SocketAddr>> {
        let mut heard = self.lock();
        let Some(known) = heard.known.get_mut(host) else {
            return Err(io::Error::new(error.kind(), error));
        };
        if !std::mem::replace(&mut known.is_told, true) {
            let addresses = &known.addresses;
            let what = "the name service is away: the last addresses of a host are used";
            tracing::warn!(host, %error, ?addresses, what);
        }
        Ok(known.addresses.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        // Every change is whole before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_no_such_host(error: &io::Error) -> bool {
    let text = error.to_string();
    NO_SUCH_HOST.iter().any(|words| text.contains(words))
}

/// Says that the name service is back, if it was said of `host` that it is away.
fn tell_answered(host: &str, before: Option<&Known>) {
    if before.is_some_and(|before| before.is_told) {
        tracing::info!(host, "the name service answers again");
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn, ready};

    use futures::future::{join, join_all};

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
            check(Ok(address(2)), Some(2)).await;
            check(Err(fails(words)), None).await;
            check(away(), None).await;
        }
        check(Ok(address(3)), Some(3)).await;
        assert_eq!(HEARD.resolve("w0", pending()).await.unwrap(), address(3), "it hangs");
        HEARD.resolve("w1", ready(away())).await.unwrap_err();
    }

    #[tokio::test]
    async fn an_answer_that_comes_late_is_there_for_the_next_one() {
        static HEARD: Names = Names::new();
        let (answer, answered) = oneshot::channel();
        let look_up = async move { Ok::<Vec<SocketAddr>, io::Error>(answered.await.unwrap()) };
        // Whoever wanted to connect has given up.
        timeout(Duration::from_millis(1), HEARD.resolve("w0", look_up)).await.unwrap_err();
        answer.send(address(1)).unwrap();
        let used = async {
            while HEARD.lock().known.is_empty() {
                tokio::task::yield_now().await;
            }
            HEARD.resolve("w0", pending()).await
        };
        assert_eq!(timeout(Duration::from_secs(30), used).await.unwrap().unwrap(), address(1));
    }

    #[tokio::test]
    async fn that_there_is_no_such_host_is_minded_late_too() {
        static HEARD: Names = Names::new();
        HEARD.resolve("w0", ready(Ok(address(1)))).await.unwrap();
        let (answer, answered) = oneshot::channel();
        let look_up = async move { Err::<Vec<SocketAddr>, io::Error>(answered.await.unwrap()) };
        assert_eq!(HEARD.resolve("w0", look_up).await.unwrap(), address(1), "it takes long");
        answer.send(fails(NO_SUCH_HOST[0])).unwrap();
        let forgotten = async {
            while !HEARD.lock().known.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), forgotten).await.unwrap();
        let away = fails("Temporary failure in name resolution");
        HEARD.resolve("w0", ready(Err(away))).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_host_is_looked_up_once_at_a_time() {
        static HEARD: Names = Names::new();
        let (answer, answered) = oneshot::channel();
        let look_up = async move { Ok::<Vec<SocketAddr>, io::Error>(answered.await.unwrap()) };
        let first = HEARD.resolve("w0", look_up);
        let others = join_all((0..9).map(|_| HEARD.resolve("w0", ready(Ok(address(2))))));
        let answers = async {
            tokio::task::yield_now().await;
            answer.send(address(1)).unwrap();
        };
        let all = join(join(first, others), answers);
        let ((first, others), ()) = timeout(Duration::from_secs(30), all).await.unwrap();
        for found in others.into_iter().chain([first]) {
            assert_eq!(found.unwrap(), address(1));
        }
        let next = HEARD.resolve("w0", ready(Ok(address(2)))).await;
        assert_eq!(next.unwrap(), address(2), "the other is over");
    }

    #[tokio::test]
    async fn a_look_up_that_breaks_off_is_over() {
        static HEARD: Names = Names::new();
        let breaks = poll_fn(|_| -> Poll<io::Result<Vec<SocketAddr>>> { panic!("it breaks off") });
        HEARD.resolve("w0", breaks).await.unwrap_err();
        assert!(HEARD.lock().asked.is_empty());
        assert_eq!(HEARD.resolve("w0", ready(Ok(address(1)))).await.unwrap(), address(1));
    }

    #[tokio::test]
    async fn dialing_finds_who_listens() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        for host in ["127.0.0.1", "localhost"] {
            assert_eq!(dial(host, at.port()).await.unwrap().peer_addr().unwrap(), at, "{host}");
        }
        assert!(NAMES.lock().known.contains_key("localhost"));
    }

    #[tokio::test]
    async fn an_address_needs_no_name_service() {
        for host in ["127.0.0.1", "::1"] {
            let found = resolve(host).await.unwrap();
            assert_eq!(found[0].ip().to_string(), host);
        }
        assert!(!NAMES.lock().known.contains_key("::1"));
    }

    #[test]
    fn hosts_are_bounded() {
        let heard = Names::new();
        for idx in 0..=HOSTS_MAX {
            heard.learn(format!("w{idx}"), &address(1));
        }
        let heard = heard.lock();
        let known = &heard.known;
        assert_eq!(known.len(), HOSTS_MAX);
        assert!(known.contains_key(&format!("w{HOSTS_MAX}")));
    }
}
