//! How much is held: counters that go down by themselves when what they count is dropped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aqueduct_core::work::MergeAudit;

/// A counter that many hold a share of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// The sum of all charges that live.
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `amount` for as long as the charge lives.
    pub(crate) fn charge(&self, amount: u64) -> Charge {
        self.0.fetch_add(amount, Ordering::Relaxed);
        Charge { gauge: self.clone(), amount }
    }
}

/// A share of a [`Gauge`].
#[derive(Debug)]
pub(crate) struct Charge {
    gauge: Gauge,
    amount: u64,
}

impl Charge {
    /// Counts `amount` from now on.
    pub(crate) fn set(&mut self, amount: u64) {
        self.gauge.0.fetch_add(amount.wrapping_sub(self.amount), Ordering::Relaxed);
        self.amount = amount;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.gauge.0.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// What audits of merged states have shown, by layer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Audits(Arc<Mutex<Vec<MergeAudit>>>);

impl Audits {
    /// Adds `more`.
    pub(crate) fn gather(&self, more: &[MergeAudit]) {
        MergeAudit::gather(&mut self.lock(), more);
    }

    /// All of them, ascending by layer.
    pub(crate) fn read(&self) -> Vec<MergeAudit> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<MergeAudit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the device thread counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gauges {
    pub(crate) requests: Gauge,
    pub(crate) outbox_bytes: Gauge,
    pub(crate) home_bytes: Gauge,
}

/// What a worker holds at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requests that it remembers anything of.
    pub requests: u64,
    /// Memory sets that wait for their chunk.
    pub inbox_bytes: u64,
    /// Memory sets kept until the next chunk is confirmed.
    pub outbox_bytes: u64,
    /// Final memories, and those of completions under way (shared sets counted for each).
    pub home_bytes: u64,
    /// Keys that stay here in shards, and queries about them.
    pub shard_bytes: u64,
    /// Pages of the pool that hold keys and values of any of these (shared ones counted once).
    pub pool_used_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_counts_while_it_lives() {
        let gauge = Gauge::default();
        let mut first = gauge.charge(10);
        let second = gauge.charge(5);
        first.set(3);
        assert_eq!(gauge.read(), 8);
        drop(first);
        assert_eq!(gauge.read(), 5);
        drop(second);
        assert_eq!(gauge.read(), 0);
    }
}
