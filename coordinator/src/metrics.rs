//! Figures for Prometheus. Where vLLM has a metric of the same meaning, this one has its name
//! without the prefix.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aqueduct_core::Exchange;
use aqueduct_core::work::{MergeAudit, PoolUse};
use aqueduct_tls::Refusals;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

mod labels;

use crate::generation::Load;
use crate::peers::Unheard;
use crate::runtime::Leader;
pub use labels::Outcome;
use labels::{ExchangeLabel, OutcomeLabel, ReasonLabel, WorkerLabel};

/// A sum of times.
type Seconds = Counter<f64, AtomicU64>;

/// A gauge that only rises.
type Worst = Gauge<f64, AtomicU64>;

/// Everything that a coordinator counts.
pub struct Metrics {
    registry: Registry,
    /// Held by who brings up to date what others must not read half-way.
    reading: Mutex<()>,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    e2e_request_latency: Histogram,
    prefill_time: Histogram,
    queue_time: Histogram,
    retained_mass: Histogram,
    prompt_tokens: Counter,
    prefix_cache_queries: Counter,
    prefix_cache_hits: Counter,
    generation_tokens: Counter,
    clamps: Counter,
    escalations: Counter,
    chunk_retries: Counter,
    streams_resumed: Counter,
    chunk_hedges: Counter,
    exchange_bytes: Counter,
    merge_audits: Counter,
    wavefront_stall: Seconds,
    chunk_compute: Seconds,
    merge_error_max: Worst,
    merge_lse_error_max: Worst,
    requests: Family<OutcomeLabel, Counter>,
    rejected: Family<ReasonLabel, Counter>,
    exchanges: Family<ExchangeLabel, Counter>,
    leads: Gauge,
    term: Gauge,
    running: Gauge,
    waiting: Gauge,
    waiting_tokens: Gauge,
    workers_up: Gauge,
    snapshots: Gauge,
    snapshot_bytes: Gauge,
    snapshot_disk_bytes: Gauge,
    kv_cache_usage: Gauge<f64, AtomicU64>,
    pool_bytes: Family<WorkerLabel, Gauge>,
    pool_used_bytes: Family<WorkerLabel, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        Self::with(Refusals::default(), &Unheard::default())
    }

    /// All at zero, beside the connections and the messages of other members that were refused.
    pub fn with(refusals: Refusals, unheard: &Unheard) -> Self {
        let latency = || Histogram::new(exponential_buckets(0.01, 2.0, 20));
        let step = || Histogram::new(exponential_buckets(0.001, 2.0, 16));
        let shares = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
        let mut metrics = Self {
            registry: Registry::default(),
            reading: Mutex::default(),
            time_to_first_token: latency(),
            inter_token_latency: step(),
            e2e_request_latency: latency(),
            prefill_time: latency(),
            queue_time: latency(),
            retained_mass: Histogram::new(shares),
            prompt_tokens: Counter::default(),
            prefix_cache_queries: Counter::default(),
            prefix_cache_hits: Counter::default(),
            generation_tokens: Counter::default(),
            clamps: Counter::default(),
            escalations: Counter::default(),
            chunk_retries: Counter::default(),
            streams_resumed: Counter::default(),
            chunk_hedges: Counter::default(),
            exchange_bytes: Counter::default(),
            merge_audits: Counter::default(),
            wavefront_stall: Seconds::default(),
            chunk_compute: Seconds::default(),
            merge_error_max: Gauge::default(),
            merge_lse_error_max: Gauge::default(),
            requests: Family::default(),
            rejected: Family::default(),
            exchanges: Family::default(),
            leads: Gauge::default(),
            term: Gauge::default(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            waiting_tokens: Gauge::default(),
            workers_up: Gauge::default(),
            snapshots: Gauge::default(),
            snapshot_bytes: Gauge::default(),
            snapshot_disk_bytes: Gauge::default(),
            kv_cache_usage: Gauge::default(),
            pool_bytes: Family::default(),
            pool_used_bytes: Family::default(),
        };
        metrics.register_times();
        metrics.register_counts();
        metrics.registry.register_collector(Box::new(refusals));
        unheard.register(&mut metrics.registry);
        metrics
    }

    fn register_times(&mut self) {
        let times = [
            (
                "time_to_first_token",
                "From submission to the first token",
                &self.time_to_first_token,
            ),
            ("inter_token_latency", "Between tokens of a completion", &self.inter_token_latency),
            ("e2e_request_latency", "From submission to the end", &self.e2e_request_latency),
            ("request_prefill_time", "From submission to the prompt's end", &self.prefill_time),
            ("request_queue_time", "Until a worker was given the first chunk", &self.queue_time),
        ];
        for (name, help, histogram) in times {
            self.registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
    }

    fn register_counts(&mut self) {
        let counters = [
            ("prompt_tokens", "Prompt tokens prefilled", &self.prompt_tokens),
            (
                "prefix_cache_queries",
                "Prompt tokens of which a prefix was looked for",
                &self.prefix_cache_queries,
            ),
            (
                "prefix_cache_hits",
                "Prompt tokens whose memory was there already",
                &self.prefix_cache_hits,
            ),
            ("generation_tokens", "Tokens generated", &self.generation_tokens),
            ("clamps", "Memory budgets lowered to fit a chunk", &self.clamps),
            ("escalations", "Prefills begun again for quality", &self.escalations),
            ("chunk_retries", "Chunks done again elsewhere", &self.chunk_retries),
            ("streams_resumed", "Answers that callers came back to", &self.streams_resumed),
            ("chunk_hedges", "Slow chunks given to a second worker as well", &self.chunk_hedges),
            ("exchange_bytes", "Bytes between workers for the past", &self.exchange_bytes),
            ("merge_audits", "Rows of merged states computed again in f64", &self.merge_audits),
        ];
        for (name, help, counter) in counters {
            self.registry.register(name, help, counter.clone());
        }
        let times = [
            ("wavefront_stall", "What chunks waited for the past", &self.wavefront_stall),
            ("chunk_compute", "What chunks computed", &self.chunk_compute),
        ];
        for (name, help, counter) in times {
            self.registry.register_with_unit(name, help, Unit::Seconds, counter.clone());
        }
        let gauges = [
            ("leads", "Whether this coordinator serves its group", &self.leads),
            ("term", "In which it leads, where it is in a group", &self.term),
            ("num_requests_running", "Requests being served", &self.running),
            ("num_requests_waiting", "Requests in the queue", &self.waiting),
            ("num_tokens_waiting", "Tokens of their prompts", &self.waiting_tokens),
            ("workers_up", "Workers that take work", &self.workers_up),
            ("snapshots", "Prefixes whose memory is kept", &self.snapshots),
            ("snapshot_bytes", "Their bytes in memory", &self.snapshot_bytes),
            ("snapshot_disk_bytes", "Their bytes on disk", &self.snapshot_disk_bytes),
        ];
        for (name, help, gauge) in gauges {
            self.registry.register(name, help, gauge.clone());
        }
        let floats = [
            ("kv_cache_usage_perc", "Share of workers' pages in use", &self.kv_cache_usage),
            ("merge_error_max", "Worst audited output beside f64", &self.merge_error_max),
            ("merge_lse_error_max", "Worst audited log-sum-exp", &self.merge_lse_error_max),
        ];
        for (name, help, gauge) in floats {
            self.registry.register(name, help, gauge.clone());
        }
        self.register_families();
    }

    /// What is told apart by a label, and the one distribution that is no time.
    fn register_families(&mut self) {
        let pools = [
            ("pool_bytes", "Bytes of a worker's pages", &self.pool_bytes),
            ("pool_used_bytes", "Bytes of those in use", &self.pool_used_bytes),
        ];
        for (name, help, pool) in pools {
            self.registry.register(name, help, pool.clone());
        }
        let help = "Share of attention mass that the memory kept, one sample a request";
        self.registry.register("retained_mass", help, self.retained_mass.clone());
        self.registry.register("requests", "Requests by how they ended", self.requests.clone());
        let help = "Requests not taken, by what was in the way";
        self.registry.register("requests_rejected", help, self.rejected.clone());
        self.registry.register("exchanges", "Prompts by their exchange", self.exchanges.clone());
    }

    /// A request was accepted with this many budgets lowered.
    pub fn accepted(&self, clamps: usize) {
        self.clamps.inc_by(clamps as u64);
    }

    /// A prefill began again because its memory kept too little.
    pub fn escalated(&self) {
        self.escalations.inc();
    }

    /// A prompt is in memory, so long after it was submitted, if that is known.
    pub fn prefilled(
        &self,
        prompt_tokens: u32,
        elapsed: impl Into<Option<Duration>>,
        chunks_retried: u32,
    ) {
        self.prompt_tokens.inc_by(prompt_tokens.into());
        if let Some(elapsed) = elapsed.into() {
            self.prefill_time.observe(elapsed.as_secs_f64());
        }
        self.chunk_retries.inc_by(chunks_retried.into());
    }

    /// Chunks of a prompt that was in memory were done again.
    pub fn resumed(&self, chunks_retried: u32) {
        self.chunk_retries.inc_by(chunks_retried.into());
    }

    /// A caller came back to its answer.
    pub fn came_back(&self) {
        self.streams_resumed.inc();
    }

    /// A prompt waited so long for its turn.
    pub fn queued(&self, elapsed: Duration) {
        self.queue_time.observe(elapsed.as_secs_f64());
    }

    /// The chunks of a prompt waited and computed so long, all workers together.
    pub fn wavefront(&self, stalled: Duration, computed: Duration) {
        self.wavefront_stall.inc_by(stalled.as_secs_f64());
        self.chunk_compute.inc_by(computed.as_secs_f64());
    }

    /// A request was not taken, because of this.
    pub fn rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// A prefix of a prompt was looked for, and one of so many tokens found.
    pub fn prefix_looked_for(&self, prompt_tokens: u32, cached_tokens: u32) {
        self.prefix_cache_queries.inc_by(prompt_tokens.into());
        self.prefix_cache_hits.inc_by(cached_tokens.into());
    }

    /// The memory of a prompt kept this share of its attention mass.
    pub fn retained(&self, share: f64) {
        self.retained_mass.observe(share);
    }

    /// The past of a prompt reached it this way, with so many bytes between workers.
    pub fn exchanged(&self, exchange: Exchange, bytes: u64) {
        self.exchanges.get_or_create(&ExchangeLabel { exchange: exchange.as_str() }).inc();
        self.exchange_bytes.inc_by(bytes);
    }

    /// Some merged states were computed again, with errors as large as these.
    pub fn audited(&self, audits: &[MergeAudit]) {
        for audit in audits {
            self.merge_audits.inc_by(audit.rows);
            let errors = [
                (&self.merge_error_max, audit.error),
                (&self.merge_lse_error_max, audit.lse_error),
            ];
            for (worst, error) in errors {
                if error.is_nan() || error > worst.get() {
                    worst.set(error);
                }
            }
        }
    }

    /// The first token of a request came.
    pub fn first_token(&self, elapsed: Duration) {
        self.time_to_first_token.observe(elapsed.as_secs_f64());
    }

    /// A token came; `gap` is the time since the one before it of the same completion.
    pub fn token(&self, gap: Option<Duration>) {
        self.generation_tokens.inc();
        if let Some(gap) = gap {
            self.inter_token_latency.observe(gap.as_secs_f64());
        }
    }

    /// A request came to its end, one way or another, so long after it was submitted, if that is
    /// known.
    pub fn ended(&self, outcome: Outcome, elapsed: impl Into<Option<Duration>>) {
        self.requests.get_or_create(&OutcomeLabel { outcome }).inc();
        if let Some(elapsed) = elapsed.into().filter(|_| outcome == Outcome::Finished) {
            self.e2e_request_latency.observe(elapsed.as_secs_f64());
        }
    }

    /// Workers that are gone are not shown.
    fn set_pools(&self, pools: &[(String, PoolUse)]) {
        self.pool_bytes.clear();
        self.pool_used_bytes.clear();
        let mut all = PoolUse::default();
        for (worker, pool) in pools {
            for (family, bytes) in
                [(&self.pool_bytes, pool.bytes), (&self.pool_used_bytes, pool.used_bytes)]
            {
                let label = WorkerLabel { worker: worker.clone() };
                family.get_or_create(&label).set(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
            all.bytes = all.bytes.saturating_add(pool.bytes);
            all.used_bytes = all.used_bytes.saturating_add(pool.used_bytes);
        }
        self.kv_cache_usage.set(all.used_bytes as f64 / all.bytes.max(1) as f64);
    }

    /// Everything that is counted, as `written` has it; `load` is how things stand now.
    pub fn read<T>(&self, load: &Load, written: impl FnOnce(&Registry) -> T) -> T {
        let _alone = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let (leads, term) = match load.leader {
            Leader::This { term } => (true, term.unwrap_or(0)),
            Leader::Other(_) | Leader::Nobody => (false, 0),
        };
        let now = [
            (&self.leads, leads.into()),
            (&self.term, term),
            (&self.running, load.running as u64),
            (&self.waiting, load.waiting as u64),
            (&self.waiting_tokens, load.waiting_tokens),
            (&self.workers_up, load.workers_open as u64),
            (&self.snapshots, load.snapshots.count),
            (&self.snapshot_bytes, load.snapshots.memory_bytes),
            (&self.snapshot_disk_bytes, load.snapshots.disk_bytes),
        ];
        for (gauge, count) in now {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.chunk_hedges.inc_by(load.chunk_hedges.saturating_sub(self.chunk_hedges.get()));
        self.set_pools(&load.pools);
        written(&self.registry)
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::SnapshotsHeld;

    use super::*;

    #[test]
    fn names_that_dashboards_know() {
        let metrics = Metrics::new();
        metrics.accepted(2);
        metrics.prefilled(100, Duration::from_millis(30), 1);
        metrics.prefix_looked_for(100, 60);
        metrics.retained(0.97);
        metrics.exchanged(Exchange::Stay, 70);
        let audit = MergeAudit { layer: 1, rows: 8, error: 0.25, lse_error: 0.5 };
        metrics.audited(&[audit, MergeAudit { error: 0.125, ..audit }]);
        metrics.first_token(Duration::from_millis(40));
        metrics.token(Some(Duration::from_millis(5)));
        metrics.ended(Outcome::Finished, Duration::from_secs(1));
        metrics.queued(Duration::from_millis(20));
        metrics.wavefront(Duration::from_millis(250), Duration::from_millis(1500));
        metrics.rejected("queued_tokens");
        let snapshots = SnapshotsHeld { count: 5, memory_bytes: 6, disk_bytes: 7 };
        let (waiting_tokens, token_bytes) = (50, 10);
        let pool = |bytes, used_bytes| PoolUse { bytes, used_bytes };
        let pools = vec![("a".into(), pool(100, 20)), ("b".into(), pool(300, 80))];
        let load = Load {
            open: true,
            closing: false,
            leader: Leader::This { term: Some(12) },
            running: 3,
            waiting: 4,
            places: 5,
            waiting_tokens,
            workers_up: 3,
            workers_open: 2,
            token_bytes,
            state_bytes: 0,
            snapshots,
            pools,
            chunk_hedges: 9,
        };
        metrics.read(&load, |_| ());
        let text = metrics.read(&load, aqueduct_telemetry::page);
        for line in [
            "time_to_first_token_seconds_count 1",
            "inter_token_latency_seconds_count 1",
            "e2e_request_latency_seconds_count 1",
            "request_prefill_time_seconds_count 1",
            "leads 1",
            "term 12",
            "num_requests_running 3",
            "num_requests_waiting 4",
            "num_tokens_waiting 50",
            "request_queue_time_seconds_count 1",
            "requests_rejected_total{reason=\"queued_tokens\"} 1",
            "wavefront_stall_seconds_total 0.25",
            "chunk_compute_seconds_total 1.5",
            "workers_up 2",
            "prompt_tokens_total 100",
            "prefix_cache_queries_total 100",
            "prefix_cache_hits_total 60",
            "snapshots 5",
            "snapshot_bytes 6",
            "snapshot_disk_bytes 7",
            "kv_cache_usage_perc 0.25",
            "pool_bytes{worker=\"b\"} 300",
            "pool_used_bytes{worker=\"a\"} 20",
            "generation_tokens_total 1",
            "clamps_total 2",
            "escalations_total 0",
            "chunk_retries_total 1",
            "chunk_hedges_total 9",
            "retained_mass_count 1",
            "exchange_bytes_total 70",
            "merge_audits_total 16",
            "merge_error_max 0.25",
            "merge_lse_error_max 0.5",
            "exchanges_total{exchange=\"stay\"} 1",
            "requests_total{outcome=\"Finished\"} 1",
        ] {
            assert!(text.lines().any(|seen| seen == line), "{line} is not in\n{text}");
        }
    }
}
