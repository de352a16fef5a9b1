//! The connection and its calls.

use std::fmt::Display;
use std::time::Duration;

use aqueduct_core::{RequestId, limits};
use aqueduct_proto::v1;
use aqueduct_proto::v1::aqueduct_client::AqueductClient;
use aqueduct_proto::v1::operator_client::OperatorClient;
use aqueduct_tls::{ClientTls, Expected, Refusals};
use futures::StreamExt;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::answer::{Answer, Unfinished};
use crate::config::ClientOptions;
use crate::error::{ClientError, pushback, root_cause};
use crate::event::{Description, Tokenized};
use crate::generation::Generation;
use crate::options::{GenerateOptions, Prompt};

/// Metadata that carries the id of a request.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// A connection to a coordinator; cheap to clone, safe to share.
#[derive(Debug, Clone)]
pub struct Client {
    rpc: AqueductClient<Channel>,
    operator: OperatorClient<Channel>,
    options: ClientOptions,
}

impl Client {
    /// Connects to `url`, for instance `http://127.0.0.1:7070`.
    ///
    /// # Errors
    /// `InvalidArgument` when `url` is none or certificates cannot be used, `Deadline` or
    /// `Unavailable` when nobody answers.
    pub async fn connect(url: &str, options: ClientOptions) -> Result<Self, ClientError> {
        let wrong = |error: &dyn Display| ClientError::InvalidArgument(error.to_string());
        aqueduct_tls::scheme_of("url", url, options.tls.is_some())
            .map_err(|error| wrong(&error))?;
        let open = |files| ClientTls::open(files, Expected::Host, "client", Refusals::default());
        let tls = options.tls.clone().map(open).transpose().map_err(|error| wrong(&error))?;
        let endpoint = Endpoint::from_shared(url.to_owned())
            .map_err(|error| wrong(&format_args!("url = {url}: {error}")))?
            .connect_timeout(options.connect_deadline);
        let connecting = aqueduct_tls::connect(&endpoint, tls.as_ref());
        let connecting = tokio::time::timeout(options.connect_deadline, connecting);
        let channel = connecting
            .await
            .map_err(|_| late(url, options.connect_deadline))?
            .map_err(|error| ClientError::Unavailable(format!("{url}: {}", root_cause(&error))))?;
        let operator = OperatorClient::new(channel.clone())
            .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
        let rpc = AqueductClient::new(channel)
            .max_decoding_message_size(limits::PROMPT_BYTES_MAX)
            .max_encoding_message_size(limits::PROMPT_BYTES_MAX);
        Ok(Self { rpc, operator, options })
    }

    /// Prefills a prompt and generates from it. Dropping the stream cancels the request. A busy
    /// server is asked again when it says so, as often as the client's options allow; a stream
    /// that is lost goes on where it was lost, if it is [resumable](GenerateOptions::resumable).
    ///
    /// # Errors
    /// What the server refuses before its first event; later errors come in the stream.
    pub async fn generate(&self, options: GenerateOptions) -> Result<Generation, ClientError> {
        let (deadline, id) = (options.deadline, request_id(options.request_id.as_deref())?);
        let until = Instant::now() + deadline;
        let choices = options.choices.unwrap_or(1);
        let message = options.into_message();
        let mut tries = self.options.busy_tries;
        let answer = loop {
            let mut request = self.request(message.clone());
            request.set_timeout(until.saturating_duration_since(Instant::now()));
            id.iter().for_each(|id| drop(request.metadata_mut().insert(REQUEST_ID, id.clone())));
            let mut rpc = self.rpc.clone();
            let status = match within(until, deadline, rpc.generate(request)).await? {
                Ok(answer) => break answer,
                Err(status) => status,
            };
            tries = tries.saturating_sub(1);
            let again = pushback(&status).map(|wait| Instant::now() + wait);
            match again.filter(|again| tries > 0 && *again < until) {
                Some(again) => tokio::time::sleep_until(again).await,
                None => return Err(status.into()),
            }
        };
        Ok(Generation::new(self.clone(), answer, choices, (until, deadline)))
    }

    /// The rest of an answer.
    pub(crate) async fn resume(
        &self,
        message: v1::ResumeRequest,
        until: Instant,
    ) -> Result<Response<Streaming<v1::GenerateEvent>>, Status> {
        let mut request = self.request(message);
        request.set_timeout(until.saturating_duration_since(Instant::now()));
        self.rpc.clone().resume(request).await
    }

    /// Ends a request that goes on without its caller; one that is not known has ended.
    pub(crate) async fn cancel(&self, request: RequestId) -> Result<(), ClientError> {
        let mut rpc = self.rpc.clone();
        let message = v1::CancelRequest { request: request.0 };
        let cancelled = async {
            match rpc.cancel(self.request(message)).await {
                Err(status) if status.code() != Code::NotFound => Err(status),
                _ => Ok(Response::new(())),
            }
        };
        self.call(cancelled).await
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
        let mut rpc = self.rpc.clone();
        let reply = self.call(rpc.tokenize(self.request(prompt.into_tokenize()))).await?;
        Ok(Tokenized { ids: reply.ids, text: reply.text })
    }

    /// What is served, and by which workers.
    ///
    /// # Errors
    /// The server's silence, or an answer that cannot be read.
    pub async fn describe(&self) -> Result<Description, ClientError> {
        let mut rpc = self.rpc.clone();
        self.call(rpc.describe(self.request(v1::DescribeRequest {}))).await?.try_into()
    }

    /// For those who look after the cluster.
    pub(crate) fn operator(&self) -> OperatorClient<Channel> {
        self.operator.clone()
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

    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, ClientError> {
        let deadline = self.options.call_deadline;
        Ok(within(Instant::now() + deadline, deadline, call).await??.into_inner())
    }
}

fn request_id(asked: Option<&str>) -> Result<Option<MetadataValue<Ascii>>, ClientError> {
    let parse = |id: &str| {
        id.parse()
            .map_err(|error| ClientError::InvalidArgument(format!("request_id = {id}: {error}")))
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

fn late(who: &str, deadline: Duration) -> ClientError {
    ClientError::Deadline(format!("{who} did not answer within {deadline:?}"))
}
