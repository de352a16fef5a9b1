//! Workers, as they are shown.

use aqueduct_core::Refusal;
use aqueduct_proto::convert::shape::pool_tokens_to_wire;
use aqueduct_proto::v1;

use super::{OperatorError, count};
use crate::runtime::{Stats, WorkerState, WorkerStatus};

pub(super) fn unknown(worker: &str) -> OperatorError {
    let refusal = Refusal::new("worker", worker, "the name or address of a worker");
    OperatorError::Unknown(refusal)
}

/// In a word.
pub(crate) fn state(status: &WorkerStatus, stats: &Stats) -> &'static str {
    let requests = stats.draining.get(&status.worker).copied().unwrap_or(0);
    match (status.state, status.draining, requests) {
        (WorkerState::Connecting, ..) => "connecting",
        (WorkerState::Down, ..) => "down",
        (WorkerState::Refused, ..) => "refused",
        (WorkerState::Up, false, _) => "up",
        (WorkerState::Up, true, 0) => "drained",
        (WorkerState::Up, true, _) => "draining",
    }
}

/// In a line.
pub(super) fn entry(status: &WorkerStatus, stats: &Stats) -> v1::NodeEntry {
    let WorkerStatus { worker, name, reason, info, .. } = status;
    let requests = stats.draining.get(worker).copied().unwrap_or(0);
    let pool = stats.pools.get(worker).copied().unwrap_or_default();
    let snapshots = stats.snapshots_of.get(worker).copied().unwrap_or_default();
    v1::NodeEntry {
        name: name.clone(),
        address: info.as_ref().map_or_else(String::new, |info| info.peer.to_string()),
        state: state(status, stats).to_owned(),
        reason: reason.clone().unwrap_or_default(),
        threads: info.as_ref().map_or(0, |info| info.threads),
        requests: count(requests),
        pool_tokens: info.as_ref().map_or(0, |info| pool_tokens_to_wire(info.pool_tokens)),
        pool_bytes: pool.bytes,
        pool_used_bytes: pool.used_bytes,
        snapshots: snapshots.count,
        snapshot_bytes: snapshots.memory_bytes,
        snapshot_disk_bytes: snapshots.disk_bytes,
        device: info.as_ref().map_or_else(String::new, |info| info.device.clone()),
    }
}

/// With what it is at.
pub(super) fn view(status: &WorkerStatus, stats: &Stats, work: Vec<v1::NodeWork>) -> v1::NodeView {
    let info = status.info.as_ref();
    let mut node = entry(status, stats);
    node.requests = node.requests.max(count(work.len()));
    v1::NodeView {
        node: Some(node),
        fingerprint: info.map_or_else(String::new, |info| info.fingerprint.clone()),
        kv: info.map_or_else(String::new, |info| info.kv.to_string()),
        shape: info.map(|info| info.shape.clone().into()),
        work,
    }
}
