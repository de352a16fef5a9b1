//! `aqueduct eval ppl`: perplexity under memory policies, side by side.

use std::time::Instant;

use aqueduct_coordinator::submit::{Submission, Update};
use aqueduct_core::work::{Outputs, RetainedMass};
use aqueduct_core::{Exchange, MemoryPolicy, PolicyKind, Refusal, TokenId, limits};
use serde::Serialize;

use crate::args::EvalPplArgs;
use crate::cluster::{self, Cluster, Workers, prefill_only};
use crate::report::{self, Table};
use crate::{lines, loading, prompts};

#[derive(Debug, Serialize)]
struct Row {
    policy: &'static str,
    ppl: f64,
    nll: f64,
    /// Tokens that were scored: the second half of every window.
    tokens: u64,
    /// Keys per layer and KV head; null for dense.
    budget: Option<u32>,
    retained_mass: f64,
    context_tokens: u32,
    windows: u32,
    chunk_tokens: u32,
    exchange: &'static str,
    /// Of the budget, by kind.
    sinks: Option<u32>,
    local: Option<u32>,
    heavy: Option<u32>,
    /// How h2o ranks.
    decay: Option<f32>,
    window_rows: Option<u32>,
    age_normalised: Option<bool>,
    kv: &'static str,
    seconds: f64,
}

/// Scores the windows under every policy.
///
/// # Errors
/// A text that is too short, a model that is wrong, a worker that fails.
pub(crate) async fn run(args: EvalPplArgs) -> anyhow::Result<()> {
    let policies = policies(&args)?;
    let text = prompts::tokeniser(&args.model.model)?;
    let begin = text.begin()?;
    let tokens = text.encode(&prompts::text(&args.text)?, false)?;
    let windows = windows(&begin, &tokens, args.context_tokens, args.windows)?;
    let workers = Workers::asked(&args.cluster)?;
    let loaded = loading::load(&args.model, args.cluster.threads).await?;
    let config = cluster::config(args.cluster.workers, args.memory.chunk_tokens);
    let cluster = Cluster::embedded(&loaded, workers, config).await?;
    let mut table = Table::new(["policy", "budget", "ppl", "nll", "tokens", "retained mass"]);
    for policy in policies {
        let row = evaluate(&cluster, &args, policy, windows.clone()).await?;
        if args.json {
            lines::print(&row)?;
        }
        table.row([
            row.policy.to_owned(),
            row.budget.map_or("all".to_owned(), |budget| budget.to_string()),
            format!("{:.3}", row.ppl),
            format!("{:.4}", row.nll),
            report::grouped(row.tokens),
            report::percent(row.retained_mass),
        ]);
    }
    cluster.stop().await;
    if !args.json {
        lines::say(&table.render())?;
    }
    Ok(())
}

fn policies(args: &EvalPplArgs) -> Result<Vec<MemoryPolicy>, Refusal> {
    let policy = |&kind| match args.budget {
        Some(budget) => args.memory.policy_within(kind, budget),
        None => Ok(args.memory.policy(kind)),
    };
    args.policy.iter().map(policy).collect()
}

/// Windows of as many tokens as the context, the first from the start of the text and the last
/// to its end. Each begins as the tokeniser begins a text.
fn windows(
    begin: &[TokenId],
    text: &[TokenId],
    context_tokens: u32,
    windows: u32,
) -> Result<impl Iterator<Item = Vec<TokenId>> + Clone, Refusal> {
    let least = begin.len() as u32 + 2;
    Refusal::unless_within("context", context_tokens, least, limits::PROMPT_TOKENS_MAX)?;
    Refusal::unless_within("windows", windows, 1, u32::MAX)?;
    let count = windows as usize;
    let length = context_tokens as usize - begin.len();
    let Some(room) = text.len().checked_sub(length) else {
        let bound = format!("at least {length} tokens long, for a context of that");
        return Err(Refusal::new("text", format!("{} tokens", text.len()), bound));
    };
    let start = move |idx: usize| room * idx / (count - 1).max(1);
    Ok((0..count).map(move |idx| [begin, &text[start(idx)..][..length]].concat()))
}

/// What a policy made of the windows so far.
#[derive(Debug, Default)]
struct Score {
    nll_sum: f64,
    tokens: u64,
    retained: RetainedMass,
    used: Option<MemoryPolicy>,
    exchange: Exchange,
}

impl Score {
    fn take(&mut self, update: Update, scored_from: u32) {
        match update {
            Update::Accepted { policy, .. } => self.used = Some(policy),
            Update::PromptLogprobs { start, entries } => {
                for (position, (token, _)) in (start..).zip(entries) {
                    if position >= scored_from {
                        self.nll_sum -= f64::from(token.logprob);
                        self.tokens += 1;
                    }
                }
            }
            Update::Prefilled(report) => {
                self.exchange = report.exchange;
                report.retained.iter().for_each(|&layer| self.retained.add(layer));
            }
            _ => {}
        }
    }
}

async fn evaluate(
    cluster: &Cluster,
    args: &EvalPplArgs,
    policy: MemoryPolicy,
    windows: impl Iterator<Item = Vec<TokenId>>,
) -> anyhow::Result<Row> {
    let started = Instant::now();
    let chunk_tokens = args.memory.chunk_tokens;
    let mut score = Score::default();
    for window in windows {
        let submission = Submission {
            policy,
            outputs: Outputs::Logprobs(0),
            exchange: args.exchange.exchange,
            wire: args.exchange.wire,
            ..prefill_only(window, chunk_tokens)
        };
        let scored_from = args.context_tokens / 2;
        cluster.run(submission, |update| score.take(update, scored_from)).await?;
    }
    let used = score.used.unwrap_or(policy);
    let scoring = (used.kind == PolicyKind::H2o).then_some(used.scoring);
    let bounded = |keys: u32| (!used.keeps_all()).then_some(keys);
    let nll = score.nll_sum / score.tokens as f64;
    Ok(Row {
        policy: used.kind.as_str(),
        ppl: nll.exp(),
        nll,
        tokens: score.tokens,
        budget: used.budget_tokens(),
        retained_mass: score.retained.share(),
        context_tokens: args.context_tokens,
        windows: args.windows,
        chunk_tokens,
        exchange: score.exchange.as_str(),
        sinks: bounded(used.sinks),
        local: bounded(used.local),
        heavy: bounded(used.heavy),
        decay: scoring.map(|scoring| scoring.decay),
        window_rows: scoring.map(|scoring| scoring.window),
        age_normalised: scoring.map(|scoring| scoring.age_normalised),
        kv: args.model.kv.as_str(),
        seconds: started.elapsed().as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use aqueduct_core::work::TokenLogprob;

    use super::*;

    #[test]
    fn windows_are_spread_from_start_to_end() {
        let tokens: Vec<TokenId> = (0..10).collect();
        let check = |begin: &[u32], context, count, want: &[u32]| {
            let windows: Vec<_> = windows(begin, &tokens, context, count).unwrap().collect();
            let firsts: Vec<u32> = windows.iter().map(|window| window[begin.len()]).collect();
            assert_eq!(firsts, want);
            for window in windows {
                assert!(window.starts_with(begin) && window.len() == context as usize);
            }
        };
        check(&[], 4, 1, &[0]);
        check(&[], 4, 2, &[0, 6]);
        check(&[99], 5, 3, &[0, 3, 6]);
        check(&[], 10, 2, &[0, 0]);
        let refused = |context, count, field: &str| {
            let refusal = windows(&[99], &tokens, context, count).map(Vec::from_iter).unwrap_err();
            assert_eq!(refusal.field, field);
        };
        refused(12, 1, "text");
        refused(2, 1, "context");
        refused(4, 0, "windows");
    }

    #[test]
    fn only_the_second_half_is_scored() {
        let entry = |logprob| (TokenLogprob { token: 0, logprob }, Vec::new());
        let entries = vec![entry(-1.0), entry(-2.0), entry(-4.0)];
        let mut score = Score::default();
        score.take(Update::PromptLogprobs { start: 1, entries }, 2);
        assert_eq!((score.nll_sum, score.tokens), (6.0, 2));
    }
}
