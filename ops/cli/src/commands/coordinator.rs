//! `aqueduct coordinator`: workers run elsewhere.

use aqueduct_coordinator::{Coordinator, Session};

use crate::args::CoordinatorArgs;
use crate::commands::serve;
use crate::{front, members};

/// Serves until SIGINT or SIGTERM. Until the first worker is up, which may take any time,
/// callers hear that none is; workers that come later, or come back, join.
///
/// # Errors
/// A URL that is none, a tokeniser that cannot be used, an address that is taken.
pub(crate) async fn run(args: CoordinatorArgs) -> anyhow::Result<()> {
    let stop = front::stop_signal()?;
    let doors = serve::bind(&args.front).await?;
    let config = serve::config(&args.front);
    let refusals = &doors.refusals;
    let tls = args.tls.dial("session", refusals)?;
    let coordinator = match args.etcd.etcd(refusals)? {
        Some(etcd) => Coordinator::follow(config, members::addresses(etcd), tls)?,
        None => {
            let session = |url: &String| Session::connect_with(url, tls.clone());
            let sessions = args.worker.iter().map(session);
            Coordinator::start(config, sessions.collect::<Result<_, _>>()?)?
        }
    };
    let grace = args.front.grace.period();
    serve::answer(&coordinator, &args.model, doors, (stop, grace)).await?;
    coordinator.stop().await;
    Ok(())
}
