//! Keys that stay where they were computed: every worker's real store, and a block's door to all
//! of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use aqueduct_core::work::{Assignment, RetainedMass};
use aqueduct_core::{Directory, Epoch, MemoryPolicy, RequestId, TokenId};
use aqueduct_engine::shards::{
    Answer, Branch, ChunkEnds, Place, ShardError, ShardKey, Shards, Spent, Standing, States,
};
use aqueduct_engine::{
    EngineError, Found, Model, Past, PortError, Remembered, ShardPort, ShardStore, Turn, decode,
};
use aqueduct_kernels::{Cutoff, Heads, Shard};

use crate::worker::idx_of;

/// What workers reach of each other at this moment.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// Stores of processes that answer, by worker.
    pub(crate) stores: Vec<Option<Arc<ShardStore>>>,
    /// Pairs that do not reach each other, the smaller first.
    pub(crate) apart: BTreeSet<(usize, usize)>,
    /// So many calls from now the way breaks.
    pub(crate) breaks_after: Option<u64>,
}

/// Shared by all workers.
pub(crate) type Ways = Rc<RefCell<Reach>>;

impl Reach {
    fn store(&mut self, from: usize, to: usize) -> Option<Arc<ShardStore>> {
        if from != to {
            if self.breaks_after == Some(0) || self.apart.contains(&(from.min(to), from.max(to))) {
                return None;
            }
            self.breaks_after = self.breaks_after.map(|calls| calls - 1);
        }
        self.stores.get(to)?.clone()
    }
}

/// Which shards a block looks at, and where they are.
#[derive(Debug, Clone)]
pub(crate) struct Holders {
    request: RequestId,
    policy: MemoryPolicy,
    /// Of each chunk but the last.
    chunk_tokens: u32,
    /// By worker: chunk and epoch of each shard there.
    shards: Vec<(usize, Vec<(u32, Epoch)>)>,
}

impl Holders {
    /// Of the chunks before the one that `work` assigns.
    pub(crate) fn before(work: &Assignment, directory: &Directory) -> Self {
        let mut shards: Vec<_> =
            directory.holders.iter().map(|holder| (idx_of(holder), Vec::new())).collect();
        for (chunk, (holder, epoch)) in (0..).zip(&directory.shards) {
            shards[*holder as usize].1.push((chunk, *epoch));
        }
        let (request, policy, chunk_tokens) = (work.key.request, work.policy, work.chunk_tokens);
        Self { request, policy, chunk_tokens, shards }
    }

    fn add(&mut self, worker: usize, chunk: u32, epoch: Epoch) {
        match self.shards.iter_mut().find(|(holder, _)| *holder == worker) {
            Some((_, shards)) => shards.push((chunk, epoch)),
            None => self.shards.push((worker, vec![(chunk, epoch)])),
        }
    }
}

/// Whether a block can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standings {
    /// Every shard is there, as the block must find it.
    Ready,
    /// Some are still to come, or out of reach.
    NotYet,
    /// Some will never come.
    Gone,
}

/// The block that asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    /// Its worker.
    pub(crate) here: usize,
    /// Which continuation.
    pub(crate) branch: Branch,
    /// Of its assignment.
    pub(crate) epoch: Epoch,
    /// Position of its first token.
    pub(crate) start: u32,
    /// How many.
    pub(crate) tokens: u32,
    /// Chunks before it.
    pub(crate) chunks: u32,
    /// The chunk that its keys belong to.
    pub(crate) own: u32,
}

impl Asker {
    /// The chunk that `work` assigns to `here`.
    pub(crate) fn of(here: usize, work: &Assignment) -> Self {
        let (chunks, own) = (work.key.chunk_idx, work.key.chunk_idx);
        let (start, tokens) = (work.span.start, work.span.tokens);
        Self { here, branch: Branch::PROMPT, epoch: work.key.epoch, start, tokens, chunks, own }
    }
}

/// A block's door to the shards.
pub(crate) struct Door<'a> {
    model: &'a Model,
    ways: &'a Ways,
    holders: &'a Holders,
    asker: Asker,
    q: Arc<Heads>,
    /// States that were asked for before the block's own keys went where they are.
    early: BTreeMap<usize, States>,
    standing: Vec<Standing>,
    /// Per layer and chunk.
    masses: Vec<BTreeMap<u32, RetainedMass>>,
}

impl<'a> Door<'a> {
    /// For one block.
    pub(crate) fn new(
        model: &'a Model,
        ways: &'a Ways,
        holders: &'a Holders,
        asker: Asker,
    ) -> Self {
        let (q, early) = (Arc::default(), BTreeMap::new());
        let (standing, masses) = (Vec::new(), Vec::new());
        Self { model, ways, holders, asker, q, early, standing, masses }
    }

    /// Whether the block can begin.
    pub(crate) fn standings(&self) -> Standings {
        let mut all = Standings::Ready;
        for (holder, shards) in &self.holders.shards {
            let Some(store) = self.ways.borrow_mut().store(self.asker.here, *holder) else {
                all = Standings::NotYet;
                continue;
            };
            for layer in 0..self.model.layers() {
                match store.shards(&self.place(layer, shards)) {
                    Ok(Answer::Ready(_)) => {}
                    Ok(Answer::NotYet) => all = Standings::NotYet,
                    Err(_) => return Standings::Gone,
                }
            }
        }
        all
    }

    fn place(&self, layer: usize, shards: &[(u32, Epoch)]) -> Place {
        let Asker { branch, epoch, start, tokens, chunks, .. } = self.asker;
        let (request, policy) = (self.holders.request, self.holders.policy);
        let (layer, shards) = (layer as u32, shards.into());
        let all = Place { request, branch, layer, epoch, start, tokens, chunks, shards, policy };
        all.from_chunk(self.first_seen(&all))
    }

    /// The first chunk of which the block sees keys.
    fn first_seen(&self, place: &Place) -> u32 {
        let tokens = self.holders.chunk_tokens;
        place.first_seen(self.model, ChunkEnds { first: tokens, tokens })
    }

    fn store(&self, layer: usize, holder: usize) -> Result<Arc<ShardStore>, PortError> {
        let store = self.ways.borrow_mut().store(self.asker.here, holder);
        store.ok_or_else(|| failed(layer, format!("worker {holder} is out of reach")))
    }

    fn each<T>(
        &self,
        layer: usize,
        act: impl Fn(&ShardStore, Place) -> Result<T, ShardError>,
    ) -> Result<Vec<T>, PortError> {
        let one = |(holder, shards): &(usize, Vec<(u32, Epoch)>)| {
            let store = self.store(layer, *holder)?;
            act(&store, self.place(layer, shards)).map_err(|error| failed(layer, error.to_string()))
        };
        self.holders.shards.iter().filter(|(_, shards)| !shards.is_empty()).map(one).collect()
    }

    /// The shards at `holder` of whose leaves others have a part.
    fn torn_of(
        &self,
        layer: usize,
        (holder, shards): (usize, &[(u32, Epoch)]),
    ) -> Result<Shards, PortError> {
        let place = self.place(layer, shards);
        let place = Place { shards: place.torn(), ..place };
        if place.shards.is_empty() {
            return Ok(Shards::new());
        }
        match self.store(layer, holder)?.shards(&place) {
            Ok(Answer::Ready(shards)) => Ok(shards),
            Ok(Answer::NotYet) => Err(failed(layer, "a shard is not there any more".into())),
            Err(error) => Err(failed(layer, error.to_string())),
        }
    }

    fn ask_holder(&self, layer: usize, holder: usize) -> Result<States, PortError> {
        let of = self.holders.shards.iter().find(|(worker, _)| *worker == holder);
        let place = self.place(layer, of.map_or(&[], |(_, shards)| shards));
        let place = place.of_last(self.q.tokens);
        match self.store(layer, holder)?.attend(self.model, &place, &self.q) {
            Ok(Answer::Ready(states)) => Ok(states),
            Ok(Answer::NotYet) => Err(failed(layer, "a shard is not there any more".into())),
            Err(error) => Err(failed(layer, error.to_string())),
        }
    }
}

impl ShardPort for Door<'_> {
    fn ask(&mut self, layer: usize, q: &Arc<Heads>) -> Result<(), PortError> {
        (self.q, self.early) = (q.clone(), BTreeMap::new());
        let Asker { own, chunks, here, .. } = self.asker;
        let has_state = |(holder, shards): &(usize, Vec<(u32, Epoch)>)| {
            *holder == here && !self.place(layer, shards).nodes().is_empty()
        };
        if own < chunks && self.holders.shards.iter().any(has_state) {
            self.early.insert(here, self.ask_holder(layer, here)?);
        }
        Ok(())
    }

    fn states(&mut self, layer: usize) -> Result<Found, PortError> {
        let (mut states, mut torn) = (BTreeMap::new(), Shards::new());
        for (holder, shards) in &self.holders.shards {
            if shards.is_empty() {
                continue;
            }
            torn.extend(self.torn_of(layer, (*holder, shards))?);
            if self.place(layer, shards).nodes().is_empty() {
                continue;
            }
            let early = self.early.remove(holder);
            states.extend(early.map_or_else(|| self.ask_holder(layer, *holder), Ok)?);
        }
        let first_seen = self.first_seen(&self.place(layer, &[]));
        Ok(Found { states, first_seen, torn, shards: None })
    }

    fn weigh(&mut self, layer: usize, spent: &Spent) -> Result<(), PortError> {
        self.standing = self.each(layer, |store, place| store.weigh(self.model, &place, spent))?;
        Ok(())
    }

    fn candidates(&mut self, _layer: usize) -> Result<Vec<Standing>, PortError> {
        Ok(std::mem::take(&mut self.standing))
    }

    fn settle(&mut self, layer: usize, cutoffs: &Arc<[Cutoff]>) -> Result<(), PortError> {
        let masses = self
            .each(layer, |store, place| store.settle(&place, cutoffs, self.model.window(layer)))?;
        self.masses.resize_with(layer + 1, BTreeMap::new);
        self.masses[layer].extend(masses.into_iter().flatten());
        Ok(())
    }

    fn keep(&mut self, layer: usize, own: Arc<Shard>) -> Result<(), PortError> {
        let Asker { here, branch, epoch, chunks, own: chunk_idx, .. } = self.asker;
        let request = self.holders.request;
        let key = ShardKey { request, branch, layer: layer as u32, chunk_idx, epoch };
        let store = self.store(layer, here)?;
        let kept = match chunk_idx < chunks {
            true => store.append(self.model, key, own),
            false => store.put(key, own),
        };
        kept.map_err(|error| failed(layer, error.to_string()))
    }

    fn finish(&mut self) -> Result<Vec<RetainedMass>, PortError> {
        let masses = std::mem::take(&mut self.masses).into_iter();
        Ok(masses.map(|masses| masses.into_values().sum()).collect())
    }
}

fn failed(layer: usize, what: String) -> PortError {
    PortError::Peer { layer, what }
}

/// A completion whose prompt is in shards.
#[derive(Debug, Clone)]
pub(crate) struct ShardedSequence {
    here: usize,
    holders: Holders,
    branch: Branch,
    /// Of the last chunk.
    epoch: Epoch,
    chunks: u32,
    position: u32,
    tokens: u32,
}

impl ShardedSequence {
    /// Completion `choice` of the prompt that `work` ends at `here`.
    pub(crate) fn new(here: usize, work: &Assignment, holders: &Holders, choice: u32) -> Self {
        let mut holders = holders.clone();
        holders.add(here, work.key.chunk_idx, work.key.epoch);
        Self {
            here,
            holders,
            branch: Branch::of_choice(choice),
            epoch: work.key.epoch,
            chunks: work.key.chunk_idx + 1,
            position: work.span.positions().end,
            tokens: 0,
        }
    }

    /// Appends `token` and returns the logits of the one after it, `[vocab]`.
    ///
    /// # Errors
    /// A holder that is out of reach, or what the backend refuses.
    pub(crate) fn step(
        &mut self,
        model: &Model,
        ways: &Ways,
        token: TokenId,
        policy: &MemoryPolicy,
    ) -> Result<Vec<f32>, EngineError> {
        let begins = policy.keeps_all() && self.tokens.is_multiple_of(self.holders.chunk_tokens);
        let Self { here, branch, epoch, chunks, position, .. } = *self;
        let own = if begins { chunks } else { chunks - 1 };
        let asker = Asker { here, branch, epoch, start: position, tokens: 1, chunks, own };
        let mut door = Door::new(model, ways, &self.holders, asker);
        let past = Remembered::Shards(Past { chunks, port: &mut door });
        let turn = Turn { token, position, policy, past };
        let logits = decode(model, vec![turn]).pop().expect("one for each turn")?;
        if begins {
            self.holders.add(here, chunks, epoch);
            self.chunks += 1;
        }
        self.tokens += 1;
        self.position += 1;
        Ok(logits)
    }
}
