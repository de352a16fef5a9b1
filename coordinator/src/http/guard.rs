//! Who may call, where that is asked; and who is asked, where coordinators are a group.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::escort::{Call, Unanswered};
use super::{ApiError, ApiState, body};
use crate::keys::Holder;
use crate::peers::{Passage, PassedOn};
use crate::runtime::Leader;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Lets those in who show a key, and says to what follows who they are. A body that is encoded is
/// not read.
pub(super) async fn guard(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    match state.holder(request.headers()) {
        Ok(Some(holder)) => drop(request.extensions_mut().insert(holder)),
        Ok(None) => {}
        Err(denied) => {
            body::pass_over_request(request, &state.0.options).await;
            return Err(denied);
        }
    }
    let encoding = request.headers().get(header::CONTENT_ENCODING).cloned();
    if let Some(encoding) = encoding.filter(|encoding| encoding != "identity") {
        let message = format!("a body encoded as {encoding:?} is not read, only a plain one is");
        body::pass_over_request(request, &state.0.options).await;
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    Ok(next.run(request).await)
}

/// Turns pages of other origins away where something would be done for them: a browser asks first
/// for some calls alone, and sends others, whose answers it then withholds.
pub(super) async fn of_own_page(
    State(state): State<ApiState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (headers, origins) = (request.headers(), &state.0.options.origins);
    let origin = headers.get(header::ORIGIN).filter(|_| !request.method().is_safe());
    match origin.filter(|origin| !origins.may_call(origin, headers.get(header::HOST))) {
        None => Ok(next.run(request).await),
        Some(origin) => {
            let message =
                format!("pages of {origin:?} may not call: --allowed-origins says which pages may");
            body::pass_over_request(request, &state.0.options).await;
            Err(ApiError::new(StatusCode::FORBIDDEN, message))
        }
    }
}

/// Passes the calls of those who want an answer on to the coordinator that leads, if this one does
/// not. Where that one is not reached from here, this one is about to go, or the call has been
/// passed on already, its caller is sent there.
pub(super) async fn to_leader(
    State(state): State<ApiState>,
    request: Request,
    next: Next,
) -> Response {
    // A stream that is come back to, or is not wanted any more, is the leader's too.
    let is_asked = request.method() != Method::GET || request.uri().path().ends_with("/events");
    let began = Instant::now();
    let (leader, closing) = match is_asked {
        true => {
            let runtime = &state.0.generator.runtime;
            // Who was let in is sent on, though doors close meanwhile.
            let closing = runtime.load().closing;
            runtime.settled().await;
            (runtime.load().leader, closing)
        }
        false => (Leader::default(), false),
    };
    let error = match leader.is_here() {
        Ok(()) => {
            let runtime = state.0.generator.runtime.clone();
            return match runtime.passage().filter(|_| is_asked) {
                Some(passage) => passage.enter(next.run(request)).await,
                None => next.run(request).await,
            };
        }
        Err(error) => error,
    };
    let goes_on = Passage::takes(request.extensions().get::<PassedOn>(), closing);
    let passage = state.0.generator.runtime.passage().filter(|_| goes_on);
    let request = match passage {
        Some(passage) => match Call::new(&state, passage, request, next).answer(began).await {
            Ok(answer) | Err(Unanswered::Lost(answer)) => return answer,
            Err(Unanswered::Unheard(request)) => request,
        },
        None => request,
    };
    // It may be another one by now.
    let leader = state.0.generator.runtime.load().leader;
    let error = leader.is_here().err().unwrap_or(error);
    state.0.generator.metrics.rejected(error.reason());
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let location = match &leader {
        Leader::Other(addresses) => HeaderValue::try_from(format!("{}{path}", addresses.http)).ok(),
        _ => None,
    };
    let error = ApiError::from(error);
    body::pass_over_request(request, &state.0.options).await;
    let Some(location) = location else { return error.into_response() };
    let error = ApiError { status: StatusCode::TEMPORARY_REDIRECT, retry_after: None, ..error };
    ([(header::LOCATION, location)], error).into_response()
}

impl ApiState {
    /// Who calls, where that is asked.
    pub(super) fn holder(&self, headers: &HeaderMap) -> Result<Option<Holder>, ApiError> {
        let Some(keys) = &self.0.keys else { return Ok(None) };
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        // As Anthropic's clients show it.
        let bare = || text(API_KEY).map(|key| format!("Bearer {key}"));
        let shown = text(header::AUTHORIZATION).map(str::to_owned).or_else(bare);
        let holder = keys.check(shown.as_deref()).inspect_err(|denied| {
            self.0.generator.metrics.rejected(denied.reason());
        })?;
        Ok(Some(holder))
    }
}
