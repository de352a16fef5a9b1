//! Sessions over gRPC, with a worker behind a real socket.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use crate::fake::{Fake, Habit, SOON, all, submission};
use aqueduct_coordinator::runtime::{Cluster, WorkerState};
use aqueduct_coordinator::{Config, Coordinator, Session};
use aqueduct_core::work::Command;
use aqueduct_proto::v1;
use aqueduct_proto::v1::worker_server::{Worker, WorkerServer};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

struct Remote {
    fake: Fake,
    /// What it hears that somebody has against it.
    refused: watch::Sender<Option<String>>,
}

type Events = Pin<Box<dyn Stream<Item = Result<v1::WorkerEvent, Status>> + Send>>;
type Acks = Pin<Box<dyn Stream<Item = Result<v1::HandOffAck, Status>> + Send>>;
type Answers = Pin<Box<dyn Stream<Item = Result<v1::ExchangeFrame, Status>> + Send>>;

#[tonic::async_trait]
impl Worker for Remote {
    type ControlStream = Events;
    type HandOffStream = Acks;
    type ExchangeStream = Answers;

    async fn control(
        &self,
        request: Request<Streaming<v1::WorkerCommand>>,
    ) -> Result<Response<Events>, Status> {
        let refused = request.metadata().get_bin("aqueduct-refused-bin");
        let refused = refused.map(|why| String::from_utf8(why.to_bytes().unwrap().into()).unwrap());
        self.refused.send_replace(refused);
        let (commands, inbox) = mpsc::channel(64);
        let (outbox, events) = mpsc::channel(64);
        tokio::spawn(self.fake.clone().serve(inbox, outbox));
        let mut incoming = request.into_inner();
        tokio::spawn(async move {
            while let Some(Ok(command)) = incoming.next().await {
                let command = Command::try_from(command).expect("a valid command");
                if commands.send(command).await.is_err() {
                    return;
                }
            }
        });
        let events = ReceiverStream::new(events).map(|event| Ok(v1::WorkerEvent::from(event)));
        Ok(Response::new(Box::pin(events)))
    }

    async fn hand_off(
        &self,
        _: Request<Streaming<v1::HandOffFrame>>,
    ) -> Result<Response<Acks>, Status> {
        Err(Status::unimplemented("no memory here"))
    }

    async fn exchange(
        &self,
        _: Request<Streaming<v1::ExchangeFrame>>,
    ) -> Result<Response<Answers>, Status> {
        Err(Status::unimplemented("no shards here"))
    }
}

async fn serve(fake: &Fake, address: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    serve_telling(fake, address, watch::Sender::default()).await
}

/// The same; says what it hears that somebody has against it.
async fn serve_telling(
    fake: &Fake,
    address: SocketAddr,
    refused: watch::Sender<Option<String>>,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let remote = WorkerServer::new(Remote { fake: fake.clone(), refused });
    let router = tonic::transport::Server::builder().add_service(remote);
    let task = tokio::spawn(async move {
        router.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    (address, task)
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[tokio::test]
async fn remote_workers_serve_like_those_of_this_process() {
    let fakes = [Fake::new("a", Habit::Obey), Fake::new("b", Habit::Obey)];
    let mut sessions = Vec::new();
    for fake in &fakes {
        let (address, _) = serve(fake, anywhere()).await;
        sessions.push(Session::connect(&format!("http://{address}")).unwrap());
    }
    let coordinator = Coordinator::start(Config::default(), sessions).unwrap();
    assert!(coordinator.wait_for_workers(2, SOON).await);
    let mut handle = coordinator.submit(submission(26)).await.unwrap();
    assert_eq!(all(&mut handle).await.1, None);
    let request = handle.request_id();
    for fake in &fakes {
        fake.told(|command| *command == Command::Cancel { request }).await;
    }
}

#[tokio::test]
async fn a_lost_worker_is_found_again() {
    let held = Fake::new("held", Habit::Hold { chunk_idx: 0 });
    let (address, task) = serve(&held, anywhere()).await;
    let session = Session::connect(&format!("http://{address}")).unwrap();
    let coordinator = Coordinator::start(Config::default(), vec![session]).unwrap();
    assert!(coordinator.wait_for_workers(1, SOON).await);
    let mut lost = coordinator.submit(submission(8)).await.unwrap();

    // Nobody listens any more, then the connection that is still there ends.
    task.abort();
    drop(task.await);
    held.close();
    let mut cluster = coordinator.watch();
    cluster.wait_for(|seen| seen.workers[0].state == WorkerState::Down).await.unwrap();

    serve(&Fake::new("again", Habit::Obey), address).await;
    assert_eq!(all(&mut lost).await.1, None, "it waits for the worker");
    let mut handle = coordinator.submit(submission(8)).await.unwrap();
    assert_eq!(all(&mut handle).await.1, None);
}

#[tokio::test]
async fn a_worker_that_is_refused_hears_why_until_it_is_let_in() {
    let (served, mut other) = (Fake::new("served", Habit::Obey), Fake::new("other", Habit::Obey));
    other.fingerprint = "another".into();
    let (told, mut hears) = watch::channel(None);
    let (address, task) = serve_telling(&other, anywhere(), told.clone()).await;
    task.abort();
    drop(task.await);
    let remote = Session::connect(&format!("http://{address}")).unwrap();
    let sessions = vec![served.session(), remote];
    let coordinator = Coordinator::start(Config::default(), sessions).unwrap();
    // The model of the first is the cluster's.
    assert!(coordinator.wait_for_workers(1, SOON).await);
    let (_, task) = serve_telling(&other, address, told.clone()).await;
    let refused = tokio::time::timeout(SOON, hears.wait_for(Option::is_some)).await;
    let refused = refused.expect("it heard nothing").unwrap().clone();
    let want = "fingerprint = another: must be same, the cluster's; its weights are others, or \
        held as another type (--weights)";
    assert_eq!(refused.unwrap(), want);

    task.abort();
    drop(task.await);
    let other = Fake::new("other", Habit::Obey);
    let (_, _task) = serve_telling(&other, address, told).await;
    assert!(coordinator.wait_for_workers(2, SOON).await);
    other.close();
    let welcome = tokio::time::timeout(SOON, hears.wait_for(Option::is_none)).await;
    assert!(welcome.is_ok(), "what was is said again");
}

#[tokio::test]
async fn another_model_is_served_when_no_worker_has_the_first_one_any_more() {
    let (first, mut next) = (Fake::new("first", Habit::Obey), Fake::new("next", Habit::Obey));
    next.fingerprint = "another".into();
    let (address, task) = serve(&next, anywhere()).await;
    task.abort();
    drop(task.await);
    let remote = Session::connect(&format!("http://{address}")).unwrap();
    let config = Config { worker_grace: Duration::from_millis(100), ..Config::default() };
    let coordinator = Coordinator::start(config, vec![first.session(), remote]).unwrap();
    assert!(coordinator.wait_for_workers(1, SOON).await);
    let _task = serve(&next, address).await;
    let mut cluster = coordinator.watch();
    let mut until = async |state: WorkerState, model: &str| {
        let is_so = |seen: &Cluster| {
            let served = seen.model.as_ref().unwrap();
            seen.workers[1].state == state && served.fingerprint == model
        };
        tokio::time::timeout(SOON, cluster.wait_for(is_so)).await.expect(model).unwrap();
    };
    until(WorkerState::Refused, "same").await;
    let mut handle = coordinator.submit(submission(8)).await.unwrap();
    assert_eq!(all(&mut handle).await.1, None);

    first.close();
    until(WorkerState::Up, "another").await;
    let mut handle = coordinator.submit(submission(8)).await.unwrap();
    assert_eq!(all(&mut handle).await.1, None);
}

#[test]
fn only_http_urls_are_workers() {
    let check = |url: &str, good: bool| assert_eq!(Session::connect(url).is_ok(), good, "{url}");
    check("http://host:1", true);
    check("http://[::1]:1", true);
    check("host:1", false);
    check("https://host:1", false);
    check("", false);
    check("http://", false);
}
