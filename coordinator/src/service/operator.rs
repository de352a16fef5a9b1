//! For those who look after the cluster.

use aqueduct_core::limits;
use aqueduct_proto::v1;
use aqueduct_proto::v1::operator_server::{Operator, OperatorServer};
use aqueduct_tls::Caller;
use tonic::{Request, Response, Status};

use super::{Served, error::status_of, worker_status};
use crate::keys;

/// Nobody names a worker in more bytes than this.
const MESSAGE_BYTES_MAX: usize = 4 * limits::REQUEST_ID_BYTES_MAX;

pub(super) struct Desk(Served);

pub(super) fn service(served: Served) -> OperatorServer<Desk> {
    OperatorServer::new(Desk(served)).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

#[tonic::async_trait]
impl Operator for Desk {
    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainReply>, Status> {
        self.check(&request)?;
        let v1::DrainRequest { worker, undo } = request.into_inner();
        let coordinator = &self.0.coordinator;
        let drained = coordinator.drain(&worker, !undo).await;
        let status = drained.map_err(|refusal| status_of(refusal.into()))?;
        let worker = Some(worker_status(status, &coordinator.stats()));
        Ok(Response::new(v1::DrainReply { worker }))
    }
}

impl Desk {
    /// Lets an operator in: by certificate, by key or, where neither is asked for, at all.
    fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let caller = request.extensions().get::<Caller>();
        let may = keys::may_operate(caller, || self.0.holder(request.metadata()))?;
        may.then_some(()).ok_or_else(|| Status::permission_denied(keys::OPERATORS_ONLY))
    }
}
