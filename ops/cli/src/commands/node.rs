//! `aqueduct node`: the workers of a server.

use std::time::Duration;

use aqueduct_client::operator::{NodeEntry, NodeView};
use aqueduct_client::{ClientError, WorkerStatus};
use serde::Serialize;

use crate::args::{NodeCommand, NodeDrainArgs, NodeListArgs, NodeShowArgs};
use crate::lines;
use crate::report::bytes;
use crate::shown::{self, Columns, Shown, fields, section};

/// How often it is looked whether a worker is empty.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// After so many looks at which it was not listed, a worker has left. A coordinator that has just
/// begun to lead lists none for a moment.
const LOOKS_UNSEEN: u32 = 25;

/// Asks the server.
///
/// # Errors
/// What the server refuses, or its silence; a worker that is not empty in time.
pub(crate) async fn run(command: NodeCommand) -> anyhow::Result<()> {
    match command {
        NodeCommand::List(args) => list(args).await,
        NodeCommand::Show(NodeShowArgs { server, output, worker }) => {
            let client = server.connect().await?;
            shown::show(&output, async || Ok(client.show_node(&worker).await?)).await
        }
        NodeCommand::Drain(args) => drain(&args).await,
        NodeCommand::Undrain(args) => {
            let status = args.server.connect().await?.drain(&args.worker, false).await?;
            Ok(lines::say(&format!("{} takes work again\n", status.worker))?)
        }
    }
}

/// Asks for what every caller may know, so that no operator's key is needed.
async fn list(args: NodeListArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let nodes = async || {
        let workers = client.describe().await?.workers;
        Ok(Nodes { nodes: workers.into_iter().map(Node::from).collect() })
    };
    if args.json {
        return Ok(nodes().await?.nodes.iter().try_for_each(lines::print)?);
    }
    shown::show(&args.output, nodes).await
}

/// Workers, as callers may know them.
#[derive(Debug, Serialize)]
struct Nodes {
    nodes: Vec<Node>,
}

/// A worker, as it is listed.
#[derive(Debug, Serialize)]
struct Node {
    worker: String,
    address: String,
    state: String,
    threads: u32,
    requests: u32,
    pool_bytes: u64,
    pool_used_bytes: u64,
}

impl From<WorkerStatus> for Node {
    fn from(status: WorkerStatus) -> Self {
        let WorkerStatus { worker, address, state, threads, requests, .. } = status;
        let WorkerStatus { pool_bytes, pool_used_bytes, .. } = status;
        Self { worker, address, state, threads, requests, pool_bytes, pool_used_bytes }
    }
}

impl Shown for Nodes {
    fn table(&self, wide: bool) -> String {
        let mut headings = vec!["NAME", "STATE", "THREADS", "POOL"];
        if wide {
            headings.extend(["STILL NEEDED BY", "ADDRESS"]);
        }
        let mut columns = Columns::new(&headings);
        for node in &self.nodes {
            let pool = pool(node.pool_used_bytes, node.pool_bytes);
            let threads = node.threads.to_string();
            let mut cells = vec![node.worker.clone(), node.state.clone(), threads, pool];
            if wide {
                cells.extend([node.requests.to_string(), node.address.clone()]);
            }
            columns.row(cells);
        }
        columns.render()
    }
}

/// How much of a pool is in use.
fn pool(used_bytes: u64, all_bytes: u64) -> String {
    match all_bytes {
        0 => String::new(),
        _ => format!("{} of {}", bytes(used_bytes), bytes(all_bytes)),
    }
}

/// Workers, as operators see them.
pub(crate) fn table(nodes: &[&NodeEntry], wide: bool) -> String {
    let mut headings = vec!["NAME", "STATE", "POOL", "SNAPSHOTS"];
    if wide {
        headings.extend(["DEVICE", "THREADS", "ADDRESS", "REASON"]);
    }
    let mut columns = Columns::new(&headings);
    for node in nodes {
        let pool = pool(node.pool_used_bytes, node.pool_bytes);
        let snapshots = format!("{} ({})", node.snapshots, bytes(node.snapshot_bytes));
        let mut cells = vec![node.name.clone(), node.state.clone(), pool, snapshots];
        if wide {
            let device = node.device.clone();
            cells.extend([device, node.threads.to_string()]);
            cells.extend([node.address.clone(), node.reason.clone()]);
        }
        columns.row(cells);
    }
    columns.render()
}

impl Shown for NodeView {
    fn table(&self, _wide: bool) -> String {
        let node = self.node.clone().unwrap_or_default();
        let held = format!(
            "{}, {} in memory, {} on disk",
            node.snapshots,
            bytes(node.snapshot_bytes),
            bytes(node.snapshot_disk_bytes)
        );
        let about = fields(&[
            ("Name", node.name),
            ("Address", node.address),
            ("State", node.state),
            ("Reason", node.reason),
            ("Device", node.device),
            ("Threads", node.threads.to_string()),
            ("Fingerprint", self.fingerprint.clone()),
            ("Keys in", self.kv.clone()),
            ("Pool", pool(node.pool_used_bytes, node.pool_bytes)),
            ("Snapshots", held),
            ("Requests", node.requests.to_string()),
        ]);
        let mut work = Columns::new(&["REQUEST", "ROLE", "CHUNK", "LAYERS", "DONE", "TOKENS"]);
        for at in &self.work {
            work.row(vec![
                at.request.clone(),
                at.role.clone(),
                at.chunk_idx.to_string(),
                at.layers_done.to_string(),
                at.chunks_done.to_string(),
                at.output_tokens.to_string(),
            ]);
        }
        about + &section("Work", &work)
    }
}

async fn drain(args: &NodeDrainArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let status = client.drain(&args.worker, true).await?;
    if args.wait_s == 0 {
        return Ok(lines::say(&format!("{} gets nothing new\n", status.worker))?);
    }
    let mut unseen = 0;
    let empty = async {
        loop {
            // The first look comes after the first pause: a figure may be a moment old.
            tokio::time::sleep(LOOK_EVERY).await;
            let workers = client.describe().await?.workers;
            let found = workers.into_iter().find(|worker| worker.worker == status.worker);
            let Some(now) = found else {
                unseen += 1;
                match unseen == LOOKS_UNSEEN {
                    true => return anyhow::Ok("has left"),
                    false => continue,
                }
            };
            unseen = 0;
            anyhow::ensure!(now.draining, "{} takes work again: somebody undrained it", now.worker);
            if now.requests == 0 {
                return Ok("is empty");
            }
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(args.wait_s), empty).await;
    let how = waited.map_err(|_| {
        let seconds = args.wait_s;
        ClientError::Deadline(format!("{} is not empty after {seconds} s", args.worker))
    })??;
    Ok(lines::say(&format!("{} {how}\n", status.worker))?)
}
