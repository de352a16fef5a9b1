//! Snapshots: what is kept, what is restored, what a worker has.

use aqueduct_core::snapshot::{Keep, Made, Restore, SnapshotNews};
use aqueduct_core::work::RetainedMass;
use aqueduct_core::{Refusal, RequestId, SnapshotKey, SnapshotsHeld, limits};
use bytes::Bytes;

use super::command::chunk_idx;
use super::exchange::wire_dtype;
use super::{Under, bounded, choice, key};
use crate::v1;

/// The name that `wire` spells.
pub(super) fn name(field: &str, wire: &[u8]) -> Result<SnapshotKey, Refusal> {
    let refusal = |_| Refusal::new(field, format!("{} bytes", wire.len()), "32 bytes");
    wire.try_into().map(SnapshotKey).map_err(refusal)
}

pub(super) fn name_to_wire(key: SnapshotKey) -> Bytes {
    Bytes::copy_from_slice(&key.0)
}

fn names(field: &str, wire: &[Bytes]) -> Result<Vec<SnapshotKey>, Refusal> {
    bounded(field, wire, limits::SNAPSHOT_NEWS_MAX)?;
    wire.iter().map(|wire| name(field, wire)).collect()
}

impl From<Keep> for v1::Keep {
    fn from(keep: Keep) -> Self {
        let (chunk_idx, choice) = match keep.made {
            Made::Chunk(chunk_idx) => (chunk_idx, None),
            Made::Choice(choice) => (0, Some(choice)),
        };
        Self {
            request: keep.request.0,
            chunk_idx,
            choice,
            snapshot: name_to_wire(keep.snapshot),
            retained: keep.retained.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::Keep> for Keep {
    type Error = Refusal;

    fn try_from(wire: v1::Keep) -> Result<Self, Refusal> {
        bounded("retained", &wire.retained, limits::LAYERS_MAX as usize)?;
        let retained: Result<_, _> =
            wire.retained.into_iter().map(RetainedMass::try_from).collect();
        Ok(Self {
            request: RequestId(wire.request),
            made: match wire.choice {
                None => Made::Chunk(chunk_idx(wire.chunk_idx)?),
                Some(idx) => Made::Choice(choice(idx)?),
            },
            snapshot: name("snapshot", &wire.snapshot)?,
            retained: retained.under("retained")?,
        })
    }
}

impl From<Restore> for v1::Restore {
    fn from(restore: Restore) -> Self {
        Self {
            key: Some(restore.key.into()),
            snapshot: name_to_wire(restore.snapshot),
            next: restore.next.map(Into::into),
            wire: v1::WireDtype::from(restore.wire).into(),
        }
    }
}

impl TryFrom<v1::Restore> for Restore {
    type Error = Refusal;

    fn try_from(wire: v1::Restore) -> Result<Self, Refusal> {
        Ok(Self {
            key: key(wire.key)?,
            snapshot: name("snapshot", &wire.snapshot)?,
            next: wire.next.map(TryInto::try_into).transpose().under("next")?,
            wire: wire_dtype(wire.wire)?.unwrap_or_default(),
        })
    }
}

impl From<SnapshotNews> for v1::SnapshotNews {
    fn from(news: SnapshotNews) -> Self {
        let SnapshotsHeld { count, memory_bytes, disk_bytes } = news.held;
        Self {
            kept: news.kept.into_iter().map(name_to_wire).collect(),
            dropped: news.dropped.into_iter().map(name_to_wire).collect(),
            count,
            memory_bytes,
            disk_bytes,
        }
    }
}

impl TryFrom<v1::SnapshotNews> for SnapshotNews {
    type Error = Refusal;

    fn try_from(wire: v1::SnapshotNews) -> Result<Self, Refusal> {
        let v1::SnapshotNews { count, memory_bytes, disk_bytes, .. } = wire;
        Ok(Self {
            kept: names("kept", &wire.kept)?,
            dropped: names("dropped", &wire.dropped)?,
            held: SnapshotsHeld { count, memory_bytes, disk_bytes },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> v1::Keep {
        let snapshot = vec![7; 32].into();
        v1::Keep { request: 1, chunk_idx: 2, snapshot, retained: Vec::new(), choice: None }
    }

    #[test]
    fn refuses_by_field() {
        let check = |change: fn(&mut v1::Keep), field: &str| {
            let mut wire = good();
            change(&mut wire);
            assert_eq!(Keep::try_from(wire).unwrap_err().field, field);
        };
        assert!(Keep::try_from(good()).is_ok());
        check(|wire| wire.chunk_idx = u32::MAX, "chunk_idx");
        check(|wire| wire.choice = Some(limits::CHOICES_MAX), "choice");
        check(|wire| wire.snapshot = vec![7; 31].into(), "snapshot");
        let mass = v1::RetainedMass { kept: -1.0, total: 1.0 };
        let bad = v1::Keep { retained: vec![mass], ..good() };
        assert_eq!(Keep::try_from(bad).unwrap_err().field, "retained.kept");
        let many = vec![v1::RetainedMass::default(); limits::LAYERS_MAX as usize + 1];
        let bad = v1::Keep { retained: many, ..good() };
        assert_eq!(Keep::try_from(bad).unwrap_err().field, "retained");
        let restore = v1::Restore { snapshot: good().snapshot, ..Default::default() };
        assert_eq!(Restore::try_from(restore).unwrap_err().field, "key");
        let key = Some(v1::ChunkKey::default());
        let next = Some(v1::NextHop { peer: "x".repeat(1 << 12), ..Default::default() });
        let restore = v1::Restore { key, snapshot: good().snapshot, next, wire: 0 };
        assert_eq!(Restore::try_from(restore.clone()).unwrap_err().field, "next.peer");
        let of_shard = v1::Restore { next: None, ..restore };
        assert_eq!(Restore::try_from(of_shard).unwrap().next, None);
        let check = |kept: Vec<Bytes>, dropped: Vec<Bytes>, field: &str| {
            let wire = v1::SnapshotNews { kept, dropped, ..Default::default() };
            assert_eq!(SnapshotNews::try_from(wire).unwrap_err().field, field);
        };
        check(vec![Bytes::new()], Vec::new(), "kept");
        check(Vec::new(), vec![vec![1; 33].into()], "dropped");
        check(vec![good().snapshot; limits::SNAPSHOT_NEWS_MAX + 1], Vec::new(), "kept");
    }
}
