//! Snapshots of all workers.

use std::collections::BTreeSet;

use aqueduct_core::ask::{Declined, FilePart, Question, Reply, SnapshotHeld};
use aqueduct_core::{Refusal, SnapshotKey, WorkerId, limits};
use aqueduct_proto::v1;
use futures::{StreamExt, stream};

use super::{LISTED, Operations, OperatorError, nodes};
use crate::runtime::{Origin, WorkerState};

/// Workers that are asked at once.
const ASKED_AT_ONCE: usize = 16;
/// Digits of a name that may stand for the whole.
const DIGITS_MIN: usize = 8;

/// What a name, or its beginning, stands for.
pub(super) struct Holders {
    pub(super) snapshot: SnapshotKey,
    pub(super) workers: Vec<WorkerId>,
}

impl Operations {
    /// Snapshots, ascending by name: whole names, so that a page may be a little longer.
    ///
    /// # Errors
    /// A limit, a name or a worker that is none; no answer.
    pub async fn snapshots(
        &self,
        asked: v1::ListSnapshotsRequest,
    ) -> Result<v1::SnapshotList, OperatorError> {
        let v1::ListSnapshotsRequest { worker, limit, from } = asked;
        let limit = if limit == 0 { LISTED } else { limit };
        Refusal::unless_within("limit", limit, 1, limits::OPERATOR_LIST_MAX)?;
        let from = if from.is_empty() { "0".repeat(64) } else { from };
        let from: SnapshotKey = from.parse()?;
        let mut held = self.held(&worker, from, limit).await?;
        held.sort_by_key(|(worker, held)| (held.snapshot, *worker));
        let behind = held.get(limit as usize).map(|(_, held)| held.snapshot);
        let cut = held.get(limit as usize - 1).map(|(_, held)| held.snapshot);
        held.retain(|(_, held)| cut.is_none_or(|cut| held.snapshot <= cut));
        let next = cut.and_then(|cut| behind.map(|behind| behind.max(after(cut))));
        // Where a worker's page was full there may be more behind it.
        let next = next.or_else(|| cut.map(after)).filter(|_| held.len() >= limit as usize);
        let names = held.iter().map(|(_, held)| held.snapshot).collect();
        let origins = self.coordinator.origins(names).await?;
        let snapshots = held.iter().zip(&origins);
        let snapshots = snapshots.map(|(held, origin)| self.entry(held, origin.as_ref()));
        let snapshots = snapshots.collect();
        Ok(v1::SnapshotList { snapshots, next: next.map_or_else(String::new, |it| it.to_string()) })
    }

    /// Has workers keep a snapshot no longer.
    ///
    /// # Errors
    /// A name that none has; no answer.
    pub async fn evict(
        &self,
        asked: v1::EvictSnapshotRequest,
    ) -> Result<v1::SnapshotChange, OperatorError> {
        let found = self.find(&asked.snapshot, &asked.worker).await?;
        self.change(found, Question::Evict).await
    }

    /// Has workers never let go of a snapshot for want of room, or do so again.
    ///
    /// # Errors
    /// A name that none has; no answer.
    pub async fn pin(
        &self,
        asked: v1::PinSnapshotRequest,
    ) -> Result<v1::SnapshotChange, OperatorError> {
        let found = self.find(&asked.snapshot, &asked.worker).await?;
        self.change(found, |snapshot| Question::Pin { snapshot, pinned: !asked.undo }).await
    }

    /// The part of a snapshot's file that begins at `start`, and who gave it: the same worker
    /// gives the rest.
    ///
    /// # Errors
    /// A name that none has; no answer.
    pub(crate) async fn export(
        &self,
        asked: &v1::ExportSnapshotRequest,
    ) -> Result<(SnapshotKey, WorkerId), OperatorError> {
        let found = self.find(&asked.snapshot, &asked.worker).await?;
        Ok((found.snapshot, found.workers[0]))
    }

    /// A part of what [`export`](Self::export) found.
    pub(crate) async fn export_part(
        &self,
        (snapshot, worker): (SnapshotKey, WorkerId),
        start: u64,
    ) -> Result<FilePart, OperatorError> {
        match self.ask(worker, Question::Export { snapshot, start }).await? {
            Reply::Part(part) => Ok(part),
            _ => Err(OperatorError::Silent),
        }
    }

    /// Who is to import.
    ///
    /// # Errors
    /// No such worker, or none that is up.
    pub(crate) fn importer(&self, worker: &str) -> Result<WorkerId, OperatorError> {
        let first = self.asked(worker)?.first().copied();
        first.ok_or_else(|| nodes::unknown(worker))
    }

    /// Hands `worker` a part; what it keeps, when that was the last one.
    ///
    /// # Errors
    /// A file that it cannot keep; no answer.
    pub(crate) async fn import_part(
        &self,
        worker: WorkerId,
        part: FilePart,
    ) -> Result<Option<v1::SnapshotEntry>, OperatorError> {
        match self.ask(worker, Question::Import(part)).await? {
            Reply::Snapshots(held) => {
                Ok(held.first().map(|held| self.entry(&(worker, *held), None)))
            }
            _ => Ok(None),
        }
    }

    /// What a name, of which the beginning is enough, stands for: on `worker`, or anywhere.
    pub(super) async fn find(&self, name: &str, worker: &str) -> Result<Holders, OperatorError> {
        let (first, last) = range(name)?;
        let mut found = self.held(worker, first, 2).await?;
        found.retain(|(_, held)| held.snapshot <= last);
        let names: BTreeSet<_> = found.iter().map(|(_, held)| held.snapshot).collect();
        let refusal = |bound: &str| Refusal::new("snapshot", name, bound);
        match (names.first(), names.len()) {
            (Some(&snapshot), 1) => {
                let workers = found.into_iter().map(|(worker, _)| worker).collect();
                Ok(Holders { snapshot, workers })
            }
            (None, _) => Err(OperatorError::Unknown(refusal("the name of one that is kept"))),
            _ => Err(refusal("longer: several names begin with it").into()),
        }
    }

    /// What `worker`, or each that is up, has from `from` on.
    async fn held(
        &self,
        worker: &str,
        from: SnapshotKey,
        limit: u32,
    ) -> Result<Vec<(WorkerId, SnapshotHeld)>, OperatorError> {
        let ask = async |worker| match self.ask(worker, Question::Snapshots { from, limit }).await {
            Ok(Reply::Snapshots(held)) => Ok(held.into_iter().map(|it| (worker, it)).collect()),
            // It was lost meanwhile, and what it had with it.
            Ok(_) | Err(OperatorError::Unknown(_)) => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let asked = stream::iter(self.asked(worker)?).map(ask).buffered(ASKED_AT_ONCE);
        let all: Vec<Result<Vec<_>, OperatorError>> = asked.collect().await;
        Ok(all.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// The worker that is named, or all that are up.
    fn asked(&self, worker: &str) -> Result<Vec<WorkerId>, OperatorError> {
        let cluster = self.coordinator.describe();
        if !worker.is_empty() {
            let found = cluster.find(worker).filter(|status| status.state == WorkerState::Up);
            return Ok(vec![found.ok_or_else(|| nodes::unknown(worker))?.worker]);
        }
        let up = cluster.workers.iter().filter(|status| status.state == WorkerState::Up);
        Ok(up.map(|status| status.worker).collect())
    }

    async fn change(
        &self,
        found: Holders,
        question: impl Fn(SnapshotKey) -> Question,
    ) -> Result<v1::SnapshotChange, OperatorError> {
        let mut workers = Vec::new();
        for worker in found.workers {
            match self.ask(worker, question(found.snapshot)).await {
                Ok(_) => workers.push(self.coordinator.name_of(worker)),
                Err(OperatorError::Unknown(_)) => {} // gone by itself
                Err(error) => return Err(error),
            }
        }
        Ok(v1::SnapshotChange { snapshot: found.snapshot.to_string(), workers })
    }

    /// Asks a worker.
    pub(super) async fn ask(
        &self,
        worker: WorkerId,
        question: Question,
    ) -> Result<Reply, OperatorError> {
        self.coordinator.ask_worker(worker, question).await?.map_err(|declined| match declined {
            Declined::Gone => {
                let name = self.coordinator.name_of(worker);
                OperatorError::Unknown(Refusal::new("worker", name, "one that still has it"))
            }
            Declined::Busy => OperatorError::Busy,
            Declined::Refused(why) => OperatorError::Impossible(why),
        })
    }

    fn entry(
        &self,
        (worker, held): &(WorkerId, SnapshotHeld),
        origin: Option<&Origin>,
    ) -> v1::SnapshotEntry {
        let SnapshotHeld { snapshot, tokens, memory_bytes, disk_bytes, pinned } = *held;
        v1::SnapshotEntry {
            snapshot: snapshot.to_string(),
            worker: self.coordinator.name_of(*worker),
            tokens,
            memory_bytes,
            disk_bytes,
            pinned,
            policy: origin.map_or_else(String::new, |origin| origin.policy.to_string()),
            request: origin.map_or_else(String::new, |origin| origin.request.to_string()),
        }
    }
}

/// The first and the last name that begin with these digits.
fn range(digits: &str) -> Result<(SnapshotKey, SnapshotKey), Refusal> {
    let length = DIGITS_MIN..=64;
    let is_fit = length.contains(&digits.len()) && digits.bytes().all(|it| it.is_ascii_hexdigit());
    let bound = "8 to 64 hexadecimal digits";
    is_fit.then_some(()).ok_or_else(|| Refusal::new("snapshot", digits, bound))?;
    let filled = |with: &str| (digits.to_owned() + &with.repeat(64 - digits.len())).parse();
    Ok((filled("0")?, filled("f")?))
}

/// The name after this one.
fn after(SnapshotKey(mut bytes): SnapshotKey) -> SnapshotKey {
    for byte in bytes.iter_mut().rev() {
        let (next, carried) = byte.overflowing_add(1);
        *byte = next;
        if !carried {
            break;
        }
    }
    SnapshotKey(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_be_cut_short() {
        let (first, last) = range("00ff00ff").unwrap();
        assert_eq!(first.to_string(), format!("00ff00ff{}", "0".repeat(56)));
        assert_eq!(last.to_string(), format!("00ff00ff{}", "f".repeat(56)));
        assert_eq!(after(last).to_string(), format!("00ff0100{}", "0".repeat(56)));
        for bad in ["", "00ff00f", "00ff00fg", &"0".repeat(65)] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}
