//! `aqueduct bench scores`: what a decode step pays for the scores of its keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_core::{MemoryPolicy, PolicyKind, Refusal, TokenId, limits};
use aqueduct_engine::{Block, LocalPort, Model, Sequence, Want, prefill};
use aqueduct_kernels::Leaves;
use serde::Serialize;

use crate::args::BenchScoresArgs;
use crate::machine::{self, Machine};
use crate::report::{self, Table};
use crate::timings::median;
use crate::{lines, loading, prompts};

/// Steps before the first that counts: a sequence takes its own copy of the memory.
const STEPS_BEFORE: usize = 8;

#[derive(Debug, Serialize)]
struct Row<'a> {
    depth_tokens: u32,
    /// Per KV head, of both sequences.
    keys: usize,
    /// Medians over all turns.
    ms_with_scores: f64,
    ms_without: f64,
    /// How much longer a token takes with scores: median over the pairs.
    cost: f64,
    /// A quarter of the pairs showed less, and a quarter more.
    cost_low: f64,
    cost_high: f64,
    pairs: u32,
    tokens: u32,
    kv: &'static str,
    weights: &'static str,
    device: &'a str,
    threads: usize,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// Measures every depth.
///
/// # Errors
/// A number that is out of bounds, a model that is wrong.
pub(crate) async fn run(args: BenchScoresArgs) -> anyhow::Result<()> {
    Refusal::unless_within("pairs", args.pairs, 1, limits::OUTPUT_TOKENS_MAX)?;
    Refusal::unless_within("tokens", args.tokens, 1, limits::CHUNK_TOKENS_MAX)?;
    for &tokens in &args.depth_tokens {
        Refusal::unless_within("depth_tokens", tokens, 1, limits::PROMPT_TOKENS_MAX)?;
    }
    let book = prompts::tokeniser(&args.model.model)?.encode(prompts::BOOK, false)?;
    let loaded = loading::load(&args.model, args.threads).await?;
    let (machine, model) = (Machine::look(), loaded.model.clone());
    let mut table = Table::new(["depth", "keys", "with", "without", "cost", "from", "to"]);
    for &depth_tokens in &args.depth_tokens {
        let bench = Bench { args: &args, model: &model };
        let pairs = bench.measure(&prompts::cycled(&book, depth_tokens))?;
        let row = Row {
            depth_tokens,
            keys: pairs.keys,
            ms_with_scores: pairs.ms_a_token(|pair| pair.0, args.tokens),
            ms_without: pairs.ms_a_token(|pair| pair.1, args.tokens),
            cost: pairs.cost(0.5),
            cost_low: pairs.cost(0.25),
            cost_high: pairs.cost(0.75),
            pairs: args.pairs,
            tokens: args.tokens,
            kv: args.model.kv.as_str(),
            weights: args.model.weights.as_str(),
            device: &loaded.device,
            threads: loaded.threads,
            machine: &machine,
            commit: machine::COMMIT,
        };
        if args.json {
            lines::print(&row)?;
        }
        table.row([
            report::grouped(row.depth_tokens.into()),
            row.keys.to_string(),
            format!("{:.3} ms", row.ms_with_scores),
            format!("{:.3} ms", row.ms_without),
            report::percent(row.cost),
            report::percent(row.cost_low),
            report::percent(row.cost_high),
        ]);
    }
    if !args.json {
        lines::say(&table.render())?;
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a BenchScoresArgs,
    model: &'a Arc<Model>,
}

/// How long as many tokens took with scores and without, turn by turn.
struct Pairs {
    keys: usize,
    times: Vec<(Duration, Duration)>,
}

impl Pairs {
    fn ms_a_token(&self, which: fn(&(Duration, Duration)) -> Duration, tokens: u32) -> f64 {
        let seconds = self.times.iter().map(|pair| which(pair).as_secs_f64());
        median(seconds) / f64::from(tokens) * 1e3
    }

    /// What the share `rank` of all pairs does not exceed.
    fn cost(&self, rank: f64) -> f64 {
        let cost = |(with, without): &(Duration, Duration)| {
            with.as_secs_f64() / without.as_secs_f64().max(1e-9) - 1.0
        };
        let mut costs: Vec<f64> = self.times.iter().map(cost).collect();
        if rank == 0.5 {
            return median(costs.into_iter());
        }
        costs.sort_by(f64::total_cmp);
        let idx = (rank * costs.len() as f64) as usize;
        costs[idx.min(costs.len() - 1)]
    }
}

impl Bench<'_> {
    /// One sequence that scores its keys and one that has as many without, a few tokens each in
    /// turn: whatever else the machine does, it does to both. Who goes first changes with every
    /// pair.
    fn measure(&self, prompt: &[TokenId]) -> anyhow::Result<Pairs> {
        let (scored, _) =
            self.args.memory.policy(PolicyKind::H2o).clamped(self.args.memory.chunk_tokens);
        let local = scored.local + scored.heavy;
        let plain = MemoryPolicy { local, ..self.args.memory.policy(PolicyKind::Window) };
        let (mut with, mut without) =
            (self.sequence(prompt, &scored)?, self.sequence(prompt, &plain)?);
        let keys = with.memory().first().map_or(0, |set| set.keys.len());
        self.steps(&mut with, &scored, prompt, STEPS_BEFORE)?;
        self.steps(&mut without, &plain, prompt, STEPS_BEFORE)?;
        let (mut times, tokens) = (Vec::new(), self.args.tokens as usize);
        for pair in 0..self.args.pairs {
            let mut a = || self.steps(&mut with, &scored, prompt, tokens);
            let mut b = || self.steps(&mut without, &plain, prompt, tokens);
            times.push(if pair % 2 == 0 {
                let first = a()?;
                (first, b()?)
            } else {
                let first = b()?;
                (a()?, first)
            });
        }
        Ok(Pairs { keys, times })
    }

    fn sequence(&self, prompt: &[TokenId], policy: &MemoryPolicy) -> anyhow::Result<Sequence> {
        let mut port = match self.model.pool(limits::POOL_BYTES_DEFAULT)? {
            Some(pool) => LocalPort::empty_in(&pool, self.model),
            None => LocalPort::empty(self.model),
        };
        let chunk_tokens = self.args.memory.chunk_tokens;
        let leaves = Leaves::of_chunks(chunk_tokens);
        for tokens in prompt.chunks(chunk_tokens as usize) {
            let block = Block { tokens, start: port.end(), leaves };
            prefill(self.model, block, policy, &mut port, Want::Memory)?;
        }
        let leaves = leaves.going_on_behind(port.end());
        Ok(Sequence::new(self.model, port.layers().to_vec(), leaves))
    }

    fn steps(
        &self,
        sequence: &mut Sequence,
        policy: &MemoryPolicy,
        tokens: &[TokenId],
        count: usize,
    ) -> anyhow::Result<Duration> {
        let since = Instant::now();
        for &token in tokens.iter().cycle().take(count) {
            sequence.step(self.model, token, policy)?;
        }
        Ok(since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_compared_with_each_other() {
        let ms = Duration::from_millis;
        let times =
            vec![(ms(103), ms(100)), (ms(2020), ms(2000)), (ms(55), ms(50)), (ms(9), ms(10))];
        let pairs = Pairs { keys: 4, times };
        assert!((pairs.cost(0.5) - 0.02).abs() < 1e-6, "{}", pairs.cost(0.5));
        assert!(pairs.cost(0.25) < pairs.cost(0.5) && pairs.cost(0.5) < pairs.cost(0.75));
        assert_eq!(pairs.ms_a_token(|pair| pair.0, 2), 39.5);
    }
}
