//! The coordinator as those ask it who look after the cluster. Every wait has a deadline.

use std::time::Duration;

use aqueduct_core::ask::{Declined, Question};
use aqueduct_core::{RequestId, SnapshotKey, TokenId, WorkerId, limits};
use aqueduct_journal::Journal;
use aqueduct_proto::v1;
use tokio::sync::oneshot;

use super::Coordinator;
use super::event_loop::{EventLoop, Told, Wanted, Whereabouts};
use super::origins::Origin;
use crate::peers::Group;

const DEADLINE: Duration = Duration::from_millis(limits::OPERATOR_DEADLINE_MS);

/// A worker may have to read a snapshot from disk first.
const WORKER_DEADLINE: Duration =
    Duration::from_millis(limits::OPERATOR_DEADLINE_MS + limits::SNAPSHOT_READ_DEADLINE_MS);

/// The coordinator does not answer: it is shutting down, or was too busy for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Silent;

impl Coordinator {
    pub(crate) async fn requests(&self, wanted: Wanted) -> Result<v1::RequestList, Silent> {
        self.ask(move |it| it.requests(&wanted)).await
    }

    pub(crate) async fn request(&self, name: String) -> Result<Option<v1::RequestView>, Silent> {
        self.ask(move |it| it.request(&name)).await
    }

    pub(crate) async fn trace(&self, name: String) -> Result<Option<v1::RequestTrace>, Silent> {
        self.ask(move |it| it.trace(&name)).await
    }

    pub(crate) async fn cancel(&self, name: String) -> Result<Option<v1::RequestEntry>, Silent> {
        self.ask(move |it| it.cancel_for_operator(&name)).await
    }

    pub(crate) async fn work_of(&self, worker: WorkerId) -> Result<Vec<v1::NodeWork>, Silent> {
        self.ask(move |it| it.work_of(worker)).await
    }

    /// Its journal and whose it is, where that is a group's.
    pub(crate) async fn group(&self) -> Result<Option<(Journal, Group)>, Silent> {
        self.ask(|it| it.group()).await
    }

    pub(crate) async fn whereabouts(&self, name: String) -> Result<Option<Whereabouts>, Silent> {
        self.ask(move |it| it.whereabouts(&name)).await
    }

    pub(crate) async fn tokens_at(
        &self,
        (run, choice): (RequestId, u32),
        positions: Vec<u32>,
    ) -> Result<Vec<Option<TokenId>>, Silent> {
        self.ask(move |it| it.tokens_at(run, choice, &positions)).await
    }

    pub(crate) async fn origins(
        &self,
        snapshots: Vec<SnapshotKey>,
    ) -> Result<Vec<Option<Origin>>, Silent> {
        self.ask(move |it| it.origins(&snapshots)).await
    }

    /// Asks a worker. One that is lost meanwhile is gone.
    pub(crate) async fn ask_worker(
        &self,
        worker: WorkerId,
        question: Question,
    ) -> Result<Told, Silent> {
        let asked = self.ask(move |it| it.ask_worker(worker, question)).await?;
        let answer = match asked {
            Ok(answer) => answer,
            Err(declined) => return Ok(Err(declined)),
        };
        let answer = tokio::time::timeout(WORKER_DEADLINE, answer).await.map_err(|_| Silent)?;
        Ok(answer.unwrap_or(Err(Declined::Gone)))
    }

    /// Has the loop answer `question` between two events.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut EventLoop) -> T + Send + 'static,
    ) -> Result<T, Silent> {
        let (reply, answer) = oneshot::channel();
        let office = self.office().map_err(|_| Silent)?;
        let asked = async {
            let inquiry = Box::new(move |event_loop: &mut EventLoop| {
                let _ = reply.send(question(event_loop)); // whoever asked may be gone
            });
            office.inquiries.send(inquiry).await.map_err(|_| Silent)?;
            answer.await.map_err(|_| Silent)
        };
        tokio::time::timeout(DEADLINE, asked).await.map_err(|_| Silent)?
    }
}
