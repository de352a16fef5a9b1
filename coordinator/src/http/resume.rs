//! Answers that callers come back to: by their name, or with the same call once more, and where
//! they stand is the id of the last event that they have.

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use aqueduct_core::{Refusal, RequestId};

use super::choices::View;
use super::stream::{self, Places, Running};
use super::{ApiError, ApiState, Shared, calls};
use crate::generation::{About, Source};
use crate::keys::Holder;
use crate::peers::Escort;
use crate::streams::{Ended, EventId, Place, request_of};

/// By which browsers, and others who read events, say where they stand.
pub(super) const LAST_EVENT_ID: &str = "last-event-id";

type Name = Result<Path<String>, PathRejection>;

pub(super) async fn events(
    State(state): State<ApiState>,
    holder: Option<Extension<Holder>>,
    name: Name,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let request = named(name)?;
    let last = last_event(&headers)?;
    let other = last.as_ref().filter(|last| last.request != request);
    match other {
        Some(other) => {
            let bound = format!("of an event of {request}");
            Err(Refusal::new(LAST_EVENT_ID, other.request, bound).into())
        }
        None => answer(&state, holder, request, last.map(|last| last.place)).await,
    }
}

pub(super) async fn cancel(
    State(state): State<ApiState>,
    holder: Option<Extension<Holder>>,
    name: Name,
) -> Result<StatusCode, ApiError> {
    let holder = holder.as_ref().map(|Extension(holder)| holder);
    state.0.generator.cancel(holder, named(name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn named(name: Name) -> Result<RequestId, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::new(error.status(), error.body_text()))?;
    Ok(request_of(&name)?)
}

/// Where a caller stands, if it has heard something of an answer.
pub(super) fn last_event(headers: &HeaderMap) -> Result<Option<EventId>, ApiError> {
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    Ok(Some(text.parse()?))
}

/// What follows the event `last`.
pub(super) async fn go_on(
    state: &ApiState,
    holder: Option<Extension<Holder>>,
    last: EventId,
) -> Result<Response, ApiError> {
    answer(state, holder, last.request, Some(last.place)).await
}

/// What follows `place` in an answer whose caller a member of the group has.
pub(super) async fn go_on_escorted(
    state: &ApiState,
    holder: Option<Extension<Holder>>,
    escort: &Escort,
    EventId { request, place }: EventId,
) -> Result<Response, ApiError> {
    let shared = &state.0;
    let holder = holder.as_ref().map(|Extension(holder)| holder);
    let name = escort.start_key(0).name;
    let source = shared.generator.go_on_escorted(holder, request, name).await?;
    let about = source.about();
    let place = place.unwrap_or_else(|| Place::start(about.choices));
    place.check(LAST_EVENT_ID, about.choices)?;
    let view = View { places: Places::ToEscort, ..shared.view(request, about) };
    rest(shared, source, (view, place)).await
}

/// What follows `place` in the answer that `source` tells from its beginning.
async fn rest(
    shared: &Shared,
    mut source: Source,
    (view, place): (View, Place),
) -> Result<Response, ApiError> {
    calls::accepted(&mut source).await?;
    let envelope = shared.envelope(view.request, source.about());
    let usage = source.about().telling.usage;
    Ok(stream::response(vec![Running { source, view, place }], envelope, usage))
}

async fn answer(
    state: &ApiState,
    holder: Option<Extension<Holder>>,
    request: RequestId,
    last: Option<Option<Place>>,
) -> Result<Response, ApiError> {
    let shared = &state.0;
    let holder = holder.as_ref().map(|Extension(holder)| holder);
    let stands = last.clone().flatten();
    let may_read = move |about: &About, ended: &Ended| {
        let Some(place) = stands else { return Ok(()) };
        place.check(LAST_EVENT_ID, about.choices)?;
        place.check_told(LAST_EVENT_ID, ended)
    };
    let reader = shared.generator.resume(holder, request, may_read).await?;
    let about = reader.about();
    let place = match last {
        Some(None) => {
            let envelope = shared.envelope(request, about);
            return Ok(stream::nothing_more(envelope, Places::ToCaller));
        }
        Some(Some(place)) => place,
        None => Place::start(about.choices),
    };
    let view = shared.view(request, about);
    rest(shared, reader.into(), (view, place)).await
}
