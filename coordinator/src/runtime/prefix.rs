//! What a prompt's beginning is called, so that one that was seen need not be computed again,
//! and what is known of its memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aqueduct_core::snapshot::Spacing;
use aqueduct_core::work::{CONVENTION, ChunkReport, RetainedMass};
use aqueduct_core::{
    ChunkGrid, ChunkSpan, MemoryPolicy, PolicyKind, Scoring, SnapshotKey, TokenId, WireDtype,
    WorkerId, limits,
};

/// The prefixes of one try of a prompt, chunk by chunk.
#[derive(Debug, Default)]
pub(super) struct Prefix {
    /// Name of the memory after each full chunk; empty where nothing is kept.
    chain: Arc<[SnapshotKey]>,
    /// Whether a name is of the keys of its chunk alone, which stay in a shard.
    of_shards: bool,
    /// The chunks that snapshots stand for; where memory is handed on, the last chunk of those
    /// that one stands for.
    restored: BTreeSet<u32>,
    /// Where memory is handed on: chunks before this one have all been reported.
    told: u32,
    /// What was kept of them, per layer.
    retained: Vec<RetainedMass>,
    /// Chunks that were computed and whose shards nobody was asked to keep yet.
    fresh: Vec<u32>,
}

/// Names of the memory after each full chunk of `prompt`: each is made of the one before, so two
/// prompts share a name if and only if all tokens up to there are the same, and so is whatever
/// else the memory depends on.
pub(super) fn chain(
    fingerprint: &str,
    policy: &MemoryPolicy,
    wire: WireDtype,
    grid: &ChunkGrid,
    prompt: &[TokenId],
) -> Arc<[SnapshotKey]> {
    let chunks = prompt.chunks_exact(grid.chunk_tokens() as usize);
    let mut name = root(fingerprint, policy, wire, grid.chunk_tokens());
    let mut bytes = Vec::new();
    let link = |tokens: &[TokenId]| {
        bytes.clear();
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        let mut hash = blake3::Hasher::new();
        hash.update(&name.0);
        hash.update(&bytes); // at once: many small pieces take many times as long
        name = SnapshotKey(hash.finalize().into());
        name
    };
    chunks.take(limits::SNAPSHOT_CHAIN_MAX).map(link).collect()
}

/// The name of the memory of no token.
pub(super) fn root(
    fingerprint: &str,
    policy: &MemoryPolicy,
    wire: WireDtype,
    chunk_tokens: u32,
) -> SnapshotKey {
    let MemoryPolicy { kind, sinks, local, heavy, scoring } = *policy;
    let Scoring { decay, window, age_normalised } = scoring;
    let kind = match kind {
        PolicyKind::Dense => 0,
        PolicyKind::Window => 1,
        PolicyKind::H2o => 2,
    };
    let mut hash = blake3::Hasher::new();
    hash.update(b"aqueduct snapshot");
    for number in [CONVENTION, chunk_tokens, kind, sinks, local, heavy, decay.to_bits(), window] {
        hash.update(&number.to_le_bytes());
    }
    let wire = match wire {
        WireDtype::F32 => 0,
        WireDtype::Bf16 => 1,
        WireDtype::F16 => 2,
    };
    hash.update(&[u8::from(age_normalised), wire]);
    hash.update(fingerprint.as_bytes());
    SnapshotKey(hash.finalize().into())
}

impl Prefix {
    /// Of a prompt whose prefixes are called like this.
    pub(super) fn new(chain: Arc<[SnapshotKey]>) -> Self {
        Self { chain, ..Self::default() }
    }

    /// Of a prompt whose chunks' keys stay in shards, and are called like this.
    pub(super) fn of_shards(chain: Arc<[SnapshotKey]>) -> Self {
        Self { of_shards: true, ..Self::new(chain) }
    }

    /// The names.
    pub(super) fn chain(&self) -> Arc<[SnapshotKey]> {
        self.chain.clone()
    }

    /// Whether a snapshot stands for chunk `chunk_idx`, by whose name it is restored.
    pub(super) fn restores(&self, chunk_idx: u32) -> bool {
        self.restored.contains(&chunk_idx)
    }

    /// How many of the first chunks nobody reports, because a snapshot stands for them.
    pub(super) fn skipped(&self) -> u32 {
        let restored = self.restored.first().filter(|_| !self.of_shards);
        restored.copied().unwrap_or(0)
    }

    /// Tokens of the prompt that snapshots stand for.
    pub(super) fn cached_tokens(&self, grid: &ChunkGrid) -> u32 {
        let spans = self.restored.iter().filter_map(|idx| grid.chunk(*idx));
        let tokens =
            |span: ChunkSpan| if self.of_shards { span.tokens } else { span.positions().end };
        spans.map(tokens).sum()
    }

    /// A snapshot stands for chunk `chunk_idx` and, where memory is handed on, all before it.
    /// Whether the latter.
    pub(super) fn restore(&mut self, chunk_idx: u32) -> bool {
        if !self.of_shards {
            *self = Self { told: chunk_idx, ..Self::new(self.chain()) };
        }
        self.restored.insert(chunk_idx);
        !self.of_shards
    }

    /// A chunk is to be computed. If a snapshot was to stand for it, that is lost: gives the
    /// chunk whose report came with it.
    pub(super) fn compute(&mut self, chunk_idx: u32) -> Option<u32> {
        if self.of_shards {
            return self.restored.take(&chunk_idx);
        }
        let lost = self.restored.first().copied().filter(|restored| chunk_idx <= *restored)?;
        *self = Self::new(self.chain());
        Some(lost)
    }

    /// A chunk is done.
    pub(super) fn done(&mut self, chunk_idx: u32) {
        if self.of_shards && !self.restores(chunk_idx) {
            self.fresh.push(chunk_idx);
        }
    }

    /// Goes on over the `reports` that have come, each with who did the chunk. Gives what is now
    /// known of whole prefixes that are worth keeping; of all chunks that were computed where
    /// each is kept for itself.
    pub(super) fn go_on(
        &mut self,
        (grid, spacing): (&ChunkGrid, Spacing),
        reports: &BTreeMap<u32, (WorkerId, ChunkReport)>,
    ) -> Vec<(WorkerId, Whole)> {
        if self.of_shards {
            let fresh = std::mem::take(&mut self.fresh).into_iter();
            let whole = |chunk_idx: u32| {
                let (worker, report) = reports.get(&chunk_idx)?;
                let name = *self.chain.get(chunk_idx as usize)?;
                Some((*worker, Whole { chunk_idx, name, retained: report.retained.clone() }))
            };
            return fresh.filter_map(whole).collect();
        }
        let mut whole = Vec::new();
        while let Some((worker, report)) = reports.get(&self.told) {
            RetainedMass::add_layers(&mut self.retained, &report.retained);
            let is_new = !self.restores(self.told);
            let name = self.chain.get(self.told as usize);
            if let Some(&name) = name.filter(|_| is_new && spacing.keeps(grid, self.told)) {
                let (chunk_idx, retained) = (self.told, self.retained.clone());
                whole.push((*worker, Whole { chunk_idx, name, retained }));
            }
            self.told += 1;
        }
        whole
    }
}

/// A prefix that is done, or a chunk whose keys are kept for themselves.
#[derive(Debug, PartialEq)]
pub(super) struct Whole {
    /// Its last chunk.
    pub(super) chunk_idx: u32,
    /// What its memory is called.
    pub(super) name: SnapshotKey,
    /// What that kept, per layer.
    pub(super) retained: Vec<RetainedMass>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(fingerprint: &str, policy: MemoryPolicy, c: u32, prompt: &[u32]) -> Vec<SnapshotKey> {
        let grid = ChunkGrid::new(prompt.len() as u32, c).unwrap();
        chain(fingerprint, &policy, WireDtype::F32, &grid, prompt).to_vec()
    }

    #[test]
    fn a_name_is_of_all_that_the_memory_depends_on() {
        let policy = MemoryPolicy::h2o(1, 2, 3);
        let base = names("m", policy, 4, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(base.len(), 2);
        assert_eq!(
            base,
            names("m", policy, 4, &[1, 2, 3, 4, 5, 6, 7, 8]),
            "no matter what follows"
        );
        let parted = names("m", policy, 4, &[1, 2, 3, 4, 5, 6, 7, 0]);
        assert_eq!((base[0], base[1] == parted[1]), (parted[0], false));
        assert!(names("m", policy, 4, &[1, 2, 3]).is_empty());
        let scoring = Scoring { decay: 0.5, ..policy.scoring };
        let others = [
            names("n", policy, 4, &[1, 2, 3, 4]),
            names("m", policy, 2, &[1, 2, 3, 4]),
            names("m", policy, 4, &[0, 2, 3, 4]),
            names("m", MemoryPolicy { heavy: 4, ..policy }, 4, &[1, 2, 3, 4]),
            names("m", MemoryPolicy { kind: PolicyKind::Window, ..policy }, 4, &[1, 2, 3, 4]),
            names("m", MemoryPolicy { scoring, ..policy }, 4, &[1, 2, 3, 4]),
        ];
        let all = others.iter().flatten().chain(&base).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(all.len(), 7 + base.len());
    }

    /// Files of snapshots are called so.
    #[test]
    fn a_name_is_made_of_the_tokens_one_after_the_other() {
        let (policy, wire) = (MemoryPolicy::default(), WireDtype::F32);
        let prompt: Vec<u32> = (0..700).map(|token| token * 7919).collect();
        let mut before = root("m", &policy, wire, 300);
        for (name, chunk) in names("m", policy, 300, &prompt).into_iter().zip(prompt.chunks(300)) {
            let mut hash = blake3::Hasher::new();
            hash.update(&before.0);
            for token in chunk {
                hash.update(&token.to_le_bytes());
            }
            assert_eq!(name, SnapshotKey(hash.finalize().into()));
            before = name;
        }
    }

    fn report(kept: f64) -> ChunkReport {
        let retained = vec![RetainedMass { kept, total: 1.0 }];
        ChunkReport { retained, ..ChunkReport::default() }
    }

    #[test]
    fn a_prefix_is_whole_when_all_of_it_was_reported() {
        let grid = ChunkGrid::new(35, 10).unwrap();
        let chain = chain("m", &MemoryPolicy::default(), WireDtype::F32, &grid, &[7; 35]);
        let mut prefix = Prefix::new(chain.clone());
        let mut reports = BTreeMap::from([(1, (WorkerId(1), report(0.25)))]);
        assert_eq!(prefix.go_on((&grid, Spacing::default()), &reports), []);
        reports.insert(0, (WorkerId(0), report(0.5)));
        let whole = |chunk_idx: u32, kept: f64, total: f64| Whole {
            chunk_idx,
            name: chain[chunk_idx as usize],
            retained: vec![RetainedMass { kept, total }],
        };
        let want = [(WorkerId(0), whole(0, 0.5, 1.0)), (WorkerId(1), whole(1, 0.75, 2.0))];
        assert_eq!(prefix.go_on((&grid, Spacing::default()), &reports), want);
        reports.insert(2, (WorkerId(0), report(1.0)));
        reports.insert(3, (WorkerId(1), report(1.0)));
        assert_eq!(
            prefix.go_on((&grid, Spacing::default()), &reports),
            [(WorkerId(0), whole(2, 1.75, 3.0))]
        );
    }

    #[test]
    fn a_snapshot_stands_for_its_prefix_until_it_is_lost() {
        let grid = ChunkGrid::new(35, 10).unwrap();
        let mut prefix = Prefix::new([SnapshotKey([1; 32]), SnapshotKey([2; 32])].into());
        prefix.restore(1);
        assert_eq!(prefix.compute(2), None);
        let reports = BTreeMap::from([(1, (WorkerId(1), report(0.25)))]);
        assert_eq!(prefix.go_on((&grid, Spacing::default()), &reports), [], "it is kept already");
        assert_eq!((prefix.told, prefix.skipped(), prefix.restores(1)), (2, 1, true));
        assert_eq!(prefix.cached_tokens(&grid), 20);
        assert_eq!(prefix.compute(0), Some(1));
        assert_eq!((prefix.told, prefix.skipped(), prefix.restores(1)), (0, 0, false));
        assert_eq!(prefix.compute(1), None);
    }

    #[test]
    fn of_shards_each_is_kept_for_itself() {
        let grid = ChunkGrid::new(35, 10).unwrap();
        let chain: Arc<[SnapshotKey]> = (0..3).map(|name| SnapshotKey([name; 32])).collect();
        let mut prefix = Prefix::of_shards(chain.clone());
        assert!(!prefix.restore(1), "for itself alone");
        let mut reports = BTreeMap::new();
        let mut check = |prefix: &mut Prefix, done: u32, worker: u32, want: &[u32]| {
            reports.insert(done, (WorkerId(worker), ChunkReport::default()));
            prefix.done(done);
            let whole = prefix.go_on((&grid, Spacing::default()), &reports).into_iter();
            let whole = whole.map(|(by, Whole { chunk_idx, name, .. })| (by, chunk_idx, name));
            let want = want.iter().map(|idx| (WorkerId(worker), *idx, chain[*idx as usize]));
            assert_eq!(whole.collect::<Vec<_>>(), want.collect::<Vec<_>>());
        };
        check(&mut prefix, 2, 0, &[2]);
        check(&mut prefix, 1, 0, &[]);
        check(&mut prefix, 3, 0, &[]);
        assert_eq!((prefix.skipped(), prefix.cached_tokens(&grid)), (0, 10));
        assert_eq!((prefix.compute(0), prefix.compute(1)), (None, Some(1)));
        assert_eq!(prefix.cached_tokens(&grid), 0);
        check(&mut prefix, 1, 4, &[1]);
        check(&mut prefix, 2, 4, &[2]);
    }
}
