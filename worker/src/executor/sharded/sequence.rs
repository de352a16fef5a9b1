//! A completion whose prompt is in shards: a step asks all holders at once.

use std::cell::{RefCell, RefMut};
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::work::Peer;
use aqueduct_core::{Carry, Epoch, RequestId};
use aqueduct_engine::shards::Branch;
use aqueduct_engine::{EngineError, Model, PortError};

use super::Holders;
use super::calls::Exchange;
use super::port::{Asker, ShardsPort, Wait};
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

    /// Makes ready for the next token.
    ///
    /// # Errors
    /// A holder that is lost, or no room for what it has.
    pub(in crate::executor) fn prepare(
        &mut self,
        model: &Model,
        device: &Device<'_>,
    ) -> Result<(), EngineError> {
        if self.tokens == 0 && self.holders.carry == Carry::Keys {
            self.fetch(model.layers(), device)?;
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

    /// Brings every shard here, once: then the steps ask nobody.
    fn fetch(&mut self, layers: usize, device: &Device<'_>) -> Result<(), EngineError> {
        let here = device.borrow().exchange.peer().clone();
        self.port(device).bring(layers)?;
        let mut shards: Vec<_> =
            self.holders.shards.drain(..).flat_map(|(_, shards)| shards).collect();
        shards.sort_unstable();
        self.holders.shards.push((here, shards));
        Ok(())
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
        device.shared.doorbell.wait_until(Some(until));
        Ok(())
    }

    fn layer_done(&mut self, _layers_done: u32) {}
}
