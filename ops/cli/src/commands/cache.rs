//! `aqueduct cache`: what workers remember, of requests under way and beyond them.

use std::path::Path;

use anyhow::Context;
use aqueduct_client::operator::{
    ListSnapshotsRequest, MemoryView, Of, ShowMemoryRequest, SnapshotChange, SnapshotList,
};
use aqueduct_client::{Client, ClientError};
use aqueduct_core::{Refusal, limits};
use futures::{StreamExt, pin_mut};

use crate::args::{
    CacheCommand, CacheExportArgs, CacheImportArgs, CacheListArgs, CacheNamesArgs, CacheShowArgs,
};
use crate::lines;
use crate::report::bytes;
use crate::shown::{self, Columns, Shown, fields};
use crate::whole::Whole;

/// Digits of a name that a table shows.
const DIGITS: usize = 16;

/// Asks the server.
///
/// # Errors
/// What the server refuses, or its silence; a name that no worker knows; a file.
pub(crate) async fn run(command: CacheCommand) -> anyhow::Result<()> {
    match command {
        CacheCommand::List(args) => list(args).await,
        CacheCommand::Show(args) => show(args).await,
        CacheCommand::Evict(args) => {
            each(args, "evicted", async |client, name, at| client.evict_snapshot(name, at).await)
                .await
        }
        CacheCommand::Pin(args) => {
            each(args, "pinned", async |client, name, at| client.pin_snapshot(name, at, true).await)
                .await
        }
        CacheCommand::Unpin(args) => {
            let unpin = async |client: &Client, name: &str, at: &str| {
                client.pin_snapshot(name, at, false).await
            };
            each(args, "unpinned", unpin).await
        }
        CacheCommand::Export(args) => export(args).await,
        CacheCommand::Import(args) => import(args).await,
    }
}

async fn list(args: CacheListArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let all = async || {
        let mut asked = ListSnapshotsRequest { worker: args.worker.clone(), ..Default::default() };
        let mut all = client.list_snapshots(asked.clone()).await?;
        while !all.next.is_empty() {
            asked.from = std::mem::take(&mut all.next);
            let page = client.list_snapshots(asked.clone()).await?;
            all.snapshots.extend(page.snapshots);
            all.next = page.next;
        }
        Ok(all)
    };
    shown::show(&args.output, all).await
}

async fn show(args: CacheShowArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let CacheShowArgs { output, request, snapshot, layer, head, choice, .. } = args;
    let of = request.map(Of::Request).or_else(|| snapshot.map(Of::Snapshot));
    let whole = async || {
        let (of, kv_head, first) = (of.clone(), head, layer.unwrap_or(0));
        let mut asked = ShowMemoryRequest { of, choice, layer: first, kv_head, start: 0 };
        let mut whole = client.show_memory(asked.clone()).await?;
        while layer.is_none() && is_state(&whole) && asked.layer + 1 < whole.layers {
            asked.layer += 1;
            whole = client.show_memory(asked.clone()).await?;
        }
        while whole.next > 0 {
            asked.start = std::mem::take(&mut whole.next);
            let page = client.show_memory(asked.clone()).await?;
            whole.keys.extend(page.keys);
            whole.next = page.next;
        }
        Ok(whole)
    };
    shown::show(&output, whole).await
}

/// Whether the layer has no keys: each of those that have some keeps the last token's.
fn is_state(view: &MemoryView) -> bool {
    view.key_count == 0 && view.tokens > 0
}

/// Does `act` with each snapshot; what is wrong with one keeps none of the others.
async fn each(
    args: CacheNamesArgs,
    done: &str,
    act: impl AsyncFn(&Client, &str, &str) -> Result<SnapshotChange, ClientError>,
) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    lines::each(&args.snapshots, async |name| {
        let change = act(&client, name, &args.worker).await?;
        Ok(format!("snapshot {} {done} at {}", change.snapshot, change.workers.join(", ")))
    })
    .await
}

async fn export(args: CacheExportArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    let parts = client.export_snapshot(&args.snapshot, &args.worker).await?;
    pin_mut!(parts);
    let mut whole = Whole::create(&args.file).map_err(|error| unusable(&args.file, error))?;
    // From here on it is the disk, or who reads, and not what was asked for.
    let file = || args.file.display().to_string();
    while let Some(part) = parts.next().await {
        whole.write(&part?.bytes).with_context(file)?;
    }
    whole.end().with_context(file)
}

async fn import(args: CacheImportArgs) -> anyhow::Result<()> {
    let most = limits::SNAPSHOT_FILE_BYTES_MAX;
    let wrong = |error| unusable(&args.file, error);
    let size = std::fs::metadata(&args.file).map_err(wrong)?.len();
    Refusal::unless_within("file_bytes", size, 1, most)?;
    let file = std::fs::read(&args.file).map_err(wrong)?;
    let client = args.server.connect().await?;
    let kept = client.import_snapshot(&args.worker, file).await?;
    Ok(lines::say(&format!("snapshot {} kept at {}\n", kept.snapshot, kept.worker))?)
}

fn unusable(file: &Path, error: std::io::Error) -> Refusal {
    Refusal::new("file", file.display(), format!("usable: {error}"))
}

impl Shown for SnapshotList {
    fn table(&self, wide: bool) -> String {
        let mut headings = vec!["SNAPSHOT", "TOKENS", "MEMORY", "DISK", "PINNED", "WORKER"];
        if wide {
            headings.extend(["REQUEST", "POLICY"]);
        }
        let mut columns = Columns::new(&headings);
        for held in &self.snapshots {
            let digits = if wide { held.snapshot.len() } else { DIGITS };
            let size = |size| if size > 0 { bytes(size) } else { String::new() };
            let tokens = if held.tokens > 0 { held.tokens.to_string() } else { String::new() };
            let mut cells = vec![
                held.snapshot.chars().take(digits).collect(),
                tokens,
                size(held.memory_bytes),
                size(held.disk_bytes),
                if held.pinned { "yes".to_owned() } else { "no".to_owned() },
                held.worker.clone(),
            ];
            if wide {
                cells.extend([held.request.clone(), held.policy.clone()]);
            }
            columns.row(cells);
        }
        columns.render()
    }
}

impl Shown for MemoryView {
    fn table(&self, wide: bool) -> String {
        let count = |kind: &str| self.keys.iter().filter(|key| key.kind == kind).count();
        let kinds = ["sink", "heavy", "local", "kept"].map(|kind| (count(kind), kind));
        let kinds = kinds.iter().filter(|(count, _)| *count > 0);
        let kinds: Vec<_> = kinds.map(|(count, kind)| format!("{count} {kind}")).collect();
        let keys = match is_state(self) {
            true => format!("none: this layer remembers {} tokens in a state", self.tokens),
            false => {
                format!("{} of {} tokens: {}", self.key_count, self.tokens, kinds.join(", "))
            }
        };
        let mut about = vec![
            ("Request", self.request.clone()),
            ("Snapshot", self.snapshot.clone()),
            ("Worker", self.worker.clone()),
            ("Layer", format!("{} of {}", self.layer, self.layers)),
            ("KV head", format!("{} of {}", self.kv_head, self.kv_heads)),
            ("Policy", self.policy.clone()),
            ("Keys", keys),
        ];
        about.retain(|(_, value)| wide || !value.is_empty());
        let mut columns = Columns::new(&["POSITION", "KIND", "SCORE", "TEXT"]);
        for key in &self.keys {
            let text = if key.text.is_empty() { String::new() } else { format!("{:?}", key.text) };
            let score = format!("{:.4}", key.score);
            columns.row(vec![key.position.to_string(), key.kind.clone(), score, text]);
        }
        fields(&about) + "\n" + &columns.render()
    }
}
