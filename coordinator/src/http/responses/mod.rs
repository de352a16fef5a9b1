//! `/v1/responses`: OpenAI's newer form of a chat. It is taken for one, and told in its own words.
//! Nothing is kept of it: a conversation is what its caller sends.

mod asked;
mod items;
mod teller;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

pub use self::asked::parse_response;
pub(super) use self::asked::passed_over;
use self::teller::Teller;
use super::calls::{self, Caller, aside};
use super::error::ApiError;
use super::request::Usual;
use super::{ApiState, named, prepare};

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
    let teller = |request, envelope: &_| Teller::new(request, envelope, echo);
    named::answer(&state.0, (prepared, "input"), caller, teller).await
}
