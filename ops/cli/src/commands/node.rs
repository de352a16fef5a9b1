//! `aqueduct node`: the workers of a server.

use std::time::Duration;

use aqueduct_client::{Client, ClientError, WorkerStatus};
use serde::Serialize;

use crate::args::{NodeCommand, NodeDrainArgs, NodeListArgs, ServerArgs};
use crate::lines;

/// How often it is looked whether a worker is empty.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A worker, as it is listed.
#[derive(Debug, Serialize)]
struct Row<'a> {
    worker: &'a str,
    address: &'a str,
    state: &'static str,
    threads: u32,
    requests: u32,
}

/// Asks the server.
///
/// # Errors
/// What the server refuses, or its silence; a worker that is not empty in time.
pub(crate) async fn run(command: NodeCommand) -> anyhow::Result<()> {
    match command {
        NodeCommand::List(args) => list(&args).await,
        NodeCommand::Drain(args) => drain(&args).await,
        NodeCommand::Undrain(args) => {
            connect(&args.server).await?.drain(&args.worker, false).await?;
            Ok(())
        }
    }
}

async fn connect(server: &ServerArgs) -> anyhow::Result<Client> {
    Ok(Client::connect(&server.url, server.options()?).await?)
}

async fn list(args: &NodeListArgs) -> anyhow::Result<()> {
    for status in connect(&args.server).await?.describe().await?.workers {
        let WorkerStatus { worker, address, threads, requests, .. } = &status;
        let (state, &threads, &requests) = (state(&status), threads, requests);
        if args.json {
            lines::print(&Row { worker, address, state, threads, requests })?;
        } else {
            lines::say(&format!("{worker}  {state:<8}  {address}\n"))?;
        }
    }
    Ok(())
}

fn state(status: &WorkerStatus) -> &'static str {
    match (status.up, status.draining, status.requests) {
        (false, false, _) => "down",
        (true, false, _) => "up",
        (_, true, 0) => "drained",
        (_, true, _) => "draining",
    }
}

async fn drain(args: &NodeDrainArgs) -> anyhow::Result<()> {
    let client = connect(&args.server).await?;
    let mut status = client.drain(&args.worker, true).await?;
    let empty = async {
        loop {
            // The first look comes after the first pause: a figure may be a moment old.
            tokio::time::sleep(LOOK_EVERY).await;
            let workers = client.describe().await?.workers;
            let found = workers.into_iter().find(|worker| worker.worker == status.worker);
            match found {
                Some(now) if now.requests > 0 => status = now,
                _ => return Ok::<_, ClientError>(()),
            }
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(args.wait_s), empty).await;
    waited.map_err(|_| {
        let seconds = args.wait_s;
        ClientError::Deadline(format!("{} is not empty after {seconds} s", args.worker))
    })??;
    Ok(())
}
