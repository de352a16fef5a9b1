//! Streams that are lost, against a server that tells each of them as it was told to.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use aqueduct_client::{Client, ClientError, ClientOptions, GenerateEvent, GenerateOptions};
use aqueduct_proto::v1;
use aqueduct_proto::v1::aqueduct_server::{Aqueduct, AqueductServer};
use aqueduct_proto::v1::generate_event::Kind;
use futures::StreamExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status};

const REQUEST: u64 = 77;
/// More than any test asks.
const ASKED_MAX: usize = 1024;

/// One connection: what it is told before it ends, and how it ends.
type Leg = (Vec<Kind>, Status);

/// What was asked of a server.
#[derive(Debug, Clone, PartialEq)]
enum Asked {
    Generate { resumable: bool, key: Option<String> },
    Resume(v1::ResumeRequest),
    Cancel(u64),
}

struct Server {
    legs: Mutex<VecDeque<Leg>>,
    /// Whoever tests need not look at it.
    asked: mpsc::Sender<Asked>,
}

type Answer = ReceiverStream<Result<v1::GenerateEvent, Status>>;

impl Server {
    /// A leg that tells nothing is refused at once.
    fn tell(&self) -> Result<Response<Answer>, Status> {
        let leg = self.legs.lock().unwrap().pop_front();
        let (kinds, end) = leg.unwrap_or_else(|| (Vec::new(), Status::not_found("request 77")));
        if kinds.is_empty() {
            return Err(end);
        }
        let (events, stream) = mpsc::channel(kinds.len() + 1);
        for kind in kinds {
            events.try_send(Ok(v1::GenerateEvent { kind: Some(kind) })).unwrap();
        }
        events.try_send(Err(end)).unwrap();
        let mut response = Response::new(ReceiverStream::new(stream));
        response.metadata_mut().insert("aqueduct-request", REQUEST.into());
        Ok(response)
    }
}

#[tonic::async_trait]
impl Aqueduct for Server {
    type GenerateStream = Answer;
    type ResumeStream = Answer;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Answer>, Status> {
        let v1::GenerateRequest { resumable, idempotency_key: key, .. } = request.into_inner();
        self.asked.try_send(Asked::Generate { resumable, key }).ok();
        self.tell()
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeRequest>,
    ) -> Result<Response<Answer>, Status> {
        self.asked.try_send(Asked::Resume(request.into_inner())).ok();
        self.tell()
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelReply>, Status> {
        self.asked.try_send(Asked::Cancel(request.into_inner().request)).ok();
        Err(Status::not_found("request 77"))
    }

    async fn tokenize(
        &self,
        _: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeReply>, Status> {
        Err(Status::unimplemented("no part of these tests"))
    }

    async fn describe(
        &self,
        _: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeReply>, Status> {
        Err(Status::unimplemented("no part of these tests"))
    }
}

async fn serve(legs: Vec<Leg>) -> (Client, mpsc::Receiver<Asked>) {
    let (sender, asked) = mpsc::channel(ASKED_MAX);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = AqueductServer::new(Server { legs: Mutex::new(legs.into()), asked: sender });
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (Client::connect(&url, ClientOptions::default()).await.unwrap(), asked)
}

fn accepted() -> Kind {
    Kind::Accepted(v1::Accepted { request: REQUEST, ..Default::default() })
}

fn token(choice: u32, token_idx: u32) -> Kind {
    let text = format!("{choice}:{token_idx} ");
    Kind::Token(v1::Token { choice, token_idx, text, ..Default::default() })
}

fn done(choice: u32, tokens: u32) -> Kind {
    let reason = v1::choice_done::Reason::Length.into();
    Kind::ChoiceDone(v1::ChoiceDone { choice, reason, tokens, ..Default::default() })
}

fn escalated() -> Kind {
    let policy = || Some(aqueduct_client::MemoryPolicy::default().into());
    Kind::Escalated(v1::Escalated { policy: policy(), next: policy(), ..Default::default() })
}

fn summary() -> Kind {
    Kind::Summary(v1::Summary {
        policy: Some(aqueduct_client::MemoryPolicy::default().into()),
        exchange: v1::Exchange::Move.into(),
        ..Default::default()
    })
}

fn away() -> Status {
    Status::unavailable("the coordinator is shutting down")
}

fn two() -> GenerateOptions {
    GenerateOptions { choices: Some(2), ..GenerateOptions::text("x") }
}

/// What was told, in short, and how it ended.
async fn told(client: &Client) -> (Vec<String>, Option<ClientError>) {
    let mut events = client.generate(two()).await.unwrap();
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        told.push(match event {
            Ok(GenerateEvent::Accepted(_)) => "accepted".into(),
            Ok(GenerateEvent::Token(token)) => token.text,
            Ok(GenerateEvent::ChoiceDone(done)) => format!("done {}", done.choice),
            Ok(GenerateEvent::Escalated(_)) => "again".into(),
            Ok(GenerateEvent::Summary(_)) => "summary".into(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => return (told, Some(error)),
        });
    }
    (told, None)
}

fn resume(next: &[u32]) -> Asked {
    Asked::Resume(v1::ResumeRequest { request: REQUEST, next: next.to_vec() })
}

/// Everything, as a server tells it to whoever has heard nothing.
fn whole() -> Vec<Kind> {
    vec![
        accepted(),
        escalated(),
        token(0, 0),
        token(1, 0),
        token(1, 1),
        done(1, 2),
        token(0, 1),
        done(0, 2),
        summary(),
    ]
}

#[tokio::test]
async fn wherever_a_stream_is_cut_every_event_comes_once() {
    let (client, _) = serve(vec![(whole(), away())]).await;
    let (want, error) = told(&client).await;
    assert_eq!((want.len(), error), (whole().len(), None));
    for cut in 1..whole().len() {
        // It is lost twice in the same place, then all is told again.
        let first = whole()[..cut].to_vec();
        let legs = vec![(first.clone(), away()), (Vec::new(), away()), (first, away())];
        let (client, mut asked) = serve([legs, vec![(whole(), away())]].concat()).await;
        assert_eq!(told(&client).await, (want.clone(), None), "cut at {cut}");
        assert!(matches!(asked.recv().await, Some(Asked::Generate { resumable: true, .. })));
        let Some(Asked::Resume(resumed)) = asked.recv().await else { panic!("not resumed") };
        assert_eq!(asked.recv().await, Some(Asked::Resume(resumed)), "where it was");
    }
}

/// A start that nobody has answered, and one that the server itself refuses.
#[tokio::test]
async fn a_start_whose_answer_is_lost_is_the_same_one_again() {
    let named = || {
        let mut refused = away();
        refused.metadata_mut().insert("x-request-id", "mine".parse().unwrap());
        refused
    };
    let legs = vec![(Vec::new(), away()), (Vec::new(), away()), (whole(), away())];
    let legs = [legs, vec![(Vec::new(), away()), (Vec::new(), named())]].concat();
    let (client, mut asked) = serve(legs).await;
    assert_eq!(told(&client).await.1, None);
    let mut key = async || match asked.recv().await {
        Some(Asked::Generate { resumable: true, key: Some(key) }) => key,
        other => panic!("{other:?}"),
    };
    let first = key().await;
    assert_eq!([key().await, key().await], [first.clone(), first.clone()]);
    let options = GenerateOptions { idempotency_key: Some("mine".into()), ..two() };
    let refused = client.generate(options).await.unwrap_err();
    assert_eq!(refused, ClientError::Unavailable(away().message().into()));
    assert_eq!([key().await, key().await], ["mine", "mine"]);
}

#[tokio::test]
async fn it_says_where_it_stands() {
    let first = vec![accepted(), token(1, 0), token(1, 1), done(1, 2), token(0, 0)];
    let rest = vec![accepted(), token(0, 1), done(0, 2), summary()];
    let (client, mut asked) = serve(vec![(first, away()), (rest, away())]).await;
    assert_eq!(told(&client).await.1, None);
    asked.recv().await;
    assert_eq!(asked.recv().await, Some(resume(&[1, 3])));
}

#[tokio::test]
async fn what_cannot_go_on_says_why() {
    let check = async |leg: Status, want: fn(&ClientError) -> bool| {
        let legs = vec![(vec![accepted(), token(0, 0)], away()), (Vec::new(), leg)];
        let (told, error) = told(&serve(legs).await.0).await;
        assert_eq!(told, ["accepted", "0:0 "]);
        assert!(want(error.as_ref().unwrap()), "{error:?}");
    };
    check(Status::not_found("request 77"), |e| matches!(e, ClientError::Gone(_))).await;
    check(Status::unimplemented("resume"), |e| matches!(e, ClientError::Gone(_))).await;
    check(Status::aborted("read elsewhere"), |e| matches!(e, ClientError::TakenOver(_))).await;
    check(Status::internal("a bug"), |e| matches!(e, ClientError::Server(_))).await;
    let mut ended = Status::unavailable("no worker is up");
    ended.metadata_mut().insert("grpc-retry-pushback-ms", (-1).into());
    check(ended, |e| matches!(e, ClientError::Unavailable(_))).await;
}

#[tokio::test]
async fn it_is_asked_for_again_for_a_while() {
    let legs: Vec<Leg> = std::iter::once((vec![accepted()], away()))
        .chain((0..1000).map(|_| (Vec::new(), away())))
        .collect();
    let (client, _asked) = serve(legs).await;
    let options = GenerateOptions { deadline: Duration::from_millis(400), ..two() };
    let mut events = client.generate(options).await.unwrap();
    events.next().await.unwrap().unwrap();
    let error = events.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Unavailable(_)), "{error:?}");
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn whoever_drops_a_stream_cancels_its_request() {
    let (client, mut asked) = serve(vec![(whole(), away()); 3]).await;
    let mut events = client.generate(two()).await.unwrap();
    asked.recv().await;
    events.next().await.unwrap().unwrap();
    drop(events);
    let cancelled = tokio::time::timeout(Duration::from_secs(20), asked.recv()).await;
    assert_eq!(cancelled.unwrap(), Some(Asked::Cancel(REQUEST)));

    let events = client.generate(two()).await.unwrap();
    events.cancel().await.expect("one that is not known any more is no error");
    asked.recv().await;
    assert_eq!(asked.recv().await, Some(Asked::Cancel(REQUEST)));

    // Nor does a server go on for a caller that cannot read what it says.
    let (client, mut asked) = serve(vec![(vec![accepted(), token(0, 3)], away())]).await;
    let (_, error) = told(&client).await;
    assert!(matches!(error, Some(ClientError::Server(_))), "{error:?}");
    asked.recv().await;
    let cancelled = tokio::time::timeout(Duration::from_secs(20), asked.recv()).await;
    assert_eq!(cancelled.unwrap(), Some(Asked::Cancel(REQUEST)));
    let (client, mut asked) = serve(vec![(whole(), away()); 3]).await;

    // One that has ended is not.
    assert_eq!(told(&client).await.1, None);
    asked.recv().await;
    assert!(asked.try_recv().is_err());
}

#[tokio::test]
async fn whoever_does_not_want_it_is_told_of_the_loss() {
    let asked_for = |options: GenerateOptions| async {
        let (client, mut asked) = serve(vec![(whole(), away())]).await;
        drop(client.generate(options).await.unwrap());
        asked.recv().await.unwrap()
    };
    let want = Asked::Generate { resumable: false, key: None };
    assert_eq!(asked_for(GenerateOptions { resumable: false, ..two() }).await, want);
    assert_eq!(asked_for(GenerateOptions { prompt_logprobs: true, ..two() }).await, want);
}
