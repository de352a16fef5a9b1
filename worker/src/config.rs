//! What a worker is started with, checked once.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::work::Peer;
use aqueduct_core::{MemoryPolicy, Refusal, RequestId, limits};
use aqueduct_kernels::MemorySet;
use aqueduct_tls::ClientTls;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::link::loopback::LoopbackHub;
use crate::link::nccl::Direct;
use crate::snapshots::SnapshotOptions;

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

/// Who goes first on a worker that both decodes and prefills. No answer depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheduler {
    /// Decode rounds as soon as they can run, chunks in between.
    #[default]
    DecodeFirst,
    /// Steps of one decode round and then whole chunks, as many as `step_tokens` allows.
    Static,
    /// In order of arrival: a round stands behind the chunks that were there before it.
    Plain,
}

/// How a worker divides its time between decode rounds and chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduling {
    /// Who goes first.
    pub scheduler: Scheduler,
    /// Decoded and prompt tokens of a step of [`Scheduler::Static`], which has at least one chunk
    /// where one waits.
    pub step_tokens: u32,
}

impl Scheduler {
    /// The word that a user writes.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DecodeFirst => "decode-first",
            Self::Static => "static",
            Self::Plain => "plain",
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scheduler {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        match text {
            "decode-first" => Ok(Self::DecodeFirst),
            "static" => Ok(Self::Static),
            "plain" => Ok(Self::Plain),
            _ => Err(Refusal::new("scheduler", text, "decode-first, static or plain")),
        }
    }
}

impl Default for Scheduling {
    fn default() -> Self {
        Self { scheduler: Scheduler::default(), step_tokens: limits::STEP_TOKENS_DEFAULT }
    }
}

impl Scheduling {
    /// Checks every option against its bound.
    ///
    /// # Errors
    /// A step of no tokens, or of more than the longest prompt has.
    pub fn validate(self) -> Result<(), Refusal> {
        let most = limits::PROMPT_TOKENS_MAX;
        Refusal::unless_within("step_tokens", self.step_tokens, 1, most).map(drop)
    }
}

/// Options of one worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Where other workers reach it: `local://name` or, as [`Self::tls`] says, `http://host:port`
    /// or `https://host:port`.
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
    /// Bytes of the pages in which all remembered keys and values lie. Addresses are reserved at
    /// start, memory is used as pages are.
    pub pool_bytes: u64,
    /// What it keeps beyond the requests that made it.
    pub snapshots: SnapshotOptions,
    /// About how many bytes of partial states, or of the keys for them, a chunk of a request that
    /// keeps all keys has here and on their way; four states for each holder at least. Changes no
    /// bit.
    pub ahead_bytes: u64,
    /// One of so many merges of partial states is audited, counted by chunk and layer: all keys
    /// before the chunk come to it for that layer. 0 audits none.
    pub audit_every: u32,
    /// Who goes first: decode rounds or chunks.
    pub scheduling: Scheduling,
    /// Completions whose next tokens are computed together; more of them take turns.
    pub decode_batch_max: usize,
    /// How long the device thread may take to come to a layer's end before
    /// [`Worker::ended`](crate::Worker::ended) gives it up; [`Duration::MAX`] if it may take for
    /// ever. A device that hangs says nothing.
    pub stall: Duration,
    /// How long it takes what other workers bring though no coordinator has a session with it;
    /// [`Duration::MAX`] if it always does.
    pub unled: Duration,
    /// Shown the memory of every prompt that ends here, for pictures and the like.
    pub homes: Option<watch::Sender<Option<HomeMemory>>>,
    /// Hand-offs from device to device, where the other worker's device can be reached so; gRPC
    /// carries the rest, and everything if `None`.
    pub direct: Option<Direct>,
    /// How other workers are spoken to; plaintext if `None`.
    pub tls: Option<ClientTls>,
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
            pool_bytes: limits::POOL_BYTES_DEFAULT,
            snapshots: SnapshotOptions::default(),
            ahead_bytes: limits::EXCHANGE_AHEAD_BYTES,
            audit_every: 0,
            scheduling: Scheduling::default(),
            decode_batch_max: limits::DECODE_BATCH_MAX,
            stall: Duration::from_secs(limits::STALL_S_DEFAULT),
            unled: Duration::from_millis(limits::UNLED_MS),
            homes: None,
            direct: None,
            tls: None,
        }
    }

    /// Whether `peer` is reached through the hub. So is the worker itself, which its own address
    /// may not lead to where the network translates addresses.
    pub(crate) fn is_here(&self, peer: &Peer) -> bool {
        peer.0.starts_with("local://") || *peer == self.peer
    }

    /// Checks every option against its bound.
    ///
    /// # Errors
    /// The first option that is out of bounds.
    pub fn validate(&self) -> Result<(), Refusal> {
        if !self.peer.0.starts_with("local://") {
            aqueduct_tls::scheme_of("peer", &self.peer.0, self.tls.is_some())?;
        }
        Refusal::unless_within("inbox_bytes", self.inbox_bytes, 1, u64::MAX)?;
        Refusal::unless_within("ahead_bytes", self.ahead_bytes, 1, limits::EXCHANGE_BYTES_MAX)?;
        Refusal::unless_within("pool_tokens", self.pool_tokens, 1, u64::MAX)?;
        let most = limits::DECODE_BATCH_MAX;
        Refusal::unless_within("decode_batch_max", self.decode_batch_max, 1, most)?;
        Refusal::unless_within("pool_bytes", self.pool_bytes, 1, limits::POOL_BYTES_MAX)?;
        Refusal::unless_within("threads", self.threads, 1, u32::from(u16::MAX))?;
        Refusal::unless_within("stall ms", self.stall.as_millis(), 1, u128::MAX)?;
        self.scheduling.validate()
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
        for peer in ["w0", "https://w0:7001"] {
            check(WorkerOptions { peer: Peer(peer.into()), ..good.clone() }, "peer");
        }
        check(WorkerOptions { inbox_bytes: 0, ..good.clone() }, "inbox_bytes");
        check(WorkerOptions { ahead_bytes: 0, ..good.clone() }, "ahead_bytes");
        check(WorkerOptions { pool_tokens: 0, ..good.clone() }, "pool_tokens");
        check(WorkerOptions { pool_bytes: 0, ..good.clone() }, "pool_bytes");
        check(WorkerOptions { decode_batch_max: 0, ..good.clone() }, "decode_batch_max");
        let decode_batch_max = limits::DECODE_BATCH_MAX + 1;
        check(WorkerOptions { decode_batch_max, ..good.clone() }, "decode_batch_max");
        check(WorkerOptions { threads: 0, ..good.clone() }, "threads");
        check(WorkerOptions { stall: Duration::ZERO, ..good.clone() }, "stall ms");
        for step_tokens in [0, limits::PROMPT_TOKENS_MAX + 1] {
            let scheduling = Scheduling { step_tokens, ..Scheduling::default() };
            check(WorkerOptions { scheduling, ..good.clone() }, "step_tokens");
        }
    }

    #[test]
    fn schedulers_by_name() {
        for scheduler in [Scheduler::DecodeFirst, Scheduler::Static, Scheduler::Plain] {
            assert_eq!(scheduler.to_string().parse(), Ok(scheduler));
        }
        assert_eq!("fifo".parse::<Scheduler>().unwrap_err().field, "scheduler");
    }
}
