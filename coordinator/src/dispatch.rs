//! Sessions with workers: commands out, events in, in this process or over gRPC. What the
//! runtime sees of either is the same: up, events, down.

mod refused;

use std::time::Duration;

use aqueduct_core::error::{chain, described, joined};
use aqueduct_core::snapshot::SnapshotNews;
use aqueduct_core::work::{Command, Event, WorkerInfo};
use aqueduct_core::{Refusal, Tenure, WorkerId, limits};
use aqueduct_proto::convert::peers::{put_refusal, put_tenure};
use aqueduct_proto::v1;
use aqueduct_proto::v1::worker_client::WorkerClient;
use aqueduct_tls::ClientTls;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::transport::Endpoint;

use crate::runtime::Cluster;

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);
const HELLO_DEADLINE: Duration = Duration::from_millis(limits::CONNECT_DEADLINE_MS);
/// A worker that answers no ping for an interval and a timeout is lost.
const PING_INTERVAL: Duration = Duration::from_millis(limits::PING_INTERVAL_MS);
const PING_TIMEOUT: Duration = Duration::from_millis(limits::PING_TIMEOUT_MS);

/// A worker, as the coordinator is told about it.
#[derive(Debug)]
pub struct Session {
    name: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    InProcess { commands: mpsc::Sender<Command>, events: mpsc::Receiver<Event> },
    Remote(Box<Remote>),
}

/// A worker of another process.
#[derive(Debug)]
struct Remote {
    endpoint: Endpoint,
    /// Plaintext if `None`.
    tls: Option<ClientTls>,
    /// `None` where the coordinator is in no group.
    tenure: Option<Tenure>,
}

/// What the runtime hears of a worker.
#[derive(Debug)]
pub(crate) enum Notice {
    /// It is to be connected to; whoever had its id before has left.
    Joined { name: String },
    /// It is no member any more, and its session is over.
    Left,
    /// It said hello, and what it keeps; dropping `commands` ends the session.
    Up {
        info: Box<WorkerInfo>,
        snapshots: Option<Box<SnapshotNews>>,
        commands: mpsc::Sender<Command>,
    },
    /// It said something else.
    Event(Event),
    /// The session ended.
    Down { reason: String },
}

/// How a session's task speaks to the runtime.
#[derive(Debug, Clone)]
struct Line {
    worker: WorkerId,
    notices: mpsc::Sender<(WorkerId, Notice)>,
    /// What became of the worker.
    cluster: watch::Receiver<Cluster>,
}

/// The runtime is gone.
struct Closed;

/// What a worker says before it is up: a request that came between its hello and its snapshots
/// would be told that nobody keeps any.
struct Greeting {
    info: Box<WorkerInfo>,
    snapshots: Option<Box<SnapshotNews>>,
    /// Said between the two.
    others: Vec<Event>,
}

impl Greeting {
    async fn hear(
        events: &mut (impl tokio_stream::Stream<Item = Result<Event, String>> + Unpin),
    ) -> Result<Self, String> {
        let mut next = async || {
            let event = events.next().await;
            event.unwrap_or_else(|| Err("it closed the session before its hello".to_owned()))
        };
        let Event::Hello(info) = next().await? else {
            return Err("its first event was not a hello".to_owned());
        };
        let mut greeting = Self { info, snapshots: None, others: Vec::new() };
        while greeting.info.keeps_snapshots && !greeting.has_all() {
            match next().await? {
                Event::Snapshots(news) => greeting.add(*news),
                // What was said of them came one after the other.
                other if greeting.snapshots.is_some() => {
                    greeting.others.push(other);
                    break;
                }
                _ if greeting.others.len() == limits::EVENTS_MAX => {
                    return Err("it did not say what snapshots it keeps".to_owned());
                }
                other => greeting.others.push(other),
            }
        }
        Ok(greeting)
    }

    /// Whether as many were named as there are: of many, one event names a part.
    fn has_all(&self) -> bool {
        self.snapshots.as_ref().is_some_and(|news| {
            let named = news.kept.len();
            named >= limits::SNAPSHOTS_MAX || named as u64 >= news.held.count
        })
    }

    fn add(&mut self, news: SnapshotNews) {
        match &mut self.snapshots {
            None => self.snapshots = Some(Box::new(news)),
            Some(known) => {
                known.kept.extend(news.kept);
                known.held = news.held;
            }
        }
    }
}

impl Session {
    /// A worker of this process. Its first event must be [`Event::Hello`]; `commands` has
    /// room for [`limits::COMMANDS_MAX`], because a worker that leaves it full counts as lost.
    pub fn in_process(
        name: impl Into<String>,
        commands: mpsc::Sender<Command>,
        events: mpsc::Receiver<Event>,
    ) -> Self {
        Self { name: name.into(), kind: Kind::InProcess { commands, events } }
    }

    /// A worker at `url` (`http://host:port`). It is connected to when the coordinator starts,
    /// and again whenever the connection is lost.
    ///
    /// # Errors
    /// Something that is not such a URL.
    pub fn connect(url: &str) -> Result<Self, Refusal> {
        Self::connect_with(url, None)
    }

    /// The same, with certificates: `url` is `https://host:port`.
    ///
    /// # Errors
    /// Something that is not such a URL.
    pub fn connect_with(url: &str, tls: Option<ClientTls>) -> Result<Self, Refusal> {
        Self::connect_in(None, url, tls)
    }

    /// The same, of a coordinator that leads its group: sessions of earlier terms end by it, and
    /// it is refused after one of a later term.
    pub(crate) fn connect_in(
        tenure: Option<Tenure>,
        url: &str,
        tls: Option<ClientTls>,
    ) -> Result<Self, Refusal> {
        let scheme = aqueduct_tls::scheme_of("worker", url, tls.is_some())?;
        let refusal = || Refusal::new("worker", url, format!("a URL like {scheme}://host:port"));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| refusal())?;
        if endpoint.uri().host().is_none() {
            return Err(refusal());
        }
        let endpoint = endpoint
            .connect_timeout(Duration::from_millis(limits::CONNECT_DEADLINE_MS))
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        let remote = Remote { endpoint, tls, tenure };
        Ok(Self { name: url.to_owned(), kind: Kind::Remote(Box::new(remote)) })
    }

    /// What people call it: a name, or its URL.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Keeps the session going in a task of its own, for as long as the runtime listens.
    pub(crate) fn spawn(
        self,
        worker: WorkerId,
        notices: mpsc::Sender<(WorkerId, Notice)>,
        cluster: watch::Receiver<Cluster>,
    ) -> AbortHandle {
        let line = Line { worker, notices, cluster };
        let task = match self.kind {
            Kind::InProcess { commands, events } => {
                let events = ReceiverStream::new(events).map(Ok);
                tokio::spawn(async move {
                    let Err(Closed) = line.run(commands, events).await else { return };
                })
            }
            Kind::Remote(remote) => tokio::spawn(async move {
                let Err(Closed) = line.keep_connected(&remote).await;
            }),
        };
        task.abort_handle()
    }
}

impl Line {
    async fn say(&self, notice: Notice) -> Result<(), Closed> {
        self.notices.send((self.worker, notice)).await.map_err(|_| Closed)
    }

    /// One session, from hello to its end. Whether the worker said hello.
    async fn run(
        &self,
        commands: mpsc::Sender<Command>,
        mut events: impl tokio_stream::Stream<Item = Result<Event, String>> + Unpin,
    ) -> Result<bool, Closed> {
        let greeting = tokio::time::timeout(HELLO_DEADLINE, Greeting::hear(&mut events)).await;
        let greeting = greeting.unwrap_or_else(|_| Err("it said no hello in time".to_owned()));
        let Greeting { info, snapshots, others } = match greeting {
            Ok(greeting) => greeting,
            Err(reason) => return self.down(&reason, false).await,
        };
        self.say(Notice::Up { info, snapshots, commands }).await?;
        for event in others {
            self.say(Notice::Event(event)).await?;
        }
        loop {
            match events.next().await {
                Some(Ok(event)) => self.say(Notice::Event(event)).await?,
                Some(Err(reason)) => return self.down(&reason, true).await,
                None => return self.down("it closed the session", true).await,
            }
        }
    }

    async fn down(&self, reason: &str, said_hello: bool) -> Result<bool, Closed> {
        self.say(Notice::Down { reason: reason.to_owned() }).await?;
        Ok(said_hello)
    }

    async fn keep_connected(&self, remote: &Remote) -> Result<std::convert::Infallible, Closed> {
        let mut backoff = BACKOFF_FIRST;
        loop {
            let said_hello = match self.open(remote).await {
                Ok((commands, events)) => self.run(commands, events).await?,
                Err(reason) => self.down(&reason, false).await?,
            };
            // Who is refused will be the same in a moment.
            let is_refused = refused::reason(&self.cluster.borrow(), self.worker).is_some();
            let was_let_in = said_hello && !is_refused;
            backoff = if was_let_in { BACKOFF_FIRST } else { (backoff * 2).min(BACKOFF_MOST) };
            tokio::select! {
                () = tokio::time::sleep(backoff) => {}
                () = self.notices.closed() => return Err(Closed),
            }
        }
    }

    async fn open(
        &self,
        Remote { endpoint, tls, tenure }: &Remote,
    ) -> Result<
        (mpsc::Sender<Command>, impl tokio_stream::Stream<Item = Result<Event, String>> + Unpin),
        String,
    > {
        let channel = aqueduct_tls::connect(endpoint, tls.as_ref()).await;
        let channel = channel.map_err(|error| described(&error))?;
        // The most a worker sends at once is the logits of a chunk.
        let mut client = WorkerClient::new(channel)
            .max_decoding_message_size(limits::PROMPT_BYTES_MAX)
            .max_encoding_message_size(limits::PROMPT_BYTES_MAX);
        let (commands, outgoing) = mpsc::channel::<Command>(limits::COMMANDS_MAX);
        let outgoing = ReceiverStream::new(outgoing).map(v1::WorkerCommand::from);
        let mut outgoing = Request::new(outgoing);
        tenure.iter().for_each(|tenure| put_tenure(*tenure, outgoing.metadata_mut()));
        let refused = refused::reason(&self.cluster.borrow(), self.worker);
        refused.iter().for_each(|reason| put_refusal(reason, outgoing.metadata_mut()));
        let incoming = tokio::time::timeout(HELLO_DEADLINE, client.control(outgoing)).await;
        let incoming = incoming
            .map_err(|_| "it did not open a session in time".to_owned())?
            .map_err(|status| said(&status))?;
        let events = incoming.into_inner().map(|message| {
            let message = message.map_err(|status| said(&status))?;
            Event::try_from(message).map_err(|refusal| refusal.to_string())
        });
        Ok((commands, events))
    }
}

fn said(status: &tonic::Status) -> String {
    let said = format!("{:?}: {}", status.code(), status.message());
    let causes = chain(status).skip(1).map(ToString::to_string);
    joined(std::iter::once(said).chain(causes))
}

#[cfg(test)]
mod tests {
    use aqueduct_core::work::{CONVENTION, Peer};
    use aqueduct_core::{KvDtype, RequestId, SnapshotKey, SnapshotsHeld};

    use super::*;
    use crate::submit::tests::SHAPE;

    fn hello() -> Event {
        Event::Hello(Box::new(WorkerInfo {
            peer: Peer("http://w0:1".into()),
            fingerprint: "same".into(),
            shape: SHAPE,
            kv: KvDtype::F32,
            threads: 1,
            device: String::new(),
            pool_tokens: u64::MAX,
            keeps_snapshots: true,
            convention: CONVENTION,
        }))
    }

    /// Says of `count` snapshots that it keeps those that are named so.
    fn kept(names: std::ops::Range<u8>, count: u64) -> Event {
        let kept = names.map(|name| SnapshotKey([name; 32])).collect();
        let held = SnapshotsHeld { count, ..SnapshotsHeld::default() };
        Event::Snapshots(Box::new(SnapshotNews { kept, held, ..SnapshotNews::default() }))
    }

    #[tokio::test]
    async fn a_worker_is_up_when_all_that_it_keeps_is_known() {
        let check = async |said: Vec<Event>, kept: usize, others: usize| {
            let events = [hello()].into_iter().chain(said).map(Ok);
            // It goes on, so what is waited for in vain shows.
            let mut events = tokio_stream::iter(events).chain(futures::stream::pending());
            let heard = Greeting::hear(&mut events);
            let heard = tokio::time::timeout(Duration::from_secs(10), heard).await;
            let heard = heard.expect("it waits for more").unwrap();
            assert_eq!(heard.snapshots.unwrap().kept.len(), kept);
            assert_eq!(heard.others.len(), others);
        };
        let other = || Event::HandedOver { request: RequestId(1) };
        check(vec![kept(0..0, 0)], 0, 0).await;
        check(vec![kept(0..3, 3), kept(3..9, 9)], 3, 0).await;
        check(vec![other(), kept(0..100, 250), kept(100..200, 250), kept(200..250, 250)], 250, 1)
            .await;
        // Who says something else has said all.
        check(vec![kept(0..3, 4), other()], 3, 1).await;
    }
}
