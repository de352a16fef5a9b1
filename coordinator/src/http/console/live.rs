//! How the cluster stands, twice a second, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use futures::stream;
use serde_json::{Value, json};

use super::super::ApiState;
use super::super::stream::told;
use crate::generation::{Entry, Load, Stage};
use crate::metrics::Outcome;
use crate::runtime::{Cluster, WorkerState, WorkerStatus};

const EVERY: Duration = Duration::from_millis(500);

/// One event at once, and another one whenever it is time. Who is going to stop does not wait for
/// those who look on.
pub(super) async fn events(State(state): State<ApiState>) -> Response {
    let ticks = tokio::time::interval(EVERY);
    let events = stream::unfold(Some((state, ticks)), |going| async {
        let (state, mut ticks) = going?;
        ticks.tick().await;
        let load = state.0.generator.runtime.load();
        let event = Event::default().data(now(&state, &load).to_string());
        Some((Ok::<_, Infallible>(event), (!load.closing).then_some((state, ticks))))
    });
    told(events)
}

fn now(state: &ApiState, load: &Load) -> Value {
    let generator = &state.0.generator;
    let cluster = generator.runtime.cluster();
    let shape = cluster.model.as_ref().map(|model| &model.shape);
    json!({
        "model": state.0.options.model,
        "layers": shape.map_or(0, |shape| shape.memory_layers()),
        "open": load.open,
        "running": load.running,
        "waiting": load.waiting,
        "waiting_tokens": load.waiting_tokens,
        "workers": cluster.workers.iter().map(|of| worker(of, load)).collect::<Vec<_>>(),
        "requests": generator.board.each(|entry| request(entry, &cluster)),
    })
}

fn worker(status: &WorkerStatus, load: &Load) -> Value {
    let info = status.info.as_ref();
    let pool = load.pools.iter().find(|(name, _)| *name == status.name);
    let pool = pool.map(|(_, pool)| *pool).unwrap_or_default();
    let state = match status.state {
        WorkerState::Connecting => "connecting",
        WorkerState::Up if status.draining => "draining",
        WorkerState::Up => "up",
        WorkerState::Down => "down",
        WorkerState::Refused => "refused",
    };
    json!({
        "name": status.name,
        "address": info.map(|info| info.peer.to_string()),
        "state": state,
        "reason": status.reason,
        "threads": info.map(|info| info.threads),
        "pool_bytes": pool.bytes,
        "pool_used_bytes": pool.used_bytes,
    })
}

fn request(entry: &Entry, cluster: &Cluster) -> Value {
    let name = |worker: usize| cluster.workers.get(worker).map(|status| status.name.clone());
    let at = entry.workers.iter().map(|at| {
        json!({
            "worker": name(at.worker.0 as usize),
            "chunk_idx": at.chunk_idx,
            "layers_done": at.layers_done,
            "chunks_done": at.chunks_done,
        })
    });
    json!({
        "id": entry.request.to_string(),
        "caller_id": entry.caller_id,
        "stage": stage(entry.stage),
        "prompt_tokens": entry.prompt_tokens,
        "cached_tokens": entry.cached_tokens,
        "chunk_count": entry.chunk_count,
        "chunks_done": entry.chunks_done,
        "output_tokens": entry.output_tokens,
        "seconds": entry.elapsed.unwrap_or_else(|| entry.began.elapsed()).as_secs_f64(),
        "has_map": entry.map.is_some(),
        "workers": at.collect::<Vec<_>>(),
    })
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Prefill => "prefill",
        Stage::Decode => "decode",
        Stage::Ended(Outcome::Finished) => "finished",
        Stage::Ended(Outcome::Cancelled) => "cancelled",
        Stage::Ended(Outcome::Failed | Outcome::Refused) => "failed",
    }
}
