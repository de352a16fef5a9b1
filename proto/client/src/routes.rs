//! Which coordinator is asked: of a group the one that leads, or the next one in the list until
//! one is found that says who that is.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aqueduct_core::{Refusal, limits};
use aqueduct_proto::LEADER_METADATA;
use aqueduct_proto::v1::aqueduct_client::AqueductClient;
use aqueduct_proto::v1::operator_client::OperatorClient;
use aqueduct_tls::{ClientTls, Expected, Refusals};
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::config::ClientOptions;
use crate::error::{ClientError, root_cause};

/// Before the next one is asked, where the last one did not say who leads.
const PAUSE: Duration = Duration::from_millis(100);

/// The coordinators of a server. Clones ask the same one.
#[derive(Debug, Clone)]
pub(crate) struct Routes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    urls: Vec<String>,
    tls: Option<ClientTls>,
    /// For each of them.
    connect_deadline: Duration,
    current: Mutex<Route>,
}

/// A connection to one of them.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) url: String,
    pub(crate) rpc: AqueductClient<Channel>,
    pub(crate) operator: OperatorClient<Channel>,
}

impl Routes {
    /// Connects to the first that answers of `urls`, which commas separate.
    ///
    /// # Errors
    /// `InvalidArgument` when one is no URL or certificates cannot be used, `Deadline` or
    /// `Unavailable` when nobody answers.
    pub(crate) async fn connect(urls: &str, options: &ClientOptions) -> Result<Self, ClientError> {
        let wrong = |error: &dyn Display| ClientError::InvalidArgument(error.to_string());
        let urls: Vec<_> = urls.split(',').map(|url| url.trim().to_owned()).collect();
        let count = urls.len();
        Refusal::unless_within("url", count, 1, limits::JOURNAL_MEMBERS_MAX)
            .map_err(|error| wrong(&error))?;
        for url in &urls {
            aqueduct_tls::scheme_of("url", url, options.tls.is_some())
                .map_err(|error| wrong(&error))?;
        }
        let open = |files| ClientTls::open(files, Expected::Host, "client", Refusals::default());
        let tls = options.tls.clone().map(open).transpose().map_err(|error| wrong(&error))?;
        let way =
            Way { tls, deadline: options.connect_deadline / count as u32, is_alone: count == 1 };
        let mut failed = Err(ClientError::Unavailable("no URL".into()));
        for url in &urls {
            match way.connect(url).await {
                Ok(route) => {
                    let Way { tls, deadline, .. } = way;
                    let current = Mutex::new(route);
                    let inner = Inner { urls, tls, connect_deadline: deadline, current };
                    return Ok(Self(Arc::new(inner)));
                }
                Err(error @ ClientError::InvalidArgument(_)) => return Err(error),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Whoever was found last.
    pub(crate) fn current(&self) -> Route {
        self.lock().clone()
    }

    /// Whether, after `status` from the coordinator at `asked`, another one is to be asked, or the
    /// same again; until `patience` ends one is looked for that leads.
    pub(crate) async fn moved(&self, asked: &str, status: &Status, patience: Instant) -> bool {
        status.code() == Code::Unavailable && self.leave(asked, status, patience).await
    }

    /// The same after any `status`: who cannot be reached, or speaks something else, may fail in
    /// many ways. For what may be asked twice.
    pub(crate) async fn leave(&self, asked: &str, status: &Status, patience: Instant) -> bool {
        if Instant::now() >= patience {
            return false;
        }
        if self.lock().url != asked {
            return true;
        }
        let leader = status.metadata().get(LEADER_METADATA).and_then(|url| url.to_str().ok());
        if let Some(leader) = leader.filter(|leader| *leader != asked)
            && self.go(leader).await
        {
            return true;
        }
        let urls = &self.0.urls;
        // Who is asked because it led is left for the one that was named.
        if urls.len() == 1 && leader.is_none() && asked == urls[0] {
            return false;
        }
        tokio::time::sleep(PAUSE).await;
        let next = urls.iter().position(|url| url == asked).map_or(0, |idx| idx + 1);
        for idx in next..next + urls.len() {
            if Instant::now() >= patience || self.go(&urls[idx % urls.len()]).await {
                break;
            }
        }
        true
    }

    /// Has the coordinator at `url` be asked from now on, if it answers.
    async fn go(&self, url: &str) -> bool {
        let Inner { urls, tls, connect_deadline, .. } = self.0.as_ref();
        if aqueduct_tls::scheme_of("leader", url, tls.is_some()).is_err() {
            return false;
        }
        let deadline = *connect_deadline;
        let way = Way { tls: tls.clone(), deadline, is_alone: urls.len() == 1 };
        let connected = way.connect(url).await;
        connected.map(|route| *self.lock() = route).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Route> {
        // Every change is one assignment.
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How to connect.
struct Way {
    tls: Option<ClientTls>,
    deadline: Duration,
    /// Whether there is nobody else to go to: one that hangs for a moment is waited for.
    is_alone: bool,
}

impl Way {
    async fn connect(&self, url: &str) -> Result<Route, ClientError> {
        let wrong = |error| ClientError::InvalidArgument(format!("url = {url}: {error}"));
        // A connection may die without a word: behind addresses that are translated, or with its
        // machine.
        let (interval_ms, timeout_ms) = match self.is_alone {
            true => (limits::LONE_PING_INTERVAL_MS, limits::LONE_PING_TIMEOUT_MS),
            false => (limits::PING_INTERVAL_MS, limits::PING_TIMEOUT_MS),
        };
        let endpoint = Endpoint::from_shared(url.to_owned())
            .map_err(wrong)?
            .connect_timeout(self.deadline)
            .http2_keep_alive_interval(Duration::from_millis(interval_ms))
            .keep_alive_timeout(Duration::from_millis(timeout_ms));
        let connecting = aqueduct_tls::connect(&endpoint, self.tls.as_ref());
        let late = |_| {
            let deadline = self.deadline;
            ClientError::Deadline(format!("{url} did not answer within {deadline:?}"))
        };
        let channel = timeout(self.deadline, connecting)
            .await
            .map_err(late)?
            .map_err(|error| ClientError::Unavailable(format!("{url}: {}", root_cause(&error))))?;
        let operator = OperatorClient::new(channel.clone())
            .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
        let rpc = AqueductClient::new(channel)
            .max_decoding_message_size(limits::PROMPT_BYTES_MAX)
            .max_encoding_message_size(limits::PROMPT_BYTES_MAX);
        Ok(Route { url: url.to_owned(), rpc, operator })
    }
}
