//! What a finished chunk tells of itself.

use crate::Refusal;

/// How much of the attention mass the memory kept.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RetainedMass {
    /// Score of the keys that selection kept, summed over blocks and KV heads.
    pub kept: f64,
    /// Score of all the keys that it chose from.
    pub total: f64,
}

impl RetainedMass {
    /// kept / total; 1 where nothing was chosen from.
    pub fn share(&self) -> f64 {
        if self.total > 0.0 { self.kept / self.total } else { 1.0 }
    }

    /// # Errors
    /// A sum that is below 0 or not finite.
    pub fn validate(&self) -> Result<(), Refusal> {
        for (field, value) in [("kept", self.kept), ("total", self.total)] {
            Refusal::unless_within(field, value, 0.0, f64::MAX)?;
        }
        Ok(())
    }

    /// Adds what another block kept.
    pub fn add(&mut self, other: Self) {
        self.kept += other.kept;
        self.total += other.total;
    }
}

impl std::iter::Sum for RetainedMass {
    fn sum<I: Iterator<Item = Self>>(masses: I) -> Self {
        masses.fold(Self::default(), |mut sum, mass| {
            sum.add(mass);
            sum
        })
    }
}

/// How far merged states were from what f64 makes of the keys that they are of, in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MergeAudit {
    /// Layer.
    pub layer: u32,
    /// Rows, of one head each, that were computed again.
    pub rows: u64,
    /// Of the outputs: the largest difference, relative to the row's largest element.
    pub error: f64,
    /// Of the log-sum-exps: the largest difference.
    pub lse_error: f64,
}

impl MergeAudit {
    /// Adds what other rows of the layer showed. What is no number stays.
    pub fn add(&mut self, other: Self) {
        let worse = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
        self.rows = self.rows.saturating_add(other.rows);
        self.error = worse(self.error, other.error);
        self.lse_error = worse(self.lse_error, other.lse_error);
    }

    /// Adds each of `more` to that of its layer in `audits`, ascending by layer.
    pub fn gather(audits: &mut Vec<Self>, more: &[Self]) {
        for &audit in more {
            match audits.binary_search_by_key(&audit.layer, |known| known.layer) {
                Ok(at) => audits[at].add(audit),
                Err(at) => audits.insert(at, audit),
            }
        }
    }

    /// Whether both errors are numbers of at most `bound`.
    pub fn is_within(&self, bound: f64) -> bool {
        self.error <= bound && self.lse_error <= bound
    }
}

/// What a finished chunk reports.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChunkReport {
    /// Per layer.
    pub retained: Vec<RetainedMass>,
    /// Bytes of the memory sets it gave, over all layers.
    pub memory_bytes: u64,
    /// Keys per KV head in its last layer's memory set.
    pub memory_tokens: u32,
    /// Time computing.
    pub busy_us: u64,
    /// Time waiting for memory.
    pub wait_us: u64,
    /// What the exchange with other workers' shards came to.
    pub traffic: Traffic,
    /// Of the layers that were audited.
    pub audits: Vec<MergeAudit>,
}

/// Bytes between workers for the past of one chunk, shards or memory sets, headers not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Queries, log-sum-exps and decisions that went out.
    pub sent_bytes: u64,
    /// States, candidates and keys that came back, and memory sets that were handed off.
    pub received_bytes: u64,
    /// How often, per layer and holder, queries went out.
    pub asked: u32,
    /// How often, per layer and holder, keys came instead.
    pub fetched: u32,
    /// Keys and values of memory sets that did not travel, because they were here.
    pub spared_bytes: u64,
}

impl Traffic {
    /// Bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.sent_bytes.saturating_add(self.received_bytes)
    }

    /// Adds that of another chunk.
    pub fn add(&mut self, other: Self) {
        self.sent_bytes = self.sent_bytes.saturating_add(other.sent_bytes);
        self.received_bytes = self.received_bytes.saturating_add(other.received_bytes);
        self.asked = self.asked.saturating_add(other.asked);
        self.fetched = self.fetched.saturating_add(other.fetched);
        self.spared_bytes = self.spared_bytes.saturating_add(other.spared_bytes);
    }
}
