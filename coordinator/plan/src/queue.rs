//! Requests that wait for their turn to begin.
//!
//! They begin by priority, lower first, and by arrival; waiting counts, so that nobody starves:
//! a step of priority is worth [`PRIORITY_STEP_MS`] of waiting. All wait equally fast, so the
//! order between two never changes: a request begins before all that arrive more than
//! `step * (its priority - theirs)` after it.

use aqueduct_core::RequestId;
use aqueduct_core::limits::PRIORITY_STEP_MS;

use crate::words::Job;

#[derive(Debug)]
struct Waiting {
    /// Smaller is earlier.
    rank: i64,
    request: RequestId,
    job: Job,
}

/// In the order in which they are to begin.
#[derive(Debug, Default)]
pub(crate) struct Queue(Vec<Waiting>);

impl Queue {
    pub(crate) fn push(&mut self, request: RequestId, job: Job) {
        self.insert(rank(&job), request, job);
    }

    /// Those behind which `job` would stand, in order.
    pub(crate) fn before(&self, job: &Job) -> impl Iterator<Item = &Job> {
        let rank = rank(job);
        let before = self.0.iter().take_while(move |waiting| waiting.rank <= rank);
        before.map(|waiting| &waiting.job)
    }

    /// In front of all that wait, for a request that has waited before.
    pub(crate) fn push_front(&mut self, request: RequestId, job: Job) {
        self.insert(i64::MIN, request, job);
    }

    fn insert(&mut self, rank: i64, request: RequestId, job: Job) {
        let idx = self.0.partition_point(|waiting| waiting.rank <= rank);
        self.0.insert(idx, Waiting { rank, request, job });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestId, &Job)> {
        self.0.iter().map(|waiting| (waiting.request, &waiting.job))
    }

    pub(crate) fn take(&mut self, request: RequestId) -> Option<Job> {
        let idx = self.0.iter().position(|waiting| waiting.request == request)?;
        Some(self.0.remove(idx).job)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Tokens of all prompts that wait.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.0.iter().map(|waiting| u64::from(waiting.job.grid.prompt_tokens())).sum()
    }
}

fn rank(job: &Job) -> i64 {
    let arrived = i64::try_from(job.arrived_at_ms).unwrap_or(i64::MAX);
    let later = i64::from(job.priority).saturating_mul(PRIORITY_STEP_MS.cast_signed());
    arrived.saturating_add(later)
}

#[cfg(test)]
mod tests {
    use aqueduct_core::ChunkGrid;
    use proptest::prelude::*;

    use super::*;

    fn job(priority: i32, arrived_at_ms: u64) -> Job {
        let grid = ChunkGrid::new(7, 10).unwrap();
        Job {
            grid,
            choices: 1,
            sharded: None,
            memory_tokens: 0,
            state_tokens: 0,
            keeps_all: false,
            prefix: Vec::new().into(),
            resumes: false,
            priority,
            arrived_at_ms,
            deadline_at_ms: u64::MAX,
        }
    }

    fn order(queue: &Queue) -> Vec<u64> {
        queue.iter().map(|(request, _)| request.0).collect()
    }

    #[test]
    fn by_priority_then_arrival_and_again_before_all() {
        let mut queue = Queue::default();
        for (request, priority) in (0..).zip([0, 1, -1, 0, 1, -1]) {
            queue.push(RequestId(request), job(priority, request));
        }
        queue.push_front(RequestId(9), job(1, 5));
        assert_eq!(order(&queue), [9, 2, 5, 0, 3, 1, 4]);
        assert_eq!((queue.len(), queue.prompt_tokens()), (7, 49));
        assert_eq!(queue.take(RequestId(5)).unwrap().priority, -1);
        assert_eq!(queue.take(RequestId(5)), None);
        assert_eq!(order(&queue), [9, 2, 0, 3, 1, 4]);
    }

    proptest! {
        /// Whoever comes too late to have waited less by less than the steps between them stays
        /// behind, however urgent.
        #[test]
        fn waiting_outweighs_any_priority(
            jobs in prop::collection::vec((-100i32..=100, 0u64..3_000_000), 2..20),
        ) {
            let mut queue = Queue::default();
            for (request, (priority, arrived)) in (0..).zip(&jobs) {
                queue.push(RequestId(request), job(*priority, *arrived));
            }
            let order: Vec<_> = queue.iter().map(|(_, job)| job.clone()).collect();
            for pair in order.windows(2) {
                let steps = i64::from(pair[0].priority) - i64::from(pair[1].priority);
                let lead = pair[1].arrived_at_ms as i64 - pair[0].arrived_at_ms as i64;
                prop_assert!(steps * PRIORITY_STEP_MS as i64 <= lead, "{pair:?}");
            }
        }
    }
}
