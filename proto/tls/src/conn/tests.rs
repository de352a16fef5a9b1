//! Other ends that take nothing, or little at a time, of what is written to them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::Response;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{interval, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::body::Body;

use super::*;
use crate::door::Door;
use crate::files::provider;
use crate::under_way::UnderWay;

const PATIENCE: Duration = Duration::from_secs(1);
/// Much longer, on a machine that has much to do.
const DEADLINE: Duration = Duration::from_secs(30);
/// What an other end has room for, before somebody reads it.
const ROOM: u32 = 16 << 10;

const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

async fn listen() -> (TcpListener, SocketAddr) {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    (tcp, address)
}

async fn dial(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(ROOM).unwrap();
    socket.connect(address).await.unwrap()
}

fn patient(tcp: TcpStream) -> Conn {
    let io = Io::Plain(Socket::new(tcp, PATIENCE));
    Conn { io, caller: Caller::default(), stay: Stay::default() }
}

async fn pair() -> (Conn, TcpStream) {
    let (tcp, address) = listen().await;
    let (dialed, accepted) = tokio::join!(dial(address), tcp.accept());
    (patient(accepted.unwrap().0), dialed)
}

/// The same over TLS.
async fn safe_pair() -> (Conn, impl Stream) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&key).unwrap().der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let server = ServerConfig::builder_with_provider(provider());
    let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate], key.into()).unwrap();
    let client = ClientConfig::builder_with_provider(provider());
    let client = client.with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();

    let (tcp, address) = listen().await;
    let (dialed, accepted) = tokio::join!(dial(address), tcp.accept());
    let accepted = Socket::new(accepted.unwrap().0, PATIENCE);
    let (accepting, dialing) =
        (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)));
    let (accepted, dialed) = tokio::join!(
        accepting.accept(accepted),
        dialing.connect("localhost".try_into().unwrap(), dialed)
    );
    (Conn::secured(accepted.unwrap(), Caller::default()), dialed.unwrap())
}

/// Writes until that fails, and says how, and after how long without a byte that was taken.
async fn written(conn: &mut Conn) -> (io::ErrorKind, Duration) {
    let bytes = vec![7; 64 << 10];
    let mut last = Instant::now();
    loop {
        match timeout(DEADLINE, conn.write(&bytes)).await.expect("it stays") {
            Ok(_) => last = Instant::now(),
            Err(error) => return (error.kind(), last.elapsed()),
        }
    }
}

async fn is_closed_where_nothing_is_taken((mut conn, mut other): (Conn, impl Stream)) {
    let (kind, waited) = written(&mut conn).await;
    assert_eq!(kind, io::ErrorKind::TimedOut);
    // TLS takes some bytes when the socket takes none any more.
    assert!(waited >= PATIENCE * 9 / 10, "{waited:?}");
    drop(conn);
    // The megabytes that were written are not kept for it.
    let left = timeout(DEADLINE, other.read_to_end(&mut Vec::new())).await.unwrap();
    assert_eq!(left.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn who_takes_nothing_is_closed() {
    tokio::join!(async { is_closed_where_nothing_is_taken(pair().await).await }, async {
        is_closed_where_nothing_is_taken(safe_pair().await).await
    },);
}

/// Takes so little that the system does not say in time that there is room again.
async fn stays_where_little_is_taken((mut conn, mut other): (Conn, impl Stream)) {
    let writing = async { written(&mut conn).await };
    let reading = async {
        let (mut pace, mut bytes) = (interval(PATIENCE / 20), vec![0; 8 << 10]);
        let began = Instant::now();
        while began.elapsed() < PATIENCE * 6 {
            pace.tick().await;
            other.read_exact(&mut bytes).await.unwrap();
        }
    };
    tokio::select! {
        failed = writing => panic!("{failed:?}"),
        () = reading => {}
    }
}

#[tokio::test]
async fn who_takes_little_at_a_time_stays() {
    tokio::join!(async { stays_where_little_is_taken(pair().await).await }, async {
        stays_where_little_is_taken(safe_pair().await).await
    },);
}

#[tokio::test]
async fn only_what_waits_to_be_written_counts() {
    let (mut conn, mut other) = pair().await;
    let bytes = vec![7; 64 << 10];
    for _ in 0..2 {
        // Until nothing more is taken for a while, which ends in time.
        let mut sent = 0;
        while let Ok(some) = timeout(PATIENCE / 4, conn.write(&bytes)).await {
            sent += some.unwrap();
        }
        let mut all = vec![0; sent];
        timeout(DEADLINE, other.read_exact(&mut all)).await.unwrap().unwrap();
        // Then there is nothing to write.
        tokio::time::sleep(PATIENCE * 2).await;
    }
    let (kind, waited) = written(&mut conn).await;
    assert_eq!(kind, io::ErrorKind::TimedOut);
    assert!(waited >= PATIENCE, "{waited:?}");
}

/// Who is next comes in, where all places are taken by others that ask and do not read.
#[tokio::test]
async fn the_place_of_who_does_not_read_its_answers_is_free() {
    let (tcp, address) = listen().await;
    let door = Door::new(tcp, 1, &UnderWay::default());
    let mut deaf = dial(address).await;
    deaf.write_all(&b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100)).await.unwrap();
    let (stream, visit) = door.accept().await.unwrap();
    let answer = service_fn(async |_| {
        Ok::<_, Infallible>(Response::new(Body::new("so it is\n".repeat(100_000))))
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(patient(stream).within(visit)), answer);
    let serving = tokio::spawn(serving);
    let _next = dial(address).await;
    timeout(DEADLINE, door.accept()).await.expect("there is no place").unwrap();
    assert!(serving.await.unwrap().is_err());
}

/// Pings do not find out, as they wait behind what is not taken, and so does a goodbye.
#[tokio::test]
async fn who_does_not_read_what_pings_are_answered_is_closed() {
    let (conn, other) = pair().await;
    let answer = service_fn(async |_| Ok::<_, Infallible>(Response::new(Body::empty())));
    let serving = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PATIENCE / 8)
        .keep_alive_timeout(PATIENCE / 8)
        .serve_connection(TokioIo::new(conn), answer);
    let (_deaf, mut said) = split(other);
    let asking = tokio::spawn(async move {
        said.write_all(PREFACE).await?;
        said.write_all(SETTINGS).await?;
        loop {
            said.write_all(&PING.repeat(1000)).await?;
        }
        #[expect(unreachable_code, reason = "says what it fails with")]
        Ok::<(), io::Error>(())
    });
    timeout(DEADLINE, serving).await.expect("it stays").ok(); // with an error or without
    asking.await.unwrap().unwrap_err();
}
