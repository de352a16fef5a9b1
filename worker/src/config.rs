//! What a worker is started with, checked once.

use std::sync::Arc;

use aqueduct_core::work::Peer;
use aqueduct_core::{MemoryPolicy, Refusal, RequestId, limits};
use aqueduct_kernels::MemorySet;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::link::loopback::LoopbackHub;
use crate::link::nccl::Direct;

/// What a prompt left behind at the worker of its last chunk.
#[derive(Debug, Clone)]
pub struct HomeMemory {
    /// The request.
    pub request: RequestId,
    /// The policy as used.
    pub policy: MemoryPolicy,
    /// The memory of every layer.
    pub layers: Vec<Arc<MemorySet>>,
}

/// Options of one worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Where other workers reach it: `local://name` or `http://host:port`.
    pub peer: Peer,
    /// Workers of this process.
    pub hub: LoopbackHub,
    /// Runs the links to workers of other processes.
    pub runtime: Handle,
    /// Most bytes of memory sets that wait here for their chunk.
    pub inbox_bytes: u64,
    /// Compute threads it may use, as it reports them.
    pub threads: u32,
    /// Most tokens whose keys it keeps in shards, over all requests; `u64::MAX` if memory alone
    /// bounds them.
    pub pool_tokens: u64,
    /// One of so many merges of partial states is audited, counted by chunk and layer: all keys
    /// before the chunk come to it for that layer. 0 audits none.
    pub audit_every: u32,
    /// Shown the memory of every prompt that ends here, for pictures and the like.
    pub homes: Option<watch::Sender<Option<HomeMemory>>>,
    /// Reach `http://` peers that live in this process through the hub.
    pub shortcut: bool,
    /// Hand-offs from device to device, where the other worker's device can be reached so; gRPC
    /// carries the rest, and everything if `None`.
    pub direct: Option<Direct>,
}

impl WorkerOptions {
    /// A worker at `peer` with every other option at its default.
    ///
    /// # Panics
    /// Outside a tokio runtime: links need one.
    pub fn new(peer: impl Into<String>, hub: LoopbackHub) -> Self {
        Self {
            peer: Peer(peer.into()),
            hub,
            runtime: Handle::current(),
            inbox_bytes: limits::INBOX_BYTES_DEFAULT,
            threads: 1,
            pool_tokens: u64::MAX,
            audit_every: 0,
            homes: None,
            shortcut: false,
            direct: None,
        }
    }

    /// Whether `peer` is reached through the hub.
    pub(crate) fn is_here(&self, peer: &Peer) -> bool {
        peer.0.starts_with("local://") || (self.shortcut && self.hub.has(peer))
    }

    /// Checks every option against its bound.
    ///
    /// # Errors
    /// The first option that is out of bounds.
    pub fn validate(&self) -> Result<(), Refusal> {
        if !["local://", "http://"].iter().any(|scheme| self.peer.0.starts_with(scheme)) {
            return Err(Refusal::new("peer", &self.peer, "http://host:port or local://name"));
        }
        Refusal::unless_within("inbox_bytes", self.inbox_bytes, 1, u64::MAX)?;
        Refusal::unless_within("pool_tokens", self.pool_tokens, 1, u64::MAX)?;
        Refusal::unless_within("threads", self.threads, 1, u32::from(u16::MAX))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refuses_by_field() {
        let good = WorkerOptions::new("local://w0", LoopbackHub::default());
        assert_eq!(good.validate(), Ok(()));
        let check = |bad: WorkerOptions, field: &str| {
            assert_eq!(bad.validate().unwrap_err().field, field);
        };
        check(WorkerOptions { peer: Peer("w0".into()), ..good.clone() }, "peer");
        check(WorkerOptions { inbox_bytes: 0, ..good.clone() }, "inbox_bytes");
        check(WorkerOptions { pool_tokens: 0, ..good.clone() }, "pool_tokens");
        check(WorkerOptions { threads: 0, ..good }, "threads");
    }
}
