//! `aqueduct coordinator`: workers run elsewhere.

use std::collections::BTreeSet;

use aqueduct_coordinator::{Coordinator, Members, Session};
use aqueduct_core::{Refusal, limits};
use aqueduct_tls::{ClientTls, Role};
use tokio::sync::watch;

use crate::args::CoordinatorArgs;
use crate::commands::serve;
use crate::logging::Telemetry;
use crate::membership::Membership;
use crate::{front, members};

/// Serves until SIGINT or SIGTERM. Until the first worker is up, which may take any time,
/// callers hear that none is; workers that come later, or come back, join.
///
/// # Errors
/// A URL that is none, a tokeniser that cannot be used, an address that is taken.
pub(crate) async fn run(args: CoordinatorArgs, telemetry: &Telemetry) -> anyhow::Result<()> {
    let stop = front::stop_signal()?;
    let mut doors = serve::bind(&args.front).await?;
    let config = serve::config(&args.front);
    let tls = args.tls.dial((Role::Worker, "session"), &doors.refusals)?;
    let registered = args.etcd.etcd(&doors.refusals)?.map(members::addresses);
    let membership = Membership::open(&args.group, &args.tls, &doors).await?;
    let coordinator = match (membership, registered) {
        (Some(membership), registered) => {
            let urls = registered.map_or_else(|| listed(&args.worker, tls.as_ref()), Ok)?;
            let (coordinator, candidate) = Coordinator::in_group(config, Members { urls, tls })?;
            doors.membership = Some((membership, candidate));
            coordinator
        }
        (None, Some(urls)) => Coordinator::follow(config, urls, tls)?,
        (None, None) => {
            let session = |url: &String| Session::connect_with(url, tls.clone());
            let sessions = args.worker.iter().map(session);
            Coordinator::start(config, sessions.collect::<Result<_, _>>()?)?
        }
    };
    let grace = args.front.grace.period();
    serve::answer(&coordinator, &args.model, doors, telemetry, (stop, grace)).await?;
    coordinator.stop().await;
    Ok(())
}

/// Workers that neither come nor go.
fn listed(
    workers: &[String],
    tls: Option<&ClientTls>,
) -> Result<watch::Receiver<BTreeSet<String>>, Refusal> {
    Refusal::unless_within("workers", workers.len(), 1, limits::WORKERS_MAX)?;
    workers.iter().try_for_each(|url| Session::connect_with(url, tls.cloned()).map(drop))?;
    Ok(watch::channel(workers.iter().cloned().collect()).1)
}
