//! A prompt's keys in the shards of several holders, and somebody who asks them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use aqueduct_core::work::Peer;
use aqueduct_core::{Carry, Epoch, Exchange, MemoryPolicy, RequestId, WireDtype, limits};
use aqueduct_engine::Model;
use aqueduct_engine::shards::{Branch, Place, ShardKey, states_over};
use aqueduct_kernels::fold::{Missing, Node, fold};
use aqueduct_kernels::{AttentionState, Heads, Keys, KvHeads, Shard};
use aqueduct_worker::doorbell::Doorbell;
use aqueduct_worker::exchange::{Answered, Ask, Call, ExchangeLinks, Fares, Reply};
use aqueduct_worker::link::codec;
use aqueduct_worker::{LoopbackHub, Worker, WorkerOptions};
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use crate::args::Link;
use crate::commands::bench_kernels::noise;

/// The one request, and the one layer of it.
const REQUEST: RequestId = RequestId(1);
const LAYER: u32 = 0;
const EPOCH: Epoch = Epoch(0);

/// What the scene is built of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Depth {
    /// Tokens of the prompt.
    pub(super) tokens: u32,
    pub(super) chunk_tokens: u32,
    pub(super) workers: usize,
    pub(super) link: Link,
    pub(super) wire: WireDtype,
}

/// Workers that hold chunks in turn; who asks holds none.
pub(super) struct Scene {
    model: Arc<Model>,
    depth: Depth,
    workers: Vec<(Peer, Worker)>,
    links: ExchangeLinks,
    doorbell: Arc<Doorbell>,
    next_id: u64,
}

/// One layer of one block.
pub(super) struct Passed {
    pub(super) took: Duration,
    /// As links count them; 0 within one process.
    pub(super) bytes: u64,
    /// Over the whole prompt.
    pub(super) state: AttentionState,
}

impl Scene {
    /// Starts the holders, whose servers run on `servers` and whose asker's links on `asker`.
    ///
    /// # Errors
    /// A worker that does not start, an address that cannot be bound.
    pub(super) async fn start(
        model: &Arc<Model>,
        depth: Depth,
        (servers, asker): (&Handle, &Handle),
    ) -> anyhow::Result<Self> {
        let hub = LoopbackHub::default();
        let mut workers = Vec::with_capacity(depth.workers);
        for idx in 0..depth.workers {
            workers.push(start(model, (idx, depth.link), &hub, servers).await?);
        }
        let doorbell = Arc::new(Doorbell::default());
        let mut options = WorkerOptions::new("local://asker", hub);
        options.runtime = asker.clone();
        let links = ExchangeLinks::new(options, model.fingerprint().to_owned(), doorbell.clone());
        let scene = Self { model: model.clone(), depth, workers, links, doorbell, next_id: 0 };
        scene.fill()?;
        Ok(scene)
    }

    fn chunks(&self) -> u32 {
        self.depth.tokens.div_ceil(self.depth.chunk_tokens)
    }

    /// Gives every chunk's keys to its holder.
    fn fill(&self) -> anyhow::Result<()> {
        for chunk_idx in 0..self.chunks() {
            let start = chunk_idx * self.depth.chunk_tokens;
            let end = (start + self.depth.chunk_tokens).min(self.depth.tokens);
            let shard = Arc::new(Shard::new(keys(&self.model, start..end), end));
            let key = ShardKey {
                request: REQUEST,
                branch: Branch::PROMPT,
                layer: LAYER,
                chunk_idx,
                epoch: EPOCH,
            };
            let holder = self.workers[chunk_idx as usize % self.workers.len()].1.holder();
            holder.store().put(key, shard)?;
        }
        Ok(())
    }

    /// Queries of a block that follows the prompt.
    pub(super) fn queries(&self, block_tokens: u32) -> Arc<Heads> {
        let shape = self.model.shape();
        let (heads, head_dim) = (shape.heads as usize, shape.head_dim as usize);
        let tokens = block_tokens as usize;
        let data = noise(heads * tokens * head_dim).into();
        Arc::new(Heads { heads, tokens, head_dim, data })
    }

    /// What travels in a request that names `exchange` and keeps every key.
    pub(super) fn carry(&self, exchange: Exchange) -> Carry {
        let model = (self.model.shape(), codec::to_core(self.model.kv()));
        let Depth { chunk_tokens, wire, .. } = self.depth;
        let carry = exchange.resolve(&MemoryPolicy::dense(), chunk_tokens, model, wire);
        carry.unwrap_or(Carry::Keys)
    }

    /// Every holder's part of a block's past; a holder of nothing has none.
    fn places(&self, block_tokens: u32) -> Vec<(Peer, Place)> {
        let place = |(idx, (peer, _)): (usize, &(Peer, Worker))| {
            let here =
                (0..self.chunks()).filter(|chunk| *chunk as usize % self.workers.len() == idx);
            let place = Place {
                request: REQUEST,
                branch: Branch::PROMPT,
                layer: LAYER,
                epoch: EPOCH,
                start: self.depth.tokens,
                tokens: block_tokens,
                chunks: self.chunks(),
                shards: here.map(|chunk| (chunk, EPOCH)).collect(),
                policy: MemoryPolicy::dense(),
            };
            (peer.clone(), place)
        };
        let places = self.workers.iter().enumerate().map(place);
        places.filter(|(_, place)| !place.shards.is_empty()).collect()
    }

    /// What the holders' parts cost, either way.
    pub(super) fn fares(&self, block_tokens: u32) -> Vec<Fares> {
        let Depth { chunk_tokens, wire, .. } = self.depth;
        let places = self.places(block_tokens);
        places.iter().map(|(_, p)| Fares::of(&self.model, p, chunk_tokens, wire)).collect()
    }

    /// From a block's queries to its state over the prompt, as an executor goes about it.
    ///
    /// # Errors
    /// A holder that does not answer.
    pub(super) fn layer(&mut self, q: &Arc<Heads>, carry: Carry) -> anyhow::Result<Passed> {
        let since = Instant::now();
        let Depth { chunk_tokens, wire, .. } = self.depth;
        let mut asks = Vec::with_capacity(self.workers.len());
        for (peer, place) in self.places(q.tokens as u32) {
            let fares = Fares::of(&self.model, &place, chunk_tokens, wire);
            let ask = match fares.keys_come(carry) {
                true => Ask::Keys { place: place.clone() },
                false => Ask::Attend { place: place.clone(), q: q.clone() },
            };
            asks.push((peer, ask));
        }
        let (mut states, mut bytes) = (BTreeMap::new(), 0);
        let model = self.model.clone();
        self.ask(asks, |ask, answered| {
            bytes += answered.bytes.0 + answered.bytes.1;
            states.extend(match answered.reply? {
                Reply::States(states) => states,
                Reply::Keys(shards) => states_over(&model, ask.place(), q, &shards)?,
                other => bail!("{other:?} is no answer to what was asked"),
            });
            Ok(())
        })?;
        let mut of = |node: Node| Ok::<_, Missing>(states.remove(&node));
        let merge = |state, other: &_| self.model.backend().merge(state, other);
        let state = fold(Node::ROOT, self.chunks(), &merge, &mut of)?;
        Ok(Passed { took: since.elapsed(), bytes, state })
    }

    /// Brings all keys here; how long it took, and how many bytes they were.
    ///
    /// # Errors
    /// A holder that does not answer.
    pub(super) fn fetch(&mut self) -> anyhow::Result<(Duration, u64)> {
        let since = Instant::now();
        let ask = |(peer, place)| (peer, Ask::Keys { place });
        let (asks, mut bytes) = (self.places(1).into_iter().map(ask).collect(), 0);
        self.ask(asks, |_, answered| {
            bytes += answered.bytes.1;
            answered.reply?;
            Ok(())
        })?;
        Ok((since.elapsed(), bytes))
    }

    /// Sends every ask at once and shows each answer to `take` as it comes.
    fn ask(
        &mut self,
        asks: Vec<(Peer, Ask)>,
        mut take: impl FnMut(&Ask, Answered) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_millis(limits::EXCHANGE_DEADLINE_MS);
        let (wire, mut open, asker) = (self.depth.wire, BTreeMap::new(), Arc::new(()));
        for (peer, ask) in asks {
            let id = self.next_id;
            self.next_id += 1;
            let (asked, asker) = (ask.clone(), Arc::downgrade(&asker));
            let call = Box::new(Call { id, ask: asked, wire, deadline, asker });
            self.links.send(&peer, call).ok().context("a link that is full")?;
            open.insert(id, ask);
        }
        while !open.is_empty() {
            for answered in self.links.answers() {
                let ask = open.remove(&answered.id).context("an answer that nobody waits for")?;
                take(&ask, answered)?;
            }
            if !open.is_empty() {
                self.doorbell.wait_until(Some(deadline));
            }
        }
        Ok(())
    }
}

async fn start(
    model: &Arc<Model>,
    (idx, link): (usize, Link),
    hub: &LoopbackHub,
    servers: &Handle,
) -> anyhow::Result<(Peer, Worker)> {
    let listener = match link {
        Link::Loopback => None,
        Link::Grpc => {
            let bind = servers.spawn(TcpListener::bind("127.0.0.1:0"));
            Some(bind.await?.context("a port of 127.0.0.1")?)
        }
    };
    let name = match &listener {
        None => format!("local://w{idx}"),
        Some(listener) => format!("http://{}", listener.local_addr()?),
    };
    // No coordinator is in this: whoever asks is answered all the same.
    let options = WorkerOptions::new(name.clone(), hub.clone());
    let options = WorkerOptions { unled: Duration::MAX, ..options };
    let worker = Worker::start(model.clone(), options)?;
    if let Some(listener) = listener {
        // Until the process ends.
        servers.spawn(aqueduct_worker::serve(worker.clone(), listener, std::future::pending()));
    }
    Ok((Peer(name), worker))
}

/// Random keys and values at `positions`, as the model stores them.
fn keys(model: &Model, positions: std::ops::Range<u32>) -> Keys {
    let shape = model.shape();
    let (kv_heads, head_dim) = (shape.kv_heads as usize, shape.head_dim as usize);
    let tokens = positions.len();
    let data = noise(2 * kv_heads * tokens * head_dim);
    let (k, v) = data.split_at(data.len() / 2);
    let rows = |data| KvHeads::from_f32(kv_heads, tokens, head_dim, data, model.kv());
    Keys::new(positions.collect::<Vec<_>>().repeat(kv_heads), rows(k), rows(v))
}
