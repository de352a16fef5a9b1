//! Prefixes that are whole are kept where they were computed; what workers have is told the plan.

use aqueduct_core::snapshot::{Keep, Made, SnapshotNews};
use aqueduct_core::work::Command as Order;
use aqueduct_core::{RequestId, Session, SnapshotsHeld, WorkerId};
use aqueduct_plan::Event;

use super::super::session;
use super::{EventLoop, Live};

impl EventLoop {
    /// Has workers keep what is known to be whole of a prompt and is nowhere yet. The plan counts
    /// on it at once: a worker reads this before anything that the plan asks of it later.
    pub(super) fn keep_prefixes(&mut self, request: RequestId) {
        let Some(live) = self.live.get_mut(&request) else { return };
        for (worker, whole) in live.whole_prefixes() {
            let snapshot = whole.name;
            if !self.keepers.contains_key(&worker) || self.plan.has_snapshot(&snapshot) {
                continue;
            }
            let Some(orders) = self.orders.get(&worker) else { continue };
            let (made, retained) = (Made::Chunk(whole.chunk_idx), whole.retained);
            let keep = Keep { request, made, snapshot, retained };
            if orders.try_send(Order::Keep(Box::new(keep))).is_ok() {
                self.note_origin(snapshot, request);
                self.step(Event::Snapshots { worker, kept: vec![snapshot], dropped: Vec::new() });
            }
        }
    }

    /// Has `worker` keep what a completion left, if its session is to go on from it.
    pub(super) fn keep_choice(&mut self, worker: WorkerId, request: RequestId, choice: u32) {
        let left = self.live.get(&request).and_then(|live| live.left_by_choice(worker, choice));
        if let Some((made, session)) = left {
            self.keep_session(worker, request, (made, session));
        }
    }

    /// Has the last chunk's worker keep what a prompt left after which nothing is generated.
    pub(super) fn keep_prompt(&mut self, request: RequestId) {
        let left = self.live.get(&request).and_then(Live::left_by_prompt);
        if let Some((worker, made, session)) = left {
            self.keep_session(worker, request, (made, session));
        }
    }

    /// The worker reads this before it is told to forget the request, and the caller hears of it
    /// before it hears of the end.
    fn keep_session(
        &mut self,
        worker: WorkerId,
        request: RequestId,
        (made, session): (Made, Session),
    ) {
        let Some(orders) = self.orders.get(&worker).filter(|_| self.keepers.contains_key(&worker))
        else {
            return;
        };
        let Some(live) = self.live.get_mut(&request) else { return };
        let (snapshot, retained) = (session::key(&session), live.retained_so_far());
        let keep = Keep { request, made, snapshot, retained };
        if orders.try_send(Order::Keep(Box::new(keep))).is_ok() {
            live.session_kept(session);
            self.note_origin(snapshot, request);
            self.step(Event::Snapshots { worker, kept: vec![snapshot], dropped: Vec::new() });
        }
    }

    /// A worker says what it has and what not.
    pub(super) fn snapshots_changed(&mut self, worker: WorkerId, news: SnapshotNews) {
        let SnapshotNews { kept, dropped, held } = news;
        tracing::debug!(%worker, kept = kept.len(), dropped = dropped.len(), ?held, "snapshots");
        self.keepers.insert(worker, held);
        let gone = dropped.clone();
        self.step(Event::Snapshots { worker, kept, dropped });
        for snapshot in gone.iter().filter(|snapshot| !self.plan.has_snapshot(snapshot)) {
            self.desk.origins.remove(snapshot);
        }
    }

    /// What all workers have together.
    pub(super) fn snapshots_held(&self) -> SnapshotsHeld {
        self.keepers.values().fold(SnapshotsHeld::default(), |mut sum, held| {
            sum.add(*held);
            sum
        })
    }
}
