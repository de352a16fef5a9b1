//! The runtime as the API layers see it: generation's interface.

use aqueduct_core::{RequestId, WorkerId};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Cluster, Coordinator, Leader, ModelInfo, RequestHandle};
use crate::generation::{Attached, Claim, Load, Started, Submit, Updates};
use crate::peers::Passage;
use crate::submit::{RequestError, Submission, Update};

impl Submit for Coordinator {
    fn submit(
        &self,
        submission: Submission,
    ) -> BoxFuture<'_, Result<Box<dyn Updates>, RequestError>> {
        async move {
            let handle = Coordinator::submit(self, submission).await?;
            Ok(Box::new(handle) as Box<dyn Updates>)
        }
        .boxed()
    }

    fn attach(
        &self,
        request: RequestId,
        claim: Claim,
    ) -> BoxFuture<'_, Result<Attached, RequestError>> {
        async move {
            let (submission, handle) = Coordinator::attach(self, request, claim).await?;
            Ok((submission, Box::new(handle) as Box<dyn Updates>))
        }
        .boxed()
    }

    fn started(
        &self,
        holder: &str,
        name: &str,
    ) -> BoxFuture<'_, Result<Option<Started>, RequestError>> {
        Coordinator::started(self, holder.to_owned(), name.to_owned()).boxed()
    }

    fn load(&self) -> Load {
        let stats = self.stats();
        let cluster = self.cluster.borrow();
        let name = |worker: &WorkerId| {
            let known = cluster.workers.get(worker.0 as usize);
            known.map_or_else(|| worker.to_string(), |known| known.name.clone())
        };
        let token_bytes = |model: &ModelInfo| model.shape.kv_bytes(1, model.kv);
        let leader = self.leader();
        let takes = match &leader {
            Leader::This { .. } => cluster.takes_requests(),
            Leader::Other(_) => true,
            Leader::Nobody => false,
        };
        Load {
            open: self.is_open() && !self.is_leaving() && takes,
            closing: !self.is_open(),
            leader,
            workers_up: stats.workers_up,
            workers_open: cluster.workers_open(),
            running: stats.running,
            waiting: stats.queued,
            places: self.config.running_requests + self.config.queued_requests,
            waiting_tokens: stats.queued_tokens,
            snapshots: stats.snapshots,
            pools: stats.pools.iter().map(|(worker, pool)| (name(worker), *pool)).collect(),
            chunk_hedges: stats.chunk_hedges,
            token_bytes: cluster.model.as_ref().map_or(0, token_bytes),
            state_bytes: cluster.model.as_ref().map_or(0, |model| model.shape.state_bytes),
        }
    }

    fn cluster(&self) -> Cluster {
        self.describe()
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        Coordinator::settled(self).boxed()
    }

    fn passage(&self) -> Option<&Passage> {
        Coordinator::passage(self)
    }
}

impl Updates for RequestHandle {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Update, RequestError>>> {
        RequestHandle::next(self).boxed()
    }

    fn stop_choice(&mut self, choice: u32) {
        RequestHandle::stop_choice(self, choice);
    }
}
