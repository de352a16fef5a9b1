//! The way to one other member: a lane for what is short, heartbeats above all, and one for what
//! is long, so that a snapshot under way holds up no heartbeat. A lane makes one call at a time,
//! with all that waits; raft itself sends again what is lost.

use std::time::Duration;

use aqueduct_core::error::chain;
use aqueduct_core::{Refusal, limits};
use aqueduct_journal::{Ear, Message, MessageType, bytes_of, encode};
use aqueduct_proto::convert::peers::{Envelope, split};
use aqueduct_proto::v1::coordinators_client::CoordinatorsClient;
use aqueduct_tls::ClientTls;
use bytes::Bytes;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};

/// A message of more bytes takes the other lane.
const SHORT_BYTES_MAX: u64 = 2 * limits::JOURNAL_MESSAGE_BYTES;
/// No message is added to a call that has so many bytes.
const CALL_BYTES: u64 = 4 * limits::JOURNAL_MESSAGE_BYTES;
/// Raft sends one snapshot at a time.
const LONG_MESSAGES_MAX: usize = 2;

/// To whom, and how.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) endpoint: Endpoint,
    /// Plaintext if `None`.
    pub(super) tls: Option<ClientTls>,
    pub(super) envelope: Envelope,
}

/// Both lanes to one member; their tasks end when this is dropped.
#[derive(Debug)]
pub(super) struct Lanes {
    short: mpsc::Sender<Message>,
    long: mpsc::Sender<Message>,
}

/// How a member at `url` is reached.
///
/// # Errors
/// A URL that is none, or whose scheme does not go with certificates.
pub(super) fn endpoint(url: &str, tls: bool) -> Result<Endpoint, Refusal> {
    let scheme = aqueduct_tls::scheme_of("peers", url, tls)?;
    let bound = format!("a URL like {scheme}://host:port");
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|_| Refusal::new("peers", url, bound))?
        .connect_timeout(Duration::from_millis(limits::PEER_DEADLINE_MS))
        .http2_keep_alive_interval(Duration::from_millis(limits::PING_INTERVAL_MS))
        .keep_alive_timeout(Duration::from_millis(limits::PING_TIMEOUT_MS))
        .tcp_nodelay(true);
    Ok(endpoint)
}

impl Lanes {
    pub(super) fn start(route: &Route, ear: &Ear) -> Self {
        let start = |messages_max| {
            let (sender, waiting) = mpsc::channel(messages_max);
            let (route, ear) = (route.clone(), ear.clone());
            tokio::spawn(Lane { route, ear, waiting, channel: None, trouble: None }.run());
            sender
        };
        Self { short: start(limits::PEER_MESSAGES_MAX), long: start(LONG_MESSAGES_MAX) }
    }

    /// Whether there was room for it.
    pub(super) fn put(&self, message: Message) -> bool {
        let is_snapshot = message.msg_type == MessageType::MsgSnapshot;
        let is_long = is_snapshot || bytes_of(&message) > SHORT_BYTES_MAX;
        let lane = if is_long { &self.long } else { &self.short };
        lane.try_send(message).is_ok()
    }
}

struct Lane {
    route: Route,
    ear: Ear,
    waiting: mpsc::Receiver<Message>,
    /// `None` until it is connected, and after a failure.
    channel: Option<Channel>,
    /// What went wrong last, which is said once.
    trouble: Option<String>,
}

impl Lane {
    async fn run(mut self) {
        while let Some(first) = self.waiting.recv().await {
            let batch = self.gather(first);
            let kinds: Vec<_> = batch.iter().map(|message| message.msg_type).collect();
            let delivered = self.deliver(batch).await;
            let arrived = delivered.is_ok();
            self.note(delivered.err());
            self.report(kinds, arrived).await;
            if !arrived {
                self.forget().await;
            }
        }
    }

    /// `first`, and what else waits, as far as it fits in a call.
    fn gather(&mut self, first: Message) -> Vec<Message> {
        let (mut bytes, mut batch) = (bytes_of(&first), vec![first]);
        while bytes < CALL_BYTES && batch.len() < limits::PEER_MESSAGES_MAX {
            let Ok(next) = self.waiting.try_recv() else { break };
            bytes += bytes_of(&next);
            batch.push(next);
        }
        batch
    }

    async fn deliver(&mut self, batch: Vec<Message>) -> Result<(), String> {
        let bytes: u64 = batch.iter().map(bytes_of).sum();
        let seconds = Duration::from_secs(bytes / limits::PEER_BYTES_PER_S);
        let deadline = Duration::from_millis(limits::PEER_DEADLINE_MS) + seconds;
        let called = tokio::time::timeout(deadline, self.call(batch, bytes)).await;
        let called = called.unwrap_or_else(|_| Err(format!("no answer within {deadline:?}")));
        called.inspect_err(|_| self.channel = None)
    }

    async fn call(&mut self, batch: Vec<Message>, bytes: u64) -> Result<(), String> {
        let encoded = match bytes > SHORT_BYTES_MAX {
            // It takes the processor for as long as copying it does.
            true => tokio::task::spawn_blocking(|| encode(batch)).await,
            false => Ok(encode(batch)),
        };
        let encoded = Bytes::from(encoded.map_err(|error| error.to_string())?);
        let Route { endpoint, tls, envelope } = &self.route;
        let channel = match &self.channel {
            Some(channel) => channel.clone(),
            None => {
                let connected = aqueduct_tls::connect(endpoint, tls.as_ref()).await;
                connected.map_err(|error| root_cause(&error))?
            }
        };
        self.channel = Some(channel.clone());
        let frames = futures::stream::iter(split(envelope, encoded));
        let mut client = CoordinatorsClient::new(channel)
            .max_encoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
        let called = client.deliver(frames).await;
        called.map(drop).map_err(|status| format!("{:?}: {}", status.code(), status.message()))
    }

    /// Of what arrived raft wants to know of snapshots alone.
    async fn report(&self, kinds: Vec<MessageType>, arrived: bool) {
        let is_wanted = |kind: &MessageType| !arrived || *kind == MessageType::MsgSnapshot;
        for kind in kinds.into_iter().filter(is_wanted) {
            self.ear.sent(kind, self.route.envelope.to, arrived).await;
        }
    }

    /// What waited while nothing went is old by now.
    async fn forget(&mut self) {
        let mut kinds = Vec::new();
        while let Ok(message) = self.waiting.try_recv() {
            kinds.push(message.msg_type);
        }
        self.report(kinds, false).await;
    }

    fn note(&mut self, trouble: Option<String>) {
        let peer = self.route.endpoint.uri();
        match &trouble {
            Some(error) if self.trouble != trouble => {
                tracing::warn!(%peer, error, "another coordinator is not reached");
            }
            None if self.trouble.is_some() => tracing::info!(%peer, "it is reached again"),
            _ => {}
        }
        self.trouble = trouble;
    }
}

/// What the innermost error says: tonic's own text is "transport error".
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}
