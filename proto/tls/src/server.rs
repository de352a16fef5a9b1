//! The accepting end.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use aqueduct_core::limits;
use futures::{Stream, StreamExt};
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::server::Connected;

use crate::files::{Identity, TlsError, authorities, provider, unusable};
use crate::fresh::Fresh;
use crate::refusals::{Reason, Refusals};
use crate::role::{Caller, Role};

const HANDSHAKE_DEADLINE: Duration = Duration::from_millis(limits::CONNECT_DEADLINE_MS);

/// What a server asks of those who connect. Files hold the authorities that it believes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// No certificate.
    Nothing,
    /// A certificate, of those who have one; who shows a bad one is refused.
    Maybe(PathBuf),
    /// A certificate.
    Certificate(PathBuf),
    /// The certificate of a coordinator or a worker.
    Membership(PathBuf),
}

impl Asked {
    fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::Nothing => None,
            Self::Maybe(ca) | Self::Certificate(ca) | Self::Membership(ca) => Some(ca),
        }
    }
}

/// How connections of one plane are accepted. Clones are the same one.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<Fresh<ServerConfig, TlsError>>,
    members_only: bool,
    plane: &'static str,
    refusals: Refusals,
}

impl ServerTls {
    /// Shows `identity` and asks for what `asked` says; `protocol` is what is spoken then
    /// (`h2`, `http/1.1`), `plane` what refusals are counted under.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn open(
        identity: Identity,
        asked: Asked,
        (plane, protocol): (&'static str, &'static str),
        refusals: Refusals,
    ) -> Result<Self, TlsError> {
        let members_only = matches!(asked, Asked::Membership(_));
        let mut files = vec![identity.cert.clone(), identity.key.clone()];
        files.extend(asked.file().cloned());
        let make = Box::new(move || config(&identity, &asked, protocol));
        let config = Arc::new(Fresh::new(files, make)?);
        Ok(Self { config, members_only, plane, refusals })
    }

    /// Makes a connection a safe one, or refuses it, counts that and says why.
    ///
    /// # Errors
    /// Why it was refused.
    pub async fn accept(&self, stream: TcpStream) -> Result<Conn, Reason> {
        let address = stream.peer_addr().map_err(|_| Reason::BrokenOff)?;
        let acceptor = TlsAcceptor::from(self.config.current());
        let refuse = |reason: Reason, detail: &dyn std::fmt::Display| {
            self.refusals.count(self.plane, reason, &format_args!("{address}: {detail}"));
            Err(reason)
        };
        let stream = match timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return refuse(Reason::of(&error), &error),
            Err(_) => return refuse(Reason::BrokenOff, &"no handshake in time"),
        };
        let plane = (self.plane, self.refusals.clone());
        let certificates = stream.get_ref().1.peer_certificates();
        let caller = Caller::shown(address, certificates.and_then(<[_]>::first), plane);
        let is_member = caller.is(Role::Coordinator) || caller.is(Role::Worker);
        if self.members_only && !is_member {
            return refuse(Reason::WrongRole, &"its certificate names no member of a cluster");
        }
        Ok(Conn { io: Io::Tls(Box::new(stream)), caller })
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.config.files()).finish_non_exhaustive()
    }
}

fn config(
    identity: &Identity,
    asked: &Asked,
    protocol: &'static str,
) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unusable(&identity.key, "a key for TLS 1.3", &error))?;
    let builder = match asked.file() {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(authorities(path)?, provider());
            let verifier = match asked {
                Asked::Maybe(_) => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let verifier = verifier.build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| unusable(path, "certificates of authorities", &error))?,
            )
        }
    };
    let (chain, key) = identity.read()?;
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| unusable(&identity.key, "the key of the certificate", &error))?;
    config.alpn_protocols = vec![protocol.into()];
    // A resumed session is not asked for its certificate again, which may be over by then.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// Before the next connection is accepted, where there was nothing left to accept one with.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// ENOMEM, ENFILE, EMFILE and ENOBUFS: only the first has a kind of its own in [`io::ErrorKind`].
const NOTHING_LEFT: [i32; 4] = [12, 23, 24, if cfg!(target_os = "linux") { 105 } else { 55 }];

/// After so long without another failure connections are accepted again: handles come and go while
/// there are few.
const SHORT_FOR: Duration = Duration::from_secs(10);

/// Whether this process has nothing left to accept connections with, whatever they come by.
static SHORTAGE: Shortage = Shortage(Mutex::new(None));

/// When there was nothing left last, if that was not long ago.
#[derive(Debug)]
struct Shortage(Mutex<Option<Instant>>);

impl Shortage {
    /// There is nothing left; whether that is new.
    fn begins(&self, now: Instant) -> bool {
        self.lock().replace(now).is_none()
    }

    /// A connection was accepted; whether a shortage is over by that.
    fn ends(&self, now: Instant) -> bool {
        let is_over = |last: &mut Instant| now.saturating_duration_since(*last) >= SHORT_FOR;
        self.lock().take_if(is_over).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bound address, and who may come in.
#[derive(Debug)]
pub struct Listener {
    /// The address.
    pub tcp: TcpListener,
    /// Plaintext if `None`.
    pub tls: Option<ServerTls>,
}

impl From<TcpListener> for Listener {
    fn from(tcp: TcpListener) -> Self {
        Self { tcp, tls: None }
    }
}

impl Listener {
    /// The connections that are let in. As many as [`limits::HANDSHAKES_MAX`] are looked at at
    /// once; more wait to be accepted. Dropping the stream closes the address.
    pub fn incoming(self) -> impl Stream<Item = io::Result<Conn>> + Send {
        let tls = self.tls;
        let accepted = TcpListenerStream::new(self.tcp).filter_map(accepted);
        let looked_at = accepted.map(move |stream| {
            // A task of its own: who takes long keeps nobody waiting.
            let entering = tokio::spawn(enter(stream, tls.clone()));
            async move { entering.await.ok().flatten().map(Ok) }
        });
        looked_at.buffer_unordered(limits::HANDSHAKES_MAX).filter_map(std::future::ready)
    }
}

/// The connection, if there is one. Where there is none for want of file handles or memory, the
/// next try would fail as fast, and waits. Any other error is of one connection, which may have
/// gone before it was accepted; those behind it do not wait for that.
pub async fn accepted(stream: io::Result<TcpStream>) -> Option<TcpStream> {
    let now = Instant::now();
    let error = match stream {
        Ok(stream) => {
            if SHORTAGE.ends(now) {
                tracing::info!("connections are accepted again");
            }
            return Some(stream);
        }
        Err(error) => error,
    };
    if error.raw_os_error().is_some_and(|code| NOTHING_LEFT.contains(&code)) {
        if SHORTAGE.begins(now) {
            tracing::warn!(%error, "no connection can be accepted; what follows is not told");
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    } else {
        tracing::debug!(%error, "a connection could not be accepted");
    }
    None
}

async fn enter(stream: TcpStream, tls: Option<ServerTls>) -> Option<Conn> {
    // Tokens and acknowledgements are small and each is wanted at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "nodelay could not be set");
    }
    match tls {
        Some(tls) => tls.accept(stream).await.ok(),
        None => Some(stream.into()),
    }
}

/// A connection that was let in.
#[derive(Debug)]
pub struct Conn {
    io: Io,
    caller: Caller,
}

#[derive(Debug)]
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Conn {
    /// Who is at its other end.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }
}

impl From<TcpStream> for Conn {
    fn from(stream: TcpStream) -> Self {
        let caller = Caller::unasked(stream.peer_addr().ok());
        Self { io: Io::Plain(stream), caller }
    }
}

impl Connected for Conn {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Conn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_shortage_is_told_when_it_begins_and_when_it_ends() {
        let shortage = Shortage(Mutex::new(None));
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(!shortage.ends(at(0)), "there was none");
        assert!(shortage.begins(at(0)));
        assert!(!shortage.begins(at(0)) && !shortage.begins(at(7)), "ten times a second");
        assert!(!shortage.ends(at(8)) && !shortage.begins(at(9)), "one handle came free");
        assert!(!shortage.ends(at(18)));
        assert!(shortage.ends(at(19)) && !shortage.ends(at(19)));
        assert!(shortage.begins(at(20)), "another one");
    }

    #[tokio::test]
    async fn others_wait_only_where_nothing_is_left() {
        let check = |code: i32, waits: bool| {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(accepted(Err(error)).now_or_never().is_none(), waits, "{code}");
        };
        NOTHING_LEFT.into_iter().for_each(|code| check(code, true));
        // EPERM by a firewall's rule, EPROTO, ECONNABORTED, EHOSTUNREACH: as Linux has them.
        [1, 71, 103, 113].into_iter().for_each(|code| check(code, false));
        let unknown = io::Error::from(io::ErrorKind::ConnectionReset);
        assert!(accepted(Err(unknown)).now_or_never().is_some_and(|none| none.is_none()));
    }
}
