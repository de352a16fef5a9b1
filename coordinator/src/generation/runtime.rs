//! The runtime as the API layers see it, so that they can be tried without one.

use aqueduct_core::work::PoolUse;
use aqueduct_core::{RequestId, SnapshotsHeld, Telling};
use futures::future::BoxFuture;

use crate::peers::Passage;
use crate::runtime::{Cluster, Leader};
use crate::submit::{RequestError, Submission, Update};

/// What the API layers need of the runtime.
pub trait Submit: Send + Sync + 'static {
    /// Queues a request.
    fn submit(
        &self,
        submission: Submission,
    ) -> BoxFuture<'_, Result<Box<dyn Updates>, RequestError>>;

    /// A request that was under way, or has ended, before this process began, if whose `claim` it
    /// is may come back to it: what was asked for, if not the prompt's tokens, and all that is
    /// known of it, from its beginning. To anybody else it is unknown, and nothing happens to it.
    fn attach(
        &self,
        request: RequestId,
        claim: Claim,
    ) -> BoxFuture<'_, Result<Attached, RequestError>>;

    /// The request that `holder` has started with the key `name`, as far as it is written down,
    /// and the digest of what was asked for with it.
    fn started(
        &self,
        holder: &str,
        name: &str,
    ) -> BoxFuture<'_, Result<Option<Started>, RequestError>>;

    /// How things stand.
    fn load(&self) -> Load;

    /// The workers, and what they serve.
    fn cluster(&self) -> Cluster;

    /// Waits until it is known which coordinator leads, where that may be soon.
    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The way to whichever other coordinator leads, where there are others.
    fn passage(&self) -> Option<&Passage> {
        None
    }
}

/// By what right somebody comes back to a request. Of an API key it is the public part that
/// counts; empty where none is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Who has this key asked for it, as one that is come back to.
    Caller(String),
    /// A member of the group makes the call again by which it was asked for.
    Escorted {
        /// Whose key was shown with it.
        holder: String,
        /// What the request is called for that, as nobody else knows.
        name: String,
    },
    /// Another member of the group has its caller, whoever that is.
    Member,
}

impl Claim {
    /// Whether this is enough for the answer to such a request.
    pub fn may_read(&self, telling: &Telling) -> bool {
        match self {
            Self::Caller(holder) => telling.is_for(holder),
            Self::Escorted { holder, name } => {
                let once = telling.once.as_ref();
                once.is_some_and(|once| once.name == *name) && telling.holder == *holder
            }
            Self::Member => true,
        }
    }
}

/// A request that is taken up again.
pub type Attached = (Submission, Box<dyn Updates>);

/// A request that was started with a key, and the digest of what was asked for with it.
pub type Started = (RequestId, [u8; 32]);

/// A request under way; dropping it cancels the request.
pub trait Updates: Send {
    /// The next update; `None` after the last one.
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Update, RequestError>>>;

    /// Ends one completion; its `ChoiceDone` still comes.
    fn stop_choice(&mut self, choice: u32);
}

impl Load {
    /// Whether it is going to stop, and nobody else is known to serve.
    pub(crate) fn is_alone(&self) -> bool {
        self.closing && self.leader == Leader::Nobody
    }
}

/// How the runtime stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Load {
    /// Which coordinator serves.
    pub leader: Leader,
    /// Whether new requests are taken.
    pub open: bool,
    /// Whether it is going to stop.
    pub closing: bool,
    /// Workers that are there, be it to be left.
    pub workers_up: usize,
    /// Workers that take work; without any, a request is refused.
    pub workers_open: usize,
    /// Requests being served.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests that may be served and in the queue at once.
    pub places: usize,
    /// Tokens of their prompts.
    pub waiting_tokens: u64,
    /// Chunks so far that a second worker was given as well.
    pub chunk_hedges: u64,
    /// Bytes of keys and values of one token, over all layers and KV heads.
    pub token_bytes: u64,
    /// Bytes of the states of layers that have no keys, whatever they are of.
    pub state_bytes: u64,
    /// Memory that workers keep beyond the requests that made it.
    pub snapshots: SnapshotsHeld,
    /// What of their pools is in use, by what the operator calls them.
    pub pools: Vec<(String, PoolUse)>,
}
