//! `aqueduct bench recover`: what the loss of a worker costs, beside the same request without it,
//! and how soon it is noticed.

use std::time::{Duration, Instant};

use anyhow::Context;
use aqueduct_coordinator::Config;
use aqueduct_coordinator::submit::{PrefillProgress, Submission, Update, WorkerProgress};
use aqueduct_core::{PolicyKind, Refusal, TokenId, WorkerId, limits};
use serde::Serialize;

use crate::args::{BenchRecoverArgs, Fault};
use crate::cluster::{self, Cluster, Workers, prefill_only};
use crate::machine::{self, Machine};
use crate::report::Table;
use crate::timings::median;
use crate::{lines, prompts};

/// Generated after each prompt.
const OUTPUT_TOKENS: u32 = 64;
/// How often a request that says nothing is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// In which a loss must have been noticed.
const NOTICE_DEADLINE: Duration = Duration::from_secs(30);

/// Who is lost, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Lost {
    /// Who is at work on a chunk, when half of them are done.
    Prefill,
    /// Who decodes, when half of the tokens are there.
    Home,
    /// Who did the chunk before the last one, at the same time.
    Before,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    lost: Lost,
    fault: Fault,
    policy: &'static str,
    workers: usize,
    chunks: u32,
    chunk_tokens: u32,
    /// Until the coordinator counts the worker as lost: median, and longest.
    detect_ms: f64,
    detect_ms_max: f64,
    /// Medians over the repetitions, of the whole request.
    seconds: f64,
    fault_free_seconds: f64,
    /// A prompt of one chunk, alone.
    chunk_seconds: f64,
    /// How much longer it took, in chunks.
    cost_chunks: f64,
    /// `seconds` over `fault_free_seconds`.
    ratio: f64,
    /// Whether the tokens and log probabilities are those without the loss.
    identical: bool,
    reps: u32,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// One repetition.
struct Run {
    chunk: Duration,
    fault_free: Duration,
    lost: Duration,
    noticed: Duration,
    identical: bool,
}

/// What came of a request.
struct Answer {
    took: Duration,
    /// Completion, token, and the bits of its log probability.
    tokens: Vec<(u32, TokenId, u32)>,
}

/// A loss, before and after it happens.
struct Loss {
    lost: Lost,
    fault: Fault,
    since: Option<Instant>,
    /// How long after that the coordinator knew.
    noticed: Option<Duration>,
}

impl Loss {
    fn look(&mut self, cluster: &Cluster, workers: usize) {
        if self.noticed.is_none() && cluster.coordinator().stats().workers_up < workers {
            self.noticed = self.since.map(|since| since.elapsed());
        }
    }
}

/// Measures every policy and loss.
///
/// # Errors
/// A number that is out of bounds, a model that is wrong, a request that fails.
pub(crate) async fn run(args: BenchRecoverArgs) -> anyhow::Result<()> {
    Refusal::unless_within("workers", args.workers, 2, limits::WORKERS_MAX)?;
    let most = limits::PROMPT_TOKENS_MAX / args.memory.chunk_tokens.max(1);
    Refusal::unless_within("chunks", args.chunks, 2, most)?;
    Refusal::unless_within("reps", args.reps, 1, 1000)?;
    let book = prompts::tokeniser(&args.model.model)?.encode(prompts::BOOK, false)?;
    let bench = Bench { book, machine: Machine::look(), args };
    let head =
        ["lost", "by", "policy", "noticed after", "without", "with", "a chunk", "cost", "same"];
    let mut table = Table::new(head);
    for &kind in &bench.args.policy {
        for lost in [Lost::Prefill, Lost::Home, Lost::Before] {
            for &fault in &bench.args.fault {
                let row = bench.measure(kind, lost, fault).await?;
                if bench.args.json {
                    lines::print(&row)?;
                }
                table.row(row.cells());
            }
        }
    }
    if !bench.args.json {
        lines::say(&table.render())?;
    }
    Ok(())
}

struct Bench {
    args: BenchRecoverArgs,
    book: Vec<TokenId>,
    machine: Machine,
}

impl Bench {
    async fn measure(&self, kind: PolicyKind, lost: Lost, fault: Fault) -> anyhow::Result<Row<'_>> {
        let args = &self.args;
        let mut runs = Vec::new();
        for _ in 0..args.reps {
            runs.push(self.repeat(kind, lost, fault).await?);
        }
        let seconds =
            |of: fn(&Run) -> Duration| median(runs.iter().map(|run| of(run).as_secs_f64()));
        let (with, without) = (seconds(|run| run.lost), seconds(|run| run.fault_free));
        let chunk_seconds = seconds(|run| run.chunk);
        let longest = runs.iter().map(|run| run.noticed).max().unwrap_or_default();
        Ok(Row {
            lost,
            fault,
            policy: kind.as_str(),
            workers: args.workers,
            chunks: args.chunks,
            chunk_tokens: args.memory.chunk_tokens,
            detect_ms: seconds(|run| run.noticed) * 1e3,
            detect_ms_max: longest.as_secs_f64() * 1e3,
            seconds: with,
            fault_free_seconds: without,
            chunk_seconds,
            cost_chunks: (with - without) / chunk_seconds,
            ratio: with / without,
            identical: runs.iter().all(|run| run.identical),
            reps: args.reps,
            machine: &self.machine,
            commit: machine::COMMIT,
        })
    }

    /// A cluster of its own, for one of its workers will be gone.
    async fn repeat(&self, kind: PolicyKind, lost: Lost, fault: Fault) -> anyhow::Result<Run> {
        let args = &self.args;
        let config = cluster::config(args.workers, args.memory.chunk_tokens);
        let config = Config { positions_limited: false, ..config };
        let workers = Workers::plain(args.workers);
        let cluster = Cluster::processes(&args.model, workers, args.threads, config);
        let mut cluster = cluster.await?;
        for _ in 0..args.workers {
            cluster.warm_up(&self.book, args.memory.chunk_tokens).await?;
        }
        let chunk = self.answer(&mut cluster, self.asked(kind, 1, 0), None).await?;
        let asked = self.asked(kind, args.chunks, OUTPUT_TOKENS);
        let fault_free = self.answer(&mut cluster, asked.clone(), None).await?;
        let mut loss = Loss { lost, fault, since: None, noticed: None };
        let answer = self.answer(&mut cluster, asked, Some(&mut loss)).await?;
        let noticed = self.notice(&cluster, loss).await?;
        cluster.stop().await;
        Ok(Run {
            chunk: chunk.took,
            fault_free: fault_free.took,
            lost: answer.took,
            noticed,
            identical: answer.tokens == fault_free.tokens,
        })
    }

    /// How long it took until the loss was noticed, which may last longer than the answer.
    async fn notice(&self, cluster: &Cluster, mut loss: Loss) -> anyhow::Result<Duration> {
        let since = loss.since.context("the request ended before a worker could be lost")?;
        loop {
            loss.look(cluster, self.args.workers);
            if let Some(noticed) = loss.noticed {
                return Ok(noticed);
            }
            anyhow::ensure!(since.elapsed() < NOTICE_DEADLINE, "the loss was not noticed");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn asked(&self, kind: PolicyKind, chunks: u32, max_tokens: u32) -> Submission {
        let memory = &self.args.memory;
        let prompt = prompts::cycled(&self.book, chunks * memory.chunk_tokens);
        let policy = memory.policy(kind);
        Submission { policy, max_tokens, ..prefill_only(prompt, memory.chunk_tokens) }
    }

    async fn answer(
        &self,
        cluster: &mut Cluster,
        asked: Submission,
        mut loss: Option<&mut Loss>,
    ) -> anyhow::Result<Answer> {
        let (since, before) = (Instant::now(), cluster.coordinator().stats().chunks_done);
        let mut handle = cluster.coordinator().submit(asked).await?;
        let (mut places, mut tokens) = (None, Vec::new());
        loop {
            // Progress is told now and then, so chunks are counted meanwhile.
            let update = tokio::time::timeout(LOOK_EVERY, handle.next()).await;
            if let Some(loss) = loss.as_deref_mut() {
                loss.look(cluster, self.args.workers);
                let done = cluster.coordinator().stats().chunks_done - before;
                self.strike(cluster, (done, tokens.len()), places, loss).await?;
            }
            let Ok(update) = update else { continue };
            match update.transpose()? {
                None => break,
                Some(Update::Progress(at)) => places = places.or_else(|| self.places(&at)),
                Some(Update::Token(token)) => {
                    tokens.push((token.choice, token.token, token.logprob.to_bits()));
                }
                Some(_) => {}
            }
        }
        Ok(Answer { took: since.elapsed(), tokens })
    }

    /// Who has chunk 0, for chunks lie in turn over the workers.
    fn places(&self, progress: &PrefillProgress) -> Option<usize> {
        let workers = self.args.workers;
        let WorkerProgress { worker, chunk_idx, .. } = progress.workers.first()?;
        Some((worker.0 as usize + workers - *chunk_idx as usize % workers) % workers)
    }

    /// Has who is to be lost be lost, if it is time.
    async fn strike(
        &self,
        cluster: &mut Cluster,
        (chunks, tokens): (u64, usize),
        first: Option<usize>,
        loss: &mut Loss,
    ) -> anyhow::Result<()> {
        let (Some(first), None) = (first, loss.since) else { return Ok(()) };
        let all = u64::from(self.args.chunks);
        let (chunk, is_time) = match loss.lost {
            Lost::Prefill => (chunks, chunks * 2 >= all && chunks < all),
            Lost::Home => (all - 1, tokens * 2 >= OUTPUT_TOKENS as usize),
            Lost::Before => (all - 2, tokens * 2 >= OUTPUT_TOKENS as usize),
        };
        if is_time {
            let victim = (first + chunk as usize) % self.args.workers;
            loss.since = Some(Instant::now());
            cluster.strike(WorkerId(victim as u32), loss.fault).await?;
        }
        Ok(())
    }
}

impl Row<'_> {
    fn cells(&self) -> [String; 9] {
        let time = |seconds: f64| format!("{seconds:.3} s");
        let lost = match self.lost {
            Lost::Prefill => "a worker in the prefill",
            Lost::Home => "the home",
            Lost::Before => "who did the chunk before the last",
        };
        [
            lost.to_owned(),
            self.fault.as_str().to_owned(),
            self.policy.to_owned(),
            format!("{:.0} ms", self.detect_ms),
            time(self.fault_free_seconds),
            time(self.seconds),
            time(self.chunk_seconds),
            format!("{:.2} chunks", self.cost_chunks),
            if self.identical { "yes" } else { "NO" }.to_owned(),
        ]
    }
}
