//! The events of one request, over as many connections as it takes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use aqueduct_core::RequestId;
use aqueduct_proto::v1;
use aqueduct_proto::v1::generate_event::Kind;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tonic::{Code, Response, Status, Streaming};
use tracing::Span;

use crate::client::{Client, REQUEST_ID, within};
use crate::error::{ClientError, is_lost};
use crate::event::GenerateEvent;
use crate::trace;

/// Metadata by which a server says by what number a request can be come back to.
const ANSWER_ID: &str = "aqueduct-request";
/// Before a lost stream is asked for again; twice as long each time, up to the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

type Answer = Streaming<v1::GenerateEvent>;

/// The events of one request. Ends after [`GenerateEvent::Summary`] or the first error. Dropping
/// it cancels the request.
pub struct Generation {
    request_id: String,
    events: BoxStream<'static, Result<GenerateEvent, ClientError>>,
    /// The request, if it goes on without its caller.
    kept: Option<(Client, RequestId)>,
    /// Whether the server has ended it.
    is_ended: Arc<AtomicBool>,
    /// Of the client: who drops this may be in none.
    runtime: Handle,
}

impl Generation {
    /// What `client` is told by `answer` of so many completions, in `span`, until `until`, which is
    /// `deadline` from the beginning.
    pub(crate) fn new(
        (client, span): (Client, Span),
        answer: Response<Answer>,
        choices: u32,
        (until, deadline): (Instant, Duration),
    ) -> Self {
        let said = |name| answer.metadata().get(name).and_then(|value| value.to_str().ok());
        let request_id = said(REQUEST_ID).unwrap_or_default().to_owned();
        span.record("request_id", &request_id);
        let request = said(ANSWER_ID).and_then(|number| number.parse().ok()).map(RequestId);
        let is_ended = Arc::new(AtomicBool::new(false));
        let kept = request.map(|request| (client.clone(), request));
        let listening = Listening {
            client,
            span,
            answer: answer.into_inner(),
            until,
            deadline,
            standing: request.map(|request| Standing::new(request, choices)),
            is_over: false,
            is_ended: is_ended.clone(),
        };
        let events = stream::unfold(listening, async |mut listening| {
            let event = listening.next().await?;
            Some((event, listening))
        });
        let runtime = Handle::current(); // in which the answer came
        Self { request_id, events: events.boxed(), kept, is_ended, runtime }
    }

    /// The id by which the server's log knows the request: the caller's own, or a new one.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Ends the request, and returns when the server has heard of it.
    ///
    /// # Errors
    /// The server's silence. One that does not know the request any more has ended it.
    pub async fn cancel(mut self) -> Result<(), ClientError> {
        match self.kept.take() {
            Some((client, request)) if !self.is_ended() => client.cancel(request).await,
            _ => Ok(()),
        }
    }

    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }
}

impl Stream for Generation {
    type Item = Result<GenerateEvent, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_next_unpin(cx)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        // What the server is not told, it finds out by itself: nobody comes back.
        if let Some((client, request)) = self.kept.take().filter(|_| !self.is_ended()) {
            self.runtime.spawn(async move { drop(client.cancel(request).await) });
        }
    }
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Generation")
    }
}

struct Listening {
    client: Client,
    /// Ends with it.
    span: Span,
    answer: Answer,
    until: Instant,
    deadline: Duration,
    /// Where the caller stands, if the server lets it come back.
    standing: Option<Standing>,
    /// Nothing more is told.
    is_over: bool,
    is_ended: Arc<AtomicBool>,
}

impl Listening {
    /// The next event: nothing after the summary or an error.
    async fn next(&mut self) -> Option<Result<GenerateEvent, ClientError>> {
        if self.is_over {
            return None;
        }
        let event = self.next_new().await;
        if let Err(error) = &event {
            trace::failed(&self.span, error);
        }
        self.is_over |= matches!(event, Err(_) | Ok(GenerateEvent::Summary(_)));
        // What the server has said of its end; what was not understood, took too long for this
        // caller or could not be come back to, it goes on with unless it is told.
        let is_ended = match &event {
            Ok(event) => matches!(event, GenerateEvent::Summary(_)),
            Err(
                ClientError::Server(_) | ClientError::Deadline(_) | ClientError::Unavailable(_),
            ) => false,
            Err(_) => true,
        };
        self.is_ended.store(is_ended, Ordering::Relaxed);
        Some(event)
    }

    async fn next_new(&mut self) -> Result<GenerateEvent, ClientError> {
        loop {
            let said = within(self.until, self.deadline, self.answer.message()).await?;
            let status = match said {
                Ok(Some(event)) => {
                    // One that a newer server tells is for newer clients.
                    let Some(kind) = &event.kind else { continue };
                    let takes = self.standing.as_mut().map(|standing| standing.takes(kind));
                    if takes.transpose()?.unwrap_or(true) {
                        return event.try_into();
                    }
                    continue;
                }
                Ok(None) => Status::unavailable("the stream ended without a summary"),
                Err(status) => status,
            };
            self.come_back(status).await?;
        }
    }

    /// Asks for the rest of a stream that was lost.
    async fn come_back(&mut self, mut status: Status) -> Result<(), ClientError> {
        let Some(standing) = self.standing.as_mut().filter(|_| is_lost(&status)) else {
            return Err(status.into());
        };
        let within = self.client.options().resume_within;
        loop {
            let Some(give_up_at) = standing.patience.again(within, self.until).await else {
                return Err(status.into());
            };
            let call = self.client.resume(standing.message(), self.until, &self.span);
            let Ok(answer) = tokio::time::timeout_at(give_up_at, call).await else {
                return Err(status.into());
            };
            match answer {
                Ok(answer) => {
                    self.answer = answer.into_inner();
                    return Ok(());
                }
                Err(error) if is_lost(&error) => status = error,
                Err(error) => return Err(gone(error)),
            }
        }
    }
}

/// Why a stream cannot be gone on with.
fn gone(status: Status) -> ClientError {
    match status.code() {
        Code::NotFound | Code::Unimplemented => ClientError::Gone(status.message().to_owned()),
        _ => status.into(),
    }
}

/// What a caller has of an answer.
#[derive(Debug)]
struct Standing {
    request: RequestId,
    is_accepted: bool,
    /// Escalations, and how many of them this connection has told.
    escalations: u32,
    escalations_here: u32,
    /// Of each completion, its tokens and its end.
    next: Vec<u32>,
    /// With a loss behind which nothing new has come yet.
    patience: Patience,
}

/// How often, and for how long, what was lost is asked for again.
#[derive(Debug)]
pub(crate) struct Patience {
    lost_at: Option<Instant>,
    pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { lost_at: None, pause: FIRST_PAUSE }
    }
}

impl Patience {
    /// When to give up what was lost, that is `within` after the first loss, or `until`; `None`
    /// where nothing was.
    pub(crate) fn give_up_at(&self, within: Duration, until: Instant) -> Option<Instant> {
        Some(self.lost_at?.checked_add(within).map_or(until, |at| until.min(at)))
    }

    /// Waits until it is time to ask again, and says when to give up; `None`: now, because that is
    /// `within` after the first loss, or `until`.
    pub(crate) async fn again(&mut self, within: Duration, until: Instant) -> Option<Instant> {
        self.lost_at.get_or_insert_with(Instant::now);
        let give_up_at = self.give_up_at(within, until).unwrap_or(until);
        let again_at = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        if again_at >= give_up_at {
            return None;
        }
        tokio::time::sleep_until(again_at).await;
        Some(give_up_at)
    }
}

impl Standing {
    fn new(request: RequestId, choices: u32) -> Self {
        Self {
            request,
            is_accepted: false,
            escalations: 0,
            escalations_here: 0,
            next: vec![0; choices as usize],
            patience: Patience::default(),
        }
    }

    fn message(&mut self) -> v1::ResumeRequest {
        self.escalations_here = 0;
        v1::ResumeRequest { request: self.request.0, next: self.next.clone() }
    }

    /// Whether an event is new; then it is no more.
    fn takes(&mut self, kind: &Kind) -> Result<bool, ClientError> {
        let is_new = match kind {
            Kind::Accepted(_) => !std::mem::replace(&mut self.is_accepted, true),
            Kind::Escalated(_) => {
                self.escalations_here += 1;
                self.escalations_here > self.escalations
            }
            Kind::Token(token) => self.takes_one(token.choice, token.token_idx)?,
            Kind::ChoiceDone(done) => self.takes_one(done.choice, done.tokens)?,
            Kind::Progress(_) | Kind::PromptLogprobs(_) | Kind::Summary(_) => true,
        };
        self.escalations = self.escalations.max(self.escalations_here);
        if is_new {
            self.patience = Patience::default();
        }
        Ok(is_new)
    }

    /// The event of this index of a completion. A text with a hole is none.
    fn takes_one(&mut self, choice: u32, idx: u32) -> Result<bool, ClientError> {
        match self.next.get_mut(choice as usize) {
            Some(next) if *next == idx => {
                *next += 1;
                Ok(true)
            }
            Some(next) if *next < idx => {
                let hole = format!("token {idx} of completion {choice} came before token {next}");
                Err(ClientError::unreadable(hole))
            }
            // One that nobody asked for is for the caller to see.
            known => Ok(known.is_none()),
        }
    }
}
