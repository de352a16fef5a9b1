//! Traffic about shards: queries to the workers that hold them, partial states back.
//!
//! An asker sends [`Ask`]s over an [`ExchangeLink`] for each holder and gets [`Reply`]s; the
//! holder's [`Holder`] thread answers from its store. Every ask may be repeated: it counts once.

mod bytes;
pub mod codec;
#[cfg(test)]
pub(crate) mod conformance;
mod fares;
pub mod grpc;
pub mod holder;
mod links;
pub mod loopback;
mod outbox;
pub(crate) mod serve;
mod shards;
mod states;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use aqueduct_core::WireDtype;
use aqueduct_core::work::RetainedMass;
use aqueduct_engine::shards::{Place, Spent, Standing, States};
use aqueduct_kernels::{Cutoff, Heads, Shard};

pub use fares::Fares;
pub use grpc::GrpcExchange;
pub use holder::Holder;
pub use links::ExchangeLinks;
pub use loopback::LoopbackExchange;

/// What is asked of a holder.
#[derive(Debug, Clone)]
pub enum Ask {
    /// Round one: the states of these queries over the shards of the place.
    Attend {
        /// Who asks, about which shards.
        place: Place,
        /// `[heads, tokens, head_dim]`.
        q: Arc<Heads>,
    },
    /// Round two: count what the block spends, and name the best candidates.
    Weigh {
        /// As in round one.
        place: Place,
        /// What it spends on all keys; on these, by its log-sum-exps or as it was counted.
        spent: Spent,
    },
    /// The end of round two: give up what does not stay.
    Settle {
        /// As in round one.
        place: Place,
        /// One for each KV head.
        cutoffs: Arc<[Cutoff]>,
    },
    /// The shards themselves, instead of round one.
    Keys {
        /// Who asks, about which shards.
        place: Place,
    },
}

/// What a holder answers, to each ask its own kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To [`Ask::Attend`].
    States(States),
    /// To [`Ask::Weigh`].
    Standing(Standing),
    /// To [`Ask::Settle`]: the mass that each chunk's shard kept.
    Settled(Vec<(u32, RetainedMass)>),
    /// To [`Ask::Keys`].
    Keys(BTreeMap<u32, Arc<Shard>>),
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The holder will not answer this, now or later.
    #[error("{0}")]
    Refused(String),
    /// The holder cannot be reached, or did not answer in time.
    #[error("{0}")]
    Lost(String),
}

/// An ask on its way.
#[derive(Debug, Clone)]
pub struct Call {
    /// The asker's number for it; no other call of the link has it.
    pub id: u64,
    /// What is asked.
    pub ask: Ask,
    /// Elements of queries and outputs on the wire.
    pub wire: WireDtype,
    /// When to stop trying.
    pub deadline: Instant,
    /// Gone when nobody waits for the answer any more: a link need not try further.
    pub asker: Weak<()>,
}

impl Call {
    /// Whether the answer is of use to anybody.
    pub fn is_wanted(&self) -> bool {
        self.asker.strong_count() > 0
    }
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// The call's number.
    pub id: u64,
    /// Bytes of payload that went out for it, and that came back; 0 in one process.
    pub bytes: (u64, u64),
    /// The reply.
    pub reply: Result<Reply, CallError>,
}

/// A way to one holder.
///
/// No method blocks. Every call that was taken is answered exactly once, at the latest soon after
/// its deadline, and the doorbell that the link was made with MUST be rung when an answer is
/// there or when a link that was full may take calls again. Replies may come in any order; bits
/// MUST arrive unchanged (but for the rounding that `wire` names) or not at all. A link that loses
/// an ask or a reply asks again: holders count once.
pub trait ExchangeLink: Send {
    /// Takes a call.
    ///
    /// # Errors
    /// The call, when the link is full.
    fn send(&mut self, call: Box<Call>) -> Result<(), Box<Call>>;

    /// Answers that came since the last time.
    fn answers(&mut self) -> Vec<Answered>;

    /// Whether the link can be used further.
    fn is_open(&self) -> bool;

    /// Whether there is nothing more to be had of a link that is not open.
    fn is_over(&self) -> bool {
        !self.is_open()
    }
}

impl Ask {
    /// Who asks, about which shards.
    pub fn place(&self) -> &Place {
        match self {
            Self::Attend { place, .. }
            | Self::Weigh { place, .. }
            | Self::Settle { place, .. }
            | Self::Keys { place } => place,
        }
    }
}
