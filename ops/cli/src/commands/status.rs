//! `aqueduct status`: how a server, its group and its workers stand.

use aqueduct_client::operator::{ClusterView, MemberEntry, NodeEntry};

use crate::args::StatusArgs;
use crate::commands::node;
use crate::report::{bytes, grouped};
use crate::shown::{self, Columns, Shown, age, fields};

/// Asks the server.
///
/// # Errors
/// What the server refuses, or its silence.
pub(crate) async fn run(args: StatusArgs) -> anyhow::Result<()> {
    let client = args.server.connect().await?;
    shown::show(&args.output, async || Ok(client.show_cluster().await?)).await
}

/// How many workers are up, and of these how many are given nothing new.
pub(crate) fn workers(view: &ClusterView) -> String {
    let (up, all) = (view.workers_up, view.nodes.len());
    let is_left = |node: &&NodeEntry| ["draining", "drained"].contains(&node.state.as_str());
    match view.nodes.iter().filter(is_left).count() {
        0 => format!("{up} of {all} workers up"),
        drained => format!("{up} of {all} workers up, {drained} drained"),
    }
}

impl Shown for ClusterView {
    fn table(&self, wide: bool) -> String {
        let shape = self.shape.unwrap_or_default();
        let state = if self.open { "open" } else { "closing" };
        let mut shown = vec![
            ("Model", self.model.clone()),
            ("State", format!("{state}, {}", workers(self))),
            ("Running", format!("{} of {}", self.running, self.running_max)),
            (
                "Queued",
                format!(
                    "{} of {}, with {} of {} tokens",
                    self.queued,
                    self.queued_max,
                    grouped(self.queued_tokens),
                    grouped(self.queued_tokens_max),
                ),
            ),
            ("Chunks", format!("{} done, {} again", self.chunks_done, self.chunks_retried)),
            ("Generated", format!("{} tokens", grouped(self.output_tokens))),
            (
                "Snapshots",
                format!(
                    "{}, {} in memory, {} on disk",
                    self.snapshots,
                    bytes(self.snapshot_bytes),
                    bytes(self.snapshot_disk_bytes),
                ),
            ),
            ("Uptime", age(self.uptime_seconds)),
        ];
        if wide {
            let heads = format!("{} heads, {} of keys", shape.heads, shape.kv_heads);
            let states = match shape.recurrent_layers {
                0 => String::new(),
                some => format!(", {some} of them with states, {}", bytes(shape.state_bytes)),
            };
            let shared = match shape.kv_shared_layers {
                0 => String::new(),
                some => format!(", the last {some} with keys of earlier ones"),
            };
            let near = shape.windowed.map_or(String::new(), |windowed| {
                format!(
                    ", {} with a window of up to {}",
                    windowed.layers,
                    windowed.tokens.saturating_add(1)
                )
            });
            let (layers, width) = (shape.layers, shape.width);
            let layers = format!("{layers} layers of {width}{states}{shared}{near}, {heads}");
            shown.extend([
                ("Version", self.version.clone()),
                ("Fingerprint", self.fingerprint.clone()),
                ("Shape", format!("{layers}, keys in {}", self.kv)),
                ("Prompts", format!("up to {} tokens", grouped(self.prompt_tokens_max.into()))),
            ]);
        }
        let entries: Vec<&NodeEntry> = self.nodes.iter().collect();
        fields(&shown) + &members(&self.members, wide) + "\n" + &node::table(&entries, wide)
    }
}

/// Coordinators of a group as a table; nothing where there is none.
fn members(members: &[MemberEntry], wide: bool) -> String {
    if members.is_empty() {
        return String::new();
    }
    let mut headings = vec!["COORDINATOR", "STATE", "BEHIND"];
    if wide {
        headings.extend(["SILENT", "ADDRESS"]);
    }
    let mut columns = Columns::new(&headings);
    for member in members {
        let mut cells =
            vec![member.name.clone(), member.state.clone(), grouped(member.entries_behind)];
        if wide {
            cells.extend([age(member.silent_seconds), member.address.clone()]);
        }
        columns.row(cells);
    }
    format!("\n{}", columns.render())
}
