//! `aqueduct bench decode`: tokens per second after a prompt of every depth.

use std::time::{Duration, Instant};

use anyhow::Context;
use aqueduct_coordinator::Config;
use aqueduct_coordinator::submit::{Submission, Update};
use aqueduct_core::{MemoryPolicy, PolicyKind, Refusal, TokenId, limits};
use aqueduct_kernels::{Cpu, CpuOptions};
use serde::Serialize;

use crate::args::BenchDecodeArgs;
use crate::cluster::{self, Cluster, Workers, prefill_only};
use crate::loading::{self, Loaded};
use crate::machine::{self, Machine};
use crate::report::{self, Table};
use crate::timings::Timings;
use crate::{lines, prompts};

#[derive(Debug, Serialize)]
struct Row<'a> {
    depth_tokens: u32,
    policy: &'static str,
    /// Completions that were decoded together.
    batch: u32,
    workers: usize,
    /// Of all completions, at the median.
    tokens_per_second: f64,
    /// Between two tokens of a completion: median over the repetitions.
    ms_per_token: f64,
    /// Tokens per second of the quickest repetition less those of the slowest.
    spread: f64,
    /// Of the one prefill before.
    prefill_tokens_per_second: f64,
    /// Read in every step.
    weight_bytes: u64,
    /// Remembered after the prompt, and read in every step for each completion.
    kv_bytes: u64,
    /// Of what this machine's processor reads, where it computes, what weights and memory take.
    bandwidth_share: Option<f64>,
    tokens: u32,
    reps: u32,
    chunk_tokens: u32,
    kv: &'static str,
    weights: &'static str,
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
pub(crate) async fn run(args: BenchDecodeArgs) -> anyhow::Result<()> {
    Refusal::unless_within("reps", args.reps, 1, u32::MAX)?;
    Refusal::unless_within("tokens", args.tokens, 1, limits::OUTPUT_TOKENS_MAX - 1)?;
    let output_tokens = u64::from(args.reps) * u64::from(args.tokens);
    let most = u64::from(limits::OUTPUT_TOKENS_MAX - 1);
    Refusal::unless_within("reps * tokens", output_tokens, 1, most)?;
    for &batch in &args.batch {
        Refusal::unless_within("batch", batch, 1, limits::CHOICES_MAX)?;
    }
    for &tokens in &args.depth_tokens {
        Refusal::unless_within("depth_tokens", tokens, 1, limits::PROMPT_TOKENS_MAX)?;
    }
    let book = prompts::tokeniser(&args.model.model)?.encode(prompts::BOOK, false)?;
    let loaded = loading::load(&args.model, args.threads).await?;
    let bandwidth = match loaded.on_cpu() {
        true => {
            let isa = args.model.device.isa.isa;
            let cpu = Cpu::new(CpuOptions { threads: loaded.threads, isa })?;
            Some(cpu.read_bandwidth().context("memory for the bandwidth")?)
        }
        false => None,
    };
    let bench = Bench { args, book, loaded, machine: Machine::look(), bandwidth };
    let mut rows = Vec::new();
    for &workers in &bench.args.workers {
        bench.measure(workers, &mut rows).await?;
    }
    if !bench.args.json {
        lines::say(&table(&rows).render())?;
    }
    Ok(())
}

struct Bench {
    args: BenchDecodeArgs,
    book: Vec<TokenId>,
    loaded: Loaded,
    machine: Machine,
    /// Bytes per second that the processor reads, where it computes.
    bandwidth: Option<f64>,
}

/// What is measured.
#[derive(Clone, Copy)]
struct Case {
    kind: PolicyKind,
    depth_tokens: u32,
    /// Completions.
    batch: u32,
}

/// What one prompt and its continuation gave.
struct Run {
    /// Of as many tokens each as were asked for.
    reps: Vec<Duration>,
    kv_bytes: u64,
    prefill: Duration,
}

impl Bench {
    /// All rows of one number of workers.
    async fn measure<'a>(&'a self, workers: usize, rows: &mut Vec<Row<'a>>) -> anyhow::Result<()> {
        let config = cluster::config(workers, self.args.memory.chunk_tokens);
        let config = Config { positions_limited: false, ..config };
        let cluster = Cluster::embedded(&self.loaded, Workers::plain(workers), config).await?;
        cluster.warm_up(&self.book, self.args.memory.chunk_tokens).await?;
        for &kind in &self.args.policy {
            for &depth_tokens in &self.args.depth_tokens {
                for &batch in &self.args.batch {
                    let case = Case { kind, depth_tokens, batch };
                    let run = self.decode(&cluster, case).await?;
                    let row = self.row(workers, case, &run);
                    self.tell(&row)?;
                    rows.push(row);
                }
            }
        }
        cluster.stop().await;
        Ok(())
    }

    /// Prefills once and goes on until there are tokens for every repetition. The first token
    /// belongs to the prefill.
    async fn decode(&self, cluster: &Cluster, case: Case) -> anyhow::Result<Run> {
        let prompt = prompts::cycled(&self.book, case.depth_tokens);
        let submission = Submission {
            policy: self.policy(case.kind),
            choices: case.batch,
            max_tokens: self.args.reps * self.args.tokens + 1,
            ..prefill_only(prompt, self.args.memory.chunk_tokens)
        };
        let (mut arrivals, mut prefilled) = (Vec::new(), None);
        let run = cluster.run(submission, |update| match update {
            Update::Token(token) if token.choice == 0 => arrivals.push(Instant::now()),
            Update::Prefilled(report) => prefilled = Some(*report),
            _ => {}
        });
        run.await?;
        let report = prefilled.context("a prefill without a report")?;
        Ok(Run {
            reps: between(&arrivals, self.args.tokens as usize),
            kv_bytes: report.memory_bytes,
            prefill: report.elapsed,
        })
    }

    /// What is remembered under `kind`.
    fn policy(&self, kind: PolicyKind) -> MemoryPolicy {
        let policy = self.args.memory.policy(kind);
        match (kind, self.args.same_keys) {
            (PolicyKind::Window, true) => {
                let heavy = self.args.memory.policy(PolicyKind::H2o).heavy;
                MemoryPolicy { local: policy.local.saturating_add(heavy), ..policy }
            }
            _ => policy,
        }
    }

    fn row(&self, workers: usize, case: Case, run: &Run) -> Row<'_> {
        let Case { kind, depth_tokens, batch } = case;
        let steps = f64::from(self.args.tokens);
        let tokens = steps * f64::from(batch);
        let seconds = Timings::of(&run.reps);
        let weight_bytes = self.loaded.model.weight_bytes();
        let read = (weight_bytes + u64::from(batch) * run.kv_bytes) as f64 * steps / seconds.median;
        Row {
            depth_tokens,
            policy: kind.as_str(),
            batch,
            workers,
            tokens_per_second: tokens / seconds.median,
            ms_per_token: seconds.median / steps * 1e3,
            spread: tokens / seconds.least - tokens / (seconds.least + seconds.spread),
            prefill_tokens_per_second: f64::from(depth_tokens) / run.prefill.as_secs_f64(),
            weight_bytes,
            kv_bytes: run.kv_bytes,
            bandwidth_share: self.bandwidth.map(|bandwidth| read / bandwidth),
            tokens: self.args.tokens,
            reps: run.reps.len() as u32,
            chunk_tokens: self.args.memory.chunk_tokens,
            kv: self.args.model.kv.as_str(),
            weights: self.args.model.weights.as_str(),
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
        let depth = report::grouped(row.depth_tokens.into());
        let (policy, speed) = (row.policy, row.tokens_per_second);
        let Row { batch, workers, .. } = row;
        eprintln!("{policy}, {batch}, {depth} tokens deep, {workers} workers: {speed:.1} tokens/s");
        Ok(())
    }
}

/// How long every `tokens` tokens took after the first one.
fn between(arrivals: &[Instant], tokens: usize) -> Vec<Duration> {
    let every: Vec<&Instant> = arrivals.iter().step_by(tokens).collect();
    every.windows(2).map(|pair| *pair[1] - *pair[0]).collect()
}

fn table(rows: &[Row<'_>]) -> Table {
    let headings = [
        "depth",
        "policy",
        "batch",
        "workers",
        "tokens/s",
        "spread",
        "ms/token",
        "KV bytes",
        "of memory",
    ];
    let mut table = Table::new(headings);
    for row in rows {
        table.row([
            report::grouped(row.depth_tokens.into()),
            row.policy.to_owned(),
            row.batch.to_string(),
            row.workers.to_string(),
            format!("{:.1}", row.tokens_per_second),
            format!("{:.1}", row.spread),
            format!("{:.2}", row.ms_per_token),
            report::grouped(row.kv_bytes),
            row.bandwidth_share.map_or("-".into(), report::percent),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_follow_each_other() {
        let start = Instant::now();
        let arrivals = [0, 1, 2, 4, 6, 60].map(|s| start + Duration::from_secs(s));
        let check = |tokens, want: &[u64]| {
            let want: Vec<_> = want.iter().map(|&s| Duration::from_secs(s)).collect();
            assert_eq!(between(&arrivals, tokens), want);
        };
        check(2, &[2, 4]);
        check(5, &[60]);
        check(6, &[]);
    }
}
