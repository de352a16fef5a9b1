//! A completion whose prompt is in shards: a step asks all holders at once.

use std::cell::{RefCell, RefMut};
use std::ops::DerefMut;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use aqueduct_core::work::Peer;
use aqueduct_core::{Carry, Epoch, RequestId};
use aqueduct_engine::shards::Branch;
use aqueduct_engine::{EngineError, Model, PortError};

use super::calls::Exchange;
use super::port::{Asker, Brought, ShardsPort, Wait};
use super::{Holders, kept_tokens};
use crate::executor::Executor;

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
    /// Whether the keys of others came here, if a completion has asked for them.
    pub(super) has_all: OnceLock<bool>,
}

impl ShardedHome {
    /// Whether chunk `chunk_idx` ends the prompt.
    pub(in crate::executor) fn is_last(&self, chunk_idx: u32) -> bool {
        chunk_idx + 1 == self.chunks
    }

    /// Drops the shards of others, if they have come here.
    pub(in crate::executor) fn drop_what_came(&self, exchange: &Exchange) {
        if self.has_all.get() == Some(&true) {
            self.holders.drop_brought(exchange);
        }
    }
}

/// One completion.
#[derive(Debug)]
pub(in crate::executor) struct ShardedSequence {
    home: Arc<ShardedHome>,
    holders: Holders,
    branch: Branch,
    /// Completions of the prompt.
    choices: u32,
    /// The prompt's, and those that its own tokens have begun.
    chunks: u32,
    /// Tokens generated and kept.
    tokens: u32,
}

impl ShardedSequence {
    /// Completion `choice` of `choices`. Unless the home `gathers`, queries travel where keys did:
    /// that changes no bit.
    pub(in crate::executor) fn new(
        home: Arc<ShardedHome>,
        choice: u32,
        (choices, gathers): (u32, bool),
    ) -> Self {
        let (mut holders, chunks) = (home.holders.clone(), home.chunks);
        if holders.carry == Carry::Keys && !gathers {
            holders.carry = Carry::Queries;
        }
        Self { holders, branch: Branch::of_choice(choice), choices, chunks, tokens: 0, home }
    }

    /// Makes ready for the next token.
    ///
    /// # Errors
    /// A holder that is lost, or no room for what it has.
    pub(in crate::executor) fn prepare(
        &mut self,
        model: &Model,
        device: &Device<'_>,
    ) -> Result<(), EngineError> {
        if self.tokens > 0 {
            return Ok(());
        }
        if self.holders.carry == Carry::Keys {
            self.gather(model.layers(), device)?;
        } else if self.has_room_for_torn(device) {
            let brought = self.port(device).bring(model.layers(), Brought::Torn)?;
            self.holders.bring(device.borrow().exchange.peer(), &brought);
        }
        Ok(())
    }

    /// The way to the shards for the next token.
    pub(in crate::executor) fn port<'a, 'd>(
        &'a self,
        device: &'a Device<'d>,
    ) -> SequencePort<'a, 'd> {
        let wait = StepWait { device, request: self.holders.request };
        ShardsPort::new(&self.holders, self.asker(), wait)
    }

    /// Chunks before the next token.
    pub(in crate::executor) fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Of the next token.
    pub(in crate::executor) fn position(&self) -> u32 {
        self.home.end + self.tokens
    }

    /// What is different once a token is there.
    pub(in crate::executor) fn advance(&mut self, here: &Peer) {
        if self.begins_chunk() {
            self.holders.add(here, self.chunks, self.home.epoch);
            self.chunks += 1;
        }
        self.tokens += 1;
    }

    /// Brings all shards here, once for all completions: then their steps ask nobody. Where they
    /// have no room after all, queries travel instead.
    fn gather(&mut self, layers: usize, device: &Device<'_>) -> Result<(), EngineError> {
        let has_all = match self.home.has_all.get() {
            Some(&has_all) => has_all,
            None => match self.port(device).bring(layers, Brought::All) {
                Ok(_) => true,
                Err(error) => {
                    self.holders.drop_brought(&device.borrow().exchange);
                    let PortError::Memory { source, .. } = error else { return Err(error.into()) };
                    let request = self.holders.request;
                    tracing::info!(%request, %source, "queries travel, as keys have no room");
                    false
                }
            },
        };
        self.home.has_all.get_or_init(|| has_all);
        if has_all {
            let shards = self.holders.shards.iter().flat_map(|(_, shards)| shards.clone());
            let all: Vec<_> = shards.collect();
            self.holders.bring(device.borrow().exchange.peer(), &all);
        } else {
            self.holders.carry = Carry::Queries;
        }
        Ok(())
    }

    /// Whether the shards of torn leaves, which every step would ask for, may come here. They
    /// must fit, for every completion, in what the prompt's own chunks were given here: these
    /// have given up most of their keys, and no request takes the room of another.
    fn has_room_for_torn(&self, device: &Device<'_>) -> bool {
        let (exchange, holders) = (&device.borrow().exchange, &self.holders);
        if holders.policy.keeps_all() {
            return false; // no leaf is torn
        }
        let page_tokens = exchange.holder.store().page_tokens();
        let last = self.home.chunks - 1;
        let given = |chunk: u32| {
            let tokens = match chunk == last {
                true => self.home.end - last * holders.chunk_tokens,
                false => holders.chunk_tokens,
            };
            u64::from(tokens).next_multiple_of(page_tokens)
        };
        let here = holders.shards.iter().filter(|(peer, _)| exchange.is_here(peer));
        let given: u64 = here.flat_map(|(_, shards)| shards).map(|shard| given(shard.0)).sum();
        // Each shard that has any keys at all may leave its last page all but empty.
        let kept = kept_tokens(&holders.policy, self.home.end);
        let unused = u64::from(kept.min(self.home.chunks)) * (page_tokens - 1);
        // Those that the prompt's own chunks have kept stay beside them.
        (u64::from(kept) + unused) * (u64::from(self.choices) + 1) <= given
    }

    /// The next token's block.
    fn asker(&self) -> Asker {
        let begins = self.begins_chunk();
        Asker {
            branch: self.branch,
            epoch: self.home.epoch,
            start: self.position(),
            tokens: 1,
            chunks: self.chunks,
            own: if begins { self.chunks } else { self.chunks - 1 },
        }
    }

    /// Whether the next token is the first of a chunk. Where keys are given up, the prompt's last
    /// chunk goes on: so leaves are those of the prompt.
    fn begins_chunk(&self) -> bool {
        let keeps_all = self.holders.policy.keeps_all();
        keeps_all && self.tokens.is_multiple_of(self.holders.chunk_tokens)
    }
}

/// The device thread, which all completions of a batch share.
pub(in crate::executor) type Device<'d> = RefCell<&'d mut Executor>;

/// The way of one completion.
pub(in crate::executor) type SequencePort<'a, 'd> = ShardsPort<'a, StepWait<'a, 'd>>;

/// A decode step is what is urgent, so it does no work of others while it waits. But it hears
/// commands: the holder that it waits for may be lost, and its request drawn back.
pub(in crate::executor) struct StepWait<'a, 'd> {
    device: &'a Device<'d>,
    request: RequestId,
}

impl Wait for StepWait<'_, '_> {
    fn exchange(&mut self) -> impl DerefMut<Target = Exchange> {
        RefMut::map(self.device.borrow_mut(), |device| &mut device.exchange)
    }

    fn breathe(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn rest(&mut self, until: Instant) -> Result<(), PortError> {
        let mut device = self.device.borrow_mut();
        device.hear();
        if !device.decodes(self.request) {
            return Err(PortError::Cancelled);
        }
        device.rest(until);
        Ok(())
    }

    fn layer_done(&mut self, _layers_done: u32) {}
}
