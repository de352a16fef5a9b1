//! Room for keys: which workers can hold the shards of which chunks, or memory sets.

use aqueduct_core::{Refusal, WorkerId};

use crate::words::Job;

/// What is free in each worker's pool, in tokens.
#[derive(Debug, Clone)]
pub(crate) struct Room(Vec<(WorkerId, u64)>);

/// Chunks that need a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    pub(crate) chunk_tokens: u64,
    /// How many chunks of that size.
    pub(crate) full_chunks: u64,
    /// The prompt's last chunk and what is generated after it, if it needs a place.
    pub(crate) home_tokens: Option<u64>,
}

impl Need {
    /// All chunks of `job`, in whole pages.
    pub(crate) fn of(job: &Job, page_tokens: u64) -> Self {
        let full_chunks = u64::from(job.grid.chunk_count()) - 1;
        let chunk_tokens = u64::from(job.grid.chunk_tokens());
        let last_tokens = u64::from(job.grid.prompt_tokens()) - full_chunks * chunk_tokens;
        let home_tokens = last_tokens.next_multiple_of(page_tokens) + output(job, page_tokens);
        let chunk_tokens = chunk_tokens.next_multiple_of(page_tokens);
        Self { chunk_tokens, full_chunks, home_tokens: Some(home_tokens) }
    }
}

/// What the home of `job` keeps of what it generates: every completion has chunks of its own.
pub(crate) fn output(job: &Job, page_tokens: u64) -> u64 {
    let output_tokens = job.sharded.map_or(0, |sharded| sharded.output_tokens);
    let (choices, chunk) = (u64::from(job.choices.max(1)), u64::from(job.grid.chunk_tokens()));
    let each = output_tokens.div_ceil(choices);
    let full = (each / chunk).saturating_mul(chunk.next_multiple_of(page_tokens));
    choices.saturating_mul(full.saturating_add((each % chunk).next_multiple_of(page_tokens)))
}

impl Room {
    pub(crate) fn new(free: impl Iterator<Item = (WorkerId, u64)>) -> Self {
        Self(free.collect())
    }

    /// The room of `workers` alone.
    pub(crate) fn of(&self, workers: &[WorkerId]) -> Self {
        Self::new(self.0.iter().copied().filter(|(worker, _)| workers.contains(worker)))
    }

    /// The workers that have room for `tokens`.
    pub(crate) fn with(&self, tokens: u64) -> Vec<WorkerId> {
        self.0.iter().filter(|(_, free)| *free >= tokens).map(|(worker, _)| *worker).collect()
    }

    /// A worker for each full chunk, in rotation over those that have room, and then one for
    /// the home; `None` if there is no way to place them all. A chunk for which one of `wishes`
    /// is said goes there if it can. Full chunks are of one size, so nothing that is placed
    /// first takes a place from another.
    pub(crate) fn place(
        &self,
        need: Need,
        rotation: usize,
        wishes: &[Option<WorkerId>],
    ) -> Option<Vec<WorkerId>> {
        let mut free = self.0.clone();
        let after_full = rotation.wrapping_add(need.full_chunks as usize);
        // First of all, because it alone needs another size than all the others.
        let home = match need.home_tokens {
            Some(tokens) => Some(self.take(&mut free, after_full, tokens, |idx| {
                self.beside(idx, need).is_some_and(|left| left >= tokens)
            })?),
            None => None,
        };
        let mut places = vec![None; need.full_chunks as usize];
        for (place, wish) in places.iter_mut().zip(wishes) {
            let wish = wish.and_then(|wish| self.0.iter().position(|(worker, _)| *worker == wish));
            *place = wish.filter(|idx| free[*idx].1 >= need.chunk_tokens);
            place.iter().for_each(|idx| free[*idx].1 -= need.chunk_tokens);
        }
        let mut start = rotation;
        for place in places.iter_mut().filter(|place| place.is_none()) {
            let idx = self.take(&mut free, start, need.chunk_tokens, |_| true)?;
            *place = Some(idx);
            start = idx + 1;
        }
        Some(places.into_iter().chain([home]).flatten().map(|idx| self.0[idx].0).collect())
    }

    /// Takes `tokens` of the first worker from `start` on that has them and is `fit`.
    fn take(
        &self,
        free: &mut [(WorkerId, u64)],
        start: usize,
        tokens: u64,
        fit: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let count = free.len();
        let mut order = (0..count).map(|step| (start % count + step) % count);
        let idx = order.find(|&idx| free[idx].1 >= tokens && fit(idx))?;
        free[idx].1 -= tokens;
        Some(idx)
    }

    /// Tokens left of worker `idx` when as few of the full chunks as possible are there.
    fn beside(&self, idx: usize, need: Need) -> Option<u64> {
        let here = need.full_chunks - self.elsewhere(idx, need);
        self.0[idx].1.checked_sub(here.checked_mul(need.chunk_tokens)?)
    }

    /// How many of the full chunks find room on other workers than `idx`.
    fn elsewhere(&self, idx: usize, need: Need) -> u64 {
        let others = self.0.iter().enumerate().filter(|(other, _)| *other != idx);
        let chunks = others.map(|(_, (_, free))| free / need.chunk_tokens);
        chunks.fold(0, u64::saturating_add).min(need.full_chunks)
    }

    /// Why memory sets that take `set_tokens` of every worker have a place nowhere.
    pub(crate) fn too_small(&self, set_tokens: u64) -> Refusal {
        let largest = self.0.iter().map(|(_, free)| *free).max().unwrap_or_default();
        let bound = format!("at most {largest}, a worker's pool: lower local or heavy");
        Refusal::new("memory_tokens", set_tokens, bound)
    }

    /// Why `job`, for which there is no place, is too long.
    pub(crate) fn refusal(&self, job: &Job, page_tokens: u64) -> Refusal {
        let need = Need::of(job, page_tokens);
        let output_tokens = job.sharded.map_or(0, |sharded| sharded.output_tokens);
        let chunk_tokens = u64::from(job.grid.chunk_tokens());
        // Tokens of as many whole chunks as fit, and of what is left beside them.
        let fit = |pages: u64| {
            let last = pages % need.chunk_tokens / page_tokens * page_tokens;
            (pages / need.chunk_tokens).saturating_mul(chunk_tokens) + last
        };
        let at_home = |idx: usize| {
            let own = self.0[idx].1.checked_sub(output(job, page_tokens))?;
            let own = fit(own).min(u64::from(u32::MAX));
            (own > 0).then(|| self.elsewhere(idx, need) * chunk_tokens + own)
        };
        let Some(most) = (0..self.0.len()).filter_map(at_home).max() else {
            let largest = self.0.iter().map(|(_, free)| *free).max().unwrap_or_default();
            let bound = format!("below {largest}, the largest pool of a worker");
            return Refusal::new("max_tokens", output_tokens, bound);
        };
        let workers = self.0.len();
        let all = self.0.iter().fold(0, |sum: u64, (_, free)| sum.saturating_add(*free));
        let plural = if workers == 1 { "" } else { "s" };
        let beside = match output_tokens {
            0 => String::new(),
            tokens => format!(" beside {tokens} tokens to generate"),
        };
        let bound = format!(
            "at most {most}, what the pools of {workers} worker{plural} ({all} tokens) hold{beside}"
        );
        Refusal::new("prompt_tokens", job.grid.prompt_tokens(), bound)
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::ChunkGrid;
    use proptest::prelude::*;

    use super::*;
    use crate::words::Sharded;

    fn room(pools: &[u64]) -> Room {
        Room::new((0..).map(WorkerId).zip(pools.iter().copied()))
    }

    fn job(prompt_tokens: u32, chunk_tokens: u32, output_tokens: u64) -> Job {
        let grid = ChunkGrid::new(prompt_tokens, chunk_tokens).unwrap();
        let sharded = Some(Sharded { output_tokens, pruned: false, gathers: false });
        Job {
            grid,
            choices: 1,
            sharded,
            memory_tokens: 0,
            prefix: Vec::new().into(),
            resumes: false,
            priority: 0,
            arrived_at_ms: 0,
            deadline_at_ms: 0,
        }
    }

    #[test]
    fn chunks_go_round_where_there_is_room() {
        let check = |pools: &[u64], rotation, asked: Job, want: Option<&[u32]>| {
            let places = room(pools).place(Need::of(&asked, 1), rotation, &[]);
            let want = want.map(|want| want.iter().copied().map(WorkerId).collect::<Vec<_>>());
            assert_eq!(places, want, "{pools:?} {asked:?}");
        };
        let max = u64::MAX;
        check(&[max; 3], 0, job(45, 10, 0), Some(&[0, 1, 2, 0, 1]));
        check(&[max; 3], 2, job(45, 10, 0), Some(&[2, 0, 1, 2, 0]));
        check(&[10, 40], 0, job(45, 10, 0), Some(&[1, 1, 1, 1, 0]));
        check(&[10, 40], 0, job(45, 10, 5), Some(&[1, 1, 1, 1, 0]));
        check(&[10, 40], 0, job(45, 10, 6), None);
        check(&[12, 10], 0, job(12, 10, 0), Some(&[0, 1]));
        check(&[18, 18], 0, job(29, 10, 0), None);
        check(&[], 0, job(1, 10, 0), None);
    }

    #[test]
    fn wishes_are_heard_where_there_is_room() {
        let check = |pools: &[u64], wishes: &[Option<u32>], want: &[u32]| {
            let wishes: Vec<_> = wishes.iter().map(|wish| wish.map(WorkerId)).collect();
            let places = room(pools).place(Need::of(&job(45, 10, 0), 1), 0, &wishes);
            assert_eq!(places.unwrap(), want.iter().copied().map(WorkerId).collect::<Vec<_>>());
        };
        let max = u64::MAX;
        check(&[max; 3], &[Some(2), None, Some(2)], &[2, 0, 2, 1, 1]);
        check(&[max; 2], &[Some(7)], &[0, 1, 0, 1, 0]);
        check(&[20, 30], &[None, Some(0), Some(0), Some(0)], &[1, 0, 1, 1, 0]);
    }

    #[test]
    fn refusals_say_what_would_fit() {
        let check = |pools: &[u64], asked: Job, want: &str| {
            assert_eq!(room(pools).place(Need::of(&asked, 1), 0, &[]), None);
            assert_eq!(room(pools).refusal(&asked, 1).to_string(), want);
        };
        check(
            &[16384],
            job(57344, 1024, 0),
            "prompt_tokens = 57344: must be at most 16384, what the pools of 1 worker \
             (16384 tokens) hold",
        );
        check(
            &[20, 15],
            job(34, 10, 2),
            "prompt_tokens = 34: must be at most 33, what the pools of 2 workers (35 tokens) \
             hold beside 2 tokens to generate",
        );
        check(
            &[9, 5],
            job(1, 10, 9),
            "max_tokens = 9: must be below 9, the largest pool of a worker",
        );
    }

    /// Whether any placement holds the job, by trying every home.
    fn fits(pools: &[u64], asked: &Job, page_tokens: u64) -> bool {
        let need = Need::of(asked, page_tokens);
        (0..pools.len()).any(|home| {
            let mut free = pools.to_vec();
            let Some(left) = free[home].checked_sub(need.home_tokens.unwrap()) else {
                return false;
            };
            free[home] = left;
            free.iter().map(|free| free / need.chunk_tokens).sum::<u64>() >= need.full_chunks
        })
    }

    proptest! {
        #[test]
        fn what_fits_is_placed_within_the_pools(
            pools in prop::collection::vec(0u64..60, 1..5),
            rotation in any::<usize>(),
            wishes in prop::collection::vec(prop::option::of(0u32..6), 0..12),
            tokens in 1u32..200,
            chunk_tokens in 1u32..20,
            output_tokens in 0u64..30,
            page_tokens in 1u64..5,
        ) {
            let asked = job(tokens, chunk_tokens, output_tokens);
            let need = Need::of(&asked, page_tokens);
            let wishes: Vec<_> = wishes.into_iter().map(|wish| wish.map(WorkerId)).collect();
            let places = room(&pools).place(need, rotation, &wishes);
            prop_assert_eq!(places.is_some(), fits(&pools, &asked, page_tokens));
            let Some(places) = places else {
                let refusal = room(&pools).refusal(&asked, page_tokens);
                let most = refusal.bound.trim_start_matches("at most ").split(',').next().unwrap();
                if let Ok(most) = most.parse::<u32>() {
                    let shorter = job(most, chunk_tokens, output_tokens);
                    prop_assert!(most < tokens && fits(&pools, &shorter, page_tokens));
                } else {
                    let least = output(&asked, page_tokens) + page_tokens;
                    prop_assert!(pools.iter().all(|pool| *pool < least));
                }
                return Ok(());
            };
            prop_assert_eq!(places.len(), asked.grid.chunk_count() as usize);
            for (worker, pool) in (0..).map(WorkerId).zip(&pools) {
                let full = &places[..places.len() - 1];
                let held = full.iter().filter(|place| **place == worker).count() as u64;
                let home = need.home_tokens.filter(|_| places.last() == Some(&worker));
                prop_assert!(held * need.chunk_tokens + home.unwrap_or(0) <= *pool);
            }
        }
    }
}
