//! What those who look after a cluster ask of it: see `Operator` in `proto/v1/operator.proto`.
//! Answers are the messages themselves, for people and programs to read.

use std::time::Duration;

use aqueduct_core::limits;
use aqueduct_proto::v1;
pub use aqueduct_proto::v1::{
    ChoiceView, ChunkView, ClusterView, FilePart, KeyView, ListRequestsRequest,
    ListSnapshotsRequest, MemberEntry, MemoryView, NodeEntry, NodeView, NodeWork, RequestEntry,
    RequestList, RequestTrace, RequestView, ShowMemoryRequest, SnapshotChange, SnapshotEntry,
    SnapshotList, TraceStep, show_memory_request::Of,
};
use bytes::Bytes;
use futures::Stream;
use tokio_stream::StreamExt;
use tonic::Request;

use crate::client::Client;
use crate::error::ClientError;
use crate::event::WorkerStatus;
use crate::routes::Route;

/// For a call for which a worker may have to read a disk; longer than a coordinator waits for it.
const SLOW: Duration = Duration::from_secs(60);
/// For a whole file, of which the server waits for no part longer than a moment.
const WHOLE_FILE: Duration = Duration::from_secs(3600);

impl Client {
    /// Gives a worker, by name or address, nothing new, so that it can be stopped when it has done
    /// what it has; or, unless `draining`, something again. How it stands then.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn drain(&self, worker: &str, draining: bool) -> Result<WorkerStatus, ClientError> {
        let message = v1::DrainRequest { worker: worker.to_owned(), undo: !draining };
        let reply =
            self.call(message, |mut route: Route, asked| async move {
                route.operator.drain(asked).await
            })
            .await?;
        reply.worker.map(Into::into).ok_or_else(|| ClientError::unreadable("no worker"))
    }

    /// How the cluster stands.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn show_cluster(&self) -> Result<ClusterView, ClientError> {
        self.call(v1::ShowClusterRequest {}, |mut route: Route, asked| async move {
            route.operator.show_cluster(asked).await
        })
        .await
    }

    /// How a worker, by name or address, stands, and what it is at.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn show_node(&self, worker: &str) -> Result<NodeView, ClientError> {
        let message = v1::ShowNodeRequest { worker: worker.to_owned() };
        self.call(message, |mut route: Route, asked| async move {
            route.operator.show_node(asked).await
        })
        .await
    }

    /// Requests under way and, if asked for, the last ones that have ended; a page of them.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn list_requests(
        &self,
        asked: ListRequestsRequest,
    ) -> Result<RequestList, ClientError> {
        self.call(asked, |mut route: Route, asked| async move {
            route.operator.list_requests(asked).await
        })
        .await
    }

    /// One of them, by its id or its caller's.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn show_request(&self, request: &str) -> Result<RequestView, ClientError> {
        let message = v1::ShowRequestRequest { request: request.to_owned() };
        self.call(message, |mut route: Route, asked| async move {
            route.operator.show_request(asked).await
        })
        .await
    }

    /// What happened to one of them.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn trace_request(&self, request: &str) -> Result<RequestTrace, ClientError> {
        let message = v1::TraceRequestRequest { request: request.to_owned() };
        self.call(message, |mut route: Route, asked| async move {
            route.operator.trace_request(asked).await
        })
        .await
    }

    /// Ends one of them, whose caller is told so; how it stood then.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn cancel_request(&self, request: &str) -> Result<RequestEntry, ClientError> {
        let message = v1::CancelRequestRequest { request: request.to_owned() };
        self.call(message, |mut route: Route, asked| async move {
            route.operator.cancel_request(asked).await
        })
        .await
    }

    /// Snapshots of all workers, or of one; a page of them.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn list_snapshots(
        &self,
        asked: ListSnapshotsRequest,
    ) -> Result<SnapshotList, ClientError> {
        let call =
            |mut route: Route, asked| async move { route.operator.list_snapshots(asked).await };
        self.call_within(SLOW, asked, call).await
    }

    /// Has a worker, or all that have it, keep a snapshot no longer. Of its name the beginning is
    /// enough.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn evict_snapshot(
        &self,
        snapshot: &str,
        worker: &str,
    ) -> Result<SnapshotChange, ClientError> {
        let (snapshot, worker) = (snapshot.to_owned(), worker.to_owned());
        let message = v1::EvictSnapshotRequest { snapshot, worker };
        let call =
            |mut route: Route, asked| async move { route.operator.evict_snapshot(asked).await };
        self.call_within(SLOW, message, call).await
    }

    /// Has a worker, or all that have it, never let go of a snapshot for want of room; or, unless
    /// `pinned`, do so again.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn pin_snapshot(
        &self,
        snapshot: &str,
        worker: &str,
        pinned: bool,
    ) -> Result<SnapshotChange, ClientError> {
        let (snapshot, worker) = (snapshot.to_owned(), worker.to_owned());
        let message = v1::PinSnapshotRequest { snapshot, worker, undo: !pinned };
        let call =
            |mut route: Route, asked| async move { route.operator.pin_snapshot(asked).await };
        self.call_within(SLOW, message, call).await
    }

    /// What one KV head of one layer remembers, of a request or in a snapshot; a page of it.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn show_memory(&self, asked: ShowMemoryRequest) -> Result<MemoryView, ClientError> {
        let call = |mut route: Route, asked| async move { route.operator.show_memory(asked).await };
        self.call_within(SLOW, asked, call).await
    }

    /// The file of a snapshot, part by part in order.
    ///
    /// # Errors
    /// What the server refuses, or its silence; later errors come in the stream.
    pub async fn export_snapshot(
        &self,
        snapshot: &str,
        worker: &str,
    ) -> Result<impl Stream<Item = Result<FilePart, ClientError>> + use<>, ClientError> {
        let (snapshot, worker) = (snapshot.to_owned(), worker.to_owned());
        let message = v1::ExportSnapshotRequest { snapshot, worker };
        let call =
            |mut route: Route, asked| async move { route.operator.export_snapshot(asked).await };
        let parts = self.call_within(SLOW, message, call).await?;
        let parts = parts.timeout(SLOW).map(|part| match part {
            Ok(part) => part.map_err(ClientError::from),
            Err(_) => Err(ClientError::Deadline(format!("no part came within {SLOW:?}"))),
        });
        Ok(parts)
    }

    /// Has a worker, or any that is up if none is named, keep a snapshot of which this is the
    /// file.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn import_snapshot(
        &self,
        worker: &str,
        file: Vec<u8>,
    ) -> Result<SnapshotEntry, ClientError> {
        let whole = (worker.to_owned(), Bytes::from(file));
        let call = |mut route: Route, asked: Request<(String, Bytes)>| async move {
            let asked = asked.map(|(worker, file)| futures::stream::iter(parts(worker, file)));
            route.operator.import_snapshot(asked).await
        };
        self.call_within(WHOLE_FILE, whole, call).await
    }
}

/// A file as it travels to `worker`.
fn parts(worker: String, file: Bytes) -> impl Iterator<Item = v1::ImportSnapshotRequest> {
    let (total, size) = (file.len(), limits::SNAPSHOT_PART_BYTES_MAX);
    (0..total).step_by(size).map(move |start| {
        let bytes = file.slice(start..total.min(start + size));
        let part = FilePart { start: start as u64, total: total as u64, bytes };
        v1::ImportSnapshotRequest { worker: worker.clone(), part: Some(part) }
    })
}
