//! `aqueduct bench journal`: how many records a group of coordinators agrees on in a second, and
//! how long one takes, beside what flushing its disk takes.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use aqueduct_coordinator::peers::{Group, Known, Post, Unheard, serve};
use aqueduct_core::journal::{Accepted, Outcome, Record, RecordKind};
use aqueduct_core::{Addresses, Refusal, RequestId, TokenId, limits};
use aqueduct_journal::{Journal, Options, Standing};
use futures::future::select_all;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::BenchJournalArgs;
use crate::lines;
use crate::machine::{self, Machine};
use crate::report::Table;
use crate::timings::percentile;

/// Flushes that are measured before a group.
const FLUSHES: usize = 200;
/// A file system's block.
const FLUSHED_BYTES: usize = 4096;
/// In which a new group must have a leader.
const ELECTION: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize)]
struct Row<'a> {
    members: usize,
    callers: usize,
    prompt_tokens: u32,
    records: usize,
    records_per_second: f64,
    append_ms_p50: f64,
    append_ms_p99: f64,
    /// Of the bare disk, right before.
    fsync_ms_p50: f64,
    fsync_ms_p99: f64,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// Measures every group and number of callers.
///
/// # Errors
/// A number that is out of bounds, a folder that cannot be written, a group without a leader.
pub(crate) async fn run(args: BenchJournalArgs) -> anyhow::Result<()> {
    for &members in &args.members {
        Refusal::unless_within("members", members, 1, limits::JOURNAL_MEMBERS_MAX)?;
    }
    for &callers in &args.callers {
        Refusal::unless_within("callers", callers, 1, 1000)?;
    }
    let most = limits::CHUNK_TOKENS_MAX;
    Refusal::unless_within("prompt_tokens", args.prompt_tokens, 1, most)?;
    Refusal::unless_within("seconds", args.seconds, 1, 3600)?;
    let machine = Machine::look();
    let head = ["members", "callers", "records/s", "p50", "p99", "flush p50", "flush p99"];
    let mut table = Table::new(head);
    for &members in &args.members {
        for &callers in &args.callers {
            let row = measure(&args, members, callers, &machine).await?;
            if args.json {
                lines::print(&row)?;
            }
            table.row(row.cells());
        }
    }
    if !args.json {
        lines::say(&table.render())?;
    }
    Ok(())
}

async fn measure<'a>(
    args: &BenchJournalArgs,
    members: usize,
    callers: usize,
    machine: &'a Machine,
) -> anyhow::Result<Row<'a>> {
    let folder = Scratch::make(&args.data_dir)?;
    let flushes = flushes(&folder.0).context("flushing a file")?;
    let (journals, _servers) = group(&folder.0, members).await?;
    let leader = leading(&journals).await?;
    let whole = Duration::from_secs(args.seconds);
    let since = Instant::now();
    let mut asking = JoinSet::new();
    for caller in 0..callers {
        let (journal, prompt) = (leader.clone(), vec![1; args.prompt_tokens as usize]);
        asking.spawn(ask(journal, prompt, caller as u64, since + whole));
    }
    let mut waits = Vec::new();
    while let Some(asked) = asking.join_next().await {
        waits.append(&mut asked??);
    }
    let elapsed = since.elapsed();
    let ms = |waits: &[Duration], share| percentile(waits, share) * 1e3;
    Ok(Row {
        members,
        callers,
        prompt_tokens: args.prompt_tokens,
        records: waits.len(),
        records_per_second: waits.len() as f64 / elapsed.as_secs_f64(),
        append_ms_p50: ms(&waits, 0.5),
        append_ms_p99: ms(&waits, 0.99),
        fsync_ms_p50: ms(&flushes, 0.5),
        fsync_ms_p99: ms(&flushes, 0.99),
        machine,
        commit: machine::COMMIT,
    })
}

/// What each record of a caller took, until `end`.
async fn ask(
    journal: Journal,
    prompt: Vec<TokenId>,
    caller: u64,
    end: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let mut waits = Vec::new();
    for turn in 0.. {
        let request = RequestId((caller << 32) | turn);
        let accepted = Accepted::of("bench", prompt.clone());
        let kinds =
            [RecordKind::Accepted(Box::new(accepted)), RecordKind::Ended(Outcome::Finished)];
        for kind in kinds {
            let since = Instant::now();
            journal.append(Record { request, at_ms: turn, kind }).await?;
            waits.push(since.elapsed());
        }
        if Instant::now() >= end {
            break;
        }
    }
    Ok(waits)
}

/// How long it takes to have a block of a file on disk, whose place there is taken already, as that
/// of a journal's mostly is.
fn flushes(folder: &Path) -> std::io::Result<Vec<Duration>> {
    let mut file = File::create_new(folder.join("flushed"))?;
    let block = [7; FLUSHED_BYTES];
    (0..FLUSHES).try_for_each(|_| file.write_all(&block))?;
    file.sync_all()?;
    file.rewind()?;
    let mut flush = || {
        let since = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        Ok(since.elapsed())
    };
    (0..FLUSHES).map(|_| flush()).collect()
}

/// Journals of a new group, and what hears the members for as long as it is there.
async fn group(folder: &Path, members: usize) -> anyhow::Result<(Vec<Journal>, JoinSet<()>)> {
    let mut servers = JoinSet::new();
    if members == 1 {
        let journal = Journal::open(&folder.join("c0"), Options::alone(), ())?;
        return Ok((vec![journal], servers));
    }
    let mut listeners = Vec::new();
    for _ in 0..members {
        listeners.push(TcpListener::bind("127.0.0.1:0").await?);
    }
    let urls = listeners.iter().map(|listener| Ok(format!("http://{}", listener.local_addr()?)));
    let urls = urls.collect::<std::io::Result<Vec<_>>>()?;
    let peers: Vec<_> = urls.iter().enumerate().map(|(idx, url)| format!("c{idx}={url}")).collect();
    let mut journals = Vec::new();
    for (idx, (listener, url)) in listeners.into_iter().zip(urls).enumerate() {
        let group = Group::new(&format!("c{idx}"), &peers, "bench")?;
        let unheard = Unheard::default();
        let addresses = Addresses { http: url.clone(), grpc: url };
        let post = Post::new(group.clone(), addresses, None, unheard.clone())?;
        let options = Options { identity: group.identity(), ..Options::alone() };
        let journal = Journal::open(&folder.join(format!("c{idx}")), options, post)?;
        let (ear, publish) = (journal.ear(), watch::channel(Known::default()).0);
        servers.spawn(async move {
            let heard = serve(group, ear, (publish, unheard), listener, std::future::pending());
            if let Err(error) = heard.await {
                tracing::error!(%error, "a member is not heard any more");
            }
        });
        journals.push(journal);
    }
    Ok((journals, servers))
}

async fn leading(journals: &[Journal]) -> anyhow::Result<Journal> {
    let leads = journals.iter().map(|journal| {
        Box::pin(async move {
            let mut standing = journal.standing();
            let leads = standing.wait_for(|now| matches!(now, Standing::Leads { .. }));
            leads.await.map(|_| journal.clone())
        })
    });
    let (leader, ..) = tokio::time::timeout(ELECTION, select_all(leads)).await?;
    Ok(leader?)
}

/// A folder that goes with this; those above it are made where they are not there, and stay.
struct Scratch(PathBuf);

impl Scratch {
    fn make(parent: &Path) -> anyhow::Result<Self> {
        let folder = parent.join(format!("aqueduct-bench-journal-{}", std::process::id()));
        let wrong =
            |error| Refusal::new("data_dir", parent.display(), format!("writable: {error}"));
        fs::create_dir_all(parent).and_then(|()| fs::create_dir(&folder)).map_err(wrong)?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "a folder is left");
        }
    }
}

impl Row<'_> {
    fn cells(&self) -> [String; 7] {
        let time = |ms: f64| format!("{ms:.2} ms");
        [
            self.members.to_string(),
            self.callers.to_string(),
            format!("{:.0}", self.records_per_second),
            time(self.append_ms_p50),
            time(self.append_ms_p99),
            time(self.fsync_ms_p50),
            time(self.fsync_ms_p99),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_where_there_is_none() {
        let above = tempfile::tempdir().unwrap();
        let scratch = Scratch::make(&above.path().join("not/there/yet")).unwrap();
        let folder = scratch.0.clone();
        assert!(folder.is_dir());
        drop(scratch);
        assert!(!folder.exists());
        fs::write(above.path().join("file"), "").unwrap();
        let wrong = Scratch::make(&above.path().join("file/below")).err().unwrap().to_string();
        assert!(wrong.starts_with("data_dir = "), "{wrong}");
    }
}
