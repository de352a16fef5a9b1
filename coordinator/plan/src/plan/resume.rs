//! Prompts that begin like one that was seen go on from its snapshot.

use aqueduct_core::{SnapshotKey, WorkerId};

use super::Plan;
use crate::request::Request;
use crate::words::Job;

impl Plan {
    /// Whether any worker is known to have this snapshot.
    pub fn has_snapshot(&self, key: &SnapshotKey) -> bool {
        self.snapshots.has(key)
    }

    /// What a worker has and has not, if there is such a worker.
    pub(super) fn snapshots_changed(
        &mut self,
        worker: WorkerId,
        kept: Vec<SnapshotKey>,
        dropped: Vec<SnapshotKey>,
    ) {
        if self.is_up(worker) {
            kept.into_iter().for_each(|key| self.snapshots.kept(worker, key));
            dropped.into_iter().for_each(|key| self.snapshots.dropped(worker, key));
        }
    }

    /// Has a snapshot that `holder` has stand for chunk `idx`. Where the next chunk is the last,
    /// nothing travels if it is there too, where there is room. But a prefix that everybody
    /// shares must not make one worker decode for all.
    pub(super) fn resume(&self, request: &mut Request, idx: usize, holder: WorkerId) {
        request.resume(idx, holder);
        let is_next_last = idx + 2 == request.chunk_count();
        let has_room = || self.room().with(self.set_tokens(&request.job)).contains(&holder);
        if is_next_last && self.decodes(holder) <= self.decodes(request.home()) && has_room() {
            request.end_at(holder);
        }
    }

    /// If chunk 0 is among the chunks `moved`, has a snapshot stand for what is to be done again
    /// from there on, as far as anybody has one; false where there must be one and is none.
    pub(super) fn resume_again(&mut self, pos: usize, moved: &[usize]) -> bool {
        let request = &self.running[pos];
        let resumes = request.job.resumes;
        if !moved.contains(&0) {
            return true;
        }
        let found = self.resumed_within(&request.job, request.waiting_first());
        let Some((idx, holder)) = found.filter(|(_, holder)| !request.left.contains(holder)) else {
            return !resumes;
        };
        self.running[pos].resume(idx, holder);
        true
    }

    /// Who has the keys of chunk `idx` of `job`, which stay in shards.
    pub(super) fn holder_of_shard(&self, job: &Job, idx: usize) -> Option<WorkerId> {
        self.snapshots.holder(&job.shard_name(idx)?, self.rotation.wrapping_add(idx))
    }

    /// Has snapshots stand for those of the chunks `placed` whose workers have them, where keys
    /// stay in shards.
    pub(super) fn restore_shards(&mut self, pos: usize, placed: impl Iterator<Item = usize>) {
        let Self { running, snapshots, .. } = self;
        let request = &mut running[pos];
        for idx in placed {
            let (name, worker) = (request.job.shard_name(idx), request.worker(idx));
            request.set_kept(idx, name.is_some_and(|name| snapshots.is_at(worker, &name)));
        }
    }

    /// Requests whose home `worker` is, or will be.
    pub(super) fn decodes(&self, worker: WorkerId) -> usize {
        self.running.iter().filter(|request| request.home() == worker).count()
    }

    /// The chunk that a snapshot stands for, and who has it. At least one chunk is computed: what
    /// is generated begins with the logits of its last token.
    pub(super) fn resumed(&self, job: &Job) -> Option<(usize, WorkerId)> {
        self.resumed_within(job, usize::MAX)
    }

    /// The same, if it may stand for as many of the first chunks at most.
    fn resumed_within(&self, job: &Job, chunks: usize) -> Option<(usize, WorkerId)> {
        let most = (job.grid.chunk_count() as usize - 1).min(chunks);
        let chain = &job.prefix[..job.prefix.len().min(most)];
        let longest = self.snapshots.longest(chain, self.rotation);
        // Who is to be left hands on what can be had nowhere else: that is no new work.
        let stays = |holder: &WorkerId| {
            let takes = self.takers().any(|(worker, _)| worker == *holder);
            takes || (job.resumes && self.is_up(*holder))
        };
        longest.filter(|(_, holder)| job.sharded.is_none() && stays(holder))
    }
}
