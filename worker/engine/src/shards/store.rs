//! The shards that one worker holds, and what it answers about them.

mod drops;
mod kept;
mod layer;
mod room;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aqueduct_core::work::RetainedMass;
use aqueduct_core::{Epoch, Refusal, RequestId};
use aqueduct_kernels::fold::{Missing, Node};
use aqueduct_kernels::shard::best;
use aqueduct_kernels::{
    AttentionState, BackendError, Candidate, Cutoff, Heads, Passed, Pool, Shard, Tally, Window,
};

use super::place::{Branch, Place, ShardKey};
use super::port::Spent;
use super::round::{Round, RoundStep};
use super::states::{Masses, Whole, states_over};
use crate::model::Model;
use crate::prefill::selection_of;
use layer::Layer;

/// Requests remembered as forgotten, so that nobody waits for their shards.
const FORGOTTEN_MAX: usize = 4096;

/// What is asked may not be there yet.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer<T> {
    /// Here it is.
    Ready(T),
    /// A shard is still to be computed, or to be settled by the block before: ask again when the
    /// store has changed.
    NotYet,
}

/// Shards by chunk.
pub type Shards = BTreeMap<u32, Arc<Shard>>;

type Tallies = Arc<BTreeMap<u32, Tally>>;

/// States that a holder gives, each of a node of the fold.
pub type States = Vec<(Node, AttentionState)>;

/// The best candidates of a holder's shards together, per KV head.
pub type Standing = Vec<Vec<Candidate>>;

/// What cannot be answered, now or later.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ShardError {
    /// It is out of date, was never asked, or names what is not there.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The backend refused or found something broken.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A chunk that the place does not name.
    #[error(transparent)]
    Missing(#[from] Missing),
}

/// Shards by request, continuation, layer and chunk. Shared by threads; what computes does so
/// outside the lock.
#[derive(Debug)]
pub struct ShardStore {
    bytes_max: u64,
    /// Where shards lie, if not in memory of their own.
    pool: Option<Pool>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    layers: BTreeMap<(RequestId, Branch, u32), Layer>,
    bytes: u64,
    forgotten: VecDeque<Forgotten>,
}

/// A request of which nothing is kept, unless it is claimed.
#[derive(Debug)]
struct Forgotten {
    request: RequestId,
    /// It may be: who asks about it waits.
    may_return: bool,
}

impl Default for ShardStore {
    /// Nothing yet, and no bound.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl ShardStore {
    /// Nothing yet, and at most `bytes_max` ever.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, pool: None, state: Mutex::default() }
    }

    /// Nothing yet, and shards in pages of `pool`, which bounds them.
    pub fn in_pool(pool: Option<Pool>) -> Self {
        Self { pool, ..Self::default() }
    }

    /// Keeps a shard; one of an older epoch goes, and so do those that completions made of it.
    ///
    /// # Errors
    /// No room; a request that was forgotten, perhaps while this was computed.
    pub fn put(&self, key: ShardKey, shard: Arc<Shard>) -> Result<(), ShardError> {
        self.insert(key, self.lay(shard)?)
    }

    /// The same, where it lies already.
    fn insert(&self, key: ShardKey, shard: Arc<Shard>) -> Result<(), ShardError> {
        let mut state = self.lock();
        state.check_held(key.request)?;
        state.room_for(shard.bytes() as u64, self.bytes_max)?;
        state.change((key.request, key.branch, key.layer), |layer| {
            layer.shards.insert(key.chunk_idx, (key.epoch, shard));
        });
        state.drop_older(key);
        Ok(())
    }

    /// Adds the keys of `own`, a later block of the chunk of `key`, to what is held of it.
    ///
    /// # Errors
    /// No room, what the backend refuses, or a request that was forgotten.
    pub fn append(&self, model: &Model, key: ShardKey, own: Arc<Shard>) -> Result<(), ShardError> {
        let mut state = self.lock();
        state.check_held(key.request)?;
        state.room_for(own.bytes() as u64, self.bytes_max)?;
        let place = (key.request, key.branch, key.layer);
        let before = state.change(place, |layer| layer.shards.remove(&key.chunk_idx));
        let whole = match before {
            // Under the lock: nobody else holds it then, and it grows in place.
            Some((epoch, before)) if epoch == key.epoch => {
                Arc::new(before.append(model.backend(), &own)?)
            }
            _ => self.lay(own)?,
        };
        state.change(place, |layer| layer.shards.insert(key.chunk_idx, (key.epoch, whole)));
        Ok(())
    }

    /// Round one: the states of the queries `q` over the shards of `place`, of the fewest nodes.
    ///
    /// # Errors
    /// A place that is out of date, or what the backend refuses.
    pub fn attend(
        &self,
        model: &Model,
        place: &Place,
        q: &Arc<Heads>,
    ) -> Result<Answer<States>, ShardError> {
        let Answer::Ready(shards) = self.lock().find(place)? else { return Ok(Answer::NotYet) };
        let states = states_over(model, place, q, &shards)?;
        if place.is_scored() {
            self.begin_round(place, q)?;
        }
        Ok(Answer::Ready(states))
    }

    fn begin_round(&self, place: &Place, q: &Arc<Heads>) -> Result<(), Refusal> {
        let mut state = self.lock();
        state.check_held(place.request)?; // forgotten while its states were computed, perhaps
        state.room_for(q.data.bytes() as u64, self.bytes_max)?;
        let round = Round::asked(place, q.clone());
        state.change(at(place), |layer| {
            // Asked once more, perhaps long ago: what was counted since remains.
            if !layer.round.as_ref().is_some_and(|round| round.is_of(place)) {
                layer.begin(round);
            }
        });
        Ok(())
    }

    /// The shards of `place` themselves, for an asker that attends to them by itself.
    ///
    /// # Errors
    /// A place that is out of date.
    pub fn shards(&self, place: &Place) -> Result<Answer<Shards>, ShardError> {
        self.lock().find(place)
    }

    /// Round two: counts what the block spends on every key, by the log-sum-exps of its merged
    /// state where it was not counted already, and names the best candidates.
    ///
    /// # Errors
    /// A block whose queries did not come first though they are needed, masses of other keys than
    /// those held, or what the backend refuses.
    pub fn weigh(
        &self,
        model: &Model,
        place: &Place,
        spent: &Spent,
    ) -> Result<Standing, ShardError> {
        let selection = selection_of(&place.policy, model.window(place.layer as usize));
        let passed = Passed { selection: &selection, end: place.end() };
        let (shards, tallies) = self.tallies(model, place, spent)?;
        let candidates: Vec<Standing> = shards
            .iter()
            .filter_map(|(chunk, shard)| Some(shard.candidates(tallies.get(chunk)?, passed)))
            .collect();
        Ok(best_of(candidates, selection.heavy.saturating_add(1)))
    }

    /// What each shard of `place` scores, counted once.
    fn tallies(
        &self,
        model: &Model,
        place: &Place,
        spent: &Spent,
    ) -> Result<(Shards, Tallies), ShardError> {
        let (shards, q) = {
            let state = self.lock();
            let shards = match state.find(place)? {
                Answer::Ready(shards) => shards,
                Answer::NotYet => return Err(place.unasked().into()),
            };
            match state.round(place) {
                Some(RoundStep::Asked(q)) => (shards, Some(q.clone())),
                Some(RoundStep::Counted(tallies)) => return Ok((shards, tallies.clone())),
                Some(RoundStep::Settled(_)) => return Err(place.unasked().into()),
                None => (shards, None),
            }
        };
        let ranking = selection_of(&place.policy, None).ranking;
        let mut masses = Masses::new();
        // Of a shard that has given up all keys nothing is told, and there is nothing to count.
        let is_told = |chunk: &u32| spent.masses.contains_key(chunk);
        let own = shards.iter().filter(|(chunk, shard)| !is_told(chunk) && shard.keys() > 0);
        for whole in Whole::of_each(own)? {
            let q = q.as_ref().ok_or_else(|| place.unasked())?;
            let want = q.heads * q.tokens;
            Refusal::unless_within("lse", spent.lse.len(), want, want)?;
            let queries = model.queries(place.layer as usize, q, place.start);
            masses.extend(whole.masses(model.backend(), queries, &spent.lse, &ranking)?);
        }
        // Counting, and naming candidates after it, cannot fail.
        shards.values().try_for_each(|shard| shard.fetch_lists())?;
        let count = |(&chunk, shard): (&u32, &Arc<Shard>)| {
            let masses = masses.get(&chunk).or_else(|| spent.masses.get(&chunk));
            let masses = masses.map_or(&[][..], Vec::as_slice);
            Refusal::unless_within("masses", masses.len(), shard.keys(), shard.keys())?;
            Ok((chunk, shard.count(masses, place.tokens as usize, &ranking)))
        };
        let tallies = shards.iter().map(count).collect::<Result<BTreeMap<_, _>, ShardError>>()?;
        let tallies = Arc::new(tallies);
        let mut state = self.lock();
        state.check_held(place.request)?; // forgotten while it was counted, perhaps
        match state.round(place) {
            Some(RoundStep::Asked(_)) => state.step(place, RoundStep::Counted(tallies.clone())),
            Some(_) => {} // asked once more meanwhile
            None if matches!(state.find(place)?, Answer::Ready(_)) => {
                let round = Round::counted(place, tallies.clone());
                state.change(at(place), |layer| layer.begin(round));
            }
            None => return Err(place.unasked().into()),
        }
        Ok((shards, tallies))
    }

    /// The end of round two: gives up what `cutoffs`, one for each KV head, do not let stay.
    /// `window` bounds what rows of the layer see. Returns the mass that each chunk's shard kept.
    ///
    /// # Errors
    /// A block that was not weighed first, or no room for what stays.
    pub fn settle(
        &self,
        place: &Place,
        cutoffs: &[Cutoff],
        window: Option<Window>,
    ) -> Result<Vec<(u32, RetainedMass)>, ShardError> {
        let mut state = self.lock();
        if let Some(masses) = state.layers.get(&at(place)).and_then(|layer| layer.settled(place)) {
            return Ok(masses.clone());
        }
        let Some(RoundStep::Counted(tallies)) = state.round(place) else {
            return Err(place.unasked().into());
        };
        let tallies = tallies.clone();
        let Answer::Ready(shards) = state.find(place)? else { return Err(place.unasked().into()) };
        let kv_heads = shards.values().next().map_or(cutoffs.len(), |shard| shard.kv_heads());
        Refusal::unless_within("cutoffs", cutoffs.len(), kv_heads, kv_heads)?;
        let selection = selection_of(&place.policy, window);
        let passed = Passed { selection: &selection, end: place.end() };
        let settle = |layer: &mut Layer| {
            let mut masses = Vec::with_capacity(place.shards.len());
            for (&(chunk, epoch), shard) in place.shards.iter().zip(shards.into_values()) {
                let tally = tallies.get(&chunk).cloned().ok_or_else(|| place.unasked())?;
                let total = shard.mass_in(&tally, passed);
                layer.shards.remove(&chunk); // not held twice, so that it may change in place
                let shard = Arc::new(shard.settle(tally, cutoffs, passed)?);
                masses.push((chunk, RetainedMass { kept: shard.mass(passed), total }));
                layer.shards.insert(chunk, (epoch, shard));
            }
            Ok::<_, ShardError>(masses)
        };
        let masses = state.change(at(place), settle)?;
        state.step(place, RoundStep::Settled(masses.clone()));
        Ok(masses)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The shards that `place` names, if all are there as the block must find them.
    fn find(&self, place: &Place) -> Result<Answer<Shards>, ShardError> {
        self.check_forgotten(place.request, |it| !it.may_return)?;
        let mut found = BTreeMap::new();
        for &(chunk, epoch) in place.shards.iter() {
            let Some((held, shard)) = self.shard(place, chunk) else { return Ok(Answer::NotYet) };
            if *held < epoch || (place.is_scored() && shard.end() < place.start) {
                return Ok(Answer::NotYet);
            }
            if *held > epoch {
                let bound = format!("{}, that of the shard held here", held.0);
                return Err(Refusal::new("epoch", epoch.0, bound).into());
            }
            if place.is_scored() && shard.end() != place.start {
                let bound = format!("{}, where the shard held here ends", shard.end());
                return Err(Refusal::new("start", place.start, bound).into());
            }
            found.insert(chunk, shard.clone());
        }
        Ok(Answer::Ready(found))
    }

    fn check_held(&self, request: RequestId) -> Result<(), Refusal> {
        self.check_forgotten(request, |_| true)
    }

    fn check_forgotten(
        &self,
        request: RequestId,
        counts: impl Fn(&Forgotten) -> bool,
    ) -> Result<(), Refusal> {
        let is_gone = self.forgotten.iter().any(|it| it.request == request && counts(it));
        let held = (!is_gone).then_some(());
        held.ok_or_else(|| Refusal::new("request", request, "one that is held here"))
    }

    /// A continuation's own shard, or the prompt's.
    fn shard(&self, place: &Place, chunk: u32) -> Option<&(Epoch, Arc<Shard>)> {
        let of =
            |branch| self.layers.get(&(place.request, branch, place.layer))?.shards.get(&chunk);
        of(place.branch).or_else(|| of(Branch::PROMPT))
    }

    /// How far the round of `place`'s block is.
    fn round(&self, place: &Place) -> Option<&RoundStep> {
        let round = self.layers.get(&at(place))?.round.as_ref()?;
        round.is_of(place).then_some(&round.step)
    }

    fn step(&mut self, place: &Place, step: RoundStep) {
        if self.round(place).is_some() {
            self.change(at(place), |layer| {
                if let Some(round) = layer.round.as_mut() {
                    round.step = step;
                }
            });
        }
    }

    /// Changes a layer and keeps count of the bytes.
    fn change<T>(
        &mut self,
        at: (RequestId, Branch, u32),
        change: impl FnOnce(&mut Layer) -> T,
    ) -> T {
        let layer = self.layers.entry(at).or_default();
        let before = layer.bytes();
        let changed = change(layer);
        self.bytes = self.bytes - before + layer.bytes();
        changed
    }
}

/// The best of all, per KV head, in order.
fn best_of(all: Vec<Standing>, most: usize) -> Standing {
    let kv_heads = all.first().map_or(0, Vec::len);
    let head = |g: usize| all.iter().filter_map(move |shard| shard.get(g)).flatten().copied();
    (0..kv_heads).map(|g| best(head(g).collect(), most)).collect()
}

fn at(place: &Place) -> (RequestId, Branch, u32) {
    (place.request, place.branch, place.layer)
}

#[cfg(test)]
mod tests {
    use aqueduct_core::MemoryPolicy;

    use super::*;

    /// A block of a token, behind one chunk.
    fn block(request: RequestId, start: u32) -> Place {
        Place {
            request,
            branch: Branch::PROMPT,
            layer: 0,
            epoch: Epoch(0),
            start,
            tokens: 1,
            chunks: 1,
            shards: [(0, Epoch(0))].into(),
            policy: MemoryPolicy::h2o(1, 2, 3),
        }
    }

    /// The answer to the first may be lost while the second is computed.
    #[test]
    fn what_a_block_settled_is_told_again_when_the_next_has_asked() {
        let store = ShardStore::default();
        let blocks = |count: u32| (0..count).map(|idx| block(RequestId(1), 8 + idx));
        let q = Arc::new(Heads::zeros(2, 1, 4));
        let masses =
            |place: &Place| vec![(0, RetainedMass { kept: f64::from(place.start), total: 99.0 })];
        for place in blocks(20) {
            store.begin_round(&place, &q).unwrap();
            assert_eq!(store.settle(&place, &[], None), Err(place.unasked().into()));
            store.lock().step(&place, RoundStep::Settled(masses(&place)));
        }
        for (idx, place) in blocks(20).enumerate() {
            let told = store.settle(&place, &[], None);
            let want = if idx < 3 { Err(place.unasked().into()) } else { Ok(masses(&place)) };
            assert_eq!(told, want, "block {idx}: the last one, and 16 before it");
        }
    }

    /// Found by `bench soak`: states take long, and the request may end meanwhile.
    #[test]
    fn a_round_of_a_forgotten_request_is_not_begun() {
        let (store, request) = (ShardStore::default(), RequestId(1));
        let place = block(request, 8);
        let q = Arc::new(Heads::zeros(2, 1, 4));
        assert_eq!(store.begin_round(&place, &q), Ok(()));
        assert!(store.bytes() > 0);
        store.forget(request);
        assert_eq!(store.begin_round(&place, &q).unwrap_err().field, "request");
        store.lock().step(&place, RoundStep::Asked(q));
        assert_eq!((store.bytes(), store.lock().layers.len()), (0, 0));
    }

    /// Who asks may have heard that it has come back before this worker has.
    #[test]
    fn who_asks_about_a_request_that_may_come_back_waits() {
        let (store, request) = (ShardStore::default(), RequestId(1));
        let place = block(request, 8);
        store.forget(request);
        assert!(matches!(store.shards(&place), Err(ShardError::Refused(_))));
        store.readmit();
        assert!(matches!(store.shards(&place), Ok(Answer::NotYet)));
        let q = Arc::new(Heads::zeros(2, 1, 4));
        assert!(store.begin_round(&place, &q).is_err(), "of before: nobody would forget it again");
        store.forget(request);
        assert!(matches!(store.shards(&place), Err(ShardError::Refused(_))));
        store.claim(request);
        assert!(matches!(store.shards(&place), Ok(Answer::NotYet)));
        assert_eq!(store.begin_round(&place, &q), Ok(()));
    }

    /// A step of a batch hears of the end of one of its requests and keeps what it has computed.
    #[test]
    fn a_shard_of_a_forgotten_request_is_not_kept() {
        let (store, request) = (ShardStore::default(), RequestId(1));
        let (branch, layer, chunk_idx, epoch) = (Branch::PROMPT, 0, 0, Epoch(0));
        let key = ShardKey { request, branch, layer, chunk_idx, epoch };
        let set = aqueduct_kernels::MemorySet::empty(1, 2, aqueduct_kernels::KvDtype::F32);
        let shard = Arc::new(Shard::new(set.keys, 0));
        assert_eq!(store.put(key, shard.clone()), Ok(()));
        store.forget(request);
        assert!(matches!(store.put(key, shard.clone()), Err(ShardError::Refused(_))));
        assert_eq!(store.lock().layers.len(), 0);
        store.claim(request);
        assert_eq!(store.put(key, shard), Ok(()));
    }
}
