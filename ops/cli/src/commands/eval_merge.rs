//! `aqueduct eval merge`: merged attention states beside f64.

use anyhow::{Context, ensure};
use aqueduct_coordinator::Config;
use aqueduct_coordinator::submit::{PrefillReport, Submission, Update};
use aqueduct_core::exchange::merge_error_bound;
use aqueduct_core::work::MergeAudit;
use aqueduct_core::{Exchange, Refusal, limits};
use serde::Serialize;

use crate::args::EvalMergeArgs;
use crate::cluster::{self, Cluster, Workers, prefill_only};
use crate::report::{self, Table};
use crate::{lines, loading, prompts};

#[derive(Debug, Serialize)]
struct Row {
    layer: u32,
    /// Computed again, each of one head.
    rows: u64,
    /// Of the outputs, relative to the largest element of the row.
    error: f64,
    /// Of the log-sum-exps.
    lse_error: f64,
    bound: f64,
    policy: &'static str,
    exchange: &'static str,
    prompt_tokens: u32,
    chunk_tokens: u32,
    workers: usize,
    kv: &'static str,
    wire: &'static str,
}

/// Prefills the prompt and prints what its audits have shown.
///
/// # Errors
/// Wrong input, a prompt without a merge, a worker that fails, an error above its bound.
pub(crate) async fn run(args: EvalMergeArgs) -> anyhow::Result<()> {
    Refusal::unless_within("prompt_tokens", args.prompt_tokens, 2, limits::PROMPT_TOKENS_MAX)?;
    Refusal::unless_within("every", args.every, 1, u32::MAX)?;
    let book = prompts::tokeniser(&args.model.model)?.encode(prompts::BOOK, false)?;
    let prompt = prompts::cycled(&book, args.prompt_tokens);
    let workers = Workers { audit_every: args.every, ..Workers::asked(&args.cluster)? };
    let loaded = loading::load(&args.model, args.cluster.threads).await?;
    let config = cluster::config(workers.count, args.memory.chunk_tokens);
    let config = Config { positions_limited: false, ..config };
    let cluster = Cluster::embedded(&loaded, workers, config).await?;
    let report = prefill(&cluster, &args, prompt).await?;
    cluster.stop().await;
    let bound = merge_error_bound(args.model.kv, args.wire);
    say(&args, &report, bound)?;
    let worst = report.audits.iter().find(|audit| !audit.is_within(bound));
    ensure!(worst.is_none(), "a merge is further from f64 than {bound}: {worst:?}");
    Ok(())
}

async fn prefill(
    cluster: &Cluster,
    args: &EvalMergeArgs,
    prompt: Vec<aqueduct_core::TokenId>,
) -> anyhow::Result<PrefillReport> {
    let submission = Submission {
        policy: args.memory.policy(args.policy),
        exchange: Exchange::Stay,
        wire: args.wire,
        ..prefill_only(prompt, args.memory.chunk_tokens)
    };
    let mut prefilled = None;
    let run = cluster.run(submission, |update| {
        if let Update::Prefilled(report) = update {
            prefilled = Some(*report);
        }
    });
    run.await?;
    let report: PrefillReport = prefilled.context("a prefill without a report")?;
    if report.audits.is_empty() {
        let bound = "long enough for a merge that is audited: two chunks and more";
        return Err(Refusal::new("prompt_tokens", args.prompt_tokens, bound).into());
    }
    Ok(report)
}

fn say(args: &EvalMergeArgs, report: &PrefillReport, bound: f64) -> anyhow::Result<()> {
    let mut table = Table::new(["layer", "rows", "error", "lse error", "bound"]);
    for &MergeAudit { layer, rows, error, lse_error } in &report.audits {
        if args.json {
            lines::print(&Row {
                layer,
                rows,
                error,
                lse_error,
                bound,
                policy: args.policy.as_str(),
                exchange: report.exchange.as_str(),
                prompt_tokens: args.prompt_tokens,
                chunk_tokens: args.memory.chunk_tokens,
                workers: args.cluster.workers,
                kv: args.model.kv.as_str(),
                wire: args.wire.as_str(),
            })?;
        }
        table.row([
            layer.to_string(),
            report::grouped(rows),
            format!("{error:.2e}"),
            format!("{lse_error:.2e}"),
            format!("{bound:.0e}"),
        ]);
    }
    if !args.json {
        lines::say(&table.render())?;
    }
    Ok(())
}
