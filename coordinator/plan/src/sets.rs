//! What memory sets that are handed from chunk to chunk take of pools.

use crate::request::HELD_CHUNKS;
use crate::room::greatest;
use crate::words::Job;

/// Room that the sets of one request take, in tokens of a pool. States lie beside pools and count
/// as the tokens whose keys are as many bytes, so that a pool's size bounds both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sets {
    /// Of any worker that has a chunk of it, for as long as chunks are done: those that chunks in
    /// flight are at work on and done ones keep (one more where it spares bytes), then those of
    /// further completions.
    pub(crate) all: u64,
    /// Of the home, as long as it decodes: one set for each completion.
    pub(crate) decoding: u64,
    /// Of who keeps one of them.
    pub(crate) one: u64,
}

impl Sets {
    /// Those of `job`, of which so many chunks are in flight at most, none where its keys stay in
    /// shards. Of a pool that would hold them without the states of chunks, these take the rest at
    /// most: `pools` are the workers'. So states are no reason to refuse what has one completion;
    /// it begins when nobody else is there.
    pub(crate) fn of(
        job: &Job,
        (window, page_tokens): (usize, u64),
        pools: impl Iterator<Item = u64>,
    ) -> Self {
        if job.sharded.is_some() {
            return Self::default();
        }
        let chunks = u64::from(job.grid.chunk_count());
        let window = window as u64;
        let kept = 2 + HELD_CHUNKS as u64;
        let keys = job.memory_tokens.next_multiple_of(page_tokens);
        let one = keys.saturating_add(job.state_tokens);
        // They may share the prompt's pages, but not on a device without pages, nor where they were
        // handed over; so each completion counts as a whole.
        let further = one.saturating_mul(u64::from(job.choices.max(1)) - 1);
        let least = keys.saturating_mul((window + kept).min(chunks)).saturating_add(further);
        // What waits for the set before it has no state yet.
        let states = job.state_tokens.saturating_mul(kept.min(chunks));
        let spare = pools.filter(|pool| *pool >= least).map(|pool| pool - least).min();
        let all = least.saturating_add(states.min(spare.unwrap_or(0)));
        Self { all, decoding: one.saturating_add(further).min(all), one: one.min(all) }
    }
}

/// How many chunks of `job` may be in flight at once: at most `window`, and above the first no more
/// than have room for their sets in the largest of `pools`. So a pool that holds the sets of one
/// chunk at a time takes the request, more slowly than it might.
pub(crate) fn window_that_fits(
    job: &Job,
    (window, page_tokens): (usize, u64),
    pools: impl Iterator<Item = u64>,
) -> usize {
    let largest = pools.max().unwrap_or(0);
    // Of states, chunks take what a pool has left: they leave no pool too small for a window.
    let fits = |further: u64| {
        let window = 1 + further as usize;
        Sets::of(job, (window, page_tokens), [largest].into_iter()).all <= largest
    };
    1 + greatest(window.saturating_sub(1) as u64, fits) as usize
}

#[cfg(test)]
mod tests {
    use aqueduct_core::ChunkGrid;

    use super::*;

    /// Of 95 tokens in chunks of 10, of which two are in flight at once.
    fn job(choices: u32, memory_tokens: u64, state_tokens: u64) -> Job {
        Job {
            grid: ChunkGrid::new(95, 10).unwrap(),
            choices,
            sharded: None,
            memory_tokens,
            state_tokens,
            keeps_all: false,
            prefix: Vec::new().into(),
            resumes: false,
            priority: 0,
            arrived_at_ms: 0,
            deadline_at_ms: 0,
        }
    }

    fn check(job: &Job, pools: &[u64], want: [u64; 3]) {
        let sets = Sets::of(job, (2, 4), pools.iter().copied());
        assert_eq!([sets.all, sets.decoding, sets.one], want, "{job:?} {pools:?}");
    }

    #[test]
    fn chunks_have_sets_until_completions_have() {
        check(&job(0, 7, 0), &[u64::MAX], [6 * 8, 8, 8]);
        check(&job(1, 7, 0), &[u64::MAX], [6 * 8, 8, 8]);
        check(&job(3, 7, 0), &[], [8 * 8, 3 * 8, 8]);
        let short = Job { grid: ChunkGrid::new(5, 10).unwrap(), ..job(3, 7, 0) };
        check(&short, &[10], [3 * 8, 3 * 8, 8]);
    }

    #[test]
    fn states_take_room_too() {
        check(&job(1, 8, 50), &[u64::MAX], [6 * 8 + 4 * 50, 58, 58]);
        check(&job(3, 8, 50), &[u64::MAX], [6 * 8 + 4 * 50 + 2 * 58, 3 * 58, 58]);
    }

    #[test]
    fn states_of_chunks_take_no_more_than_there_is() {
        check(&job(1, 8, 50), &[1000, 100, 40], [100, 58, 58]);
        check(&job(1, 8, 50), &[50, 40], [50, 50, 50]);
        // Those of completions do.
        check(&job(2, 8, 50), &[50, 40], [6 * 8 + 58, 6 * 8 + 58, 58]);
    }

    #[test]
    fn no_more_chunks_are_in_flight_than_a_pool_has_room_for() {
        let check = |job: &Job, pools: &[u64], want: usize| {
            let window = window_that_fits(job, (4, 4), pools.iter().copied());
            assert_eq!(window, want, "{job:?} {pools:?}");
        };
        check(&job(1, 7, 0), &[u64::MAX], 4);
        check(&job(1, 7, 0), &[8 * 8, 10], 4);
        check(&job(1, 7, 0), &[8 * 8 - 1], 3);
        check(&job(1, 7, 0), &[5 * 8], 1);
        check(&job(2, 7, 0), &[6 * 8], 1);
        // Not even one: refused with what one would take.
        check(&job(1, 7, 0), &[5 * 8 - 1], 1);
        check(&job(1, 7, 0), &[], 1);
        // States of chunks take what is left; those of completions come first.
        check(&job(1, 8, 50), &[8 * 8], 4);
        check(&job(2, 8, 50), &[7 * 8 + 58], 3);
        let sharded = Job { sharded: Some(crate::words::Sharded::default()), ..job(1, 7, 0) };
        check(&sharded, &[], 4);
    }
}
