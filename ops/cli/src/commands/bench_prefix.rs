//! `aqueduct bench prefix`: what a prompt costs whose beginning was seen before.

use aqueduct_coordinator::Config;
use aqueduct_coordinator::submit::{PrefillReport, Submission, Update};
use aqueduct_core::{PolicyKind, Refusal, TokenId, limits};
use serde::Serialize;

use crate::args::BenchPrefixArgs;
use crate::cluster::{self, Cluster, Workers, prefill_only};
use crate::loading::{self, Loaded};
use crate::machine::{self, Machine};
use crate::report::{self, Table};
use crate::{lines, prompts};

/// Generated after each prompt, to be compared.
const OUTPUT_TOKENS: u32 = 16;

#[derive(Debug, Serialize)]
struct Row<'a> {
    prompt_tokens: u32,
    policy: &'static str,
    workers: usize,
    /// Prefill of the prompt that nobody has seen.
    first_seconds: f64,
    /// Prefill of one that begins alike.
    second_seconds: f64,
    /// The second over the first.
    share: f64,
    /// Tokens of the second prompt that were not computed.
    cached_tokens: u32,
    /// Whether the second prompt's answer, computed without what was kept, has the same bits.
    identical: bool,
    snapshots: u64,
    snapshot_bytes: u64,
    chunk_tokens: u32,
    kv: &'static str,
    device: &'a str,
    threads: usize,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// A prefill's figures, tokens and the bits of their log probabilities.
type Answer = (PrefillReport, Vec<(TokenId, u32)>);

/// Measures every combination.
///
/// # Errors
/// A length or a number that is out of bounds, a model that is wrong, a worker that fails.
pub(crate) async fn run(args: BenchPrefixArgs) -> anyhow::Result<()> {
    let most = limits::PROMPT_TOKENS_MAX - args.question_tokens.min(limits::CHUNK_TOKENS_MAX);
    Refusal::unless_within("prefix_tokens", args.prefix_tokens, 1, most)?;
    let most = limits::CHUNK_TOKENS_MAX;
    Refusal::unless_within("question_tokens", args.question_tokens, 1, most)?;
    let bench = Bench {
        book: prompts::tokeniser(&args.model.model)?.encode(prompts::BOOK, false)?,
        loaded: loading::load(&args.model, args.threads).await?,
        machine: Machine::look(),
        args,
    };
    let mut table =
        Table::new(["prompt", "policy", "workers", "first", "second", "share", "cached", "same"]);
    for &workers in &bench.args.workers {
        for &kind in &bench.args.policy {
            let row = bench.measure(workers, kind).await?;
            if bench.args.json {
                lines::print(&row)?;
            }
            table.row(row.cells());
        }
    }
    if !bench.args.json {
        lines::say(&table.render())?;
    }
    Ok(())
}

struct Bench {
    args: BenchPrefixArgs,
    book: Vec<TokenId>,
    loaded: Loaded,
    machine: Machine,
}

impl Bench {
    async fn measure(&self, workers: usize, kind: PolicyKind) -> anyhow::Result<Row<'_>> {
        let args = &self.args;
        let config = cluster::config(workers, args.memory.chunk_tokens);
        let config = Config { positions_limited: false, ..config };
        let workers_asked = Workers { snapshots: Some(&args.snapshots), ..Workers::plain(workers) };
        let cluster = Cluster::embedded(&self.loaded, workers_asked, config).await?;
        cluster.warm_up(&self.book, args.memory.chunk_tokens).await?;
        let (first, _) = self.answer(&cluster, kind, (1, true)).await?;
        let (second, kept) = self.answer(&cluster, kind, (2, true)).await?;
        let (_, computed) = self.answer(&cluster, kind, (2, false)).await?;
        let held = cluster.coordinator().stats().snapshots;
        cluster.stop().await;
        let seconds = |report: &PrefillReport| report.elapsed.as_secs_f64();
        Ok(Row {
            prompt_tokens: args.prefix_tokens + args.question_tokens,
            policy: kind.as_str(),
            workers,
            first_seconds: seconds(&first),
            second_seconds: seconds(&second),
            share: seconds(&second) / seconds(&first),
            cached_tokens: second.cached_tokens,
            identical: kept == computed,
            snapshots: held.count,
            snapshot_bytes: held.memory_bytes,
            chunk_tokens: args.memory.chunk_tokens,
            kv: args.model.kv.as_str(),
            device: &self.loaded.device,
            threads: self.loaded.threads,
            machine: &self.machine,
            commit: machine::COMMIT,
        })
    }

    /// The answer to question `number` about the prefix.
    async fn answer(
        &self,
        cluster: &Cluster,
        kind: PolicyKind,
        (number, cache_prompt): (usize, bool),
    ) -> anyhow::Result<Answer> {
        let args = &self.args;
        let mut prompt = prompts::cycled(&self.book, args.prefix_tokens);
        let question = self.book.iter().skip(number).cycle().step_by(number + 1);
        prompt.extend(question.take(args.question_tokens as usize));
        let submission = Submission {
            policy: args.memory.policy(kind),
            max_tokens: OUTPUT_TOKENS,
            cache_prompt,
            ..prefill_only(prompt, args.memory.chunk_tokens)
        };
        let (mut prefilled, mut tokens) = (None, Vec::new());
        let run = cluster.run(submission, |update| match update {
            Update::Prefilled(report) => prefilled = Some(*report),
            Update::Token(token) => tokens.push((token.token, token.logprob.to_bits())),
            _ => {}
        });
        run.await?;
        let prefilled = prefilled.ok_or_else(|| anyhow::anyhow!("a prefill without a report"))?;
        Ok((prefilled, tokens))
    }
}

impl Row<'_> {
    fn cells(&self) -> [String; 8] {
        let time = |seconds: f64| format!("{seconds:.3} s");
        [
            report::grouped(self.prompt_tokens.into()),
            self.policy.to_owned(),
            self.workers.to_string(),
            time(self.first_seconds),
            time(self.second_seconds),
            format!("{:.2} %", 100.0 * self.share),
            report::grouped(self.cached_tokens.into()),
            if self.identical { "yes" } else { "NO" }.to_owned(),
        ]
    }
}
