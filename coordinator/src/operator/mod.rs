//! What those who look after a cluster may ask and order: one function for each question, behind
//! gRPC and HTTP alike. Who may ask is decided there.

mod caches;
mod members;
mod memory;
pub(crate) mod nodes;

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use aqueduct_core::{Refusal, RequestId, limits};
use aqueduct_proto::v1;

use crate::runtime::{Coordinator, NotDrained, Silent, Stats, Wanted, WorkerStatus};
use crate::text::TextModel;

/// States that a list of requests can be of.
const STATES: [&str; 6] = ["queued", "prefill", "decode", "finished", "cancelled", "failed"];
/// Requests that are listed unless more are asked for.
const LISTED: u32 = 500;

/// Why an operator has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// What was asked is wrong.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What was named is not there.
    #[error(transparent)]
    Unknown(Refusal),
    /// It cannot be done.
    #[error("{0}")]
    Impossible(String),
    /// A worker is asked too much at once.
    #[error("a worker is asked too much at once; try again")]
    Busy,
    /// Nobody answers in time.
    #[error("the coordinator does not answer")]
    Silent,
}

impl From<Silent> for OperatorError {
    fn from(Silent: Silent) -> Self {
        Self::Silent
    }
}

/// A coordinator, for those who look after it.
#[derive(Clone)]
pub struct Operations {
    coordinator: Coordinator,
    model: String,
    text: Arc<TextModel>,
    started: Instant,
}

impl Operations {
    /// Of the coordinator that serves `text` under this name.
    pub fn new(coordinator: Coordinator, model: String, text: Arc<TextModel>) -> Self {
        Self { coordinator, model, text, started: Instant::now() }
    }

    /// Gives a worker nothing new or, unless `draining`, something again. How it stands then.
    ///
    /// # Errors
    /// There is no such worker, or it could not be written down.
    pub async fn drain(
        &self,
        worker: &str,
        draining: bool,
    ) -> Result<(WorkerStatus, Stats), OperatorError> {
        let drained = self.coordinator.drain(worker, draining).await;
        let status = drained.map_err(|error| match error {
            NotDrained::Unknown(refusal) => OperatorError::Unknown(refusal),
            NotDrained::Unwritten(_) => OperatorError::Impossible(error.to_string()),
        })?;
        Ok((status, self.coordinator.stats()))
    }

    /// How the cluster stands.
    ///
    /// # Errors
    /// No answer.
    pub async fn cluster(&self) -> Result<v1::ClusterView, OperatorError> {
        let members = match self.coordinator.group().await? {
            Some((journal, group)) => members::entries(&group, journal.members().await.ok()),
            None => Vec::new(),
        };
        let (cluster, stats) = (self.coordinator.describe(), self.coordinator.stats());
        let (model, config) = (cluster.model, self.coordinator.config());
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(v1::ClusterView {
            model: self.model.clone(),
            fingerprint: model.as_ref().map_or_else(String::new, |it| it.fingerprint.clone()),
            shape: model.as_ref().map(|model| model.shape.clone().into()),
            kv: model.map_or_else(String::new, |model| model.kv.to_string()),
            open: self.coordinator.is_open(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            clock_ms: clock.as_millis() as u64,
            workers_up: count(stats.workers_up),
            running: count(stats.running),
            running_max: count(config.running_requests),
            queued: count(stats.queued),
            queued_max: count(config.queued_requests),
            queued_tokens: stats.queued_tokens,
            queued_tokens_max: config.queued_tokens,
            prompt_tokens_max: self.text.prompt_tokens_max(),
            chunks_done: stats.chunks_done,
            chunks_retried: stats.chunks_retried,
            output_tokens: stats.output_tokens,
            snapshots: stats.snapshots.count,
            snapshot_bytes: stats.snapshots.memory_bytes,
            snapshot_disk_bytes: stats.snapshots.disk_bytes,
            nodes: cluster.workers.iter().map(|worker| nodes::entry(worker, &stats)).collect(),
            members,
        })
    }

    /// How a worker stands, and what it is at.
    ///
    /// # Errors
    /// There is no such worker, or no answer.
    pub async fn node(&self, worker: &str) -> Result<v1::NodeView, OperatorError> {
        let (cluster, stats) = (self.coordinator.describe(), self.coordinator.stats());
        let status = cluster.find(worker).ok_or_else(|| nodes::unknown(worker))?;
        let work = self.coordinator.work_of(status.worker).await?;
        Ok(nodes::view(status, &stats, work))
    }

    /// Requests under way and, if asked for, those that have ended.
    ///
    /// # Errors
    /// A state, a limit or an id that is none; no answer.
    pub async fn requests(
        &self,
        asked: v1::ListRequestsRequest,
    ) -> Result<v1::RequestList, OperatorError> {
        let v1::ListRequestsRequest { state, ended, limit, after } = asked;
        if !state.is_empty() && !STATES.contains(&state.as_str()) {
            return Err(Refusal::new("state", state, format!("one of {STATES:?}")).into());
        }
        let limit = if limit == 0 { LISTED } else { limit };
        Refusal::unless_within("limit", limit, 1, limits::OPERATOR_LIST_MAX)?;
        let after = Some(after).filter(|after| !after.is_empty());
        let after = after.map(|after| RequestId::from_str(&after)).transpose()?;
        let wanted = Wanted { state, ended, after, limit: limit as usize };
        Ok(self.coordinator.requests(wanted).await?)
    }

    /// One of them.
    ///
    /// # Errors
    /// One that is not known here; no answer.
    pub async fn request(&self, request: String) -> Result<v1::RequestView, OperatorError> {
        self.coordinator.request(named(&request)?).await?.ok_or_else(|| unknown(&request))
    }

    /// What happened to one of them.
    ///
    /// # Errors
    /// One that is not known here; no answer.
    pub async fn trace(&self, request: String) -> Result<v1::RequestTrace, OperatorError> {
        self.coordinator.trace(named(&request)?).await?.ok_or_else(|| unknown(&request))
    }

    /// Ends one of them; how it stood then.
    ///
    /// # Errors
    /// One that is not under way here; no answer.
    pub async fn cancel(&self, request: String) -> Result<v1::RequestEntry, OperatorError> {
        let cancelled = self.coordinator.cancel(named(&request)?).await?;
        if cancelled.is_none() && self.coordinator.trace(request.clone()).await?.is_some() {
            let refusal = Refusal::new("request", request, "one under way: it has ended");
            return Err(OperatorError::Unknown(refusal));
        }
        cancelled.ok_or_else(|| unknown(&request))
    }
}

fn named(request: &str) -> Result<String, OperatorError> {
    let most = limits::REQUEST_ID_BYTES_MAX;
    Refusal::unless_within("request_bytes", request.len(), 1, most)?;
    Ok(request.to_owned())
}

fn unknown(request: &str) -> OperatorError {
    let bound = "the id of a request of this coordinator's, its own or its caller's";
    OperatorError::Unknown(Refusal::new("request", request, bound))
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
