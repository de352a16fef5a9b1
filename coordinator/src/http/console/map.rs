//! The memory map of a request: its text by token, and what a KV head makes of it.

use std::sync::Arc;

use aqueduct_core::work::SeenHead;
use aqueduct_core::{Refusal, TokenId, limits};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{ApiError, ApiState};
use crate::generation::Map;
use crate::text::{Start, TextModel};

/// Which tokens of the prompt.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    /// Counted from the first one.
    #[serde(default)]
    from: usize,
    tokens: Option<usize>,
}

/// The text, token by token, of a page of the prompt and of the first completion.
pub(super) async fn text(
    State(state): State<ApiState>,
    id: Result<Path<String>, PathRejection>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let map = find(&state, &id.map_err(unreadable)?.0)?;
    let Query(Page { from, tokens }) = page.map_err(|error| ApiError::field("query", error))?;
    let most = limits::MAP_PAGE_TOKENS_MAX;
    let tokens = Refusal::unless_within("tokens", tokens.unwrap_or(most), 1, most)?;
    let from = Refusal::unless_within("from", from, 0, map.prompt.len())?;
    let page = &map.prompt[from..][..tokens.min(map.prompt.len() - from)];
    let model = &state.0.generator.text;
    // Layers that remember in a state have no keys, and nothing to be shaded by.
    let has_keys = |heads: &[SeenHead]| heads.iter().any(|head| !head.positions.is_empty());
    let first = map.kept.iter().find(|(_, heads)| has_keys(heads)).map_or(0, |(layer, _)| *layer);
    Ok(Json(json!({
        "policy": map.policy.to_string(),
        "sinks": map.policy.sinks,
        "local": map.policy.local,
        "layers": map.kept.len(),
        "first_layer": first,
        "kv_heads": map.kept.values().next().map_or(0, Vec::len),
        "start": map.start,
        "prompt_tokens": map.prompt.len(),
        "from": from,
        "pieces": pieces(model, page),
        "completion": pieces(model, &map.completion),
    })))
}

/// What one KV head of a layer remembers of the prompt, and what each token looked at there.
pub(super) async fn head(
    State(state): State<ApiState>,
    path: Result<Path<(String, u32, usize)>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path((id, layer, head)) = path.map_err(unreadable)?;
    let map = find(&state, &id)?;
    let kept = map.kept.get(&layer).ok_or_else(|| {
        ApiError::field("layer", format!("{layer}: must be below {}", map.kept.len()))
    })?;
    let kept = kept
        .get(head)
        .ok_or_else(|| ApiError::field("head", format!("{head}: must be below {}", kept.len())))?;
    let of_layer = map.looks.iter().filter(|((_, at), _)| *at == layer);
    let looks = of_layer.filter_map(|((token_idx, _), heads)| {
        let mut look = seen(heads.get(head)?);
        look["token_idx"] = json!(token_idx);
        Some(look)
    });
    Ok(Json(json!({ "kept": seen(kept), "looks": looks.collect::<Vec<_>>() })))
}

fn seen(head: &SeenHead) -> Value {
    let SeenHead { positions, weights, left_out } = head;
    json!({ "positions": positions, "weights": weights, "left_out": left_out })
}

fn find(state: &ApiState, id: &str) -> Result<Arc<Map>, ApiError> {
    let entry = state.0.generator.board.find(id);
    let map = entry.and_then(|entry| entry.map);
    map.ok_or_else(|| {
        let message = format!("{id} is no request whose memory map is kept here");
        ApiError::new(StatusCode::NOT_FOUND, message)
    })
}

fn unreadable(error: PathRejection) -> ApiError {
    ApiError::new(error.status(), error.body_text())
}

/// What each token adds to the text.
fn pieces(model: &TextModel, tokens: &[TokenId]) -> Vec<String> {
    let mut text = model.detokenizer(Start::Continuation);
    tokens.iter().map(|&token| model.push(&mut text, token)).collect()
}
