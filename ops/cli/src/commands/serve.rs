//! `aqueduct serve`: coordinator and workers in one process.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use aqueduct_coordinator::keys::Keys;
use aqueduct_coordinator::{Config, Coordinator};
use aqueduct_core::Refusal;
use aqueduct_tls::{Listener, Refusals};
use futures::FutureExt;
use serde::Serialize;
use tokio::net::TcpListener;

use crate::args::{FrontArgs, ServeArgs};
use crate::cluster::{Cluster, Workers};
use crate::front::{self, Doors, Front};
use crate::logging::Telemetry;
use crate::{lines, loading};

/// Printed once both addresses answer; `/health` says whether a worker is up.
#[derive(Debug, Serialize)]
struct Listening {
    event: &'static str,
    http: SocketAddr,
    grpc: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    monitor: Option<SocketAddr>,
}

/// Serves until SIGINT or SIGTERM; answers under way may end.
///
/// # Errors
/// A model that is wrong, an address that cannot be bound, a thread that has panicked.
pub(crate) async fn run(args: ServeArgs, telemetry: &Telemetry) -> anyhow::Result<()> {
    let mut stop = front::stop_signal()?.boxed();
    let doors = bind(&args.front).await?;
    let audit_every = args.serving.audit.audit_every;
    let scheduling = args.serving.scheduler.scheduling()?;
    let decode_batch_max = args.serving.batch.decode_batch_max;
    let stall = args.serving.stall.stall();
    let asked = Workers::asked(&args.cluster)?;
    let snapshots = Some(&args.serving.snapshots);
    let workers = Workers { audit_every, scheduling, decode_batch_max, stall, snapshots, ..asked };
    let loaded = tokio::select! {
        loaded = loading::load(&args.model, args.cluster.threads) => loaded?,
        () = &mut stop => return Ok(()),
    };
    let cluster = Cluster::embedded(&loaded, workers, config(&args.front)).await?;
    let grace = args.front.grace.period();
    let model = &args.model.model;
    tokio::select! {
        done = answer(cluster.coordinator(), model, doors, telemetry, (stop, grace)) => done?,
        () = cluster.a_worker_ended() => bail!("what computes for a worker has ended by itself"),
    }
    cluster.stop().await;
    Ok(())
}

/// The coordinator's options.
pub(super) fn config(args: &FrontArgs) -> Config {
    let admission = &args.admission;
    Config {
        running_requests: admission.running_requests,
        queued_requests: admission.queued_requests,
        queued_tokens: admission.queued_tokens,
        prompt_tokens_max: admission.prompt_tokens_max,
        request_deadline: Duration::from_secs(admission.deadline_seconds),
        worker_grace: Duration::from_secs(admission.worker_grace_seconds),
        resume_grace: Duration::from_secs(admission.resume_grace_s.into()),
        hedge_after: (admission.hedge_ms > 0).then(|| Duration::from_millis(admission.hedge_ms)),
        batch_tokens: args.batch_tokens,
        chunk_tokens: args.policy.budget.chunk_tokens,
        policy: args.policy.policy(),
        ..Config::default()
    }
}

/// Bound before a model is loaded: a port that is taken should not cost that time.
pub(super) async fn bind(args: &FrontArgs) -> anyhow::Result<Doors> {
    let refusals = Refusals::default();
    let http = args.tls.open(("http", "http/1.1"), &refusals)?;
    let grpc = args.tls.open(("grpc", "h2"), &refusals)?;
    let keys = args.api_keys.as_deref().map(Keys::open).transpose()?;
    // The system only says that something of this name is there.
    if let Some(file) = args.data_dir.as_ref().filter(|path| path.exists() && !path.is_dir()) {
        return Err(Refusal::new("data_dir", file.display(), "a folder").into());
    }
    let doors = Doors {
        http: Some(Listener { tcp: front::bind("http", &args.http).await?, tls: http }),
        grpc: Listener { tcp: front::bind("grpc", &args.grpc).await?, tls: grpc },
        monitor: args.monitor.bind().await?,
        name: args.served_model_name.clone(),
        origins: args.allowed_origins.clone(),
        chat_max_tokens: args.chat_max_tokens,
        generation_config: args.generation_config,
        policy: Some(args.policy),
        keys,
        refusals,
        data_dir: args.data_dir.clone(),
        membership: None,
    };
    warn_of_plaintext(&doors);
    Ok(doors)
}

/// Keys that everybody on the way can read are worth little.
fn warn_of_plaintext(doors: &Doors) {
    let is_open = |listener: &Listener| {
        let address = listener.tcp.local_addr();
        listener.tls.is_none() && address.is_ok_and(|address| !address.ip().is_loopback())
    };
    if doors.keys.is_some() && doors.http.iter().chain([&doors.grpc]).any(is_open) {
        tracing::warn!("API keys travel in plaintext: --tls-cert and --tls-key encrypt them");
    }
}

/// Says where it listens, and answers until `stop`; then what is under way may end within `grace`,
/// while those who ask hear that nothing new is taken, or ask another coordinator that leads now.
pub(super) async fn answer(
    coordinator: &Coordinator,
    model: &Path,
    doors: Doors,
    telemetry: &Telemetry,
    (stop, grace): (impl Future<Output = ()>, Duration),
) -> anyhow::Result<()> {
    let http = doors.http.as_ref().map(|listener| listener.tcp.local_addr()).transpose()?;
    let grpc = doors.grpc.tcp.local_addr()?;
    let monitor = doors.monitor.as_ref().map(TcpListener::local_addr).transpose()?;
    let front = Front::open(coordinator, model, doors).await?;
    // Until the last answer has ended, which is in the last push.
    let _pushing = telemetry.push(front.figures());
    if let Some(http) = http {
        lines::print(&Listening { event: "listening", http, grpc, monitor })?;
    }
    tokio::select! {
        () = stop => {}
        () = coordinator.ended() => bail!("the journal cannot be written"),
    }
    // Who asks twice does not want to wait for answers under way.
    let again = front::stop_signal()?;
    let ending = async {
        let by = Instant::now() + grace;
        coordinator.leave(grace).await;
        coordinator.close();
        if tokio::time::timeout_at(by.into(), coordinator.idle()).await.is_err() {
            tracing::warn!(?grace, "requests under way are cut off");
            coordinator.stop().await;
        }
        front.stop_by(by).await;
    };
    tokio::select! {
        () = ending => {}
        () = again => {}
    }
    Ok(())
}
