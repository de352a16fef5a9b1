//! A worker's figures.

use aqueduct_tls::Refusals;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::gauge::Stats;
use crate::worker::Worker;

/// What `worker` holds now, and whom it has turned away.
pub fn registry(worker: &Worker, refusals: &Refusals) -> Registry {
    let Stats { requests, inbox_bytes, outbox_bytes, home_bytes, shard_bytes, pool_used_bytes } =
        worker.stats();
    let gauges = [
        ("worker_requests", "Requests that anything is remembered of", requests),
        ("worker_inbox_bytes", "Memory sets that wait for their chunk", inbox_bytes),
        ("worker_outbox_bytes", "Memory sets that may be asked for again", outbox_bytes),
        ("worker_home_bytes", "Memory of prompts that ended here", home_bytes),
        ("worker_shard_bytes", "Keys and values in shards", shard_bytes),
        ("worker_pool_used_bytes", "Pages in use", pool_used_bytes),
    ];
    let mut registry = Registry::default();
    for (name, help, value) in gauges {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        registry.register(name, help, ConstGauge::new(value));
    }
    registry.register_collector(Box::new(refusals.clone()));
    registry
}
