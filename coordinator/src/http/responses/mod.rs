//! `/v1/responses`: OpenAI's newer form of a chat. It is taken for one, and told in its own words.
//! Nothing is kept of it: a conversation is what its caller sends.

mod asked;
mod items;
mod stream;
mod teller;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

pub use self::asked::parse_response;
use self::teller::Teller;
use super::ApiState;
use super::calls::{self, Caller, aside};
use super::choices::Pieces;
use super::error::ApiError;
use super::prepare;
use super::request::Usual;
use super::stream::Running;

pub(super) async fn create(
    State(state): State<ApiState>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let key = calls::start_key(&headers);
    let prepare = aside(&state, body, move |shared, bytes| {
        let (chat, echo) = parse_response(bytes, &Usual::of(&shared.generator.text))?;
        Ok((prepare::chat_of(shared, chat)?.keyed(key.clone(), bytes)?, echo))
    });
    let (prepared, echo) = prepare.await?;
    let is_streamed = prepared.params.stream;
    let told = stream::told(caller.2.as_ref().map(|Extension(escort)| &escort.made))?;
    let (running, envelope) = calls::start(&state.0, prepared, caller).await?;
    let running = running.into_iter().next();
    let running = running.ok_or_else(|| ApiError::field("input", "must not be empty"))?;
    let teller = Teller::new(running.view.request, &envelope, echo);
    if is_streamed {
        return Ok(stream::response(running, teller, told));
    }
    whole(running, teller).await
}

async fn whole(running: Running, mut teller: Teller) -> Result<Response, ApiError> {
    let Running { mut source, view, .. } = running;
    let mut pieces = Pieces::new(view);
    while let Some(event) = source.next().await.transpose()? {
        pieces.take(event).iter().for_each(|piece| drop(teller.take(piece)));
    }
    teller.close();
    Ok(Json(teller.response(Some(source.report()))).into_response())
}
