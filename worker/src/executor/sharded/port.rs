//! The port behind which the shards are: those of this worker and those of others.

mod audit;
mod bring;
mod failures;
mod round_one;
mod torn;
mod walk;

use std::collections::BTreeMap;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::Epoch;
use aqueduct_core::work::{ChunkReport, Peer, RetainedMass};
use aqueduct_engine::shards::{Answer, Branch, Place, ShardKey, Shards, Spent, Standing, States};
use aqueduct_engine::{Found, PortError, ShardPort};
use aqueduct_kernels::{Cutoff, Heads, Shard};

pub(super) use self::audit::Sampling;
pub(super) use self::bring::Brought;
use self::failures::{failed, fitting, not_kept, unanswered, unexpected};
use self::torn::Torn;
use self::walk::Walk;
use super::Holders;
use super::calls::Exchange;
use crate::exchange::{Ask, Fares, Reply};

/// How whoever asks passes the time.
pub(in crate::executor) trait Wait {
    /// The ways to the holders, for as long as nobody waits.
    fn exchange(&mut self) -> impl DerefMut<Target = Exchange>;

    /// Lets others go first, between layers.
    fn breathe(&mut self) -> Result<(), PortError>;

    /// Waits for the doorbell, at most `until`.
    fn rest(&mut self, until: Instant) -> Result<(), PortError>;

    /// A layer is done.
    fn layer_done(&mut self, layers_done: u32);
}

/// The block that asks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    pub(super) branch: Branch,
    pub(super) epoch: Epoch,
    pub(super) start: u32,
    pub(super) tokens: u32,
    /// Chunks before the block.
    pub(super) chunks: u32,
    /// The chunk that its own keys belong to; one of those before if they go on in it.
    pub(super) own: u32,
}

/// One holder's part in a layer.
struct Part {
    peer: Peer,
    place: Place,
    /// The call under way; `None` for this worker's own shards.
    call: Option<u64>,
    /// States that were there at once.
    states: Option<States>,
    /// Its shards of leaves that no holder has whole.
    torn: Option<Torn>,
    /// The call for another's shards themselves, where they are audited.
    audit: Option<u64>,
}

/// A settlement under way: its layer, holder and call.
struct Settling {
    layer: usize,
    peer: Peer,
    call: u64,
}

pub(in crate::executor) struct ShardsPort<'a, W: Wait> {
    holders: &'a Holders,
    asker: Asker,
    wait: W,
    /// Of the layer under way.
    parts: Vec<Part>,
    /// The same where every key is kept.
    walk: Walk,
    q: Arc<Heads>,
    /// Replies of this worker's own shards in round two.
    own_standing: Vec<Reply>,
    deadline: Instant,
    settling: Vec<Settling>,
    /// Per layer and chunk.
    masses: Vec<BTreeMap<u32, RetainedMass>>,
    pub(super) sampling: Sampling,
    report: ChunkReport,
}

impl<'a, W: Wait> ShardsPort<'a, W> {
    pub(super) fn new(holders: &'a Holders, asker: Asker, wait: W) -> Self {
        Self {
            holders,
            asker,
            wait,
            parts: Vec::new(),
            walk: Walk::default(),
            q: Arc::default(),
            own_standing: Vec::new(),
            deadline: Instant::now() + holders.deadline,
            settling: Vec::new(),
            masses: Vec::new(),
            sampling: Sampling::default(),
            report: ChunkReport::default(),
        }
    }

    /// What passed, and who waited.
    pub(super) fn report(&self) -> (ChunkReport, &W) {
        (self.report.clone(), &self.wait)
    }

    /// What is asked from now on has its own time: others of a batch, or slices of a long past,
    /// may have been waited for long before.
    fn begin_round(&mut self) {
        self.deadline = Instant::now() + self.holders.deadline;
    }

    fn place(&self, layer: usize, shards: &[(u32, Epoch)]) -> Place {
        let Asker { branch, epoch, start, tokens, chunks, .. } = self.asker;
        let (request, policy) = (self.holders.request, self.holders.policy);
        let layer = layer as u32;
        Place {
            request,
            branch,
            layer,
            epoch,
            start,
            tokens,
            chunks,
            shards: shards.into(),
            policy,
        }
    }

    /// Of `place`, what some row of the block sees.
    fn in_sight(&mut self, place: &Place) -> Place {
        place.from_chunk(self.first_seen(place))
    }

    /// The first chunk of which some row of the block sees keys.
    fn first_seen(&mut self, place: &Place) -> u32 {
        place.first_seen(self.wait.exchange().holder.model(), self.holders.ends)
    }

    /// What it costs to bring the block and the shards of `place` together.
    fn fares(&mut self, place: &Place) -> Fares {
        let Holders { wire, chunk_tokens, .. } = *self.holders;
        let holder = self.wait.exchange().holder.clone();
        let window = holder.model().window(place.layer as usize).filter(|_| !place.is_scored());
        let most = window.map_or(chunk_tokens, |window| chunk_tokens.min(window.most_before()));
        Fares::of(holder.model(), place, most, wire)
    }

    fn call(&mut self, layer: usize, peer: &Peer, ask: Ask) -> Result<u64, PortError> {
        let (wire, deadline) = (self.holders.wire, self.deadline);
        let call = self.wait.exchange().call(peer, ask, wire, deadline);
        call.map_err(|error| failed(layer, peer, &error))
    }

    /// The answer to `call`, if it has come.
    fn answered(
        &mut self,
        layer: usize,
        peer: &Peer,
        call: u64,
    ) -> Result<Option<Reply>, PortError> {
        let Some(answered) = self.wait.exchange().answer(call) else { return Ok(None) };
        self.report.traffic.sent_bytes += answered.bytes.0;
        self.report.traffic.received_bytes += answered.bytes.1;
        let fits = |reply| fitting(self.wait.exchange().holder.model(), layer as u32, reply);
        let reply = answered.reply.and_then(fits);
        reply.map(Some).map_err(|error| failed(layer, peer, &error))
    }

    /// Waits for the answer to `call`.
    fn reply(&mut self, layer: usize, peer: &Peer, call: u64) -> Result<Reply, PortError> {
        loop {
            if let Some(reply) = self.answered(layer, peer, call)? {
                return Ok(reply);
            }
            self.pass_time(layer, call)?;
        }
    }

    /// Waits until something has happened, perhaps to `call`.
    fn pass_time(&mut self, layer: usize, call: u64) -> Result<(), PortError> {
        let waited = self.check(layer).and_then(|()| self.wait.rest(self.deadline));
        if waited.is_err() {
            self.wait.exchange().give_up([call]);
        }
        waited
    }

    /// What this worker's own shards say; they may wait for the block before.
    fn own(&mut self, layer: usize, ask: &Ask) -> Result<Reply, PortError> {
        loop {
            let answer = self.wait.exchange().own(ask);
            match answer {
                Ok(Answer::Ready(reply)) => return Ok(reply),
                Ok(Answer::NotYet) => {
                    self.check(layer)?;
                    // Another worker's settlement rings no bell here.
                    let soon = Instant::now() + OWN_POLL;
                    self.wait.rest(soon.min(self.deadline))?;
                }
                Err(error) => return Err(unanswered(layer, error)),
            }
        }
    }

    fn settled(&mut self, layer: usize, reply: Reply) -> Result<(), PortError> {
        match reply {
            Reply::Settled(masses) => self.masses[layer].extend(masses),
            other => return Err(unexpected(layer, &other)),
        }
        Ok(())
    }

    /// The calls under way.
    fn calls(&self) -> Vec<u64> {
        let of_part =
            |part: &Part| [part.call, part.audit, part.torn.as_ref().and_then(|torn| torn.call)];
        let of_parts = self.parts.iter().flat_map(of_part).flatten();
        let settling = self.settling.iter().map(|one| one.call);
        of_parts.chain(settling).chain(self.walk.calls()).collect()
    }

    /// Whether it makes sense to wait on. What one holder waits for may be what another has lost,
    /// so any failure ends the wait.
    fn check(&mut self, layer: usize) -> Result<(), PortError> {
        let calls = self.calls();
        let failure = self.wait.exchange().failure(calls);
        if let Some(error) = failure {
            return Err(PortError::Peer { layer, what: format!("shards: {error}") });
        }
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let deadline_ms = self.holders.deadline.as_millis() as u64;
        Err(PortError::Deadline { layer, deadline_ms })
    }
}

/// How often a block looks whether its own worker's shards are settled.
const OWN_POLL: std::time::Duration = std::time::Duration::from_millis(1);

impl<W: Wait> ShardPort for ShardsPort<'_, W> {
    fn ask(&mut self, layer: usize, q: &Arc<Heads>) -> Result<(), PortError> {
        self.wait.breathe()?;
        self.begin_round();
        self.q = q.clone();
        self.parts.clear();
        // Others first: they are at work while this worker is.
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for holder in &self.holders.shards {
            let side = if self.wait.exchange().is_here(&holder.0) { &mut here } else { &mut there };
            side.push(holder);
        }
        let in_order = there.into_iter().chain(here);
        if self.holders.policy.keeps_all() {
            let tokens = q.tokens;
            let place = |(peer, shards): &(Peer, Vec<_>)| {
                (peer.clone(), self.place(layer, shards).of_last(tokens))
            };
            let places: Vec<_> = in_order.map(place).collect();
            return self.begin_walk(layer, &places);
        }
        for holder in in_order {
            let part = self.part(layer, holder)?;
            self.parts.push(part);
        }
        Ok(())
    }

    fn states(&mut self, layer: usize) -> Result<Found, PortError> {
        if self.holders.policy.keeps_all() {
            let (states, first_seen) = self.walked(layer)?;
            let shards = self.all_audited(layer)?;
            return Ok(Found { states, first_seen, shards, ..Found::default() });
        }
        let (mut states, mut torn) = (BTreeMap::new(), Shards::new());
        // This worker's own last of all asked, first of all computed.
        for idx in (0..self.parts.len()).rev() {
            states.extend(self.states_of(layer, idx)?);
            torn.extend(self.torn_of(layer, idx)?);
        }
        Ok(Found { states, first_seen: 0, torn, shards: self.audited(layer)? })
    }

    fn weigh(&mut self, layer: usize, spent: &Spent) -> Result<(), PortError> {
        self.begin_round();
        for idx in 0..self.parts.len() {
            let (peer, place) = (self.parts[idx].peer.clone(), self.parts[idx].place.clone());
            let ask = Ask::Weigh { place, spent: spent.clone() };
            if self.wait.exchange().is_here(&peer) {
                let reply = self.own(layer, &ask)?;
                self.own_standing.push(reply);
            } else {
                self.parts[idx].call = Some(self.call(layer, &peer, ask)?);
            }
        }
        Ok(())
    }

    fn candidates(&mut self, layer: usize) -> Result<Vec<Standing>, PortError> {
        let mut replies = std::mem::take(&mut self.own_standing);
        for idx in 0..self.parts.len() {
            if let Some(call) = self.parts[idx].call.take() {
                let peer = self.parts[idx].peer.clone();
                replies.push(self.reply(layer, &peer, call)?);
            }
        }
        let standing = |reply| match reply {
            Reply::Standing(standing) => Ok(standing),
            other => Err(unexpected(layer, &other)),
        };
        replies.into_iter().map(standing).collect()
    }

    fn settle(&mut self, layer: usize, cutoffs: &Arc<[Cutoff]>) -> Result<(), PortError> {
        self.begin_round();
        self.masses.resize_with(layer + 1, BTreeMap::new);
        for part in std::mem::take(&mut self.parts) {
            let ask = Ask::Settle { place: part.place, cutoffs: cutoffs.clone() };
            if self.wait.exchange().is_here(&part.peer) {
                let reply = self.own(layer, &ask)?;
                self.settled(layer, reply)?;
            } else {
                let call = self.call(layer, &part.peer, ask)?;
                self.settling.push(Settling { layer, peer: part.peer, call });
            }
        }
        Ok(())
    }

    fn keep(&mut self, layer: usize, own: Arc<Shard>) -> Result<(), PortError> {
        let Asker { branch, epoch, chunks, own: chunk_idx, .. } = self.asker;
        let request = self.holders.request;
        let key = ShardKey { request, branch, layer: layer as u32, chunk_idx, epoch };
        self.report.memory_bytes += own.bytes() as u64;
        let kept = (own.keys() / own.kv_heads().max(1)) as u32;
        self.report.memory_tokens = self.report.memory_tokens.max(kept);
        let holder = self.wait.exchange().holder.clone();
        let kept = match chunk_idx < chunks {
            true => holder.store().append(holder.model(), key, own),
            false => holder.store().put(key, own),
        };
        kept.map_err(|error| not_kept(layer, error))?;
        holder.changed();
        self.wait.layer_done(layer as u32 + 1);
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<RetainedMass>, PortError> {
        while let Some(Settling { layer, peer, call }) = self.settling.pop() {
            let reply = self.reply(layer, &peer, call)?;
            self.settled(layer, reply)?;
        }
        // Chunks ascending, whoever holds them: the same sum for any placement.
        let masses = std::mem::take(&mut self.masses).into_iter();
        Ok(masses.map(|masses| masses.into_values().sum()).collect())
    }
}

impl<W: Wait> Drop for ShardsPort<'_, W> {
    /// Where a block ends early, answers still come.
    fn drop(&mut self) {
        let calls = self.calls();
        self.wait.exchange().give_up(calls);
    }
}
