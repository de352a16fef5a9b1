//! Which keys a memory set keeps, decided and copied on the device.
//!
//! Nothing is read back: how many keys stay follows from counts ([`held`]).

mod anew;
pub(super) mod held;
mod step;
mod sums;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;

use self::held::{Held, Turn};
use super::device::Launch;
use super::resident::OnDevice;
use super::{Cuda, Shared};
use crate::array::Array;
use crate::backend::{BackendError, Selected};
use crate::memory::{Keys, MemorySet, Ranking, Selection};
use crate::{select, shapes};

/// Threads of the kernels that work on a head each.
const THREADS: u32 = 1024;
/// `Scratch` and `ReplaceScratch` of `select.cu`.
const SCRATCH_BYTES: usize = 4 * 2048 + 16 * 32 + 16;
/// What compute capability 9.0 has of a block's shared memory for itself, which a driver may count
/// among what may be asked for, or not.
const RESERVED_BYTES: usize = 1024;

/// Votes of a block's keys, the same for every layer that it passes.
#[derive(Default)]
pub(crate) struct Voting {
    last: Mutex<Option<Votes>>,
}

#[derive(Clone)]
struct Votes {
    ranking: Ranking,
    tokens: usize,
    /// What every past key gains.
    past: f32,
    /// `[tokens]`.
    own: OnDevice<f32>,
}

impl Voting {
    fn of(&self, shared: &Arc<Shared>, ranking: Ranking, tokens: usize) -> Answer<Votes> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(votes) = &*last
            && (votes.ranking, votes.tokens) == (ranking, tokens)
        {
            return Ok(votes.clone());
        }
        let (past, own) = select::votes(&ranking.row_weights(tokens));
        let own = OnDevice::of(shared, &own)?;
        Ok(last.insert(Votes { ranking, tokens, past, own }).clone())
    }
}

type Answer<T> = Result<T, BackendError>;

impl Cuda {
    /// See [`SelectionOps::select`](crate::SelectionOps::select). Own positions that are on the
    /// device alone are taken for what they must be: reading them would wait for the device.
    pub(super) fn select_keys(
        &self,
        past: Arc<MemorySet>,
        own: &Keys,
        masses: (&Array<f32>, &Array<f32>),
        selection: &Selection,
    ) -> Result<Selected, BackendError> {
        shapes::selection_sizes(&past, own, (masses.0.len(), masses.1.len()), selection)?;
        if own.positions.on_host().is_some() || self.shared.options.checked {
            own.positions.host()?;
            shapes::following(past.end, own)?;
        }
        let plan = Plan::new(&self.shared, &past, own, selection)?;
        let job = Job { shared: &self.shared, voting: &self.voting, own, masses, selection, plan };
        let selected = match Arc::try_unwrap(past) {
            Ok(set) if own.len() == 1 && job.plan.given_up <= 1 => job.step(set)?,
            Ok(set) => job.anew(&set, job.plan.kept())?,
            Err(shared) => job.anew(&shared, job.plan.kept())?,
        };
        self.shared.done(selected)
    }
}

/// How many keys stay, and of which span.
struct Plan {
    turn: Turn,
    candidates: Range<u32>,
    /// Keys that each head gives up.
    given_up: usize,
    /// What is then known of the set.
    held: Held,
}

impl Plan {
    fn new(
        shared: &Arc<Shared>,
        past: &MemorySet,
        own: &Keys,
        selection: &Selection,
    ) -> Answer<Self> {
        let turn = Turn { end: past.end, past: past.keys.len(), own: own.len() };
        let candidates = turn.candidates(selection);
        let held = match past.keys.positions.resident::<OnDevice<u32>>().and_then(|it| it.held()) {
            Some(held) => held,
            None if selection.keep_all => Held::nothing(past.end),
            None => Held::of(&past.keys, past.end)?,
        };
        let own = turn.own_within(&candidates);
        let given_up = match (selection.keep_all, held.past_within(&turn, &candidates)) {
            (true, _) => 0,
            (false, Some(past)) => (past + own).saturating_sub(selection.heavy),
            (false, None) => {
                let fewest = count(&past.keys, &candidates)?.into_iter().min().unwrap_or(0);
                (fewest + own).saturating_sub(selection.heavy)
            }
        };
        if shared.options.checked
            && let Some(known) = held.past_within(&turn, &candidates)
        {
            let counted = count(&past.keys, &candidates)?;
            assert!(counted.iter().all(|&it| it == known), "{held:?} is not so at {turn:?}");
        }
        let held = held.after(&turn, &candidates, given_up > 0);
        Ok(Self { turn, candidates, given_up, held })
    }

    /// Keys of each head that stay.
    fn kept(&self) -> usize {
        self.turn.past + self.turn.own - self.given_up
    }
}

/// Keys of each head whose positions are within `span`; waits for the device.
fn count(keys: &Keys, span: &Range<u32>) -> Answer<Vec<usize>> {
    keys.positions.host()?;
    let within = |g: usize| {
        let positions = keys.head_positions(g);
        let below = |bound: u32| positions.partition_point(|&position| position < bound);
        below(span.end) - below(span.start)
    };
    Ok((0..keys.kv_heads()).map(within).collect())
}

impl Shared {
    /// A kernel of which a block works on one KV head.
    fn run_per_head<P: Pod>(
        &self,
        kernel: &'static str,
        kv_heads: usize,
        shared_bytes: usize,
        params: &P,
    ) -> Answer<()> {
        let (grid, params) = ([kv_heads as u32, 1, 1], bytemuck::bytes_of(params));
        self.run(&Launch { kernel, grid, threads: THREADS, shared_bytes, params })
    }
}

/// One selection.
struct Job<'a> {
    shared: &'a Arc<Shared>,
    voting: &'a Voting,
    own: &'a Keys,
    masses: (&'a Array<f32>, &'a Array<f32>),
    selection: &'a Selection,
    plan: Plan,
}
