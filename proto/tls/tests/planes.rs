//! One end against another, over sockets: who is let in, who is not and why, and new files.

mod certificates;

use std::sync::Arc;
use std::time::Duration;

use aqueduct_tls::{
    Asked, Caller, ClientTls, Door, Expected, Identity, Listener, Reason, Refusals, Role,
    ServerTls, TlsError, TlsFiles, UnderWay, connect, is_refusal,
};
use certificates::{Authority, Pem};
use futures::StreamExt;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tonic::transport::Endpoint;
use tonic::transport::server::Connected;

const DEADLINE: Duration = Duration::from_secs(20);
const WORKER: &str = "worker.aqueduct";
const COORDINATOR: &str = "coordinator.aqueduct";

impl From<&Pem> for Identity {
    fn from(pem: &Pem) -> Self {
        Self { cert: pem.cert.clone(), key: pem.key.clone() }
    }
}

/// A server that shows `pem` and echoes; who came in is heard of.
struct Server {
    url: String,
    refusals: Refusals,
    callers: mpsc::Receiver<Caller>,
}

async fn serve(pem: &Pem, asked: Asked) -> Server {
    let refusals = Refusals::default();
    let tls = ServerTls::open(pem.into(), asked, ("test", "h2"), refusals.clone()).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", tcp.local_addr().unwrap());
    let (sender, callers) = mpsc::channel(64);
    tokio::spawn(async move {
        let mut incoming =
            std::pin::pin!(Listener { tcp, tls: Some(tls) }.incoming(&UnderWay::default()));
        while let Some(Ok(mut conn)) = incoming.next().await {
            drop(sender.try_send(conn.connect_info())); // the test may not listen any more
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(&mut conn);
                tokio::io::copy(&mut reader, &mut writer).await
            });
        }
    });
    Server { url, refusals, callers }
}

fn client(ca: &Authority, pem: Option<&Pem>, expected: Expected) -> (ClientTls, Refusals) {
    let refusals = Refusals::default();
    let files = TlsFiles { ca: ca.ca(), identity: pem.map(Identity::from) };
    (ClientTls::open(files, expected, "test", refusals.clone()).unwrap(), refusals)
}

/// Waits until a server or a client has counted this.
async fn until(refusals: &Refusals, reason: Reason) {
    let counted = async {
        while refusals.of("test", reason) == 0 {
            tokio::task::yield_now().await;
        }
    };
    let counted = tokio::time::timeout(DEADLINE, counted).await;
    counted.unwrap_or_else(|_| panic!("{reason} was not counted: {:?}", refusals.read()));
}

/// Why a connection failed; nothing reads `text` but whoever a test fails for.
#[derive(Debug)]
struct Failed {
    is_refusal: bool,
    #[expect(dead_code)]
    text: String,
}

async fn dial(server: &Server, tls: &ClientTls) -> Result<(), Failed> {
    let endpoint = Endpoint::from_shared(server.url.clone()).unwrap().connect_timeout(DEADLINE);
    let failed = |error| Failed { is_refusal: is_refusal(&error), text: format!("{error:?}") };
    connect(&endpoint, Some(tls)).await.map(drop).map_err(failed)
}

async fn next_caller(server: &mut Server) -> Caller {
    tokio::time::timeout(DEADLINE, server.callers.recv()).await.unwrap().unwrap()
}

#[tokio::test]
async fn members_come_in_with_their_roles_and_nobody_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    let (ours, theirs) = (Authority::new(&ours), Authority::new(&theirs));
    let worker = ours.sign("worker", &[WORKER]);
    let member = Expected::Member(Role::Worker);
    let mut server = serve(&worker, Asked::Membership(ours.ca())).await;

    for (pem, role, other) in [
        (ours.sign("w", &[WORKER]), Role::Worker, Role::Coordinator),
        (ours.sign("c", &[COORDINATOR]), Role::Coordinator, Role::Worker),
    ] {
        dial(&server, &client(&ours, Some(&pem), member).0).await.unwrap();
        let caller = next_caller(&mut server).await;
        assert!(caller.is(role) && caller.may_be(role) && !caller.is(other));
        assert_eq!(server.refusals.of("test", Reason::WrongRole), u64::from(other == Role::Worker));
        assert!(!caller.may_be(other), "and that is counted");
    }

    let check = async |pem: Option<&Pem>, reason| {
        let before = server.refusals.of("test", reason);
        let error = dial(&server, &client(&ours, pem, member).0).await.unwrap_err();
        // A role is looked at behind the handshake, which has no word for it.
        assert_eq!(error.is_refusal, reason != Reason::WrongRole, "{error:?}");
        let counted = async {
            while server.refusals.of("test", reason) == before {
                tokio::task::yield_now().await;
            }
        };
        let counted = tokio::time::timeout(DEADLINE, counted).await;
        counted.unwrap_or_else(|_| panic!("{reason}: {:?}", server.refusals.read()));
    };
    check(None, Reason::NoCertificate).await;
    check(Some(&ours.sign("caller", &["alice"])), Reason::WrongRole).await;
    check(Some(&ours.sign("operator", &["operator.aqueduct"])), Reason::WrongRole).await;
    check(Some(&theirs.sign("worker", &[WORKER])), Reason::UnknownAuthority).await;
    check(Some(&ours.sign_expired("expired", &[WORKER])), Reason::Expired).await;

    let mut plain = TcpStream::connect(server.url.trim_start_matches("https://")).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(DEADLINE, plain.read_to_end(&mut answer)).await.unwrap().ok();
    until(&server.refusals, Reason::Plaintext).await;
    assert!(server.callers.try_recv().is_err(), "nobody else came in");
}

#[tokio::test]
async fn a_client_speaks_to_none_but_the_one_it_means() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    let (ours, theirs) = (Authority::new(&ours), Authority::new(&theirs));
    let check = async |pem: Pem, expected, reason| {
        let server = serve(&pem, Asked::Nothing).await;
        let (tls, refusals) = client(&ours, None, expected);
        dial(&server, &tls).await.unwrap_err();
        until(&refusals, reason).await;
        until(&server.refusals, Reason::RefusedByPeer).await;
    };
    let member = Expected::Member(Role::Worker);
    check(ours.sign("caller", &["alice"]), member, Reason::WrongRole).await;
    check(theirs.sign("worker", &[WORKER]), member, Reason::UnknownAuthority).await;
    check(ours.sign_expired("worker", &[WORKER]), member, Reason::Expired).await;
    check(ours.sign_expired("host", &[]), Expected::Host, Reason::Expired).await;
    // Its certificate is for this machine, but not by the name that is used here.
    let server = serve(&ours.sign("host", &[]), Asked::Nothing).await;
    let other = Server { url: server.url.replace("127.0.0.1", "127.0.0.2"), ..server };
    let (tls, _) = client(&ours, None, Expected::Host);
    dial(&other, &tls).await.unwrap_err();
    let good = serve(&ours.sign("host", &[]), Asked::Nothing).await;
    dial(&good, &tls).await.unwrap();
}

#[tokio::test]
async fn files_that_change_are_read_again_and_bad_ones_are_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    let (old, new) = (Authority::new(&old), Authority::new(&new));
    let pem = old.sign("server", &[WORKER]);
    let mut server = serve(&pem, Asked::Nothing).await;
    let member = Expected::Member(Role::Worker);
    let (believes_old, _) = client(&old, None, member);
    let (believes_new, _) = client(&new, None, member);
    dial(&server, &believes_old).await.unwrap();
    next_caller(&mut server).await;
    dial(&server, &believes_new).await.unwrap_err();

    std::fs::write(&pem.key, "half a file").unwrap();
    let long = tokio::time::Instant::now() + Duration::from_millis(1500);
    while tokio::time::Instant::now() < long {
        dial(&server, &believes_old).await.expect("the old certificate stays");
    }

    let next = new.sign("server", &[WORKER]);
    std::fs::copy(&next.cert, &pem.cert).unwrap();
    std::fs::copy(&next.key, &pem.key).unwrap();
    let seen = async { while dial(&server, &believes_new).await.is_err() {} };
    tokio::time::timeout(DEADLINE, seen).await.expect("the new certificate is shown");
    dial(&server, &believes_old).await.unwrap_err();
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    let (one, other) = (authority.sign("one", &[]), authority.sign("other", &[]));
    let check = |cert: &std::path::Path, key: &std::path::Path, named: &std::path::Path| {
        let identity = Identity { cert: cert.to_owned(), key: key.to_owned() };
        let opened = ServerTls::open(identity, Asked::Nothing, ("t", "h2"), Refusals::default());
        let error = opened.map(drop).unwrap_err();
        let (TlsError::Unreadable { path, .. } | TlsError::Unusable { path, .. }) = &error;
        assert_eq!(path, named, "{error}");
        let key = std::fs::read_to_string(&one.key).unwrap();
        assert!(!error.to_string().contains(key.lines().nth(1).unwrap()), "{error}");
    };
    check(&one.cert, &other.key, &other.key);
    check(&one.cert, &one.cert, &one.cert);
    check(&one.key, &one.key, &one.key);
    let nowhere = folder.path().join("nowhere");
    check(&nowhere, &one.key, &nowhere);
}

#[tokio::test]
async fn a_connection_waits_until_there_is_a_place_for_it() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let door = Door::new(tcp, 1, &UnderWay::default());
    let (_one, _other) = (TcpStream::connect(address).await, TcpStream::connect(address).await);
    let first = door.accept().await.unwrap();
    let second = door.accept();
    let mut second = std::pin::pin!(second);
    assert!(futures::poll!(&mut second).is_pending());
    drop(first);
    assert!(tokio::time::timeout(DEADLINE, second).await.unwrap().is_some());
}

/// Over TLS as over plaintext: who does not go on after a handshake does not stay, nor does who
/// is silent where the server ends.
#[tokio::test]
async fn a_safe_connection_has_to_begin_and_ends_with_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    let pem = authority.sign("host", &[]);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let dialing = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let dialing = TlsConnector::from(Arc::new(dialing));
    let ends = async |preface: &'static [u8], is_closed: bool| {
        let identity = Identity::from(&pem);
        let server =
            ServerTls::open(identity, Asked::Nothing, ("test", "h2"), Refusals::default()).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let incoming = Listener { tcp, tls: Some(server) }.incoming(&UnderWay::default());
        let mut incoming = Box::pin(incoming);
        let dialed = TcpStream::connect(address).await.unwrap();
        let dialed = dialing.connect("127.0.0.1".try_into().unwrap(), dialed);
        let (accepted, dialed) = tokio::join!(incoming.next(), dialed);
        let (mut accepted, mut dialed) = (accepted.unwrap().unwrap(), dialed.unwrap());
        dialed.write_all(preface).await.unwrap();
        if is_closed {
            drop(incoming);
        }
        let mut heard = Vec::new();
        let ended = tokio::time::timeout(DEADLINE, accepted.read_to_end(&mut heard)).await;
        ended.expect("it stays").unwrap();
        assert_eq!(heard, preface);
    };
    tokio::join!(ends(b"", false), ends(b"PRI * HTTP/2.0", false));
    ends(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true).await;
}
