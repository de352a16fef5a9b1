//! Requests whose keys stay in shards: their chunks, their home, their completions.

mod calls;
mod port;
mod sequence;

use std::ops::DerefMut;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use aqueduct_core::exchange::keys_bytes;
use aqueduct_core::work::{Assignment, ChunkReport, Peer};
use aqueduct_core::{Carry, ChunkKey, Directory, Epoch, MemoryPolicy, RequestId, WireDtype};
use aqueduct_engine::shards::{Branch, ChunkEnds};
use aqueduct_engine::{Block, EngineError, Past, PortError, prefill_sharded};
use aqueduct_kernels::Leaves;

pub(super) use self::calls::Exchange;
use self::port::{Asker, Sampling, ShardsPort, Wait};
pub(super) use self::sequence::{Device, SequencePort, ShardedHome, ShardedSequence};
use super::Executor;
use super::chunk::{ChunkError, micros, want};
use super::request::{Home, Memory};
use super::schedule::Boundary;
use crate::link::codec;

/// Who holds the shards of a request, seen from one of its workers.
#[derive(Debug, Clone)]
struct Holders {
    request: RequestId,
    policy: MemoryPolicy,
    carry: Carry,
    wire: WireDtype,
    /// Of each chunk but the last, and perhaps the first.
    chunk_tokens: u32,
    /// Of those of the prompt; what is generated has none that ends later.
    ends: ChunkEnds,
    deadline: Duration,
    /// By peer: chunk and epoch of each shard there.
    shards: Vec<(Peer, Vec<(u32, Epoch)>)>,
}

impl Holders {
    /// Of the chunks before the one that `work` assigns.
    fn before(work: &Assignment, directory: &Directory) -> Self {
        let of = |(idx, peer): (usize, &Peer)| {
            let here = |(_, shard): &(u32, &(u32, Epoch))| shard.0 as usize == idx;
            let shards = (0..).zip(&directory.shards).filter(here);
            (peer.clone(), shards.map(|(chunk, shard)| (chunk, shard.1)).collect::<Vec<_>>())
        };
        let holders = directory.holders.iter().enumerate().map(of);
        let tokens = work.chunk_tokens;
        // All chunks between the first and this one are full.
        let full = work.key.chunk_idx.saturating_sub(1).saturating_mul(tokens);
        let is_behind = work.key.chunk_idx > 0;
        let first = if is_behind { work.span.start.saturating_sub(full) } else { tokens };
        Self {
            request: work.key.request,
            policy: work.policy,
            carry: directory.carry,
            wire: directory.wire,
            chunk_tokens: tokens,
            ends: ChunkEnds { first, tokens },
            deadline: Duration::from_millis(work.deadline_ms),
            shards: holders.filter(|(_, shards)| !shards.is_empty()).collect(),
        }
    }

    /// Adds a chunk.
    fn add(&mut self, peer: &Peer, chunk_idx: u32, epoch: Epoch) {
        match self.shards.iter_mut().find(|(holder, _)| holder == peer) {
            Some((_, shards)) => shards.push((chunk_idx, epoch)),
            None => self.shards.push((peer.clone(), vec![(chunk_idx, epoch)])),
        }
    }

    /// All of `brought` are at `peer` now.
    fn bring(&mut self, peer: &Peer, brought: &[(u32, Epoch)]) {
        self.shards.iter_mut().for_each(|(_, shards)| shards.retain(|one| !brought.contains(one)));
        self.shards.retain(|(_, shards)| !shards.is_empty());
        brought.iter().for_each(|&(chunk_idx, epoch)| self.add(peer, chunk_idx, epoch));
        self.shards.iter_mut().for_each(|(_, shards)| shards.sort_unstable());
    }

    /// Drops what came here of shards that others hold.
    fn drop_brought(&self, exchange: &Exchange) {
        let others = self.shards.iter().filter(|(peer, _)| !exchange.is_here(peer));
        for &(chunk_idx, _) in others.flat_map(|(_, shards)| shards) {
            exchange.holder.store().drop_chunk(self.request, chunk_idx);
        }
    }
}

impl Executor {
    /// Runs a chunk whose past is in shards.
    pub(super) fn prefill_shards(
        &mut self,
        work: &Assignment,
        directory: &Directory,
    ) -> Result<ChunkReport, ChunkError> {
        let model = self.model.clone();
        let since = Instant::now();
        let leaves = Leaves::of_chunks(work.chunk_tokens);
        let block = Block { tokens: &work.tokens, start: work.span.start, leaves };
        let holders = Holders::before(work, directory);
        let asker = Asker {
            branch: Branch::PROMPT,
            epoch: work.key.epoch,
            start: work.span.start,
            tokens: work.span.tokens,
            chunks: work.key.chunk_idx,
            own: work.key.chunk_idx,
        };
        let audit_every = self.audit_every;
        let wait = ChunkWait { executor: self, key: work.key, aside: Duration::ZERO };
        let before = work.key.chunk_idx.wrapping_mul(model.layers() as u32);
        let mut port = ShardsPort::new(&holders, asker, wait);
        port.sampling = Sampling { every: audit_every, before };
        let past = Past { chunks: work.key.chunk_idx, port: &mut port };
        let done = prefill_sharded(&model, block, &work.policy, past, want(work))?;
        let retained = done.retained()?;
        model.backend().sound().map_err(EngineError::from)?; // as for chunks whose past is in sets
        let (mut report, wait) = port.report();
        let waited = wait.aside;
        drop(port);
        report.wait_us = micros(waited);
        report.busy_us = micros(since.elapsed().saturating_sub(waited));
        self.attend(Boundary::Layer);
        self.check_wanted(work.key).map_err(EngineError::from)?;
        self.emit_outputs(work, &done.hidden)?;
        if work.is_last() {
            let logits = self.last_logits(&done.hidden)?;
            let mut holders = holders;
            holders.add(&self.shared.info.peer, work.key.chunk_idx, work.key.epoch);
            let home = ShardedHome {
                holders,
                chunks: work.chunk_count,
                epoch: work.key.epoch,
                end: work.span.positions().end,
                has_all: OnceLock::new(),
            };
            if let Some(request) = self.requests.get_mut(&work.key.request) {
                let charge = self.shared.gauges.home_bytes.charge(0);
                let memory = Memory::Sharded(Arc::new(home));
                let (chunk_idx, policy) = (work.key.chunk_idx, work.policy);
                request.home = Some(Home { memory, chunk_idx, logits, policy, _charge: charge });
            }
        }
        if !work.policy.keeps_all() {
            self.report_kept(work, &mut report);
        }
        report.retained = retained;
        self.shared.audits.gather(&done.audits);
        report.audits = done.audits;
        Ok(report)
    }

    /// What a chunk keeps is given up again by those behind it, so what all shards keep together
    /// is told once, by the last.
    fn report_kept(&self, work: &Assignment, report: &mut ChunkReport) {
        let kept = kept_tokens(&work.policy, work.span.positions().end);
        let kv = codec::to_core(self.model.kv());
        let of_layer = |idx| keys_bytes((&self.model.shape_of(idx), kv), kept);
        let bytes = (0..self.model.layers()).map(of_layer).sum();
        (report.memory_tokens, report.memory_bytes) =
            if work.is_last() { (kept, bytes) } else { (0, 0) };
    }
}

/// Keys of each KV head and layer that a bounded `policy` keeps of `end` tokens.
fn kept_tokens(policy: &MemoryPolicy, end: u32) -> u32 {
    let sinks = end.min(policy.sinks);
    let local = (end - sinks).min(policy.local);
    sinks + local + (end - sinks - local).min(policy.heavy)
}

/// A chunk waits while its worker attends to what is urgent.
struct ChunkWait<'a> {
    executor: &'a mut Executor,
    key: ChunkKey,
    aside: Duration,
}

impl Wait for ChunkWait<'_> {
    fn exchange(&mut self) -> impl DerefMut<Target = Exchange> {
        &mut self.executor.exchange
    }

    fn breathe(&mut self) -> Result<(), PortError> {
        let since = Instant::now();
        self.executor.attend(Boundary::Layer);
        self.aside += since.elapsed();
        self.executor.check_wanted(self.key)
    }

    fn rest(&mut self, until: Instant) -> Result<(), PortError> {
        let since = Instant::now();
        if !self.executor.attend(Boundary::Idle) {
            self.executor.check_wanted(self.key)?;
            self.executor.rest(until);
        }
        self.aside += since.elapsed();
        self.executor.check_wanted(self.key)
    }

    fn layer_done(&mut self, layers_done: u32) {
        self.executor.tell_layer(self.key, layers_done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_of_any_number_of_tokens() {
        let policy = MemoryPolicy::h2o(4, 8, 5);
        let check = |end, want| assert_eq!(kept_tokens(&policy, end), want);
        check(0, 0);
        check(3, 3);
        check(12, 12);
        check(16, 16);
        check(17, 17);
        check(1000, 17);
    }
}
