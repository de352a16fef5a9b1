//! The connection and its calls.

use std::time::Duration;

use aqueduct_core::{Refusal, RequestId, is_caller_id, limits};
use aqueduct_proto::v1;
use futures::StreamExt;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::Span;

use crate::answer::{Answer, Unfinished};
use crate::config::ClientOptions;
use crate::error::{ClientError, is_lost, is_unheard, pushback};
use crate::event::{Description, Tokenized};
use crate::generation::{Generation, Patience};
use crate::options::{GenerateOptions, Prompt};
use crate::routes::{Route, Routes};
use crate::trace;

/// Metadata that carries the id of a request.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// A connection to a coordinator, or to a group of them; cheap to clone, safe to share.
#[derive(Debug, Clone)]
pub struct Client {
    routes: Routes,
    options: ClientOptions,
}

impl Client {
    /// Connects to `url`, for instance `http://127.0.0.1:7070`; of a group of coordinators to as
    /// many of them as are named, separated by commas. Then the one that leads is asked, whoever
    /// that is: a call that none has taken yet looks for it for as long as a connection may take.
    ///
    /// # Errors
    /// `InvalidArgument` when `url` is none or certificates cannot be used, `Deadline` or
    /// `Unavailable` when nobody answers.
    pub async fn connect(url: &str, options: ClientOptions) -> Result<Self, ClientError> {
        let routes = Routes::connect(url, &options).await?;
        Ok(Self { routes, options })
    }

    /// Prefills a prompt and generates from it. Dropping the stream cancels the request. A busy
    /// server is asked again when it says so, as often as the client's options allow; a stream
    /// that is lost goes on where it was lost, if it is [resumable](GenerateOptions::resumable),
    /// and so does one whose beginning was lost: it is begun once.
    ///
    /// # Errors
    /// What the server refuses before its first event; later errors come in the stream.
    pub async fn generate(&self, options: GenerateOptions) -> Result<Generation, ClientError> {
        let span = trace::begin(options.request_id.as_deref());
        let begun = self.begin(options, &span).await;
        begun.inspect_err(|error| trace::failed(&span, error))
    }

    async fn begin(
        &self,
        options: GenerateOptions,
        span: &Span,
    ) -> Result<Generation, ClientError> {
        let (deadline, id) = (options.deadline, request_id(options.request_id.as_deref())?);
        let until = after(deadline);
        let choices = options.choices.unwrap_or(1);
        let message = options.keyed().into_message();
        let is_keyed = message.idempotency_key.is_some();
        let (mut tries, mut lost) = (self.options.busy_tries, Patience::default());
        let patience = self.patience();
        let answer = loop {
            let Route { url, mut rpc, .. } = self.routes.current();
            let mut request = self.request(message.clone());
            request.set_timeout(until.saturating_duration_since(Instant::now()));
            trace::tell(&mut request, span);
            id.iter().for_each(|id| drop(request.metadata_mut().insert(REQUEST_ID, id.clone())));
            let status = match within(until, deadline, rpc.generate(request)).await? {
                Ok(answer) => break answer,
                Err(status) => status,
            };
            // Once it was lost it may take longer to be taken up again than to find nobody.
            let patience = match lost.give_up_at(self.options.resume_within, until) {
                Some(give_up_at) => self.patience().min(give_up_at),
                None => patience.min(until),
            };
            let moved = self.routes.moved(&url, &status, patience);
            if within(until, deadline, moved).await? {
                continue;
            }
            if is_keyed && is_unheard(&status) {
                let Some(give_up_at) = lost.again(self.options.resume_within, until).await else {
                    return Err(status.into());
                };
                let patience = self.patience().min(give_up_at);
                within(until, deadline, self.routes.leave(&url, &status, patience)).await?;
                continue;
            }
            tries = tries.saturating_sub(1);
            let again = pushback(&status).map(after);
            match again.filter(|again| tries > 0 && *again < until) {
                Some(again) => tokio::time::sleep_until(again).await,
                None => return Err(status.into()),
            }
        };
        Ok(Generation::new((self.clone(), span.clone()), answer, choices, (until, deadline)))
    }

    /// The rest of an answer. Where one coordinator has it no more, the next call asks another one.
    pub(crate) async fn resume(
        &self,
        message: v1::ResumeRequest,
        until: Instant,
        span: &Span,
    ) -> Result<Response<Streaming<v1::GenerateEvent>>, Status> {
        let mut request = self.request(message);
        request.set_timeout(until.saturating_duration_since(Instant::now()));
        trace::tell(&mut request, span);
        let Route { url, mut rpc, .. } = self.routes.current();
        let answer = rpc.resume(request).await;
        let lost = answer.as_ref().err().filter(|status| is_lost(status));
        if let Some(status) = lost {
            self.routes.leave(&url, status, self.patience().min(until)).await;
        }
        answer
    }

    /// Ends a request that goes on without its caller; one that is not known has ended.
    pub(crate) async fn cancel(&self, request: RequestId) -> Result<(), ClientError> {
        let message = v1::CancelRequest { request: request.0 };
        let cancel = |mut route: Route, message| async move {
            match route.rpc.cancel(message).await {
                Err(status) if status.code() != Code::NotFound => Err(status),
                _ => Ok(Response::new(())),
            }
        };
        self.call(message, cancel).await
    }

    /// How it connects.
    pub(crate) fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// The whole answer at once; as [`generate`](Self::generate) otherwise.
    ///
    /// # Errors
    /// What the server refuses, or what comes in the stream's way.
    pub async fn complete(&self, options: GenerateOptions) -> Result<Answer, ClientError> {
        let mut events = self.generate(options).await?;
        let mut unfinished = Unfinished::default();
        while let Some(event) = events.next().await {
            if let Some(answer) = unfinished.take(event?)? {
                return Ok(answer);
            }
        }
        Err(ClientError::unreadable("a stream without a summary"))
    }

    /// Text or turns to token ids, token ids to text.
    ///
    /// # Errors
    /// What the server refuses, or its silence.
    pub async fn tokenize(&self, prompt: Prompt) -> Result<Tokenized, ClientError> {
        let tokenize = |mut route: Route, message| async move { route.rpc.tokenize(message).await };
        let reply = self.call(prompt.into_tokenize(), tokenize).await?;
        Ok(Tokenized { ids: reply.ids, text: reply.text })
    }

    /// What is served, and by which workers.
    ///
    /// # Errors
    /// The server's silence, or an answer that cannot be read.
    pub async fn describe(&self) -> Result<Description, ClientError> {
        let describe = |mut route: Route, message| async move { route.rpc.describe(message).await };
        self.call(v1::DescribeRequest {}, describe).await?.try_into()
    }

    /// A message, and who sends it.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // Visible characters, as the key was checked to be, always make a value.
        let bearer = self.options.api_key.as_ref().map(|key| key.bearer().parse());
        if let Some(Ok(mut value)) = bearer {
            MetadataValue::set_sensitive(&mut value, true);
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    /// Until when a call looks for a coordinator that takes it.
    fn patience(&self) -> Instant {
        after(self.options.connect_deadline)
    }

    pub(crate) async fn call<M: Clone, T, F>(
        &self,
        message: M,
        call: impl Fn(Route, Request<M>) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        self.call_within(self.options.call_deadline, message, call).await
    }

    /// The same, for at most `deadline`.
    pub(crate) async fn call_within<M: Clone, T, F>(
        &self,
        deadline: Duration,
        message: M,
        call: impl Fn(Route, Request<M>) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let (until, patience) = (after(deadline), self.patience());
        loop {
            let route = self.routes.current();
            let (url, request) = (route.url.clone(), self.request(message.clone()));
            let status = match within(until, deadline, call(route, request)).await? {
                Ok(reply) => return Ok(reply.into_inner()),
                Err(status) => status,
            };
            if !self.routes.moved(&url, &status, patience).await {
                return Err(status.into());
            }
        }
    }
}

fn request_id(asked: Option<&str>) -> Result<Option<MetadataValue<Ascii>>, ClientError> {
    let parse = |id: &str| {
        let most = limits::REQUEST_ID_BYTES_MAX;
        let bound = format!("1 to {most} visible ASCII characters");
        let refused = || Refusal::new("request_id", id, bound);
        let parsed = is_caller_id(id).then(|| id.parse().ok()).flatten();
        parsed.ok_or_else(|| ClientError::InvalidArgument(refused().to_string()))
    };
    asked.map(parse).transpose()
}

/// What comes of it, unless it is late.
pub(crate) async fn within<T>(
    until: Instant,
    deadline: Duration,
    what: impl Future<Output = T>,
) -> Result<T, ClientError> {
    tokio::time::timeout_at(until, what).await.map_err(|_| late("the server", deadline))
}

/// The moment that is `wait` from now; a year from now is as good as any that is later.
pub(crate) fn after(wait: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + wait.min(LONGEST)
}

fn late(who: &str, deadline: Duration) -> ClientError {
    ClientError::Deadline(format!("{who} did not answer within {deadline:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_short_and_visible() {
        let check = |id: &str, is_one: bool| {
            let parsed = request_id(Some(id));
            assert_eq!(parsed.is_ok(), is_one, "{id:?}: {parsed:?}");
        };
        check("7f-a:b/c", true);
        check(&"x".repeat(128), true);
        ["", "two words", "\u{e9}", &"x".repeat(129)].iter().for_each(|id| check(id, false));
        assert_eq!(request_id(None).unwrap(), None);
    }

    #[tokio::test]
    async fn no_deadline_is_too_late() {
        let late = after(Duration::MAX);
        assert!(late > after(Duration::from_secs(3600)));
        let waited = within(late, Duration::MAX, async { Ok::<_, Status>(1) }).await;
        assert_eq!(waited.unwrap().unwrap(), 1);
    }
}
