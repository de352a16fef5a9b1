//! A completion whose prompt is in shards: a step asks all holders at once.

use std::sync::Arc;
use std::time::Instant;

use aqueduct_core::{Carry, Epoch, TokenId};
use aqueduct_engine::shards::Branch;
use aqueduct_engine::{Block, EngineError, Model, Past, PortError, Want, prefill_sharded};

use super::Holders;
use super::calls::Exchange;
use super::port::{Asker, ShardsPort, Wait};

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
            self.fetch(model.layers(), exchange)?;
        }
        let asker = self.asker();
        let block = Block { tokens: &[token], start: asker.start };
        let mut port = ShardsPort::new(&self.holders, asker, StepWait { exchange });
        let past = Past { chunks: self.chunks, port: &mut port };
        let done = prefill_sharded(model, block, &self.holders.policy, past, Want::Last)?;
        drop(port);
        if self.begins_chunk() {
            let peer = exchange.peer().clone();
            self.holders.add(&peer, self.chunks, self.home.epoch);
            self.chunks += 1;
        }
        self.tokens += 1;
        Ok(model.logits(&done.hidden)?.into_vec())
    }

    /// Brings every shard here, once: then the steps ask nobody.
    fn fetch(&mut self, layers: usize, exchange: &mut Exchange) -> Result<(), EngineError> {
        let here = exchange.peer().clone();
        ShardsPort::new(&self.holders, self.asker(), StepWait { exchange }).bring(layers)?;
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
            start: self.home.end + self.tokens,
            tokens: 1,
            chunks: self.chunks,
            own: if begins { self.chunks } else { self.chunks - 1 },
        }
    }

    /// Whether the next token is the first of a chunk.
    fn begins_chunk(&self) -> bool {
        self.tokens.is_multiple_of(self.holders.chunk_tokens)
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
