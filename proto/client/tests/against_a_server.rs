//! The client against a scripted server on a real socket.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aqueduct_client::{
    Client, ClientError, ClientOptions, Exchange, GenerateEvent, GenerateOptions, Prompt,
    StopReason,
};
use aqueduct_proto::v1;
use aqueduct_proto::v1::aqueduct_server::{Aqueduct, AqueductServer};
use futures::StreamExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status};

/// Sends `script` to every caller of `generate`, then ends the stream or holds it open.
struct Scripted {
    script: Vec<v1::generate_event::Kind>,
    hold: bool,
    /// Told when a held stream has been dropped.
    dropped: mpsc::Sender<()>,
    /// So often it is busy first.
    busy: AtomicU32,
}

#[tonic::async_trait]
impl Aqueduct for Scripted {
    type GenerateStream = ReceiverStream<Result<v1::GenerateEvent, Status>>;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let one_less = |left: u32| left.checked_sub(1);
        if self.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            let mut status = Status::resource_exhausted("5 requests are waiting");
            status.metadata_mut().insert("grpc-retry-pushback-ms", "1".parse().unwrap());
            return Err(status);
        }
        let (events, stream) = mpsc::channel(self.script.len() + 1);
        for kind in self.script.clone() {
            events.try_send(Ok(v1::GenerateEvent { kind: Some(kind) })).unwrap();
        }
        if self.hold {
            let dropped = self.dropped.clone();
            tokio::spawn(async move {
                events.closed().await;
                dropped.send(()).await.ok();
            });
        }
        let mut response = Response::new(ReceiverStream::new(stream));
        if let Some(id) = request.metadata().get("x-request-id") {
            response.metadata_mut().insert("x-request-id", id.clone());
        }
        Ok(response)
    }

    type ResumeStream = Self::GenerateStream;

    async fn resume(
        &self,
        _request: Request<v1::ResumeRequest>,
    ) -> Result<Response<Self::ResumeStream>, Status> {
        Err(Status::unimplemented("a server of an earlier version"))
    }

    async fn cancel(
        &self,
        _request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelReply>, Status> {
        Err(Status::unimplemented("a server of an earlier version"))
    }

    async fn tokenize(
        &self,
        _request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeReply>, Status> {
        Err(Status::invalid_argument("tokens[3] = 9: must be below vocab = 8"))
    }

    async fn describe(
        &self,
        _request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeReply>, Status> {
        Ok(Response::new(v1::DescribeReply::default()))
    }
}

async fn connect(
    script: Vec<v1::generate_event::Kind>,
    hold: bool,
) -> (Client, mpsc::Receiver<()>) {
    connect_busy(script, hold, 0).await
}

async fn connect_busy(
    script: Vec<v1::generate_event::Kind>,
    hold: bool,
    busy: u32,
) -> (Client, mpsc::Receiver<()>) {
    let (client, _, was_dropped) = start_busy(script, hold, busy).await;
    (client, was_dropped)
}

/// And where it is.
async fn start_busy(
    script: Vec<v1::generate_event::Kind>,
    hold: bool,
    busy: u32,
) -> (Client, String, mpsc::Receiver<()>) {
    let (dropped, was_dropped) = mpsc::channel(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = AqueductServer::new(Scripted { script, hold, dropped, busy: busy.into() });
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (Client::connect(&url, ClientOptions::default()).await.unwrap(), url, was_dropped)
}

fn accepted() -> v1::generate_event::Kind {
    v1::generate_event::Kind::Accepted(v1::Accepted { prompt_tokens: 5, ..Default::default() })
}

fn escalated(next: Option<v1::MemoryPolicy>) -> v1::generate_event::Kind {
    v1::generate_event::Kind::Escalated(v1::Escalated {
        lowest_retained_mass: 0.25,
        min_retained_mass: 0.5,
        policy: Some(aqueduct_client::MemoryPolicy::default().into()),
        next,
    })
}

fn summary() -> v1::generate_event::Kind {
    v1::generate_event::Kind::Summary(v1::Summary {
        prefill_seconds: 1.5,
        policy: Some(aqueduct_client::MemoryPolicy::default().into()),
        retained: vec![v1::RetainedMass { kept: 3.0, total: 4.0 }; 2],
        lowest_retained_mass: 0.75,
        min_retained_mass: Some(0.5),
        escalations: 1,
        exchange: v1::Exchange::Stay.into(),
        traffic: Some(v1::Traffic {
            sent_bytes: 7,
            received_bytes: 9,
            asked: 2,
            fetched: 1,
            spared_bytes: 5,
        }),
        ..Default::default()
    })
}

#[tokio::test]
async fn events_arrive_in_types_and_end_with_the_summary() {
    let dense = aqueduct_client::MemoryPolicy::dense();
    let script = vec![accepted(), escalated(Some(dense.into())), summary(), accepted()];
    let (client, _) = connect(script, false).await;
    let events: Vec<_> = client.generate(GenerateOptions::text("x")).await.unwrap().collect().await;
    assert_eq!(events.len(), 3, "{events:?}");
    let Ok(GenerateEvent::Accepted(first)) = &events[0] else { panic!("{events:?}") };
    assert_eq!(first.prompt_tokens, 5);
    let Ok(GenerateEvent::Escalated(again)) = &events[1] else { panic!("{events:?}") };
    assert_eq!((again.lowest_retained_mass, again.next), (0.25, dense));
    let Ok(GenerateEvent::Summary(last)) = &events[2] else { panic!("{events:?}") };
    assert_eq!(last.prefill, Duration::from_millis(1500));
    assert_eq!(last.retained_total().share(), 0.75);
    let quality = (last.lowest_retained_mass, last.min_retained_mass, last.escalations);
    assert_eq!(quality, (0.75, Some(0.5), 1));
    assert_eq!((last.exchange, last.traffic.bytes()), (Exchange::Stay, 16));
    assert_eq!(last.traffic.spared_bytes, 5);
}

#[tokio::test]
async fn a_whole_answer_has_the_completions_in_their_order() {
    use v1::generate_event::Kind;
    let token = |choice, text: &str| {
        Kind::Token(v1::Token { choice, text: text.into(), ..v1::Token::default() })
    };
    let done = |choice, text: &str, reason: v1::choice_done::Reason| {
        let (reason, text) = (reason.into(), text.into());
        Kind::ChoiceDone(v1::ChoiceDone { choice, reason, tokens: 1, text, ..Default::default() })
    };
    let stop = v1::choice_done::Reason::Stop;
    let both = [token(1, "b"), token(0, "a"), done(1, "", stop)];
    let whole = [&[accepted()], &both[..], &[done(0, "c", v1::choice_done::Reason::Length)]];
    let (client, _) = connect([whole.concat(), vec![summary()]].concat(), false).await;
    let answer = client.complete(GenerateOptions::text("x")).await.unwrap();
    let told = answer.completions.iter().map(|one| format!("{} {}", one.text, one.reason));
    let told: Vec<_> = told.collect();
    assert_eq!(told, ["ac length", "b stop"]);
    assert_eq!(answer.summary.escalations, 1);
    let (client, _) = connect([&[accepted()], &both[..], &[summary()]].concat(), false).await;
    let error = client.complete(GenerateOptions::text("x")).await.unwrap_err();
    assert!(matches!(error, ClientError::Server(_)), "{error:?}");
}

#[tokio::test]
async fn a_stream_without_a_summary_is_an_error() {
    let (client, _) = connect(vec![accepted()], false).await;
    let events: Vec<_> = client.generate(GenerateOptions::text("x")).await.unwrap().collect().await;
    assert!(matches!(events[..], [Ok(_), Err(ClientError::Unavailable(_))]), "{events:?}");
}

#[tokio::test]
async fn a_busy_server_is_asked_again_when_it_says_so() {
    let (client, _) = connect_busy(vec![summary()], false, 2).await;
    let options = GenerateOptions { request_id: Some("mine".into()), ..GenerateOptions::text("x") };
    let events = client.generate(options).await.unwrap();
    assert_eq!(events.request_id(), "mine");
    assert_eq!(events.count().await, 1);
    let (client, _) = connect_busy(vec![summary()], false, 3).await;
    let error = client.generate(GenerateOptions::text("x")).await.unwrap_err();
    let retry_after = Duration::from_millis(1);
    assert_eq!(error, ClientError::Busy { message: "5 requests are waiting".into(), retry_after });
}

#[tokio::test]
async fn dropping_the_stream_reaches_the_server() {
    let (client, mut was_dropped) = connect(vec![accepted()], true).await;
    let mut events = client.generate(GenerateOptions::text("x")).await.unwrap();
    events.next().await.unwrap().unwrap();
    drop(events);
    tokio::time::timeout(Duration::from_secs(10), was_dropped.recv()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_silent_stream_meets_its_deadline() {
    let (client, _was_dropped) = connect(vec![accepted()], true).await;
    let options =
        GenerateOptions { deadline: Duration::from_millis(200), ..GenerateOptions::text("x") };
    let events: Vec<_> = client.generate(options).await.unwrap().collect().await;
    assert!(matches!(events[..], [Ok(_), Err(ClientError::Deadline(_))]), "{events:?}");
}

#[tokio::test]
async fn errors_keep_what_the_server_said() {
    let (client, _) = connect(Vec::new(), false).await;
    let error = client.tokenize(Prompt::Tokens(vec![9])).await.unwrap_err();
    let want = "tokens[3] = 9: must be below vocab = 8".to_owned();
    assert_eq!(error, ClientError::InvalidArgument(want));
}

/// Nobody knows of a model then; workers that are tried are listed all the same.
#[tokio::test]
async fn a_server_without_workers_is_described() {
    let (client, _) = connect(Vec::new(), false).await;
    let described = client.describe().await.unwrap();
    assert_eq!((described.shape, described.kv), (None, None));
}

#[tokio::test]
async fn an_end_that_a_newer_server_knows_is_an_end() {
    let done = v1::ChoiceDone { reason: 9, text: "so".into(), ..Default::default() };
    let script = vec![accepted(), v1::generate_event::Kind::ChoiceDone(done), summary()];
    let (client, _) = connect(script, false).await;
    let events: Vec<_> = client.generate(GenerateOptions::text("x")).await.unwrap().collect().await;
    let Ok(GenerateEvent::ChoiceDone(done)) = &events[1] else { panic!("{events:?}") };
    assert_eq!((done.reason, &*done.text), (StopReason::Other, "so"));
}

#[tokio::test]
async fn nobody_there_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = Client::connect(&url, ClientOptions::default()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unavailable(_)), "{error:?}");
    let error = Client::connect("no url", ClientOptions::default()).await.unwrap_err();
    assert!(matches!(error, ClientError::InvalidArgument(_)), "{error:?}");
}

/// A coordinator that knows who leads, if anybody does, and serves nothing.
struct Follower(Arc<Mutex<Option<String>>>);

impl Follower {
    async fn start(leader: Option<String>) -> String {
        Self::start_with(Arc::new(Mutex::new(leader))).await
    }

    async fn start_with(leader: Arc<Mutex<Option<String>>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server =
            tonic::transport::Server::builder().add_service(AqueductServer::new(Self(leader)));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        url
    }

    fn elsewhere(&self) -> Status {
        let mut status = Status::unavailable("it does not lead");
        // As it answers every call.
        status.metadata_mut().insert("x-request-id", "mine".parse().unwrap());
        if let Some(leader) = &*self.0.lock().unwrap() {
            status.metadata_mut().insert("aqueduct-leader", leader.parse().unwrap());
        }
        status
    }
}

#[tonic::async_trait]
impl Aqueduct for Follower {
    type GenerateStream = ReceiverStream<Result<v1::GenerateEvent, Status>>;

    async fn generate(
        &self,
        _request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        Err(self.elsewhere())
    }

    type ResumeStream = Self::GenerateStream;

    async fn resume(
        &self,
        _request: Request<v1::ResumeRequest>,
    ) -> Result<Response<Self::ResumeStream>, Status> {
        Err(self.elsewhere())
    }

    async fn cancel(
        &self,
        _request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelReply>, Status> {
        Err(self.elsewhere())
    }

    async fn tokenize(
        &self,
        _request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeReply>, Status> {
        Err(self.elsewhere())
    }

    async fn describe(
        &self,
        _request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeReply>, Status> {
        Err(self.elsewhere())
    }
}

#[tokio::test]
async fn whoever_leads_is_found() {
    let (_, leader, _) = start_busy(vec![summary()], false, 0).await;
    let knows = Follower::start(Some(leader.clone())).await;
    let knows_not = Follower::start(None).await;
    // Nobody listens there any more.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gone = format!("http://{gone}");
    let misled = Follower::start(Some(gone.clone())).await;
    let check = async |urls: &[&str]| {
        let client = Client::connect(&urls.join(","), ClientOptions::default()).await.unwrap();
        let mut events = client.generate(GenerateOptions::text("x")).await.unwrap();
        assert!(matches!(events.next().await, Some(Ok(GenerateEvent::Summary(_)))), "{urls:?}");
        client.tokenize(Prompt::Text("x".into())).await.unwrap_err();
    };
    check(&[&leader]).await;
    check(&[&knows]).await;
    check(&[&gone, &knows_not, &misled, &leader]).await;
    check(&[&misled, &gone, &knows]).await;
}

/// Of a group by its service: it leads nowhere itself, and says who does.
#[tokio::test]
async fn who_is_named_alone_is_asked_again_when_the_leader_is_gone() {
    let first = tokio::runtime::Runtime::new().unwrap();
    let (_, leader, _) = first.spawn(start_busy(vec![summary()], false, 0)).await.unwrap();
    let (_, second, _) = start_busy(vec![summary()], false, 0).await;
    let named = Arc::new(Mutex::new(Some(leader)));
    let knows = Follower::start_with(named.clone()).await;
    let client = Client::connect(&knows, ClientOptions::default()).await.unwrap();
    let ask = async || {
        let mut events = client.generate(GenerateOptions::text("x")).await.unwrap();
        assert!(matches!(events.next().await, Some(Ok(GenerateEvent::Summary(_)))));
    };
    ask().await;
    *named.lock().unwrap() = Some(second);
    first.shutdown_background();
    ask().await;
}

/// Nobody waits longer than it said, whoever is looked for.
#[tokio::test]
async fn a_deadline_bounds_the_search_for_a_leader() {
    // Nothing answers there: a connection is never accepted.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let knows_not = Follower::start(None).await;
    let urls = [knows_not.as_str(), "http://192.0.2.1:1", &silent].join(",");
    let client = Client::connect(&urls, ClientOptions::default()).await.unwrap();
    let deadline = Duration::from_millis(500);
    let started = std::time::Instant::now();
    let options = GenerateOptions { deadline, ..GenerateOptions::text("x") };
    let refused = client.generate(options).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert!(
        matches!(refused, ClientError::Deadline(_) | ClientError::Unavailable(_)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn who_finds_no_leader_is_told_in_time() {
    let knows_not = Follower::start(None).await;
    let connect_deadline = Duration::from_millis(500);
    let options = ClientOptions { connect_deadline, ..ClientOptions::default() };
    let twice = format!("{knows_not},{}", Follower::start(None).await);
    for urls in [knows_not, twice] {
        let client = Client::connect(&urls, options.clone()).await.unwrap();
        let refused = client.generate(GenerateOptions::text("x")).await.unwrap_err();
        assert_eq!(refused, ClientError::Unavailable("it does not lead".into()));
    }
    let many = ["http://127.0.0.1:1"; 8].join(",");
    let refused = Client::connect(&many, options).await.unwrap_err();
    assert!(matches!(refused, ClientError::InvalidArgument(_)), "{refused}");
}
