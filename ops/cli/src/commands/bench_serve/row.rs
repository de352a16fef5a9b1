//! What is said of one run.

use serde::Serialize;

use aqueduct_worker::Scheduler;

use super::bars::Bars;
use super::callers::Heard;
use crate::args::{Arrival, BenchServeArgs};
use crate::machine::Machine;
use crate::report::{self, Table};
use crate::timings::percentile;

#[derive(Debug, Serialize)]
pub(super) struct Row<'a> {
    pub(super) scheduler: &'static str,
    /// `poisson`, `closed`, `long`, or `idle`: what stands before `long`.
    pub(super) arrival: &'static str,
    /// Requests a second, or callers.
    pub(super) load: f64,
    ttft_ms_p50: f64,
    ttft_ms_p99: f64,
    itl_ms_p50: f64,
    itl_ms_p95: f64,
    pub(super) itl_ms_p99: f64,
    /// Output tokens of all callers.
    tokens_per_second: f64,
    rejected: usize,
    /// Prompt tokens of answers that have begun.
    prompt_tokens_per_second: f64,
    /// p99 beside that of the row before, where nothing was prefilled.
    itl_over_idle: Option<f64>,
    requests: usize,
    seconds: f64,
    step_tokens: u32,
    policy: &'static str,
    workers: usize,
    chunk_tokens: u32,
    seed: u64,
    kv: &'static str,
    /// What computed: `cpu` or `cuda:N`.
    device: &'a str,
    threads: usize,
    #[serde(flatten)]
    machine: &'a Machine,
    commit: &'static str,
}

/// What every row of a load has in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) load: f64,
    pub(super) bench: &'a BenchServeArgs,
    pub(super) device: &'a str,
    pub(super) threads: usize,
    pub(super) machine: &'a Machine,
    pub(super) commit: &'static str,
}

/// What a row is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Requests of all lengths.
    Mixed(Arrival),
    /// Callers that read, and nothing else.
    Idle,
    /// The same while a long prompt is prefilled.
    Long {
        /// Their p99 when there was nothing else.
        idle_ms: f64,
    },
}

impl<'a> Row<'a> {
    pub(super) fn new(
        scheduler: Scheduler,
        kind: Kind,
        heard: &Heard,
        context: Context<'a>,
    ) -> Self {
        let Context { load, bench, device, threads, machine, commit } = context;
        let [first, between] =
            [&heard.first, &heard.between].map(|waits| |share| percentile(waits, share) * 1e3);
        let seconds = heard.elapsed.as_secs_f64();
        let itl_ms_p99 = between(0.99);
        Self {
            scheduler: scheduler.as_str(),
            arrival: match kind {
                Kind::Mixed(arrival) => arrival.as_str(),
                Kind::Idle => "idle",
                Kind::Long { .. } => Arrival::Long.as_str(),
            },
            load,
            ttft_ms_p50: first(0.5),
            ttft_ms_p99: first(0.99),
            itl_ms_p50: between(0.5),
            itl_ms_p95: between(0.95),
            itl_ms_p99,
            tokens_per_second: heard.output_tokens as f64 / seconds,
            rejected: heard.rejected,
            prompt_tokens_per_second: match kind {
                Kind::Idle => 0.0,
                Kind::Mixed(_) | Kind::Long { .. } => heard.prompt_tokens as f64 / seconds,
            },
            itl_over_idle: match kind {
                Kind::Long { idle_ms } => Some(itl_ms_p99 / idle_ms),
                Kind::Mixed(_) | Kind::Idle => None,
            },
            requests: heard.first.len(),
            seconds,
            step_tokens: bench.step.step_tokens,
            policy: bench.policy.as_str(),
            workers: bench.workers,
            chunk_tokens: bench.memory.chunk_tokens,
            seed: bench.seed,
            kv: bench.model.kv.as_str(),
            device,
            threads,
            machine,
            commit,
        }
    }

    /// Its place in the picture: rows of running answers, with and without a long prompt.
    pub(super) fn bars(&self) -> Option<Bars> {
        let beside = match self.arrival {
            "idle" => "idle",
            "long" => "long prompt",
            _ => return None,
        };
        let heights = [self.itl_ms_p50, self.itl_ms_p95, self.itl_ms_p99];
        Some(Bars { name: [self.scheduler.to_owned(), beside.to_owned()], heights })
    }
}

pub(super) fn table(rows: &[Row<'_>]) -> Table {
    let headings = [
        "scheduler",
        "arrival",
        "load",
        "ttft p50",
        "p99",
        "itl p50",
        "p95",
        "p99",
        "over idle",
        "tokens/s",
        "prompt/s",
        "rejected",
    ];
    let mut table = Table::new(headings);
    for row in rows {
        table.row([
            row.scheduler.to_owned(),
            row.arrival.to_owned(),
            row.load.to_string(),
            format!("{:.1}", row.ttft_ms_p50),
            format!("{:.1}", row.ttft_ms_p99),
            format!("{:.2}", row.itl_ms_p50),
            format!("{:.2}", row.itl_ms_p95),
            format!("{:.2}", row.itl_ms_p99),
            row.itl_over_idle.map_or("-".into(), |ratio| format!("{ratio:.1}")),
            format!("{:.0}", row.tokens_per_second),
            report::grouped(row.prompt_tokens_per_second as u64),
            row.rejected.to_string(),
        ]);
    }
    table
}
