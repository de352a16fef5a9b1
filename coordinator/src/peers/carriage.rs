//! Both ends of what one member tells another of a request whose caller has come to that one.

use std::time::Duration;

use aqueduct_core::{Refusal, RequestId, limits};
use aqueduct_proto::v1::coordinators_client::CoordinatorsClient;
use aqueduct_proto::v1::{Carried, CarryAsk, CarryBegin};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::carried::{Heard, ended, heard, told};
use super::passage::InRoom;
use crate::runtime::{Attached, RequestHandle};
use crate::submit::RequestError;

/// What is told and has not been sent.
const UPDATES_MAX: usize = 64;
/// Wishes on their way: no completion is ended twice.
const ASKS_MAX: usize = limits::CHOICES_MAX as usize + 2;
/// A request that nobody can come back to waits so long for a member that has lost its connection.
const PATIENCE: Duration = Duration::from_millis(limits::CONNECT_DEADLINE_MS);

/// What a caller's member hears.
#[derive(Debug)]
pub(crate) struct Carriage {
    request: RequestId,
    told: Told,
    asks: mpsc::Sender<CarryAsk>,
    _counted: InRoom,
}

#[derive(Debug)]
enum Told {
    Stream(Box<Streaming<Carried>>),
    /// Nothing: the one that leads knows of no such request, or its caller has come there.
    Nothing(RequestError),
}

impl Carriage {
    /// `None` where the one that leads does not tell now.
    pub(super) async fn begin(
        channel: Channel,
        begin: CarryBegin,
        counted: InRoom,
    ) -> Option<Self> {
        let request = RequestId(begin.request);
        let (asks, wishes) = mpsc::channel(ASKS_MAX);
        let first = CarryAsk { begin: Some(begin), ..CarryAsk::default() };
        asks.try_send(first).ok()?;
        let mut client = CoordinatorsClient::new(channel)
            .max_decoding_message_size(limits::GRPC_MESSAGE_BYTES_MAX);
        let told = match client.carry(ReceiverStream::new(wishes)).await {
            Ok(answer) => Told::Stream(Box::new(answer.into_inner())),
            Err(status) if status.code() == Code::NotFound => {
                Told::Nothing(RequestError::Unknown(request))
            }
            Err(status) if status.code() == Code::Aborted => Told::Nothing(RequestError::TakenOver),
            Err(status) => {
                tracing::debug!(%request, %status, "who leads does not tell of a request yet");
                return None;
            }
        };
        Some(Self { request, told, asks, _counted: counted })
    }

    /// What is told next; `None` when the connection is lost, or it goes on elsewhere.
    pub(crate) async fn next(&mut self) -> Option<Heard> {
        let stream = match &mut self.told {
            Told::Stream(stream) => stream,
            Told::Nothing(why) => return Some(Heard::End(Some(why.clone()))),
        };
        let wire = stream.message().await.ok()??;
        let heard = heard(self.request, wire);
        heard.inspect_err(|refusal| tracing::warn!(%refusal, "a member tells what is none")).ok()
    }

    /// Has a completion end.
    pub(crate) fn stop_choice(&self, choice: u32) {
        let ask = CarryAsk { stop_choice: Some(choice), ..CarryAsk::default() };
        self.asks.try_send(ask).ok(); // else it goes on until it ends by itself
    }

    /// Has the request end, and waits until that was heard.
    pub(crate) async fn cancel(mut self) {
        let ask = CarryAsk { cancel: true, ..CarryAsk::default() };
        let ended = async {
            if self.asks.send(ask).await.is_ok() {
                while self.next().await.is_some_and(|heard| !matches!(heard, Heard::End(_))) {}
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.ok(); // it ends by itself then
    }
}

/// What `asks` begin with.
///
/// # Errors
/// A first message that does not come, or that begins nothing.
pub(super) async fn begin(asks: &mut Streaming<CarryAsk>) -> Result<CarryBegin, Status> {
    let deadline = Duration::from_millis(limits::PEER_DEADLINE_MS);
    let first = tokio::time::timeout(deadline, asks.message()).await;
    let late = |_| Status::deadline_exceeded(format!("no message within {deadline:?}"));
    let begin = first.map_err(late)??.and_then(|first| first.begin);
    begin.ok_or_else(|| {
        let refusal = Refusal::new("begin", "absent", "present in the first message");
        Status::invalid_argument(refusal.to_string())
    })
}

/// Tells of a request until it has ended, or nobody wants to hear of it. Where the connection is
/// lost it goes on for a while: its caller may come back, or its member ask again.
pub(super) fn tell(
    (submission, handle): Attached,
    asks: Streaming<CarryAsk>,
    resume_grace: Duration,
) -> BoxStream<'static, Result<Carried, Status>> {
    let (updates, sent) = mpsc::channel(UPDATES_MAX);
    let patience = if submission.telling.resumable { resume_grace } else { PATIENCE };
    let choices = submission.choices;
    tokio::spawn(async move {
        let mut handle = handle;
        if telling((&mut handle, choices), asks, updates).await == Over::Lost {
            let gone_on = async { while handle.next().await.is_some() {} };
            tokio::time::timeout(patience, gone_on).await.ok();
        }
    });
    ReceiverStream::new(sent).boxed()
}

#[derive(Debug, PartialEq, Eq)]
enum Over {
    /// It has ended, or is not wanted any more.
    Done,
    /// Nobody hears.
    Lost,
}

async fn telling(
    (handle, choices): (&mut RequestHandle, u32),
    mut asks: Streaming<CarryAsk>,
    updates: mpsc::Sender<Result<Carried, Status>>,
) -> Over {
    loop {
        tokio::select! {
            update = handle.next() => {
                let is_last = !matches!(update, Some(Ok(_)));
                let carried = match update {
                    Some(Ok(update)) => told(update),
                    Some(Err(error)) => ended(Some(error)),
                    None => ended(None),
                };
                let carried = match carried {
                    Some(carried) => Ok(carried),
                    None if is_last => Err(Status::unavailable("it goes on elsewhere")),
                    None => continue,
                };
                if updates.send(carried).await.is_err() {
                    return if is_last { Over::Done } else { Over::Lost };
                }
                if is_last {
                    return Over::Done;
                }
            }
            ask = asks.message() => match ask {
                Ok(Some(ask)) if ask.cancel => return Over::Done,
                Ok(Some(ask)) => {
                    let stopped = ask.stop_choice.filter(|choice| *choice < choices);
                    stopped.into_iter().for_each(|choice| handle.stop_choice(choice));
                }
                Ok(None) | Err(_) => return Over::Lost,
            },
            () = updates.closed() => return Over::Lost,
        }
    }
}
