//! The doors of a coordinator: HTTP, gRPC, and the signals that close them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use aqueduct_coordinator::generation::Generator;
use aqueduct_coordinator::http::{self, ApiOptions, ApiState, Origins};
use aqueduct_coordinator::keys::Keys;
use aqueduct_coordinator::metrics::Metrics;
use aqueduct_coordinator::peers::{Answers, Calls};
use aqueduct_coordinator::service::{self, Served};
use aqueduct_coordinator::streams::Streams;
use aqueduct_coordinator::text::TextModel;
use aqueduct_coordinator::{Candidate, Coordinator, Keeping, Room};
use aqueduct_core::{Refusal, limits};
use aqueduct_journal::Journal;
use aqueduct_telemetry::Figures;
use aqueduct_tls::{Listener, Refusals};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::args::{GenerationConfig, PolicyArgs};
use crate::membership::Membership;

/// How long answers under way may take to end after a stop that names no time.
const DRAIN: Duration = Duration::from_secs(30);

/// How long callers may take to hear what ended their answers, where the time is over by then.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where to open, and what a caller gets who does not say.
pub(crate) struct Doors {
    /// HTTP, if wanted.
    pub(crate) http: Option<Listener>,
    /// gRPC.
    pub(crate) grpc: Listener,
    /// For those who watch, if wanted: in plaintext, whatever callers speak.
    pub(crate) monitor: Option<TcpListener>,
    /// What callers name the model, if not what its folder or file is called.
    pub(crate) name: Option<String>,
    /// Origins whose web pages may call.
    pub(crate) origins: Origins,
    /// Most tokens of a chat's answer whose caller does not say.
    pub(crate) chat_max_tokens: u32,
    pub(crate) generation_config: GenerationConfig,
    /// Memory policy and chunk size of callers that name none.
    pub(crate) policy: Option<PolicyArgs>,
    /// Who may call; anybody if `None`.
    pub(crate) keys: Option<Keys>,
    /// Who was turned away so far, here and where workers are dialed.
    pub(crate) refusals: Refusals,
    /// Folder of the journal, if one is kept.
    pub(crate) data_dir: Option<PathBuf>,
    /// With whom it is kept; alone if `None`.
    pub(crate) membership: Option<(Membership, Candidate)>,
}

/// Resolves when the doors are to close.
pub(crate) type Stop = BoxFuture<'static, ()>;

/// What answers at one of the doors until it is closed.
pub(crate) type Server = BoxFuture<'static, ()>;

/// A coordinator that can be talked to.
pub(crate) struct Front {
    grpc: SocketAddr,
    http: Option<SocketAddr>,
    generator: Generator,
    /// Answers to what other coordinators pass on.
    passed_on: Calls,
    /// By when they are to have ended, when that is known.
    stop: watch::Sender<Option<Instant>>,
    servers: JoinSet<()>,
}

impl Front {
    /// gRPC on a free port of 127.0.0.1, for a client in this process.
    ///
    /// # Errors
    /// A tokeniser that cannot be used, or no port.
    pub(crate) async fn private(coordinator: &Coordinator, model: &Path) -> anyhow::Result<Self> {
        let grpc = bind("grpc", "127.0.0.1:0").await?.into();
        let refusals = Refusals::default();
        let doors = Doors {
            http: None,
            grpc,
            monitor: None,
            name: None,
            origins: Origins::default(),
            chat_max_tokens: limits::CHAT_TOKENS_DEFAULT,
            generation_config: GenerationConfig::Auto,
            policy: None,
            keys: None,
            refusals,
            data_dir: None,
            membership: None,
        };
        Self::open(coordinator, model, doors).await
    }

    /// Opens the doors of `coordinator`, whose text side is that of `model`.
    ///
    /// # Errors
    /// A tokeniser, or a journal, that cannot be used.
    pub(crate) async fn open(
        coordinator: &Coordinator,
        model: &Path,
        doors: Doors,
    ) -> anyhow::Result<Self> {
        let text = doors.generation_config.text(model)?;
        let prompt_tokens_max =
            text.prompt_tokens_max().min(coordinator.config().prompt_tokens_max);
        let membership = doors.membership.as_ref();
        let unheard = membership.map(|(member, _)| member.unheard.clone()).unwrap_or_default();
        let generator = Generator {
            text: Arc::new(text.with_prompt_tokens_max(prompt_tokens_max)),
            runtime: Arc::new(coordinator.clone()),
            metrics: Arc::new(Metrics::with(doors.refusals, &unheard)),
            board: Arc::default(),
            streams: Streams::new(coordinator.config().resume_grace),
            room: Room::default(),
        };
        let text = generator.text.clone();
        let keys = doors.keys.clone();
        let serve_peers = match (&doors.data_dir, doors.membership) {
            (Some(folder), Some((membership, candidate))) => {
                Some(membership.join(candidate, folder, (text, keys))?)
            }
            (Some(folder), None) => {
                keep(coordinator, text, keys, folder).await?;
                None
            }
            (None, _) => None,
        };
        let name = doors.name.unwrap_or_else(|| aqueduct_gguf::name_of(model));
        let mut options = ApiOptions::new(name.clone());
        options.origins = doors.origins;
        options.chat_max_tokens = doors.chat_max_tokens;
        options.deadline = coordinator.config().request_deadline;
        if let Some(policy) = doors.policy {
            options.policy = policy.policy();
            options.chunk_tokens = policy.budget.chunk_tokens;
        }
        let grpc = doors.grpc.tcp.local_addr()?;
        let http = doors.http.as_ref().map(|listener| listener.tcp.local_addr()).transpose()?;
        let state = ApiState::guarded(generator.clone(), options, doors.keys.clone());
        let (coordinator, keys) = (coordinator.clone(), doors.keys);
        let served = Served { coordinator, generator: generator.clone(), model: name, keys };
        let (stop, servers) = (watch::Sender::new(None), JoinSet::new());
        let passed_on = Calls::default();
        if let Some(serve_peers) = serve_peers {
            let answers = answers(&state, &served, &passed_on);
            let coordinator = served.coordinator.clone();
            // Who goes hands the lead over when its own doors are closed.
            let ended = async move { coordinator.ended().await }.boxed();
            tokio::spawn(serve_peers(answers, ended));
        }
        let mut front = Self { grpc, http, generator, passed_on, stop, servers };
        front.serve(state, served, (doors.monitor, doors.http, doors.grpc));
        Ok(front)
    }

    /// Answers at the doors: for those who watch, over HTTP and over gRPC.
    fn serve(
        &mut self,
        state: ApiState,
        served: Served,
        (monitor, http, grpc): (Option<TcpListener>, Option<Listener>, Listener),
    ) {
        let stop = || told(self.stop.subscribe());
        if let Some(listener) = monitor {
            self.servers.spawn(http::monitor(state.clone(), listener, stop()));
        }
        if let Some(listener) = http {
            self.servers.spawn(http::serve(state, listener, stop()));
        }
        let serving = service::serve(served, grpc, stop());
        self.servers.spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the gRPC server ended");
            }
        });
    }

    /// Where a client of this machine reaches the gRPC API.
    pub(crate) fn grpc_url(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// Where the HTTP API listens, if it does.
    pub(crate) fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// What `/metrics` says at the moment of the call, for who has no use for text.
    pub(crate) fn figures(&self) -> impl Fn() -> Figures + Send + Sync + use<> {
        let (metrics, runtime) = (self.generator.metrics.clone(), self.generator.runtime.clone());
        move || metrics.read(&runtime.load(), Figures::of)
    }

    /// Closes the doors and gives answers under way a while to end.
    pub(crate) async fn stop(self) {
        self.stop_by(Instant::now() + DRAIN).await;
    }

    /// The same, by `by`, or as soon as callers may have heard that it is over.
    pub(crate) async fn stop_by(mut self, by: Instant) {
        let by = by.max(Instant::now() + LAST_WORDS);
        self.stop.send_replace(Some(by));
        // Each ends by then, and says what it has cut off.
        while self.servers.join_next().await.is_some() {}
        if timeout_at(by.into(), self.passed_on.none()).await.is_err() {
            tracing::warn!("answers to calls that others have passed on were cut off");
        }
    }
}

/// What answers calls that other coordinators pass on, which are counted.
fn answers(state: &ApiState, served: &Served, calls: &Calls) -> Answers {
    Answers {
        http: http::passed_on(state.clone()),
        grpc: service::passed_on(served.clone()),
        is_open: served.keys.is_none(),
        calls: calls.clone(),
        coordinator: Some(served.coordinator.clone()),
    }
}

/// Has requests written down in the journal of `folder`; those that are under way in it go on.
async fn keep(
    coordinator: &Coordinator,
    text: Arc<TextModel>,
    keys: Option<Keys>,
    folder: &Path,
) -> anyhow::Result<()> {
    let journal = Journal::open(folder, aqueduct_journal::Options::alone(), ());
    let journal = journal.with_context(|| format!("data_dir = {}", folder.display()))?;
    let constrain = Arc::new(move |form| text.constraint("grammar", form));
    let kept = coordinator.keep(Keeping { journal, constrain, keys, group: None }).await;
    let unwritten = || format!("data_dir = {}: the journal cannot be written", folder.display());
    let interrupted = kept.with_context(unwritten)?;
    tracing::info!(folder = %folder.display(), interrupted, "requests are written down");
    Ok(())
}

/// Resolves when `stop` says by when to have ended.
async fn told(mut stop: watch::Receiver<Option<Instant>>) -> Instant {
    let by = stop.wait_for(Option::is_some).await.ok().and_then(|by| *by);
    by.unwrap_or_else(Instant::now) // nobody is left who could say so
}

/// Binds `address`, which the user gave as `field`.
///
/// # Errors
/// An address that is none, or that is taken.
pub(crate) async fn bind(field: &str, address: &str) -> Result<TcpListener, Refusal> {
    TcpListener::bind(address)
        .await
        .map_err(|error| Refusal::new(field, address, format!("an address to listen on: {error}")))
}

/// Resolves at SIGINT or SIGTERM; from now on these do not end the process by themselves.
///
/// # Errors
/// When the system does not let us listen for signals.
pub(crate) fn stop_signal() -> std::io::Result<impl Future<Output = ()> + Send> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("stopping");
    })
}
