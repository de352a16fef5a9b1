//! The two calls that generate: prepare, start, answer whole or as a stream.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::work::Outputs;
use aqueduct_core::{Refusal, RequestId, Sampling, SessionUse, Telling, TokenId};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::future::try_join_all;

use super::choices::{Echo, Pieces, View};
use super::error::ApiError;
use super::params::Params;
use super::prepare::{self, Prepared, PreparedPrompt};
use super::reply::{Endpoint, Envelope};
use super::request_id::CallerId;
use super::stream::{self, Places, Running};
use super::{ApiState, Shared, body, resume};
use crate::generation::{About, Load, Report, Source, TextEvent, draw_seed};
use crate::keys::Holder;
use crate::peers::{Escort, Made, has_asked};
use crate::streams::Place;
use crate::submit::{Busy, RequestError, Submission};

/// OpenAI's default length of a completion.
const COMPLETION_MAX_TOKENS: u32 = 16;

/// Who calls: by what id the call is known, where that is asked whose key it shows, and how a
/// member of the group makes it that stays with it.
pub(super) type Caller =
    (Extension<CallerId>, Option<Extension<Holder>>, Option<Extension<Escort>>);

pub(super) async fn completions(
    State(state): State<ApiState>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    call(&state, caller, (headers, body), prepare::completion).await
}

pub(super) async fn chat(
    State(state): State<ApiState>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    call(&state, caller, (headers, body), prepare::chat).await
}

/// A new request, or the rest of an answer whose caller sends the same call once more.
async fn call(
    state: &ApiState,
    caller: Caller,
    (headers, body): (HeaderMap, Body),
    how: Prepare,
) -> Result<Response, ApiError> {
    if let Some(last) = resume::last_event(&headers)? {
        body::pass_over(body, &state.0.options).await;
        return resume::go_on(state, caller.1, last).await;
    }
    if let Some(Extension(escort @ Escort { made: Made::From(place), .. })) = &caller.2 {
        body::pass_over(body, &state.0.options).await;
        return resume::go_on_escorted(state, caller.1, escort, place.parse()?).await;
    }
    let key = start_key(&headers);
    let prepared = prepare(state, (body, key), how).await?;
    answer(state, prepared, caller).await
}

/// What names the start of a request, so that one that is made twice counts once.
pub(super) fn start_key(headers: &HeaderMap) -> Option<String> {
    let value = headers.get("idempotency-key")?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

type Prepare = fn(&Shared, &[u8]) -> Result<Prepared, ApiError>;

async fn prepare(
    state: &ApiState,
    (body, key): (Body, Option<String>),
    how: Prepare,
) -> Result<Prepared, ApiError> {
    let how = move |shared: &Shared, bytes: &[u8]| how(shared, bytes)?.keyed(key.clone(), bytes);
    aside(state, body, how).await
}

/// Reads a body, and parses and tokenises it on a thread of its own: a long prompt keeps it busy
/// for seconds. What turns out to have a grammar is begun again where those are compiled: before
/// that it is only parsed. Counts a call that is not taken.
///
/// # Errors
/// As [`body::read`]; 504 when all of it has taken as long as a request may.
pub(super) async fn aside<T: Send + 'static>(
    state: &ApiState,
    body: Body,
    how: impl Fn(&Shared, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let deadline = state.0.options.deadline;
    let made = async {
        let body = body::read(body, &state.0.generator.room, &state.0.options).await?;
        let closed = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "shutting down");
        let (mut given, mut compiles) = ((body, how), false);
        let made = loop {
            let (body, how) = given;
            let turn = state.0.turns.take(body.len(), compiles).await.ok_or_else(closed)?;
            let shared = state.0.clone();
            // Turn and room last as long as the work, also when the caller is gone by then.
            let work = move || (turn.run(|| how(&shared, &body)), (body, how));
            match tokio::task::spawn_blocking(work).await {
                Ok((Some(made), _)) => break Ok(made),
                Ok((None, again)) => (given, compiles) = (again, true),
                Err(error) => break Err(error),
            }
        };
        made.unwrap_or_else(|error| {
            tracing::error!(%error, "preparing a request failed");
            let message = "the request could not be prepared";
            Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message))
        })
    };
    let made = tokio::time::timeout(deadline, made).await;
    let made = made.unwrap_or_else(|_| Err(RequestError::Deadline(deadline).into()));
    made.inspect_err(|error| {
        if let Some(reason) = error.reason() {
            state.0.generator.metrics.rejected(reason);
        }
    })
}

async fn answer(
    state: &ApiState,
    prepared: Prepared,
    caller: Caller,
) -> Result<Response, ApiError> {
    let (stream, include_usage) = (prepared.params.stream, prepared.params.include_usage);
    let (running, envelope) = start(&state.0, prepared, caller).await?;
    if stream {
        return Ok(stream::response(running, envelope, include_usage));
    }
    let parts = try_join_all(running.into_iter().map(collect)).await?;
    let (choices, reports): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    Ok(Json(envelope.whole(choices.concat(), &reports)).into_response())
}

/// Whether so many requests may come at once: the first of too many would have begun for nothing.
fn has_places(load: &Load, prompts: usize) -> Result<(), ApiError> {
    if prompts > load.places {
        let bound = format!("at most {}, as many as are served and wait at once", load.places);
        return Err(Refusal::new("prompt", format!("{prompts} prompts"), bound).into());
    }
    if load.running + load.waiting + prompts > load.places {
        let busy = Busy::Requests { queued: load.waiting };
        return Err(RequestError::Busy { busy, retry_after: Duration::from_secs(1) }.into());
    }
    Ok(())
}

/// Submits every prompt; returns when all are accepted, so that a refusal has its HTTP status.
pub(super) async fn start(
    shared: &Shared,
    prepared: Prepared,
    (Extension(CallerId(caller_id, arrived)), holder, escort): Caller,
) -> Result<(Vec<Running>, Envelope), ApiError> {
    let Prepared { endpoint, params, prompts, constraint, tools, one_call, .. } = prepared;
    let Prepared { echo, logprobs, warnings, once, goes_on: follows, thoughts, .. } = prepared;
    let text_arguments = prepared.text_arguments;
    // What is given back of a prompt is written nowhere.
    let escort = escort.map(|Extension(escort)| escort).filter(|_| !echo && once.is_none());
    let is_made_again = escort.as_ref().is_some_and(|escort| escort.made != Made::First);
    let tells_places = escort.is_some() && prompts.len() == 1 && !params.running_usage;
    let mut running: Vec<Running> = Vec::with_capacity(prompts.len());
    let mut envelope = None;
    let holder = holder.as_ref().map(|Extension(holder)| holder);
    // Several begin together or not at all: each by itself would be charged for and cancelled.
    // One is let in where it is known whether its call was made before.
    let together = prompts.len() > 1 && !is_made_again;
    if together {
        has_places(&shared.generator.runtime.load(), prompts.len())?;
    }
    let lengths = prompts.iter().filter(|_| together).map(|prompt| prompt.tokens.len());
    let mut permits = shared.generator.admit(holder, lengths)?.into_iter();
    for PreparedPrompt { tokens, text } in prompts {
        let goes_on = params.memory.session.as_ref().and_then(SessionUse::goes_on);
        if tokens.is_empty() && goes_on.is_none() {
            return Err(ApiError::field("prompt", "must have at least one token"));
        }
        let echo = echo.then(|| Arc::new(Echo { text, tokens: tokens.clone() }));
        let outputs = logprobs.filter(|_| echo.is_some()).map_or(Outputs::None, Outputs::Logprobs);
        let seed = params.seed.unwrap_or_else(draw_seed);
        let sampling = Sampling { seed, logprobs, ..params.sampling };
        let submission = submission(shared, &params, tokens, sampling, outputs)?;
        let (caller_id, constraint) = (caller_id.clone(), constraint.clone());
        let telling = Telling {
            continues: endpoint == Endpoint::Completions,
            goes_on: follows,
            thoughts,
            tools,
            one_call,
            text_arguments: text_arguments.clone(),
            warnings: warnings.clone(),
            resumable: submission.telling.resumable || once.is_some(),
            once: once.clone().or_else(|| escort.as_ref().map(|it| it.start_key(running.len()))),
            ..submission.telling
        };
        let waited = arrived.elapsed();
        let submission = Submission { caller_id, constraint, telling, waited, ..submission };
        let generator = &shared.generator;
        let mut source = match (&escort, permits.next()) {
            (_, Some(permit)) => generator.start_admitted(holder, Some(permit), submission).await?,
            (Some(escort), None) => generator.start_escorted(holder, escort, submission).await?,
            (None, None) => generator.start_for(holder, submission).await?,
        };
        let request = accepted(&mut source).await?;
        let first_choice = running.len() * params.choices as usize;
        let running_usage = params.running_usage;
        let view = shared.view(request, source.about());
        let places = if tells_places { view.places.or_to_escort() } else { view.places };
        let view = View { echo, first_choice, running_usage, places, ..view };
        envelope.get_or_insert_with(|| shared.envelope(request, source.about()));
        let place = Place::start(params.choices);
        running.push(Running { source, view, place });
    }
    has_asked();
    let nothing = || ApiError::field("prompt", "must have at least one token");
    Ok((running, envelope.ok_or_else(nothing)?))
}

/// The first event says what the request is called.
pub(super) async fn accepted(source: &mut Source) -> Result<RequestId, ApiError> {
    match source.next().await.transpose()? {
        Some(TextEvent::Accepted { request, .. }) => Ok(request),
        _ => Err(RequestError::Stopping.into()),
    }
}

impl Shared {
    /// What the caller of a request asked to see, but for its prompt.
    pub(super) fn view(&self, request: RequestId, about: &About) -> View {
        let About { choices, logprobs, telling } = about;
        let text = self.generator.text.clone();
        let notation = text.template().notation().filter(|_| telling.tools);
        View {
            request,
            text,
            endpoint: Endpoint::of(telling),
            choices: *choices,
            logprobs: *logprobs,
            echo: None,
            first_choice: 0,
            notation,
            text_arguments: telling.text_arguments.as_slice().into(),
            one_call: telling.one_call,
            has_stops: !telling.stop.is_empty(),
            return_progress: telling.progress,
            running_usage: false,
            places: if telling.resumable { Places::ToCaller } else { Places::Untold },
        }
    }

    pub(super) fn envelope(&self, request: RequestId, about: &About) -> Envelope {
        let telling = &about.telling;
        let endpoint = Endpoint::of(telling);
        Envelope::new(endpoint, request, telling.created_at_s, &self.options.model)
    }
}

fn submission(
    shared: &Shared,
    params: &Params,
    prompt: Vec<TokenId>,
    sampling: Sampling,
    outputs: Outputs,
) -> Result<Submission, ApiError> {
    let options = &shared.options;
    let text = &shared.generator.text;
    Ok(Submission {
        prompt,
        session: params.memory.session,
        policy: params.memory.policy(options.policy)?,
        floor: params.memory.quality.floor(),
        chunk_tokens: params.memory.chunk_tokens.unwrap_or(options.chunk_tokens),
        exchange: params.memory.exchange,
        wire: params.memory.wire,
        sampling,
        steering: params.steering.clone(),
        constraint: None,
        choices: params.choices,
        max_tokens: params.max_tokens.unwrap_or(COMPLETION_MAX_TOKENS),
        eos: text.ends(params.ignore_eos, "stop_token_ids", &params.stop_tokens)?,
        outputs,
        cache_prompt: params.cache_prompt,
        priority: params.priority,
        caller_id: String::new(),
        shows: params.memory.map,
        telling: Telling {
            resumable: params.memory.resumable,
            stop: params.stop.clone(),
            usage: params.include_usage,
            progress: params.return_progress,
            ..Telling::default()
        },
        deadline: params.memory.deadline.unwrap_or(options.deadline).min(options.deadline),
        waited: Duration::ZERO,
    })
}

/// The choices and the figures of one prompt, when it is done.
async fn collect(running: Running) -> Result<(Vec<serde_json::Value>, Report), ApiError> {
    let Running { mut source, view, .. } = running;
    let mut pieces = Pieces::new(view.clone());
    let mut all = Vec::new();
    while let Some(event) = source.next().await.transpose()? {
        all.extend(pieces.take(event));
    }
    let entries = (0..view.choices as usize).map(|choice| view.whole(choice, &all)).collect();
    Ok((entries, source.report().clone()))
}
