//! A sequence whose shards lie in several stores, without a network between them.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use aqueduct_core::exchange::merge_error_bound;
use aqueduct_core::work::RetainedMass;
use aqueduct_core::{Epoch, KvDtype, MemoryPolicy, RequestId, WireDtype};
use aqueduct_engine::shards::{Answer, Branch, ChunkEnds, Place, ShardKey, Spent, Standing};
use aqueduct_engine::{
    Block, Found, Model, Past, PortError, Prefilled, ShardPort, ShardStore, Want, prefill_sharded,
};
use aqueduct_kernels::{Cutoff, Heads, Leaves, Shard};

const REQUEST: RequestId = RequestId(7);

/// Chunk c is at store `places[c]`, and behind the last of them at the last one's.
pub(crate) struct Sharded<'m> {
    pub(crate) model: &'m Model,
    policy: MemoryPolicy,
    chunk_tokens: u32,
    places: Vec<usize>,
    stores: Vec<Arc<ShardStore>>,
    /// Before the next token.
    pub(crate) chunks: u32,
    /// Position of the next token.
    pub(crate) end: u32,
    /// Of the last chunk, which generated tokens fill.
    tail_tokens: u32,
    branch: Branch,
    /// Whether shards are asked of which no row of a block sees any key.
    pub(crate) asks_all: bool,
    /// Of the hidden states of each block.
    pub(crate) want: Want,
}

impl<'m> Sharded<'m> {
    pub(crate) fn new(
        model: &'m Model,
        policy: MemoryPolicy,
        chunk_tokens: u32,
        places: &[usize],
    ) -> Self {
        let stores = 0..=places.iter().copied().max().unwrap_or(0);
        Self {
            model,
            policy,
            chunk_tokens,
            places: places.to_vec(),
            stores: stores.map(|_| Arc::new(ShardStore::new(u64::MAX))).collect(),
            chunks: 0,
            end: 0,
            tail_tokens: 0,
            branch: Branch::PROMPT,
            asks_all: false,
            want: Want::All,
        }
    }

    /// The next prompt chunk.
    pub(crate) fn chunk(&mut self, tokens: &[u32]) -> Prefilled {
        let port = self.port(tokens.len() as u32, self.chunks);
        let done = self.block(tokens, port);
        self.end += tokens.len() as u32;
        self.chunks += 1;
        done
    }

    /// The next token of completion `choice`.
    pub(crate) fn token(&mut self, token: u32, choice: u32) -> Prefilled {
        let port = self.port_for_token(choice);
        let done = self.block(&[token], port);
        self.after_token();
        done
    }

    /// The way to the shards for the next token of completion `choice`.
    pub(crate) fn port_for_token(&mut self, choice: u32) -> Port<'m> {
        self.branch = Branch::of_choice(choice);
        self.port(1, if self.begins_chunk() { self.chunks } else { self.chunks - 1 })
    }

    /// What is different once the token is there.
    pub(crate) fn after_token(&mut self) {
        self.chunks += u32::from(self.begins_chunk());
        self.tail_tokens += 1;
        self.end += 1;
    }

    fn begins_chunk(&self) -> bool {
        self.policy.keeps_all() && self.tail_tokens.is_multiple_of(self.chunk_tokens)
    }

    /// Everything up to here; continuations of it go their own ways.
    pub(crate) fn fork(&self) -> Self {
        Self { places: self.places.clone(), stores: self.stores.clone(), ..*self }
    }

    fn port(&self, tokens: u32, own: u32) -> Port<'m> {
        let (found, candidates, masses) = (Found::default(), Vec::new(), Vec::new());
        Port { of: self.fork(), own, tokens, found, candidates, masses }
    }

    fn block(&self, tokens: &[u32], mut port: Port<'_>) -> Prefilled {
        let block = Block { tokens, start: self.end, leaves: Leaves::ONE };
        let past = Past { chunks: self.chunks, port: &mut port };
        let done = prefill_sharded(self.model, block, &self.policy, past, self.want).unwrap();
        // Nothing is asked in the last layer where nothing comes of it.
        let silent = self.want == Want::Memory && self.policy.keeps_all();
        let asked = self.model.layers() - usize::from(silent);
        let audits = if self.chunks > 0 { asked } else { 0 };
        let bound = merge_error_bound(self.kv(), WireDtype::F32);
        assert_eq!(done.audits.len(), audits);
        assert!(done.audits.iter().all(|audit| audit.is_within(bound)), "{:?}", done.audits);
        done
    }

    fn kv(&self) -> KvDtype {
        match self.model.kv() {
            aqueduct_kernels::KvDtype::F32 => KvDtype::F32,
            aqueduct_kernels::KvDtype::Bf16 => KvDtype::Bf16,
        }
    }

    fn holder(&self, chunk: u32) -> usize {
        self.places.get(chunk as usize).or(self.places.last()).copied().unwrap_or(0)
    }

    /// Per KV head of a layer, what is kept: position, score.
    pub(crate) fn kept(&self, layer: u32) -> Vec<Vec<(u32, f32)>> {
        let mut heads = vec![Vec::new(); self.model.shape().kv_heads as usize];
        for place in self.places_of((layer, 0), self.end, 0) {
            let Ok(Answer::Ready(shards)) = place.1.shards(&place.0) else { panic!("not there") };
            for shard in shards.values() {
                let mut first = 0;
                for part in shard.parts() {
                    let n = part.keys.len();
                    for g in 0..part.keys.kv_heads() {
                        let scores = part.score[g * n..(g + 1) * n].iter().copied();
                        let positions = part.keys.head_positions(g).iter().copied();
                        heads[first + g].extend(positions.zip(scores));
                    }
                    first += part.keys.kv_heads();
                }
            }
        }
        heads.iter_mut().for_each(|head| head.sort_by_key(|entry| entry.0));
        heads
    }

    /// The first chunk of which a row at `start` sees keys in a layer; 0 where it does not matter.
    fn first_seen(&self, layer: u32, start: u32) -> u32 {
        let ends = ChunkEnds { first: self.chunk_tokens, tokens: self.chunk_tokens };
        let asks_some = self.policy.keeps_all() && !self.asks_all;
        let window = self.model.window(layer as usize).filter(|_| asks_some);
        ends.first_seen(start, window).min(self.chunks)
    }

    /// For each store that holds any shard from chunk `first` on, the question to it.
    fn places_of(
        &self,
        (layer, first): (u32, u32),
        start: u32,
        tokens: u32,
    ) -> Vec<(Place, Arc<ShardStore>)> {
        let ask = |(idx, store): (usize, &Arc<ShardStore>)| {
            let held = (first..self.chunks).filter(|&chunk| self.holder(chunk) == idx);
            let shards: Arc<[_]> = held.map(|chunk| (chunk, Epoch(chunk))).collect();
            let place = Place {
                request: REQUEST,
                branch: self.branch,
                layer,
                epoch: Epoch(9),
                start,
                tokens,
                chunks: self.chunks,
                shards,
                policy: self.policy,
            };
            (!place.shards.is_empty()).then(|| (place, store.clone()))
        };
        self.stores.iter().enumerate().filter_map(ask).collect()
    }
}

pub(crate) struct Port<'m> {
    of: Sharded<'m>,
    own: u32,
    tokens: u32,
    found: Found,
    candidates: Vec<Standing>,
    masses: Vec<BTreeMap<u32, RetainedMass>>,
}

impl Port<'_> {
    fn places(&self, layer: usize) -> Vec<(Place, Arc<ShardStore>)> {
        let layer = layer as u32;
        let first = self.of.first_seen(layer, self.of.end);
        self.of.places_of((layer, first), self.of.end, self.tokens)
    }
}

impl ShardPort for Port<'_> {
    fn ask(&mut self, layer: usize, q: &Arc<Heads>) -> Result<(), PortError> {
        self.found.first_seen = self.of.first_seen(layer as u32, self.of.end);
        for (place, store) in self.places(layer) {
            let place = place.of_last(q.tokens);
            let asked = if place.nodes().is_empty() { 0 } else { 2 };
            for _ in 0..asked {
                // Twice: an answer may be lost.
                let Answer::Ready(states) = store.attend(self.of.model, &place, q).unwrap() else {
                    panic!("chunks follow each other here");
                };
                self.found.states.extend(states);
            }
            let Ok(Answer::Ready(shards)) = store.shards(&place) else { panic!("not there") };
            let torn = place.torn();
            let is_torn = |chunk: u32| torn.iter().any(|torn| torn.0 == chunk);
            let of_torn = shards.iter().filter(|(chunk, _)| is_torn(**chunk));
            self.found.torn.extend(of_torn.map(|(chunk, shard)| (*chunk, shard.clone())));
            self.found.shards.get_or_insert_default().extend(shards);
        }
        Ok(())
    }

    fn states(&mut self, _layer: usize) -> Result<Found, PortError> {
        Ok(std::mem::take(&mut self.found))
    }

    fn weigh(&mut self, layer: usize, spent: &Spent) -> Result<(), PortError> {
        for (place, store) in self.places(layer) {
            let first = store.weigh(self.of.model, &place, spent).unwrap();
            assert_eq!(store.weigh(self.of.model, &place, spent).unwrap(), first);
            self.candidates.push(first);
        }
        Ok(())
    }

    fn candidates(&mut self, _layer: usize) -> Result<Vec<Standing>, PortError> {
        Ok(std::mem::take(&mut self.candidates))
    }

    fn settle(&mut self, layer: usize, cutoffs: &Arc<[Cutoff]>) -> Result<(), PortError> {
        let mut masses = BTreeMap::new();
        for (place, store) in self.places(layer) {
            let first = store.settle(&place, cutoffs, self.of.model.window(layer)).unwrap();
            assert_eq!(store.settle(&place, cutoffs, self.of.model.window(layer)).unwrap(), first);
            masses.extend(first);
        }
        self.masses.push(masses);
        Ok(())
    }

    fn keep(&mut self, layer: usize, own: Arc<Shard>) -> Result<(), PortError> {
        let key = ShardKey {
            request: REQUEST,
            branch: self.of.branch,
            layer: layer as u32,
            chunk_idx: self.own,
            epoch: Epoch(self.own),
        };
        let store = &self.of.stores[self.of.holder(self.own)];
        match self.own < self.of.chunks {
            true => store.append(self.of.model, key, own).unwrap(),
            false => store.put(key, own).unwrap(),
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<RetainedMass>, PortError> {
        let masses = std::mem::take(&mut self.masses).into_iter();
        Ok(masses.map(|masses| masses.into_values().sum()).collect())
    }
}
