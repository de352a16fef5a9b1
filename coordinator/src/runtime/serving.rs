//! The runtime as the API layers see it: generation's interface.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Coordinator, ModelInfo, RequestHandle};
use crate::generation::{Load, Submit, Updates};
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

    fn load(&self) -> Load {
        let stats = self.stats();
        let token_bytes = |model: &ModelInfo| model.shape.kv_bytes(1, model.kv);
        Load {
            open: self.is_open() && self.cluster.borrow().takes_requests(),
            workers_up: stats.workers_up,
            running: stats.running,
            waiting: stats.queued,
            waiting_tokens: stats.queued_tokens,
            snapshots: stats.snapshots,
            token_bytes: self.cluster.borrow().model.as_ref().map_or(0, token_bytes),
        }
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
