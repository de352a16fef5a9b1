//! `aqueduct bench prefill`: seconds and bytes for every length, policy and worker count.

use std::time::Duration;

use aqueduct_coordinator::Config;
use aqueduct_coordinator::submit::{PrefillReport, Submission, Update};
use aqueduct_coordinator::text::TextModel;
use aqueduct_core::{PolicyKind, Refusal, TokenId, limits};
use serde::Serialize;

use crate::args::BenchPrefillArgs;
use crate::cluster::{self, Cluster, prefill_only};
use crate::loading::{self, Loaded};
use crate::machine::{self, Machine};
use crate::report::{self, Table};
use crate::{lines, prompts};

#[derive(Debug, Serialize)]
struct Row<'a> {
    prompt_tokens: u32,
    policy: &'static str,
    workers: usize,
    /// At the median.
    tokens_per_second: f64,
    /// Remembered at the end of the prompt.
    kv_bytes: u64,
    /// Median over the repetitions.
    seconds: f64,
    /// Longest less shortest.
    seconds_spread: f64,
    reps: u32,
    chunk_tokens: u32,
    kv: &'static str,
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
    let bench = Bench {
        book: TextModel::load(&args.model.model)?.encode(prompts::BOOK, false)?,
        loaded: loading::load(&args.model, args.threads).await?,
        machine: Machine::look(),
        args,
    };
    let mut table = Table::new(["prompt", "policy", "workers", "seconds", "tokens/s", "KV bytes"]);
    for &workers in &bench.args.workers {
        bench.measure(workers, &mut table).await?;
    }
    if !bench.args.json {
        lines::say(&table.render())?;
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
    async fn measure(&self, workers: usize, table: &mut Table) -> anyhow::Result<()> {
        let config = cluster::config(workers, self.args.memory.chunk_tokens);
        let config = Config { positions_limited: false, ..config };
        let cluster = Cluster::embedded(&self.loaded, workers, config).await?;
        for &kind in &self.args.policy {
            for &prompt_tokens in &self.args.prompt_tokens {
                let runs = self.repeat(&cluster, kind, prompt_tokens).await?;
                self.show(&self.row(workers, kind, prompt_tokens, &runs), table)?;
            }
        }
        cluster.stop().await;
        Ok(())
    }

    async fn repeat(
        &self,
        cluster: &Cluster,
        kind: PolicyKind,
        prompt_tokens: u32,
    ) -> anyhow::Result<Vec<PrefillReport>> {
        let mut runs = Vec::new();
        for _ in 0..self.args.reps {
            let prompt = prompts::cycled(&self.book, prompt_tokens);
            let submission = Submission {
                policy: self.args.memory.policy(kind),
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
        let seconds = Seconds::of(runs);
        Row {
            prompt_tokens,
            policy: kind.as_str(),
            workers,
            tokens_per_second: f64::from(prompt_tokens) / seconds.median,
            kv_bytes: runs[0].last.memory_bytes,
            seconds: seconds.median,
            seconds_spread: seconds.spread,
            reps: self.args.reps,
            chunk_tokens: self.args.memory.chunk_tokens,
            kv: self.args.model.kv.as_str(),
            threads: self.loaded.threads,
            machine: &self.machine,
            commit: machine::COMMIT,
        }
    }

    fn show(&self, row: &Row<'_>, table: &mut Table) -> std::io::Result<()> {
        if self.args.json {
            return lines::print(row);
        }
        let seconds = format!("{:.2} (spread {:.2})", row.seconds, row.seconds_spread);
        eprintln!(
            "{}, {} tokens, {} workers: {seconds} s",
            row.policy, row.prompt_tokens, row.workers
        );
        table.row([
            report::grouped(row.prompt_tokens.into()),
            row.policy.to_owned(),
            row.workers.to_string(),
            seconds,
            format!("{:.0}", row.tokens_per_second),
            report::grouped(row.kv_bytes),
        ]);
        Ok(())
    }
}

struct Seconds {
    median: f64,
    spread: f64,
}

impl Seconds {
    fn of(runs: &[PrefillReport]) -> Self {
        let mut seconds: Vec<f64> =
            runs.iter().map(|run| run.elapsed.max(Duration::from_nanos(1)).as_secs_f64()).collect();
        seconds.sort_by(f64::total_cmp);
        let middle = seconds.len() / 2;
        let median = if seconds.len().is_multiple_of(2) {
            (seconds[middle - 1] + seconds[middle]) / 2.0
        } else {
            seconds[middle]
        };
        Self { median, spread: seconds[seconds.len() - 1] - seconds[0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_odd_and_even_runs() {
        let check = |seconds: &[u64], median, spread| {
            let run = |&seconds| PrefillReport {
                elapsed: Duration::from_secs(seconds),
                ..PrefillReport::default()
            };
            let got = Seconds::of(&seconds.iter().map(run).collect::<Vec<_>>());
            assert_eq!((got.median, got.spread), (median, spread));
        };
        check(&[3], 3.0, 0.0);
        check(&[9, 1, 2], 2.0, 8.0);
        check(&[4, 1, 2, 9], 3.0, 8.0);
    }
}
