//! Room for keys: which workers can hold the shards of which chunks, or memory sets.

use aqueduct_core::{Refusal, WorkerId};

use crate::words::{Job, Windowed};

/// What is free in each worker's pool, in tokens.
#[derive(Debug, Clone)]
pub(crate) struct Room(Vec<(WorkerId, u64)>);

/// How the keys of a request lie in shards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    page_tokens: u64,
    /// Keys of each KV head that all shards together keep at most, where any are given up for their
    /// rank; otherwise 0.
    kept_tokens: u64,
    /// What of a chunk's keys is not kept, where none are given up for their rank.
    windowed: Windowed,
    /// Completions that have copies of the prompt's shards, as each gives up keys of its own.
    copies: u64,
}

/// Chunks of a request that one worker has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Chunks {
    count: u64,
    /// Of their keys, each chunk in whole pages; where layers keep fewer than others, as many as
    /// have as many bytes.
    tokens: u64,
    /// Of what the shard of each may keep, in whole pages too.
    kept_tokens: u64,
}

impl Keeping {
    pub(crate) fn of(job: &Job, page_tokens: u64) -> Self {
        let sharded = job.sharded.unwrap_or_default();
        let (kept_tokens, copies, windowed) = match sharded.pruned {
            true => (job.memory_tokens, job.choices.into(), Windowed::default()),
            false => (0, 0, sharded.windowed),
        };
        Self { page_tokens, kept_tokens, windowed, copies }
    }

    /// One chunk of so many tokens.
    pub(crate) fn chunk(self, tokens: u64) -> Chunks {
        let in_pages = |tokens: u64| tokens.next_multiple_of(self.page_tokens);
        let kept_tokens = in_pages(tokens.min(self.kept_tokens));
        let tokens = self.windowed.taken(tokens, self.page_tokens);
        Chunks { count: 1, tokens, kept_tokens }
    }

    /// Tokens that `chunks` take of their worker's pool: all of their keys during the prefill,
    /// and after it what is kept of them, once for the prompt and once for each completion.
    pub(crate) fn taken(self, chunks: Chunks) -> u64 {
        // Each shard that keeps any key may leave all but a cell of its last page unused.
        let unused = self.kept_tokens.min(chunks.count).saturating_mul(self.page_tokens - 1);
        let kept = self.kept_tokens.saturating_add(unused).min(chunks.kept_tokens);
        chunks.tokens.max(kept.saturating_mul(self.copies + 1))
    }
}

impl Chunks {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            tokens: self.tokens + other.tokens,
            kept_tokens: self.kept_tokens + other.kept_tokens,
        }
    }

    fn times(self, count: u64) -> Self {
        Self {
            count: self.count * count,
            tokens: self.tokens * count,
            kept_tokens: self.kept_tokens * count,
        }
    }
}

/// Chunks that need a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    keeping: Keeping,
    /// A full one.
    chunk: Chunks,
    pub(crate) full_chunks: u64,
    /// What only the home has, if it needs a place.
    pub(crate) home: Option<Home>,
}

/// What the home has beside full chunks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Home {
    /// The prompt's last chunk.
    last: Chunks,
    /// Of what is generated after it.
    output_tokens: u64,
}

impl Need {
    /// All chunks of `job`, in whole pages.
    pub(crate) fn of(job: &Job, page_tokens: u64) -> Self {
        let keeping = Keeping::of(job, page_tokens);
        let full_chunks = u64::from(job.grid.chunk_count()) - 1;
        let chunk_tokens = u64::from(job.grid.chunk_tokens());
        let last_tokens = u64::from(job.grid.prompt_tokens()) - full_chunks * chunk_tokens;
        let output_tokens = output(job, page_tokens);
        let home = Some(Home { last: keeping.chunk(last_tokens), output_tokens });
        Self { keeping, chunk: keeping.chunk(chunk_tokens), full_chunks, home }
    }

    /// The same, with a last chunk of so many tokens.
    fn ending(self, last_tokens: u64) -> Self {
        let last = self.keeping.chunk(last_tokens);
        Self { home: self.home.map(|home| Home { last, ..home }), ..self }
    }

    /// Tokens that so many full chunks take of a worker's pool, the home's if it `is_home`.
    fn taken(&self, full_chunks: u64, is_home: bool) -> u64 {
        let home = self.home.filter(|_| is_home).unwrap_or_default();
        let chunks = self.chunk.times(full_chunks).plus(home.last);
        self.keeping.taken(chunks).saturating_add(home.output_tokens)
    }

    /// How many of the full chunks `free` tokens hold; `None` if they are the home's and do not
    /// even hold the rest of that.
    fn held_by(&self, free: u64, is_home: bool) -> Option<u64> {
        let fits = |full_chunks| self.taken(full_chunks, is_home) <= free;
        fits(0).then(|| greatest(self.full_chunks, fits))
    }
}

/// The largest number up to `max` that `fits`, where 0 does and none above one that does not.
pub(crate) fn greatest(max: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut least, mut max) = (0, max);
    while least < max {
        let middle = max - (max - least) / 2;
        if fits(middle) {
            least = middle;
        } else {
            max = middle - 1;
        }
    }
    least
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
        let mut left = self.hold(need);
        let all: u64 = left.iter().sum();
        let after_full = rotation.wrapping_add(need.full_chunks as usize);
        // First of all, because it alone needs another size than all the others.
        let home = match need.home {
            Some(_) => {
                let at_home = |idx: usize| {
                    let own = need.held_by(self.0[idx].1, true)?;
                    (own + all - left[idx] >= need.full_chunks).then_some((idx, own))
                };
                let (idx, own) = around(after_full, left.len()).find_map(at_home)?;
                left[idx] = own;
                Some(idx)
            }
            None => None,
        };
        let mut places = vec![None; need.full_chunks as usize];
        for (place, wish) in places.iter_mut().zip(wishes) {
            let wish = wish.and_then(|wish| self.0.iter().position(|(worker, _)| *worker == wish));
            *place = wish.filter(|idx| left[*idx] > 0);
            place.iter().for_each(|idx| left[*idx] -= 1);
        }
        let mut start = rotation;
        for place in places.iter_mut().filter(|place| place.is_none()) {
            let idx = around(start, left.len()).find(|idx| left[*idx] > 0)?;
            left[idx] -= 1;
            *place = Some(idx);
            start = idx + 1;
        }
        Some(places.into_iter().chain([home]).flatten().map(|idx| self.0[idx].0).collect())
    }

    /// How many of the full chunks each worker holds that is not the home.
    fn hold(&self, need: Need) -> Vec<u64> {
        let hold = |(_, free): &(WorkerId, u64)| need.held_by(*free, false).unwrap_or_default();
        self.0.iter().map(hold).collect()
    }

    /// Why memory sets of `job` that take `set_tokens` of every worker, with one chunk in flight at
    /// a time, have a place nowhere.
    pub(crate) fn too_small(&self, set_tokens: u64, job: &Job) -> Refusal {
        let largest = self.0.iter().map(|(_, free)| *free).max().unwrap_or_default();
        let fewer = "lower local or heavy, or bound the policy";
        let bound = match job.state_tokens {
            states if states > 0 && job.choices > 1 => format!(
                "at most {largest}, a worker's pool, of which the states of each further \
                 completion take {states}: ask for fewer, {fewer}"
            ),
            _ => format!("at most {largest}, a worker's pool: {fewer}"),
        };
        Refusal::new("memory_tokens", set_tokens, bound)
    }

    /// Why `job`, for which there is no place, is too long.
    pub(crate) fn refusal(&self, job: &Job, page_tokens: u64) -> Refusal {
        let need = Need::of(job, page_tokens);
        let output_tokens = job.sharded.map_or(0, |sharded| sharded.output_tokens);
        let chunk_tokens = u64::from(job.grid.chunk_tokens());
        let hold = self.hold(need);
        let all: u64 = hold.iter().sum();
        // As many full chunks as fit, and a last one of what is left beside them.
        let at_home = |idx: usize| {
            let free = self.0[idx].1;
            let own = need.ending(1).held_by(free, true)?;
            let fits = |more: u64| need.ending(1 + more).taken(own, true) <= free;
            let last_tokens = 1 + greatest(chunk_tokens - 1, fits);
            let elsewhere = (all - hold[idx]).min(need.full_chunks);
            Some((elsewhere + own) * chunk_tokens + last_tokens)
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

/// All of `count` workers, from the one at `start` on.
fn around(start: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |step| (start % count + step) % count)
}

#[cfg(test)]
mod tests {
    use aqueduct_core::ChunkGrid;
    use proptest::prelude::*;

    use super::*;
    use crate::words::{Sharded, Windowed};

    fn room(pools: &[u64]) -> Room {
        Room::new((0..).map(WorkerId).zip(pools.iter().copied()))
    }

    fn job(prompt_tokens: u32, chunk_tokens: u32, output_tokens: u64) -> Job {
        let grid = ChunkGrid::new(prompt_tokens, chunk_tokens).unwrap();
        let sharded = Some(Sharded { output_tokens, ..Sharded::default() });
        Job {
            grid,
            choices: 1,
            sharded,
            memory_tokens: 0,
            state_tokens: 0,
            keeps_all: false,
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
    fn every_completion_has_copies_of_what_is_pruned() {
        let pruned = |prompt_tokens, choices, memory_tokens| {
            let sharded = Some(Sharded { pruned: true, ..Sharded::default() });
            Job { choices, sharded, memory_tokens, ..job(prompt_tokens, 10, 0) }
        };
        let check = |page_tokens, asked: Job, least: u64| {
            let need = Need::of(&asked, page_tokens);
            let fits = |pool| room(&[pool]).place(need, 0, &[]).is_some();
            assert!(fits(least) && !fits(least - 1), "{least}: {asked:?}");
        };
        check(1, pruned(40, 0, 25), 40);
        check(1, pruned(40, 1, 25), 2 * 25);
        check(1, pruned(40, 3, 25), 4 * 25);
        check(1, pruned(40, 1, 20), 40); // by then the prompt has given up as much
        check(1, pruned(40, 1, 99), 2 * 40);
        check(4, pruned(40, 1, 25), 2 * (25 + 4 * 3)); // each shard has a page that is not full
        check(4, pruned(5, 2, 3), 3 * 4);
        check(4, pruned(400, 1, 25), 12 * 40);
        let refusal = room(&[45]).refusal(&pruned(40, 1, 25), 1).to_string();
        let bound = "at most 22, what the pools of 1 worker (45 tokens) hold";
        assert_eq!(refusal, format!("prompt_tokens = 40: must be {bound}"));
    }

    #[test]
    fn layers_with_a_window_keep_the_end_of_each_chunk() {
        let windowed = |kept_tokens, bytes| {
            let windowed = Windowed { kept_tokens, bytes, all_bytes: 6 };
            let sharded = Some(Sharded { windowed, ..Sharded::default() });
            Job { sharded, memory_tokens: 45, ..job(45, 10, 0) }
        };
        let check = |page_tokens, asked: Job, least: u64| {
            let need = Need::of(&asked, page_tokens);
            let fits = |pool| room(&[pool]).place(need, 0, &[]).is_some();
            assert!(fits(least) && !fits(least - 1), "{least}: {asked:?}");
        };
        check(1, windowed(3, 0), 45);
        check(1, windowed(3, 3), 4 * (5 + 2) + 3 + 1); // a half of the layers, and of 5 tokens
        check(1, windowed(10, 5), 45);
        check(1, windowed(1, 5), 4 * 3 + 2);
        check(4, windowed(3, 3), 4 * (6 + 2) + 4 + 2);
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
            let holds = |(idx, pool): (usize, &u64)| {
                (0..=need.full_chunks).rev().find(|full| need.taken(*full, idx == home) <= *pool)
            };
            let all: Option<Vec<u64>> = pools.iter().enumerate().map(holds).collect();
            all.is_some_and(|all| all.iter().sum::<u64>() >= need.full_chunks)
        })
    }

    /// Most that shards of chunks of so many tokens take which keep `kept_tokens` together.
    fn worst(chunks: &[u64], kept_tokens: u64, page_tokens: u64) -> u64 {
        // The first key of a shard needs a page, and so does the first behind each full one.
        let costs = |tokens: &u64| {
            let pages = 0..tokens.div_ceil(page_tokens);
            pages.map(move |page| if page == 0 { 1 } else { page_tokens })
        };
        let mut costs: Vec<u64> = chunks.iter().flat_map(costs).collect();
        costs.sort_unstable();
        let mut left = kept_tokens;
        let paid = costs.iter().take_while(|cost| {
            let rest = left.checked_sub(**cost);
            left = rest.unwrap_or(0);
            rest.is_some()
        });
        paid.count() as u64 * page_tokens
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
            (pruned, choices, memory_tokens) in (any::<bool>(), 0u32..4, 0u64..60),
            (kept_tokens, bytes) in (0u64..20, 0u64..4),
        ) {
            let windowed = Windowed { kept_tokens, bytes, all_bytes: 3 };
            let of_tokens = |tokens: u32| {
                let sharded = Some(Sharded { output_tokens, pruned, gathers: false, windowed });
                Job { choices, sharded, memory_tokens, ..job(tokens, chunk_tokens, 0) }
            };
            let asked = of_tokens(tokens);
            let need = Need::of(&asked, page_tokens);
            let wishes: Vec<_> = wishes.into_iter().map(|wish| wish.map(WorkerId)).collect();
            let places = room(&pools).place(need, rotation, &wishes);
            prop_assert_eq!(places.is_some(), fits(&pools, &asked, page_tokens));
            let Some(places) = places else {
                let refusal = room(&pools).refusal(&asked, page_tokens);
                let most = refusal.bound.trim_start_matches("at most ").split(',').next().unwrap();
                if let Ok(most) = most.parse::<u32>() {
                    let shorter = of_tokens(most);
                    prop_assert!(most < tokens && fits(&pools, &shorter, page_tokens));
                } else {
                    let least = need.ending(1).taken(0, true);
                    prop_assert!(pools.iter().all(|pool| *pool < least));
                }
                return Ok(());
            };
            prop_assert_eq!(places.len(), asked.grid.chunk_count() as usize);
            for (worker, pool) in (0..).map(WorkerId).zip(&pools) {
                let here = asked.grid.chunks().zip(&places).filter(|(_, place)| **place == worker);
                let here: Vec<u64> = here.map(|(span, _)| span.tokens.into()).collect();
                // In thirds of a token: some layers keep few keys of a chunk, the others all.
                let third = |tokens: u64| tokens.next_multiple_of(page_tokens);
                let of_chunk = |tokens: &u64| match pruned {
                    true => 3 * third(*tokens),
                    false => (3 - bytes) * third(*tokens) + bytes * third(kept_tokens.min(*tokens)),
                };
                let given = here.iter().map(of_chunk).sum::<u64>().div_ceil(3);
                let copies = if pruned { u64::from(choices) + 1 } else { 0 };
                let kept = worst(&here, memory_tokens, page_tokens) * copies;
                let is_home = places.last() == Some(&worker);
                let output_tokens = if is_home { output(&asked, page_tokens) } else { 0 };
                prop_assert!(given.max(kept) + output_tokens <= *pool);
            }
        }
    }
}
