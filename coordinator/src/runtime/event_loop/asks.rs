//! Questions of operators on their way to workers.

use std::collections::BTreeMap;

use aqueduct_core::MemoryPolicy;
use aqueduct_core::ask::{Answer, Ask, Declined, Question, Reply};
use aqueduct_core::work::Command as Order;
use aqueduct_core::{RequestId, SnapshotKey, TokenId, WorkerId, limits};
use tokio::sync::oneshot;

use super::EventLoop;
use crate::runtime::origins::Origin;

/// What a worker says, or why it does not.
pub(crate) type Told = Result<Reply, Declined>;

/// Those that were not answered yet.
#[derive(Debug, Default)]
pub(super) struct Asks {
    last: u64,
    waiting: BTreeMap<u64, (WorkerId, oneshot::Sender<Told>)>,
}

/// A request whose memory somebody wants to see.
#[derive(Debug, Clone)]
pub(crate) struct Whereabouts {
    /// Its id.
    pub(crate) request: RequestId,
    /// As workers know it.
    pub(crate) run: RequestId,
    /// Who has its memory.
    pub(crate) worker: Option<WorkerId>,
    /// As used.
    pub(crate) policy: MemoryPolicy,
}

impl Asks {
    /// Nobody there will answer.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.waiting.retain(|_, (asked, _)| *asked != worker);
    }
}

impl EventLoop {
    /// Asks `worker`; what comes later is its answer, unless it is lost. Questions never fill the
    /// way for orders: a worker is taken for hung when that is full.
    pub(crate) fn ask_worker(
        &mut self,
        worker: WorkerId,
        question: Question,
    ) -> Result<oneshot::Receiver<Told>, Declined> {
        let orders = self.orders.get(&worker).ok_or(Declined::Gone)?;
        self.desk.asks.waiting.retain(|_, (_, told)| !told.is_closed());
        let has_room = orders.capacity() > orders.max_capacity() / 2;
        if !has_room || self.desk.asks.waiting.len() >= limits::OPERATOR_ASKS_MAX {
            return Err(Declined::Busy);
        }
        let ticket = self.desk.asks.last + 1;
        let ask = Order::Ask(Box::new(Ask { ticket, question }));
        orders.try_send(ask).map_err(|_| Declined::Busy)?;
        let (told, answer) = oneshot::channel();
        self.desk.asks.last = ticket;
        self.desk.asks.waiting.insert(ticket, (worker, told));
        Ok(answer)
    }

    pub(super) fn answered(&mut self, worker: WorkerId, Answer { ticket, reply }: Answer) {
        match self.desk.asks.waiting.remove(&ticket) {
            Some((asked, told)) if asked == worker => {
                let _ = told.send(reply); // whoever asked may be gone
            }
            Some(others) => drop(self.desk.asks.waiting.insert(ticket, others)),
            None => {}
        }
    }

    /// Where a request that is under way has its memory.
    pub(crate) fn whereabouts(&self, name: &str) -> Option<Whereabouts> {
        let live = self.called(name)?;
        let (worker, policy) = live.rememberer();
        Some(Whereabouts { request: live.request(), run: live.run(), worker, policy })
    }

    /// The tokens of a request under way at `positions`, where they are known.
    pub(crate) fn tokens_at(
        &self,
        run: RequestId,
        choice: u32,
        positions: &[u32],
    ) -> Vec<Option<TokenId>> {
        let live = self.live.get(&run);
        let token = |position: &u32| live.and_then(|live| live.token_at(choice, *position));
        positions.iter().map(token).collect()
    }

    /// What snapshots were made of.
    pub(crate) fn origins(&self, snapshots: &[SnapshotKey]) -> Vec<Option<Origin>> {
        snapshots.iter().map(|snapshot| self.desk.origins.get(snapshot)).collect()
    }

    /// Remembers what `snapshot` is being made of.
    pub(super) fn note_origin(&mut self, snapshot: SnapshotKey, run: RequestId) {
        let Some(live) = self.live.get(&run) else { return };
        let (_, policy) = live.rememberer();
        let (start, count) = live.tokens_known();
        let of = (live.request(), policy);
        self.desk.origins.insert(snapshot, of, (start, count), || live.tokens());
    }
}
