//! The gRPC API over a real socket, with the shipped model's tokeniser.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_coordinator::generation::Generator;
use aqueduct_coordinator::keys::{KeyFile, Keys};
use aqueduct_coordinator::service::{ServeError, Served};
use aqueduct_coordinator::streams::Streams;
use aqueduct_coordinator::text::TextModel;
use aqueduct_coordinator::{Config, Coordinator, Room, service};
use aqueduct_core::work::Command;
use aqueduct_proto::v1;
use aqueduct_proto::v1::aqueduct_client::AqueductClient;
use aqueduct_proto::v1::generate_event::Kind;
use aqueduct_proto::v1::generate_request::Prompt;
use aqueduct_proto::v1::tokenize_request::Input;
use futures::{FutureExt, TryFutureExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::fake::{CHUNK_TOKENS, Fake, Habit, SOON};
use crate::quality::by_budget;

struct Server {
    address: SocketAddr,
    coordinator: Coordinator,
    text: Arc<TextModel>,
    channel: Channel,
    client: AqueductClient<Channel>,
    /// Says by when the server is to have ended.
    stop: oneshot::Sender<Instant>,
    serving: JoinHandle<Result<(), ServeError>>,
}

async fn serve(config: Config, fake: &Fake) -> Server {
    serve_in(config, fake, (Room::default(), None)).await
}

/// The same in so much room for what callers send, who need one of these keys.
async fn serve_in(config: Config, fake: &Fake, (room, keys): (Room, Option<Keys>)) -> Server {
    let coordinator = Coordinator::start(config, vec![fake.session()]).unwrap();
    assert!(coordinator.wait_for_workers(1, SOON).await);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model");
    let text = Arc::new(TextModel::load(&folder).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let generator = Generator {
        text: text.clone(),
        runtime: Arc::new(coordinator.clone()),
        metrics: Arc::default(),
        board: Arc::default(),
        streams: Streams::new(SOON),
        room,
    };
    let (stop, stopped) = oneshot::channel();
    // Until it is told; a test that does not tell it wants it for ever.
    let stopped = stopped.or_else(|_| std::future::pending::<Result<Instant, Infallible>>());
    let stopped = stopped.map(|by| by.unwrap());
    let serving = coordinator.clone();
    let served = Served { coordinator: serving, generator, model: "tiny".into(), keys };
    let serving = tokio::spawn(service::serve(served, listener, stopped));
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let client = AqueductClient::new(channel.clone());
    Server { address, coordinator, text, channel, client, stop, serving }
}

fn small() -> Config {
    Config { chunk_tokens: CHUNK_TOKENS, ..Config::default() }
}

fn ask(prompt: &str) -> v1::GenerateRequest {
    v1::GenerateRequest {
        prompt: Some(Prompt::Text(prompt.into())),
        max_tokens: Some(3),
        ..v1::GenerateRequest::default()
    }
}

async fn all(
    client: &AqueductClient<Channel>,
    request: v1::GenerateRequest,
) -> Result<Vec<Kind>, Status> {
    let mut stream = client.clone().generate(request).await?.into_inner();
    let mut kinds = Vec::new();
    while let Some(event) = stream.message().await? {
        kinds.extend(event.kind);
    }
    Ok(kinds)
}

/// Also who still sends, and does not look for an answer before it has.
#[tokio::test]
async fn who_speaks_http_is_told_where_it_is_served() {
    let Server { address, client, .. } = serve(small(), &Fake::new("one", Habit::Obey)).await;
    let check = async |head: &str, body_bytes: usize| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("{head} HTTP/1.1\r\nHost: x\r\nContent-Length: {body_bytes}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b'a'; body_bytes]).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        let said = "\r\n\r\n{\"error\":{\"message\":\"this port speaks gRPC: ";
        assert!(answer.contains(said), "{answer}");
    };
    check("GET /v1/models", 0).await;
    check("POST /v1/chat/completions", 8 << 20).await;
    check("POST /aqueduct.v1.Aqueduct/Generate", 5).await;
    assert!(all(&client, ask("a")).await.is_ok());
}

#[tokio::test]
async fn messages_share_room() {
    let rooms = (Room::new(128 << 10), None);
    let Server { client, .. } = serve_in(small(), &Fake::new("one", Habit::Obey), rooms).await;
    let check = async |bytes: usize, want: Code| {
        // Of no policy that there is, so that nothing follows.
        let asked = v1::GenerateRequest { chunk_tokens: Some(0), ..ask(&"a".repeat(bytes)) };
        let status = all(&client, asked).await.unwrap_err();
        assert_eq!(status.code(), want, "{bytes} bytes: {status}");
        status
    };
    for _ in 0..3 {
        // It has room, of which nothing is left behind.
        check(150 << 10, Code::InvalidArgument).await;
    }
    let status = check(250 << 10, Code::ResourceExhausted).await;
    assert!(status.message().ends_with("that other calls leave of 131072"), "{status}");
    check(50 << 10, Code::InvalidArgument).await;
}

#[tokio::test]
async fn nothing_is_taken_in_of_who_shows_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    KeyFile::default().write(&path).unwrap();
    let rooms = (Room::new(0), Some(Keys::open(&path).unwrap()));
    let Server { client, .. } = serve_in(small(), &Fake::new("one", Habit::Obey), rooms).await;
    let status = all(&client, ask(&"a".repeat(250 << 10))).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "before there is no room: {status}");
}

#[tokio::test]
async fn a_stream_begins_with_acceptance_and_ends_with_a_summary() {
    let Server { text, client, .. } = serve(small(), &Fake::new("one", Habit::Obey)).await;
    let policy = v1::MemoryPolicy { sinks: Some(1), local: Some(9), ..Default::default() };
    let asked = v1::GenerateRequest { policy: Some(policy), ..ask("Call me Ishmael. Some years") };
    let kinds = all(&client, asked).await.unwrap();
    let Some(Kind::Accepted(accepted)) = kinds.first() else { panic!("{kinds:?}") };
    assert_eq!(accepted.chunk_count, accepted.prompt_tokens.div_ceil(CHUNK_TOKENS));
    assert_eq!(accepted.warnings.len(), 2, "local and heavy do not fit the chunk");
    let progress = kinds.iter().rev().find_map(|kind| match kind {
        Kind::Progress(progress) => Some(progress),
        _ => None,
    });
    let progress = progress.unwrap();
    assert_eq!((progress.chunks_done, progress.seconds_left), (accepted.chunk_count, 0.0));
    assert_eq!((progress.workers[0].worker.as_str(), progress.workers[0].layers), ("one", 2));
    let mut answer = String::new();
    for kind in &kinds {
        match kind {
            Kind::Token(token) => answer += &token.text,
            Kind::ChoiceDone(done) => answer += &done.text,
            _ => {}
        }
    }
    let ids: Vec<u32> = (0..3).filter(|id| !text.eos().contains(id)).collect();
    assert!(text.decode(&ids).contains(answer.trim()), "{answer:?}");
    let Some(Kind::Summary(summary)) = kinds.last() else { panic!("{kinds:?}") };
    assert_eq!((summary.output_tokens, summary.retained.len()), (3, 2));
    assert!(summary.dense_bytes > 0);
    assert_eq!(summary.exchange(), v1::Exchange::Move);
}

fn floor(min_retained_mass: f64) -> v1::GenerateRequest {
    let quality = v1::Quality { min_retained_mass: Some(min_retained_mass), ..Default::default() };
    v1::GenerateRequest { quality: Some(quality), ..ask("Call me Ishmael. Some years") }
}

fn exact(kind: v1::memory_policy::Kind) -> v1::GenerateRequest {
    let quality = v1::Quality { kind: v1::quality::Kind::Exact.into(), ..Default::default() };
    let policy = v1::MemoryPolicy { kind: kind.into(), ..Default::default() };
    v1::GenerateRequest { quality: Some(quality), policy: Some(policy), ..ask("short") }
}

#[tokio::test]
async fn every_try_is_told_and_summed_up() {
    let mut fake = Fake::new("one", Habit::Obey);
    fake.retained = by_budget;
    let Server { client, .. } = serve(small(), &fake).await;
    let policy = v1::MemoryPolicy { local: Some(1), heavy: Some(1), ..Default::default() };
    let asked = v1::GenerateRequest { policy: Some(policy), chunk_tokens: Some(16), ..floor(0.15) };
    let kinds = all(&client, asked).await.unwrap();
    let escalated: Vec<_> = kinds
        .iter()
        .filter_map(|kind| match kind {
            Kind::Escalated(escalated) => Some(escalated),
            _ => None,
        })
        .collect();
    let [once] = escalated[..] else { panic!("{escalated:?}") };
    assert_eq!((once.lowest_retained_mass, once.min_retained_mass), (0.1, 0.15));
    let local = |policy: &Option<v1::MemoryPolicy>| policy.as_ref().unwrap().local();
    assert_eq!((local(&once.policy), local(&once.next)), (1, 2));
    let Some(Kind::Summary(summary)) = kinds.last() else { panic!("{kinds:?}") };
    assert_eq!((summary.escalations, summary.min_retained_mass()), (1, 0.15));
    assert_eq!((summary.lowest_retained_mass, local(&summary.policy)), (0.2, 2));
    assert_eq!(summary.warnings.len(), 1, "{:?}", summary.warnings);

    let kinds = all(&client, exact(v1::memory_policy::Kind::Unspecified)).await.unwrap();
    let Some(Kind::Summary(summary)) = kinds.last() else { panic!("{kinds:?}") };
    let used = summary.policy.as_ref().unwrap().kind();
    assert_eq!((used, summary.escalations), (v1::memory_policy::Kind::Dense, 0));
}

#[tokio::test]
async fn errors_have_codes() {
    let config = Config { queued_requests: 0, running_requests: 1, ..small() };
    let held = Fake::new("held", Habit::Hold { chunk_idx: 1 });
    let Server { mut client, .. } = serve(config, &held).await;
    let prompt = |ids| Some(Prompt::Tokens(v1::TokenList { ids }));
    let check = |status: &Status, code: Code, part: &str| {
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(part), "{status}");
    };
    let wizard = v1::ChatMessage { role: "wizard".into(), content: String::new() };
    let wizard = Some(Prompt::Chat(v1::ChatPrompt { messages: vec![wizard] }));
    for (wrong, part) in [
        (v1::GenerateRequest { prompt: None, ..ask("") }, "prompt = absent"),
        (v1::GenerateRequest { prompt: wizard, ..ask("") }, "chat.messages[0].role = wizard"),
        (v1::GenerateRequest { prompt: prompt(vec![1, 1_000_000]), ..ask("") }, "1000000"),
        (v1::GenerateRequest { stop: vec![String::new()], ..ask("short") }, "stop[0]"),
        (v1::GenerateRequest { choices: Some(1000), ..ask("short") }, "choices = 1000"),
        (v1::GenerateRequest { exchange: 9, ..ask("short") }, "exchange = 9"),
        (v1::GenerateRequest { wire: 9, ..ask("short") }, "wire = 9"),
        (floor(1.5), "min_retained_mass = 1.5: must be above 0 and at most 1"),
        (exact(v1::memory_policy::Kind::Window), "policy = window: must be dense or absent"),
    ] {
        check(&all(&client, wrong).await.unwrap_err(), Code::InvalidArgument, part);
    }

    let held_up = v1::GenerateRequest { prompt: prompt(vec![1; 20]), ..ask("") };
    let mut stream = client.generate(held_up.clone()).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let status = all(&client, held_up.clone()).await.unwrap_err();
    check(&status, Code::ResourceExhausted, "retry after");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "1000");
    let id = status.metadata().get("x-request-id").unwrap().to_str().unwrap();
    assert!(id.starts_with("req-"), "{id}");
    drop(stream);
    held.told(|command| matches!(command, Command::Cancel { .. })).await;

    let mut hasty = tonic::Request::new(held_up);
    hasty.set_timeout(Duration::from_millis(100));
    let mut stream = client.generate(hasty).await.unwrap().into_inner();
    let status = loop {
        match stream.message().await {
            Ok(event) => assert!(event.is_some()),
            Err(status) => break status,
        }
    };
    check(&status, Code::DeadlineExceeded, "100ms");
}

#[tokio::test]
async fn the_server_tells_about_itself() {
    let mut fake = Fake::new("one", Habit::Obey);
    fake.pool_tokens = 100;
    let Server { coordinator, text, channel, mut client, .. } = serve(small(), &fake).await;
    let said = "It was the best of times";
    let input = Some(Input::Text(said.into()));
    let reply = client.tokenize(v1::TokenizeRequest { input }).await.unwrap().into_inner();
    assert_eq!(reply.ids, text.encode(said, true).unwrap());
    let input = Some(Input::Tokens(v1::TokenList { ids: reply.ids }));
    let reply = client.tokenize(v1::TokenizeRequest { input }).await.unwrap().into_inner();
    assert!(reply.text.contains(said), "{}", reply.text);

    let reply = client.describe(v1::DescribeRequest {}).await.unwrap().into_inner();
    assert_eq!((reply.model.as_str(), reply.workers.len()), ("tiny", 1));
    assert!(reply.workers[0].up);
    assert_eq!(reply.workers[0].pool_tokens, 100);

    let mut health = HealthClient::new(channel);
    for service in ["", "aqueduct.v1.Aqueduct", "aqueduct.v1.Operator"] {
        let asked = HealthCheckRequest { service: service.to_owned() };
        let reply = health.check(asked).await.unwrap().into_inner();
        assert_eq!(reply.status, 1, "{service:?} is serving");
    }
    let whole = HealthCheckRequest::default();
    let mut watch = health.watch(whole).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 1);
    coordinator.close();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 2, "not serving");
}

/// Those who only watch its health are not waited for.
#[tokio::test]
async fn a_server_ends_when_its_answers_have_or_when_it_says() {
    let end = async |server: Server, by: Instant| {
        server.stop.send(by).unwrap();
        tokio::time::timeout(SOON, server.serving).await.expect("it serves on").unwrap().unwrap();
    };
    let server = serve(small(), &Fake::new("one", Habit::Obey)).await;
    let mut health = HealthClient::new(server.channel.clone());
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
    end(server, Instant::now() + 10 * SOON).await;

    let mut server = serve(small(), &Fake::new("held", Habit::Hold { chunk_idx: 1 })).await;
    let prompt = Some(Prompt::Tokens(v1::TokenList { ids: vec![1; 20] }));
    let held_up = v1::GenerateRequest { prompt, ..ask("") };
    let mut stream = server.client.generate(held_up).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let by = Instant::now() + Duration::from_secs(2); // longer than who asks for nothing may stay
    end(server, by).await;
    assert!(Instant::now() >= by, "the answer had all of its time");
}
