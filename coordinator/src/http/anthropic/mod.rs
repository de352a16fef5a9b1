//! `/v1/messages`: Anthropic's form of a chat, as vLLM and llama.cpp have it too. It is taken for
//! one, and told in its own words, errors included.

mod asked;
mod blocks;
mod error;
mod teller;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::json;

pub use self::asked::parse_message;
pub(super) use self::error::in_its_words;
use self::teller::Teller;
use super::calls::{self, Caller, aside};
use super::error::ApiError;
use super::request::Usual;
use super::{ApiState, named, prepare, tokens};

pub(super) async fn create(
    State(state): State<ApiState>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let key = calls::start_key(&headers);
    let prepare = aside(&state, body, move |shared, bytes| {
        let chat = parse_message(bytes, &Usual::of(&shared.generator.text))?;
        prepare::chat_of(shared, chat)?.keyed(key.clone(), bytes)
    });
    let prepared = prepare.await?;
    let teller = |request, envelope: &_| Teller::new(request, envelope);
    named::answer(&state.0, (prepared, "messages"), caller, teller).await
}

/// How many tokens such a call's prompt has.
pub(super) async fn count_tokens(
    State(state): State<ApiState>,
    body: Body,
) -> Result<Response, ApiError> {
    let count = aside(&state, body, |shared, bytes| {
        let asked = parse_message(bytes, &Usual::of(&shared.generator.text))?;
        shared.check_model(asked.params.model.as_deref())?;
        Ok(tokens::of_chat(shared, asked.chat)?.len())
    });
    Ok(Json(json!({ "input_tokens": count.await? })).into_response())
}
