//! The OpenAI-compatible HTTP API.

mod anthropic;
mod astray;
mod body;
mod calls;
mod choices;
mod console;
mod error;
mod escort;
mod fields;
mod format;
mod guard;
mod guided;
mod logprobs;
mod messages;
mod named;
mod names;
mod origins;
mod params;
mod prepare;
mod reply;
mod request;
mod request_id;
mod responses;
mod resume;
mod sampling;
mod server;
mod stream;
mod tokens;
mod tools;

pub use anthropic::parse_message;
pub(crate) use body::pass_over_request;
pub use error::ApiError;
pub use origins::Origins;
pub use params::{MemoryFields, Params};
pub use request::{
    Chat, ChatRequest, CompletionRequest, Prompt, Usual, parse_chat, parse_completion,
};
pub use responses::parse_response;
pub use server::{Bounds, monitor, serve, serve_routes};
pub use tools::Tools;

use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::{Addresses, MemoryPolicy, limits};
use aqueduct_telemetry::page_for;
use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde_json::{Value, json};

use crate::bodies::Room;
use crate::generation::{Generator, Load, now_s};
use crate::keys::Keys;
use crate::runtime::Leader;
use crate::turns::Turns;

/// What a caller gets who does not say.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiOptions {
    /// Name of the served model.
    pub model: String,
    /// Memory policy.
    pub policy: MemoryPolicy,
    /// C.
    pub chunk_tokens: u32,
    /// Most tokens of a chat's answer where its caller says nothing, if the model has positions for
    /// as many; completions have OpenAI's 16.
    pub chat_max_tokens: u32,
    /// After this long a request fails.
    pub deadline: Duration,
    /// Origins whose web pages may call.
    pub origins: Origins,
    /// Most bytes of a request's body.
    pub body_bytes_max: usize,
    /// Connections that are served at once; more wait to be accepted.
    pub connections_max: usize,
    /// How long a connection may be silent while it sends a request.
    pub read_timeout: Duration,
}

impl ApiOptions {
    /// The defaults, for a model of this name.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            policy: MemoryPolicy::default(),
            chunk_tokens: limits::CHUNK_TOKENS_DEFAULT,
            chat_max_tokens: limits::CHAT_TOKENS_DEFAULT,
            deadline: Duration::from_millis(limits::REQUEST_DEADLINE_MS),
            origins: Origins::default(),
            body_bytes_max: limits::PROMPT_BYTES_MAX,
            connections_max: limits::HTTP_CONNECTIONS_MAX,
            read_timeout: Duration::from_millis(limits::HTTP_READ_TIMEOUT_MS),
        }
    }
}

/// What every call has at hand.
#[derive(Clone)]
pub struct ApiState(Arc<Shared>);

struct Shared {
    generator: Generator,
    options: ApiOptions,
    /// Who may call; anybody if `None`.
    keys: Option<Keys>,
    /// For bodies of calls that are passed on.
    escorted: Room,
    /// Of bodies that are parsed and tokenised.
    turns: Turns,
    /// When it began to serve, in seconds since 1970.
    began_s: u64,
}

impl ApiState {
    /// The API of `generator`'s model, for everybody.
    pub fn new(generator: Generator, options: ApiOptions) -> Self {
        Self::guarded(generator, options, None)
    }

    /// The same, for those whom `keys` let in.
    pub fn guarded(generator: Generator, options: ApiOptions, keys: Option<Keys>) -> Self {
        let (escorted, turns) = (Room::new(limits::ESCORTED_BYTES_MAX), Turns::new());
        let began_s = now_s();
        Self(Arc::new(Shared { generator, options, keys, escorted, turns, began_s }))
    }
}

/// What tells how the server is; it needs no key.
fn watched() -> Router<ApiState> {
    Router::new()
        .route("/health", get(ready))
        .route("/readyz", get(ready))
        .route("/leader", get(leads))
        // As vLLM has them.
        .route("/ping", get(ready).post(ready))
        .route("/version", get(version))
        .route("/livez", get(|| async { "ok" }))
        .route("/metrics", get(metrics))
}

/// All routes. Where they are `of_this_machine`, not for a page that has made its name lead here.
fn router(state: ApiState, of_this_machine: bool) -> Router {
    let guard = axum::middleware::from_fn_with_state(state.clone(), guard::guard);
    let named = axum::middleware::from_fn_with_state(state.clone(), names::of_this_machine);
    let routes = of_the_leader(&state)
        .route("/v1/models", get(models))
        .route("/v1/models/", get(models))
        // Names may have slashes.
        .route("/v1/models/{*model}", get(model))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route_layer(guard)
        // Before the layers, which would not see what is set later.
        .method_not_allowed_fallback(no_such_method)
        .fallback(no_such_path)
        .layer(axum::middleware::from_fn_with_state(state.clone(), guard::of_own_page))
        // Outside of the guard: a browser shows no key when it asks.
        .layer(state.0.options.origins.layer())
        .merge(watched())
        .merge(console::routes(&state))
        .method_not_allowed_fallback(no_such_method);
    let routes = if of_this_machine { routes.layer(named) } else { routes };
    called(routes, state)
}

/// What answers calls that another coordinator has passed on, which has looked at where they came
/// from.
pub fn passed_on(state: ApiState) -> Router {
    let guard = axum::middleware::from_fn_with_state(state.clone(), guard::guard);
    called(of_the_leader(&state).route_layer(guard), state)
}

/// `routes`, of which every answer has its call's id, and errors are told in the words of the API
/// that was called.
fn called(routes: Router<ApiState>, state: ApiState) -> Router {
    let in_its_words = axum::middleware::from_fn(anthropic::in_its_words);
    let echo = axum::middleware::from_fn(request_id::echo);
    routes.layer(in_its_words).layer(echo).with_state(state)
}

/// What the coordinator that leads answers alone.
fn of_the_leader(state: &ApiState) -> Router<ApiState> {
    let to_leader = axum::middleware::from_fn_with_state(state.clone(), guard::to_leader);
    Router::new()
        .route("/v1/completions", post(calls::completions))
        .route("/v1/chat/completions", post(calls::chat))
        .route("/v1/responses", post(responses::create))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/requests/{request}/events", get(resume::events))
        .route("/v1/requests/{request}", delete(resume::cancel))
        .route_layer(to_leader)
}

async fn no_such_path(State(state): State<ApiState>, request: Request) -> Response {
    let without = without_slash(request.uri());
    body::pass_over_request(request, &state.0.options).await;
    match without {
        Some(path) => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, path)]).into_response(),
        None => ApiError::new(StatusCode::NOT_FOUND, "no such path").into_response(),
    }
}

/// Where who has put a slash behind a path is sent, as by vLLM: a method and a body go along. Never
/// to another host, as two slashes at its beginning would.
fn without_slash(uri: &Uri) -> Option<String> {
    let path = uri.path().strip_suffix('/')?;
    let is_here = path.starts_with('/') && !path.starts_with("//") && !path.contains('\\');
    let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
    is_here.then(|| format!("{path}{query}"))
}

async fn no_such_method(State(state): State<ApiState>, request: Request) -> ApiError {
    body::pass_over_request(request, &state.0.options).await;
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "the path has no such method")
}

impl Shared {
    fn model_entry(&self) -> Value {
        json!({
            "id": self.options.model,
            "object": "model",
            "created": self.began_s,
            "owned_by": "aqueduct",
            // As vLLM has them, of which some clients want all.
            "root": self.options.model,
            "parent": null,
            "permission": [],
            "max_model_len": self.generator.text.prompt_tokens_max(),
        })
    }

    fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        let served = &self.options.model;
        match asked.filter(|asked| asked != served) {
            None => Ok(()),
            Some(asked) => {
                let message = format!("the model {asked:?} is not served here, {served:?} is");
                let error = ApiError::new(StatusCode::NOT_FOUND, message);
                let param = Some("model".to_owned());
                Err(ApiError { param, code: Some("model_not_found"), ..error })
            }
        }
    }
}

async fn models(State(state): State<ApiState>) -> Response {
    axum::Json(json!({ "object": "list", "data": [state.0.model_entry()] })).into_response()
}

async fn model(
    State(state): State<ApiState>,
    asked: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(asked) = asked.map_err(|error| ApiError::new(error.status(), error.body_text()))?;
    state.0.check_model(Some(&asked))?;
    Ok(axum::Json(state.0.model_entry()).into_response())
}

/// Whether calls are answered here, be it by saying who answers.
async fn ready(State(state): State<ApiState>) -> Response {
    let load = state.0.generator.runtime.load();
    let text = match &load.leader {
        _ if load.open => "ok",
        Leader::Nobody => "no coordinator leads at this moment",
        Leader::This { .. } if load.workers_up == 0 => "no worker is up",
        Leader::This { .. } if load.workers_open == 0 => "every worker is drained",
        _ => "nothing new is taken",
    };
    health(load.open, text, &load)
}

/// Whether answers are made here, for whoever would rather not be sent on.
async fn leads(State(state): State<ApiState>) -> Response {
    let load = state.0.generator.runtime.load();
    let is_here = matches!(load.leader, Leader::This { .. });
    health(is_here, if is_here { "ok" } else { "another coordinator may lead" }, &load)
}

fn health(is_good: bool, text: &str, load: &Load) -> Response {
    let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = json!({ "status": text, "workers_up": load.workers_up });
    match &load.leader {
        Leader::This { term } => {
            body["role"] = "leader".into();
            body["term"] = (*term).into();
        }
        Leader::Other(Addresses { http, grpc }) => {
            body["role"] = "follower".into();
            body["leader"] = json!({ "http": http, "grpc": grpc });
        }
        Leader::Nobody => body["role"] = "follower".into(),
    }
    (status, axum::Json(body)).into_response()
}

async fn version() -> Response {
    axum::Json(json!({ "version": env!("CARGO_PKG_VERSION") })).into_response()
}

async fn metrics(State(state): State<ApiState>, headers: HeaderMap) -> Response {
    let generator = &state.0.generator;
    let load = generator.runtime.load();
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let (kind, text) = generator.metrics.read(&load, |registry| page_for(accept, registry));
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
