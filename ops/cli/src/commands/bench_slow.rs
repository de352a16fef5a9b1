//! `aqueduct bench slow`: what a worker costs that is slow and not dead, with and without a second
//! one for the chunks that take too long, beside the same prompt without it.

use std::time::Duration;

use anyhow::Context;
use aqueduct_coordinator::Config;
use aqueduct_coordinator::submit::{Submission, Update};
use aqueduct_core::{PolicyKind, Refusal, TokenId, WorkerId, limits};
use serde::Serialize;
use tokio::process::Command;

use crate::args::BenchSlowArgs;
use crate::cluster::{self, Cluster, Workers, prefill_only};
use crate::machine::{self, Machine};
use crate::report::Table;
use crate::timings::median;
use crate::{lines, prompts};

/// Generated after each prompt, to be compared.
const OUTPUT_TOKENS: u32 = 8;
/// Chunks lie in turn over the workers, so that any of them has its part of the prompt.
const SLOW: WorkerId = WorkerId(0);

#[derive(Debug, Serialize)]
struct Row<'a> {
    hedge_ms: u64,
    pause_ms: u64,
    run_ms: u64,
    workers: usize,
    chunks: u32,
    chunk_tokens: u32,
    /// Medians over the repetitions, of the prefill.
    seconds: f64,
    fault_free_seconds: f64,
    /// The one over the other.
    ratio: f64,
    /// Chunks given to a second worker, all repetitions together.
    hedges: u64,
    /// Whether the answers have the same bits, with the slow worker and without.
    identical: bool,
    reps: u32,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// One repetition.
struct Run {
    fault_free: Duration,
    slow: Duration,
    hedges: u64,
    identical: bool,
}

/// A prefill's time, and the tokens after it with the bits of their log probabilities.
type Answer = (Duration, Vec<(TokenId, u32)>);

/// Measures every number of milliseconds.
///
/// # Errors
/// A number that is out of bounds, a model that is wrong, a worker that fails.
pub(crate) async fn run(args: BenchSlowArgs) -> anyhow::Result<()> {
    Refusal::unless_within("workers", args.workers, 2, limits::WORKERS_MAX)?;
    let most = limits::PROMPT_TOKENS_MAX / args.memory.chunk_tokens.max(1);
    Refusal::unless_within("chunks", args.chunks, 2, most)?;
    // Who stands still for longer is taken for dead.
    Refusal::unless_within("pause_ms", args.pause_ms, 1, limits::PING_TIMEOUT_MS)?;
    Refusal::unless_within("run_ms", args.run_ms, 1, 60_000)?;
    Refusal::unless_within("reps", args.reps, 1, 1000)?;
    let book = prompts::tokeniser(&args.model.model)?.encode(prompts::BOOK, false)?;
    let bench = Bench { book, machine: Machine::look(), args };
    let mut table = Table::new(["hedge after", "without", "with", "ratio", "hedged", "same"]);
    for &hedge_ms in &bench.args.hedge_ms {
        let row = bench.measure(hedge_ms).await?;
        if bench.args.json {
            lines::print(&row)?;
        }
        table.row(row.cells());
    }
    if !bench.args.json {
        lines::say(&table.render())?;
    }
    Ok(())
}

struct Bench {
    args: BenchSlowArgs,
    book: Vec<TokenId>,
    machine: Machine,
}

impl Bench {
    async fn measure(&self, hedge_ms: u64) -> anyhow::Result<Row<'_>> {
        let args = &self.args;
        let mut runs = Vec::new();
        for _ in 0..args.reps {
            runs.push(self.repeat(hedge_ms).await?);
        }
        let seconds =
            |of: fn(&Run) -> Duration| median(runs.iter().map(|run| of(run).as_secs_f64()));
        let (with, without) = (seconds(|run| run.slow), seconds(|run| run.fault_free));
        Ok(Row {
            hedge_ms,
            pause_ms: args.pause_ms,
            run_ms: args.run_ms,
            workers: args.workers,
            chunks: args.chunks,
            chunk_tokens: args.memory.chunk_tokens,
            seconds: with,
            fault_free_seconds: without,
            ratio: with / without,
            hedges: runs.iter().map(|run| run.hedges).sum(),
            identical: runs.iter().all(|run| run.identical),
            reps: args.reps,
            machine: &self.machine,
            commit: machine::COMMIT,
        })
    }

    async fn repeat(&self, hedge_ms: u64) -> anyhow::Result<Run> {
        let args = &self.args;
        let config = cluster::config(args.workers, args.memory.chunk_tokens);
        let hedge_after = (hedge_ms > 0).then(|| Duration::from_millis(hedge_ms));
        let config = Config { positions_limited: false, hedge_after, ..config };
        let workers = Workers::plain(args.workers);
        let cluster = Cluster::processes(&args.model, workers, args.threads, config).await?;
        for _ in 0..args.workers {
            cluster.warm_up(&self.book, args.memory.chunk_tokens).await?;
        }
        let (fault_free, want) = self.answer(&cluster).await?;
        let before = cluster.coordinator().stats().chunk_hedges;
        let process = cluster.process_id(SLOW).context("a worker in a process of its own")?;
        let slowed = slowed(process, args);
        let (slow, seen) = tokio::select! {
            answer = self.answer(&cluster) => answer?,
            error = slowed => return Err(error),
        };
        let hedges = cluster.coordinator().stats().chunk_hedges - before;
        signal(process, "CONT").await?;
        cluster.stop().await;
        Ok(Run { fault_free, slow, hedges, identical: seen == want })
    }

    async fn answer(&self, cluster: &Cluster) -> anyhow::Result<Answer> {
        let memory = &self.args.memory;
        let prompt = prompts::cycled(&self.book, self.args.chunks * memory.chunk_tokens);
        let submission = Submission {
            policy: memory.policy(PolicyKind::H2o),
            max_tokens: OUTPUT_TOKENS,
            ..prefill_only(prompt, memory.chunk_tokens)
        };
        let (mut prefill, mut tokens) = (None, Vec::new());
        let run = cluster.run(submission, |update| match update {
            Update::Prefilled(report) => prefill = Some(report.elapsed),
            Update::Token(token) => tokens.push((token.token, token.logprob.to_bits())),
            _ => {}
        });
        run.await?;
        Ok((prefill.context("a prefill without a report")?, tokens))
    }
}

/// Has a process stand still again and again, for as long as this is waited for; it ends when that
/// cannot be done.
async fn slowed(process: u32, args: &BenchSlowArgs) -> anyhow::Error {
    loop {
        for (word, ms) in [("STOP", args.pause_ms), ("CONT", args.run_ms)] {
            if let Err(error) = signal(process, word).await {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }
}

/// Every shell sends signals; the library sends one.
async fn signal(process: u32, word: &str) -> anyhow::Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "kill -s \"$0\" \"$1\"", word, &process.to_string()]);
    let sent = command.status().await?.success();
    anyhow::ensure!(sent, "worker process {process} cannot be sent SIG{word}");
    Ok(())
}

impl Row<'_> {
    fn cells(&self) -> [String; 6] {
        let time = |seconds: f64| format!("{seconds:.3} s");
        let after =
            if self.hedge_ms == 0 { "never".into() } else { format!("{} ms", self.hedge_ms) };
        [
            after,
            time(self.fault_free_seconds),
            time(self.seconds),
            format!("{:.2}", self.ratio),
            self.hedges.to_string(),
            if self.identical { "yes" } else { "NO" }.to_owned(),
        ]
    }
}
