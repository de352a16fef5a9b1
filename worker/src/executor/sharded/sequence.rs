//! A completion whose prompt is in shards: a step asks all holders at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::{Carry, Epoch, TokenId};
use aqueduct_engine::shards::{Branch, Place, ShardKey, Shards};
use aqueduct_engine::{Block, EngineError, Model, Past, PortError, Want, prefill_sharded};

use super::Holders;
use super::calls::Exchange;
use super::port::{Asker, ShardsPort, Wait};
use crate::exchange::{Ask, Reply};

/// A finished prefill.
#[derive(Debug)]
pub(in crate::executor) struct ShardedHome {
    pub(super) holders: Holders,
    /// Of the prompt.
    pub(super) chunks: u32,
    /// Of the last chunk, under which the home's own keys stand.
    pub(super) epoch: Epoch,
    /// Tokens of the prompt.
    pub(super) end: u32,
}

/// One completion.
#[derive(Debug)]
pub(in crate::executor) struct ShardedSequence {
    home: Arc<ShardedHome>,
    holders: Holders,
    branch: Branch,
    /// The prompt's, and those that its own tokens have begun.
    chunks: u32,
    /// Tokens generated and kept.
    tokens: u32,
}

impl ShardedSequence {
    /// Completion `choice`.
    pub(in crate::executor) fn new(home: Arc<ShardedHome>, choice: u32) -> Self {
        let (holders, chunks) = (home.holders.clone(), home.chunks);
        Self { holders, branch: Branch::of_choice(choice), chunks, tokens: 0, home }
    }

    /// Appends `token` and returns the logits of the one after it, `[vocab]`.
    ///
    /// # Errors
    /// A token outside the vocabulary, what the backend refuses, a holder that is lost.
    pub(in crate::executor) fn step(
        &mut self,
        model: &Model,
        token: TokenId,
        exchange: &mut Exchange,
    ) -> Result<Vec<f32>, EngineError> {
        if self.tokens == 0 && self.holders.carry == Carry::Keys {
            self.fetch(model, exchange)?;
        }
        let is_new = self.tokens.is_multiple_of(self.holders.chunk_tokens);
        let asker = Asker {
            branch: self.branch,
            epoch: self.home.epoch,
            start: self.home.end + self.tokens,
            tokens: 1,
            chunks: self.chunks,
            own: if is_new { self.chunks } else { self.chunks - 1 },
        };
        let block = Block { tokens: &[token], start: asker.start };
        let mut port = ShardsPort::new(&self.holders, asker, StepWait { exchange });
        let past = Past { chunks: self.chunks, port: &mut port };
        let done = prefill_sharded(model, block, &self.holders.policy, past, Want::Last)?;
        drop(port);
        if is_new {
            let peer = exchange.peer().clone();
            self.holders.add(&peer, self.chunks, self.home.epoch);
            self.chunks += 1;
        }
        self.tokens += 1;
        Ok(model.logits(&done.hidden)?.into_vec())
    }

    /// Brings every shard here, once: then the steps ask nobody.
    fn fetch(&mut self, model: &Model, exchange: &mut Exchange) -> Result<(), EngineError> {
        let there: Vec<_> = self
            .holders
            .shards
            .iter()
            .filter(|(peer, _)| !exchange.is_here(peer))
            .cloned()
            .collect();
        let here = exchange.peer().clone();
        for (peer, shards) in &there {
            for layer in 0..model.layers() {
                let place = Place {
                    request: self.holders.request,
                    branch: Branch::PROMPT,
                    layer: layer as u32,
                    epoch: self.home.epoch,
                    start: self.home.end,
                    tokens: 1,
                    chunks: self.chunks,
                    shards: shards.as_slice().into(),
                    policy: self.holders.policy,
                };
                let shards = bring(exchange, (peer, &self.holders), place)?;
                self.keep(exchange, layer, shards)?;
            }
            for &(chunk, epoch) in shards {
                self.holders.add(&here, chunk, epoch);
            }
        }
        self.holders.shards.retain(|(peer, _)| *peer == here);
        self.holders.shards.iter_mut().for_each(|(_, shards)| shards.sort_unstable());
        Ok(())
    }

    fn keep(&self, exchange: &Exchange, layer: usize, shards: Shards) -> Result<(), PortError> {
        let epochs: BTreeMap<u32, Epoch> =
            self.holders.shards.iter().flat_map(|(_, shards)| shards.iter().copied()).collect();
        for (chunk_idx, shard) in shards {
            let Some(&epoch) = epochs.get(&chunk_idx) else { continue };
            let (request, branch, layer) = (self.holders.request, Branch::PROMPT, layer as u32);
            let key = ShardKey { request, branch, layer, chunk_idx, epoch };
            let kept = exchange.holder.store().put(key, shard);
            kept.map_err(|refusal| PortError::Unfit { layer: layer as usize, refusal })?;
        }
        Ok(())
    }
}

/// The shards of `place` from one holder.
fn bring(
    exchange: &mut Exchange,
    (peer, holders): (&aqueduct_core::work::Peer, &Holders),
    place: Place,
) -> Result<Shards, PortError> {
    let layer = place.layer as usize;
    let deadline = Instant::now() + holders.deadline;
    let lost = |what: String| PortError::Peer { layer, what };
    let call = exchange
        .call(peer, Ask::Keys { place }, holders.wire, deadline)
        .map_err(|error| lost(error.to_string()))?;
    loop {
        match exchange.answer(call).map(|answered| answered.reply) {
            Some(Ok(Reply::Keys(shards))) => return Ok(shards),
            Some(Ok(_)) => return Err(lost("no keys came".to_owned())),
            Some(Err(error)) => return Err(lost(error.to_string())),
            None if Instant::now() >= deadline => {
                exchange.give_up([call]);
                let deadline_ms = holders.deadline.as_millis() as u64;
                return Err(PortError::Deadline { layer, deadline_ms });
            }
            None => exchange.doorbell.wait_until(Some(deadline)),
        }
    }
}

/// A decode step waits and does nothing else: it is what is urgent.
struct StepWait<'a> {
    exchange: &'a mut Exchange,
}

impl Wait for StepWait<'_> {
    fn exchange(&mut self) -> &mut Exchange {
        self.exchange
    }

    fn breathe(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn rest(&mut self, until: Instant) -> Result<(), PortError> {
        self.exchange.doorbell.wait_until(Some(until));
        Ok(())
    }

    fn layer_done(&mut self, _layers_done: u32) {}
}
