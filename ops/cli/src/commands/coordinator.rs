//! `aqueduct coordinator`: workers run elsewhere.

use anyhow::Context;
use aqueduct_coordinator::{Coordinator, Session};

use crate::args::CoordinatorArgs;
use crate::commands::serve;
use crate::front;

/// Serves until SIGINT or SIGTERM. Begins when the first worker is up, however long that
/// takes; workers that come later, or come back, join.
///
/// # Errors
/// A worker's URL that is none, a tokeniser that cannot be used, an address that is taken.
pub(crate) async fn run(args: CoordinatorArgs) -> anyhow::Result<()> {
    let mut stop = Box::pin(front::stop_signal()?);
    let doors = serve::bind(&args.front).await?;
    let sessions = args.worker.iter().map(|url| Session::connect(url)).collect::<Result<_, _>>()?;
    let coordinator = Coordinator::start(serve::config(&args.front), sessions)?;
    let mut cluster = coordinator.watch();
    tokio::select! {
        up = cluster.wait_for(|cluster| cluster.model.is_some()) => {
            up.context("the coordinator ended")?;
        }
        () = &mut stop => return Ok(()),
    }
    serve::answer(&coordinator, &args.model, doors, stop).await
}
