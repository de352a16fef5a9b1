//! `aqueduct bench prefill`: seconds and bytes for every length, policy and worker count.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use aqueduct_coordinator::Config;
use aqueduct_coordinator::submit::{PrefillReport, Submission, Update};
use aqueduct_core::{PolicyKind, Refusal, TokenId, limits};
use serde::Serialize;

use crate::args::{BenchPrefillArgs, Link};
use crate::cluster::{self, Cluster, Workers, prefill_only};
use crate::loading::{self, Loaded};
use crate::machine::{self, Machine};
use crate::plot::{self, Curve};
use crate::report::{self, Table};
use crate::timings::Timings;
use crate::{lines, prompts};

/// No repetition begins later than this after the first.
const REPEATED_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
struct Row<'a> {
    prompt_tokens: u32,
    policy: &'static str,
    workers: usize,
    /// At the median.
    tokens_per_second: f64,
    /// Remembered at the end of the prompt.
    kv_bytes: u64,
    /// How the past reached the chunks: `move` or `stay`.
    exchange: &'static str,
    /// Between processes, for the past of all chunks; 0 where workers share one.
    exchange_bytes: u64,
    /// Of memory sets: keys and values that did not travel, because their receiver had them.
    spared_bytes: u64,
    link: &'static str,
    /// Elements of what travels, where they are stored as f32.
    wire: &'static str,
    /// Median over the repetitions.
    seconds: f64,
    /// Longest less shortest.
    seconds_spread: f64,
    reps: u32,
    chunk_tokens: u32,
    kv: &'static str,
    /// What computed: `cpu` or `cuda:N`.
    device: &'a str,
    threads: usize,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// Measures every combination.
///
/// # Errors
/// A length or a number that is out of bounds, a model that is wrong, a worker that fails.
pub(crate) async fn run(args: BenchPrefillArgs) -> anyhow::Result<()> {
    Refusal::unless_within("reps", args.reps, 1, u32::MAX)?;
    for &tokens in &args.prompt_tokens {
        Refusal::unless_within("prompt_tokens", tokens, 1, limits::PROMPT_TOKENS_MAX)?;
    }
    // Opened first: a folder that is not there should not cost the time of measuring.
    let plot = args.plot.as_deref().map(plot::create).transpose()?;
    let bench = Bench {
        book: prompts::tokeniser(&args.model.model)?.encode(prompts::BOOK, false)?,
        loaded: loading::load(&args.model, args.threads).await?,
        machine: Machine::look(),
        args,
    };
    let mut rows = Vec::new();
    for &workers in &bench.args.workers {
        bench.measure(workers, &mut rows).await?;
    }
    if let Some(mut file) = plot {
        file.write_all(plot::svg(&curves(&rows)).as_bytes()).context("the plot")?;
    }
    if !bench.args.json {
        lines::say(&table(&rows).render())?;
    }
    Ok(())
}

struct Bench {
    args: BenchPrefillArgs,
    book: Vec<TokenId>,
    loaded: Loaded,
    machine: Machine,
}

impl Bench {
    /// All rows of one number of workers.
    async fn measure<'a>(&'a self, workers: usize, rows: &mut Vec<Row<'a>>) -> anyhow::Result<()> {
        let config = cluster::config(workers, self.args.memory.chunk_tokens);
        let config = Config { positions_limited: false, ..config };
        let cluster = self.cluster(Workers::plain(workers), config).await?;
        cluster.warm_up(&self.book, self.args.memory.chunk_tokens).await?;
        for &kind in &self.args.policy {
            for &prompt_tokens in &self.args.prompt_tokens {
                let runs = self.repeat(&cluster, kind, prompt_tokens).await?;
                let row = self.row(workers, kind, prompt_tokens, &runs);
                self.tell(&row)?;
                rows.push(row);
            }
        }
        cluster.stop().await;
        Ok(())
    }

    async fn cluster(&self, workers: Workers<'_>, config: Config) -> anyhow::Result<Cluster> {
        let BenchPrefillArgs { model, threads, link, .. } = &self.args;
        match link {
            Link::Loopback => Cluster::embedded(&self.loaded, workers, config).await,
            Link::Grpc => Cluster::processes(model, workers, *threads, config).await,
        }
    }

    async fn repeat(
        &self,
        cluster: &Cluster,
        kind: PolicyKind,
        prompt_tokens: u32,
    ) -> anyhow::Result<Vec<PrefillReport>> {
        let mut runs = Vec::new();
        let started = Instant::now();
        for rep in 0..self.args.reps {
            if rep > 0 && started.elapsed() > REPEATED_WITHIN {
                break;
            }
            let prompt = prompts::cycled(&self.book, prompt_tokens);
            let submission = Submission {
                policy: self.args.memory.policy(kind),
                exchange: self.args.exchange.exchange,
                wire: self.args.exchange.wire,
                ..prefill_only(prompt, self.args.memory.chunk_tokens)
            };
            let mut prefilled = None;
            let run = cluster.run(submission, |update| {
                if let Update::Prefilled(report) = update {
                    prefilled = Some(*report);
                }
            });
            run.await?;
            runs.push(prefilled.ok_or_else(|| anyhow::anyhow!("a prefill without a report"))?);
        }
        Ok(runs)
    }

    fn row(
        &self,
        workers: usize,
        kind: PolicyKind,
        prompt_tokens: u32,
        runs: &[PrefillReport],
    ) -> Row<'_> {
        let times: Vec<Duration> = runs.iter().map(|run| run.elapsed).collect();
        let seconds = Timings::of(&times);
        Row {
            prompt_tokens,
            policy: kind.as_str(),
            workers,
            tokens_per_second: f64::from(prompt_tokens) / seconds.median,
            kv_bytes: runs[0].memory_bytes,
            exchange: runs[0].exchange.as_str(),
            exchange_bytes: runs[0].traffic.bytes(),
            spared_bytes: runs[0].traffic.spared_bytes,
            link: self.args.link.as_str(),
            wire: self.args.exchange.wire.as_str(),
            seconds: seconds.median,
            seconds_spread: seconds.spread,
            reps: runs.len() as u32,
            chunk_tokens: self.args.memory.chunk_tokens,
            kv: self.args.model.kv.as_str(),
            device: &self.loaded.device,
            threads: self.loaded.threads,
            machine: &self.machine,
            commit: machine::COMMIT,
        }
    }

    /// A row as soon as it is measured.
    fn tell(&self, row: &Row<'_>) -> std::io::Result<()> {
        if self.args.json {
            return lines::print(row);
        }
        eprintln!(
            "{}, {} tokens, {} workers: {}",
            row.policy,
            report::grouped(row.prompt_tokens.into()),
            row.workers,
            row.time()
        );
        Ok(())
    }
}

impl Row<'_> {
    fn time(&self) -> String {
        match self.reps {
            1 => format!("{:.2} s", self.seconds),
            _ => format!("{:.2} s (spread {:.2})", self.seconds, self.seconds_spread),
        }
    }
}

fn table(rows: &[Row<'_>]) -> Table {
    let mut table = Table::new(["prompt", "policy", "workers", "time", "tokens/s", "KV bytes"]);
    for row in rows {
        table.row([
            report::grouped(row.prompt_tokens.into()),
            row.policy.to_owned(),
            row.workers.to_string(),
            row.time(),
            report::grouped(row.tokens_per_second as u64),
            report::grouped(row.kv_bytes),
        ]);
    }
    table
}

/// A curve for each policy and number of workers.
fn curves(rows: &[Row<'_>]) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for &Row { policy, workers, prompt_tokens, seconds, .. } in rows {
        let known = curves.iter_mut().find(|c| (c.policy, c.workers) == (policy, workers));
        match known {
            Some(curve) => curve.points.push((prompt_tokens, seconds)),
            None => {
                curves.push(Curve { policy, workers, points: vec![(prompt_tokens, seconds)] });
            }
        }
    }
    for curve in &mut curves {
        curve.points.sort_unstable_by_key(|point| point.0);
    }
    curves
}
