//! Every call has an id, which its answer and what is logged meanwhile carry.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use crate::request_id::{REQUEST_ID, or_drawn};

/// The id of a call, for those who answer it.
#[derive(Debug, Clone)]
pub(super) struct CallerId(pub(super) String);

/// Gives a call its id, and its answer.
pub(super) async fn echo(mut request: Request, next: Next) -> Response {
    let asked = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let id = or_drawn(asked);
    let value = HeaderValue::from_str(&id);
    let span = tracing::info_span!("call", request_id = id);
    request.extensions_mut().insert(CallerId(id));
    let mut response = next.run(request).instrument(span).await;
    if let Ok(value) = value {
        response.headers_mut().insert(HeaderName::from_static(REQUEST_ID), value);
    }
    response
}
