//! Calls of a coordinator that follows are passed on to the one that leads.

use std::convert::Infallible;

use aqueduct_tls::{Caller, Role};
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use futures::{StreamExt, stream};
use http_body_util::{BodyStream, StreamBody};
use hyper::body::Frame;
use tonic::Status;

use super::Served;
use crate::peers::{Passage, PassedOn};
use crate::runtime::Leader;

/// What only the coordinator that leads can do, but for what each does by itself.
const OF_CALLERS: &str = "/aqueduct.v1.Aqueduct/";
const OF_EACH: &str = "/aqueduct.v1.Aqueduct/Tokenize";
const OF_OPERATORS: &str = "/aqueduct.v1.Operator/";

/// Passes a call on if another coordinator leads and is reached from here; where it is not, and
/// where this one is about to go, its caller is told where to go.
pub(super) async fn to_leader(
    State(served): State<Served>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let of_operators = path.starts_with(OF_OPERATORS);
    let of_callers = path.starts_with(OF_CALLERS) && path != OF_EACH;
    if !of_operators && !of_callers {
        return next.run(request).await;
    }
    let coordinator = &served.coordinator;
    // Who was let in is sent on, though doors close meanwhile.
    let closing = !coordinator.is_open();
    coordinator.settled().await;
    let follows = matches!(coordinator.leader(), Leader::Other(_));
    let passed = request.extensions().get::<PassedOn>();
    let goes_on = follows && Passage::takes(passed, closing);
    let did_operate = passed.is_some_and(|passed| passed.operates);
    let Some(passage) = coordinator.passage() else { return next.run(request).await };
    if !follows {
        return passage.enter(next.run(request)).await;
    }
    if !goes_on {
        return next.run(request).await;
    }
    let caller = request.extensions().get::<Caller>();
    let is_operator = did_operate || caller.is_some_and(|caller| caller.is(Role::Operator));
    // A key says for itself whose it is, and who has none is turned away here.
    let operates = of_operators
        && (is_operator
            || served.keys.is_none() && caller.is_some_and(|it| it.may_be(Role::Operator)));
    if !is_operator && !has_key(&served, request.headers()) {
        return next.run(request).await;
    }
    let Some(way) = passage.open().await else { return next.run(request).await };
    match way.pass(request, operates).await {
        Ok(answer) => whole(answer),
        Err(error) => {
            tracing::warn!(%error, "a call that was passed on has no answer");
            gone().into_http()
        }
    }
}

/// Whether a key is shown that is good, where one is asked for. It is checked again, and counted,
/// by who answers.
fn has_key(served: &Served, headers: &HeaderMap) -> bool {
    let Some(keys) = &served.keys else { return true };
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    keys.check(shown).is_ok()
}

fn gone() -> Status {
    Status::unavailable("the coordinator that leads has gone")
}

/// An answer that ends with a status, also where the connection that it comes by does not.
fn whole(answer: Response) -> Response {
    if answer.headers().contains_key(Status::GRPC_STATUS) {
        return answer; // and nothing more
    }
    answer.map(|body| {
        let frames = stream::unfold(Some(BodyStream::new(body)), async |frames| {
            let mut frames = frames?;
            let lost = match frames.next().await {
                Some(Ok(frame)) => {
                    let rest = (!frame.is_trailers()).then_some(frames);
                    return Some((Ok::<Frame<Bytes>, Infallible>(frame), rest));
                }
                Some(Err(error)) => error.to_string(),
                None => "it ended without a status".to_owned(),
            };
            tracing::warn!(error = lost, "a call that was passed on has lost its answer");
            let mut trailers = HeaderMap::new();
            // It has no metadata that could be wrong.
            gone().add_header(&mut trailers).ok();
            Some((Ok(Frame::trailers(trailers)), None))
        });
        Body::new(StreamBody::new(frames))
    })
}
