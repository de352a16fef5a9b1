//! `aqueduct worker`: one worker for coordinators that run elsewhere.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::bail;
use aqueduct_core::Refusal;
use aqueduct_telemetry::Figures;
use aqueduct_tls::{Listener, Refusals, Role};
use aqueduct_worker::{Direct, LoopbackHub, Worker, WorkerOptions, metrics};
use futures::FutureExt;
use serde::Serialize;
use tokio::net::TcpListener;

use crate::args::{NcclArg, WorkerArgs};
use crate::logging::Telemetry;
use crate::members::Member;
use crate::{front, lines, loading, monitor};

/// Printed once the worker listens; `eval logits --link grpc` reads it.
#[derive(Debug, Serialize)]
struct Listening<'a> {
    event: &'static str,
    address: SocketAddr,
    url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    monitor: Option<SocketAddr>,
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// A model that is wrong, an address that cannot be bound, a thread that has panicked.
pub(crate) async fn run(args: WorkerArgs, telemetry: &Telemetry) -> anyhow::Result<()> {
    let mut stop = front::stop_signal()?.boxed();
    let (pool_tokens, pool_bytes) = (args.pool.tokens()?, args.pool.bytes()?);
    let refusals = Refusals::default();
    let etcd = args.etcd.etcd(&refusals)?;
    let tls = args.tls.listen("worker", &refusals)?;
    let scheduling = args.serving.scheduler.scheduling()?;
    // Bound first: a port that is taken should not cost the time of loading a model.
    let listener = front::bind("listen", &args.listen).await?;
    let address = listener.local_addr()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = args.advertise.map_or_else(|| own_url(scheme, address), Ok)?;
    aqueduct_tls::scheme_of("advertise", &url, tls.is_some())?;
    if aqueduct_members::host_of(&url).is_none() {
        let bound = format!("a URL like {scheme}://host:port, with an IPv6 address in brackets");
        return Err(Refusal::new("advertise", url, bound).into());
    }
    let monitor = args.monitor.bind().await?;
    let loaded = tokio::select! {
        loaded = loading::load(&args.model, args.threads) => loaded?,
        () = &mut stop => return Ok(()),
    };
    let mut options = WorkerOptions::new(url.clone(), LoopbackHub::default());
    options.threads = loaded.threads as u32;
    options.pool_tokens = pool_tokens;
    options.pool_bytes = pool_bytes;
    options.snapshots = args.serving.snapshots.options(None);
    options.audit_every = args.serving.audit.audit_every;
    options.scheduling = scheduling;
    options.decode_batch_max = args.serving.batch.decode_batch_max;
    options.stall = args.serving.stall.stall();
    options.tls = args.tls.dial((Role::Worker, "link"), &refusals)?;
    options.direct = match args.link_nccl {
        NcclArg::Auto if args.tls.is_given() => None,
        NcclArg::Auto | NcclArg::On => Direct::of(&loaded.model),
        NcclArg::Off => None,
    };
    let worker = Worker::start(loaded.model, options)?;
    let member = etcd.map(|etcd| Member::register(etcd, &worker, &loaded.device)).transpose()?;
    let monitor_address = monitor.as_ref().map(TcpListener::local_addr).transpose()?;
    let (counted, turned_away) = (worker.clone(), refusals.clone());
    let pushing = telemetry.push(move || Figures::of(&metrics::registry(&counted, &turned_away)));
    let monitor = monitor.map(|listener| monitor::spawn(&worker, refusals, listener));
    let (event, monitor_address) = ("listening", monitor_address);
    lines::print(&Listening { event, address, url: &url, monitor: monitor_address })?;
    let (leaving, grace) = (worker.clone(), args.grace.period());
    let stop = async {
        let is_asked = tokio::select! {
            () = stop => true,
            () = leaving.ended() => false,
        };
        if let Some(member) = member {
            member.end().await; // before the sessions end, so that nobody looks for it again
        }
        if is_asked {
            leave(&leaving, grace).await;
        }
        Instant::now() + front::LAST_WORDS
    };
    let computing = worker.clone();
    aqueduct_worker::serve(worker, Listener { tcp: listener, tls }, stop).await?;
    drop((monitor, pushing));
    if computing.has_ended() {
        bail!("what computes here has ended by itself"); // whoever looks after it starts it again
    }
    Ok(())
}

/// Takes nothing new, and ends what there is; not longer than `grace`, or a second signal.
async fn leave(worker: &Worker, grace: Duration) {
    worker.drain();
    let Ok(again) = front::stop_signal() else { return };
    tokio::select! {
        ended = tokio::time::timeout(grace, worker.idle()) => {
            if ended.is_err() {
                tracing::warn!(?grace, "requests still need this worker");
            }
        }
        () = again => {}
    }
}

/// Where others reach a worker that listens on `address`.
fn own_url(scheme: &str, address: SocketAddr) -> Result<String, Refusal> {
    if address.ip().is_unspecified() {
        return Err(Refusal::new(
            "advertise",
            "absent",
            format!("given, for nobody can reach {address}"),
        ));
    }
    Ok(format!("{scheme}://{address}"))
}
