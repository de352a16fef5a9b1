//! For those who look after the cluster.

use std::pin::Pin;
use std::time::Duration;

use aqueduct_core::{Refusal, limits};
use aqueduct_proto::v1;
use aqueduct_proto::v1::operator_server::{Operator, OperatorServer};
use aqueduct_tls::Caller;
use futures::{Stream, stream};
use tonic::{Code, Request, Response, Status, Streaming};

use super::{Served, worker_status};
use crate::keys;
use crate::operator::{Operations, OperatorError};
use crate::peers::PassedOn;

pub(super) struct Desk {
    served: Served,
    operations: Operations,
}

pub(super) fn service(served: Served) -> OperatorServer<Desk> {
    let Served { coordinator, generator, model, .. } = &served;
    let operations = Operations::new(coordinator.clone(), model.clone(), generator.text.clone());
    OperatorServer::new(Desk { served, operations })
        .max_decoding_message_size(limits::OPERATOR_MESSAGE_BYTES_MAX)
}

type Parts = Pin<Box<dyn Stream<Item = Result<v1::FilePart, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Operator for Desk {
    async fn drain(&self, request: Request<v1::DrainRequest>) -> Answer<v1::DrainReply> {
        let v1::DrainRequest { worker, undo } = self.check(request)?;
        let (status, stats) = self.operations.drain(&worker, !undo).await.map_err(status_of)?;
        let worker = Some(worker_status(status, &stats));
        Ok(Response::new(v1::DrainReply { worker }))
    }

    async fn show_cluster(
        &self,
        request: Request<v1::ShowClusterRequest>,
    ) -> Answer<v1::ClusterView> {
        self.check(request)?;
        answer(self.operations.cluster().await)
    }

    async fn show_node(&self, request: Request<v1::ShowNodeRequest>) -> Answer<v1::NodeView> {
        let v1::ShowNodeRequest { worker } = self.check(request)?;
        answer(self.operations.node(&worker).await)
    }

    async fn list_requests(
        &self,
        request: Request<v1::ListRequestsRequest>,
    ) -> Answer<v1::RequestList> {
        let asked = self.check(request)?;
        answer(self.operations.requests(asked).await)
    }

    async fn show_request(
        &self,
        request: Request<v1::ShowRequestRequest>,
    ) -> Answer<v1::RequestView> {
        let v1::ShowRequestRequest { request } = self.check(request)?;
        answer(self.operations.request(request).await)
    }

    async fn cancel_request(
        &self,
        request: Request<v1::CancelRequestRequest>,
    ) -> Answer<v1::RequestEntry> {
        let v1::CancelRequestRequest { request } = self.check(request)?;
        answer(self.operations.cancel(request).await)
    }

    async fn trace_request(
        &self,
        request: Request<v1::TraceRequestRequest>,
    ) -> Answer<v1::RequestTrace> {
        let v1::TraceRequestRequest { request } = self.check(request)?;
        answer(self.operations.trace(request).await)
    }

    async fn list_snapshots(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> Answer<v1::SnapshotList> {
        let asked = self.check(request)?;
        answer(self.operations.snapshots(asked).await)
    }

    async fn evict_snapshot(
        &self,
        request: Request<v1::EvictSnapshotRequest>,
    ) -> Answer<v1::SnapshotChange> {
        let asked = self.check(request)?;
        answer(self.operations.evict(asked).await)
    }

    async fn pin_snapshot(
        &self,
        request: Request<v1::PinSnapshotRequest>,
    ) -> Answer<v1::SnapshotChange> {
        let asked = self.check(request)?;
        answer(self.operations.pin(asked).await)
    }

    async fn show_memory(&self, request: Request<v1::ShowMemoryRequest>) -> Answer<v1::MemoryView> {
        let asked = self.check(request)?;
        answer(self.operations.memory(asked).await)
    }

    type ExportSnapshotStream = Parts;

    async fn export_snapshot(&self, request: Request<v1::ExportSnapshotRequest>) -> Answer<Parts> {
        let asked = self.check(request)?;
        let found = self.operations.export(&asked).await.map_err(status_of)?;
        let operations = self.operations.clone();
        let parts = stream::try_unfold(Some(0), move |start: Option<u64>| {
            let operations = operations.clone();
            async move {
                let Some(start) = start else { return Ok(None) };
                let part = operations.export_part(found, start).await.map_err(status_of)?;
                let end = part.start + part.bytes.len() as u64;
                let next = (end < part.total).then_some(end);
                Ok(Some((v1::FilePart::from(part), next)))
            }
        });
        Ok(Response::new(Box::pin(parts)))
    }

    async fn import_snapshot(
        &self,
        request: Request<Streaming<v1::ImportSnapshotRequest>>,
    ) -> Answer<v1::SnapshotEntry> {
        let mut parts = self.check(request)?;
        let deadline = Duration::from_millis(limits::OPERATOR_DEADLINE_MS);
        let mut importer = None;
        loop {
            let next = tokio::time::timeout(deadline, parts.message()).await;
            let next = next.map_err(|_| Status::deadline_exceeded("no part came in time"))?;
            let ended = || Status::invalid_argument("part = absent: the file is not whole");
            let v1::ImportSnapshotRequest { worker, part } = next?.ok_or_else(ended)?;
            let worker = match importer {
                Some(worker) => worker,
                None => *importer.insert(self.operations.importer(&worker).map_err(status_of)?),
            };
            let part = part.ok_or_else(ended)?.try_into();
            let part = part.map_err(|refusal: Refusal| status_of(refusal.into()))?;
            let kept = self.operations.import_part(worker, part).await.map_err(status_of)?;
            if let Some(kept) = kept {
                return Ok(Response::new(kept));
            }
        }
    }
}

impl Desk {
    /// Lets an operator in: by certificate, by key or, where neither is asked for, at all; to the
    /// coordinator that leads. What is asked.
    fn check<T>(&self, request: Request<T>) -> Result<T, Status> {
        let caller = request.extensions().get::<Caller>();
        let passed_on = request.extensions().get::<PassedOn>();
        let seen = passed_on.is_some_and(|passed| passed.operates);
        let may = seen || keys::may_operate(caller, || self.served.holder(request.metadata()))?;
        let denied = || Status::permission_denied(keys::OPERATORS_ONLY);
        may.then_some(()).ok_or_else(denied)?;
        self.served.is_here()?;
        Ok(request.into_inner())
    }
}

fn answer<T>(answer: Result<T, OperatorError>) -> Answer<T> {
    answer.map(Response::new).map_err(status_of)
}

fn status_of(error: OperatorError) -> Status {
    let code = match error {
        OperatorError::Refused(_) => Code::InvalidArgument,
        OperatorError::Unknown(_) => Code::NotFound,
        OperatorError::Impossible(_) => Code::Unimplemented,
        OperatorError::Busy => Code::ResourceExhausted,
        OperatorError::Silent => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}
