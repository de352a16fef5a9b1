//! One look at a cluster: a few answers that belong together.

use std::collections::BTreeMap;

use aqueduct_client::operator::{
    ClusterView, ListRequestsRequest, RequestEntry, RequestTrace, RequestView,
};
use aqueduct_client::{Client, ClientError};

/// Requests that a screen may list.
const LISTED: u32 = 200;
/// Requests whose first token is looked for in one look; others wait for the next one.
const TRACED: usize = 8;

/// What was seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Look {
    pub(crate) cluster: ClusterView,
    /// Under way, in the order of their arrival.
    pub(crate) requests: Vec<RequestEntry>,
    /// The one whose chunks are shown.
    pub(crate) chosen: Option<RequestView>,
    /// Seconds from arrival to the first token, by id.
    pub(crate) first_seconds: BTreeMap<String, f64>,
}

impl Look {
    /// Asks; what is known of first tokens is not asked again.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub(crate) async fn at(
        client: &Client,
        chosen: Option<String>,
        mut first_seconds: BTreeMap<String, f64>,
    ) -> Result<Self, ClientError> {
        let cluster = client.show_cluster().await?;
        let asked = ListRequestsRequest { limit: LISTED, ..ListRequestsRequest::default() };
        let requests = client.list_requests(asked).await?.requests;
        first_seconds.retain(|id, _| requests.iter().any(|it| it.id == *id));
        let unknown =
            |it: &&RequestEntry| it.output_tokens > 0 && !first_seconds.contains_key(&it.id);
        let traced: Vec<_> = requests.iter().filter(unknown).take(TRACED).collect();
        for request in traced {
            let trace = there(client.trace_request(&request.id).await)?;
            let first = trace.as_ref().and_then(first_token);
            if let Some(seconds) = first {
                first_seconds.insert(request.id.clone(), seconds);
            }
        }
        let chosen = chosen.or_else(|| requests.first().map(|request| request.id.clone()));
        let chosen = match chosen {
            Some(id) => there(client.show_request(&id).await)?,
            None => None,
        };
        Ok(Self { cluster, requests, chosen, first_seconds })
    }

    /// Seconds between two tokens of a completion, since its first one.
    pub(crate) fn gap_seconds(&self, request: &RequestEntry) -> Option<f64> {
        let first = self.first_seconds.get(&request.id)?;
        let each = f64::from(request.output_tokens) / f64::from(request.choices.max(1));
        (each > 1.0).then(|| (request.age_seconds - first).max(0.0) / (each - 1.0))
    }
}

/// What is there; a request may have gone between two questions.
fn there<T>(answer: Result<T, ClientError>) -> Result<Option<T>, ClientError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(ClientError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The first token comes with the end of the prefill.
fn first_token(trace: &RequestTrace) -> Option<f64> {
    trace.steps.iter().find(|step| step.step == "prefilled").map(|step| step.at_seconds)
}

/// A cluster of two workers and three requests, after so many seconds.
#[cfg(test)]
pub(crate) fn recorded(uptime_seconds: f64) -> Look {
    use aqueduct_client::operator::{ChunkView, NodeEntry};
    let node = |name: &str, state: &str, used| NodeEntry {
        name: name.into(),
        state: state.into(),
        pool_bytes: 1 << 30,
        pool_used_bytes: used,
        snapshots: 2,
        snapshot_bytes: 30 << 10,
        ..NodeEntry::default()
    };
    let request = |id: &str, state: &str, prompt_tokens, output_tokens| RequestEntry {
        id: id.into(),
        state: state.into(),
        prompt_tokens,
        chunk_count: prompt_tokens.div_ceil(1024),
        chunks_done: if output_tokens > 0 { prompt_tokens.div_ceil(1024) } else { 1 },
        choices: 1,
        max_tokens: 100,
        output_tokens,
        age_seconds: 4.0,
        home: "http://w1:7001".into(),
        ..RequestEntry::default()
    };
    let chunk = |chunk_idx, state: &str, layers_done| ChunkView {
        chunk_idx,
        state: state.into(),
        layers_done,
        ..ChunkView::default()
    };
    let requests = vec![
        request("r1", "decode", 2048, 21),
        request("r2", "prefill", 4096, 0),
        request("r3", "queued", 9, 0),
    ];
    Look {
        cluster: ClusterView {
            model: "model".into(),
            open: true,
            uptime_seconds,
            workers_up: 2,
            running: 2,
            running_max: 32,
            queued: 1,
            queued_max: 256,
            queued_tokens: 9,
            queued_tokens_max: 1 << 24,
            chunks_done: 70,
            output_tokens: 1021,
            nodes: vec![
                node("http://w0:7001", "up", 1 << 28),
                node("http://w1:7001", "draining", 1 << 30),
            ],
            ..ClusterView::default()
        },
        chosen: Some(RequestView {
            request: Some(requests[1].clone()),
            layers: 6,
            chunks: vec![
                chunk(0, "done", 6),
                chunk(1, "assigned", 5),
                chunk(2, "assigned", 2),
                chunk(3, "assigned", 0),
            ],
            ..RequestView::default()
        }),
        requests,
        first_seconds: [("r1".to_owned(), 1.0)].into(),
    }
}
