//! The console: a page for those who look after the cluster, and what it asks for. The page is
//! the same for everybody; what it shows, other callers' prompts among it, is for operators.

mod live;
mod map;

use aqueduct_tls::Caller;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use super::{ApiError, ApiState};
use crate::keys;

/// Nothing comes from anywhere else, and nobody puts the page into one of their own.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The page, which needs no key, and its data, which do.
pub(super) fn routes(state: &ApiState) -> Router<ApiState> {
    let operators = axum::middleware::from_fn_with_state(state.clone(), operators);
    Router::new()
        .route("/console/live", get(live::events))
        .route("/console/requests/{id}/map", get(map::text))
        .route("/console/requests/{id}/map/{layer}/{head}", get(map::head))
        .route_layer(operators)
        .route("/", get(|| async { Redirect::temporary("/console") }))
        .route("/console", get(|| file(HTML, include_str!("console/page/index.html"))))
        .route("/console/style.css", get(|| file(CSS, include_str!("console/page/style.css"))))
        .route("/console/app.js", get(|| file(SCRIPT, include_str!("console/page/app.js"))))
        .route("/console/map.js", get(|| file(SCRIPT, include_str!("console/page/map.js"))))
        .route("/console/parts.js", get(|| file(SCRIPT, include_str!("console/page/parts.js"))))
}

async fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

/// Lets in who may look after the cluster.
async fn operators(
    State(state): State<ApiState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let caller = request.extensions().get::<Caller>();
    let holder = || state.holder(request.headers());
    if !keys::may_operate(caller, holder)? {
        return Err(ApiError::new(StatusCode::FORBIDDEN, keys::OPERATORS_ONLY));
    }
    Ok(next.run(request).await)
}
