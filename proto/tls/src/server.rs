//! The accepting end.

use std::future::ready;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::limits;
use futures::{Stream, StreamExt, stream};
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::conn::Conn;
use crate::door::{Door, Visit};
use crate::files::{Identity, TlsError, authorities, provider, unusable};
use crate::fresh::Fresh;
use crate::refusals::{Reason, Refusals};
use crate::role::{Caller, Role};
use crate::socket::Socket;
use crate::under_way::UnderWay;

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
        let stream = match timeout(HANDSHAKE_DEADLINE, acceptor.accept(Socket::from(stream))).await
        {
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
        Ok(Conn::secured(stream, caller))
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
    /// The connections that are let in, which are to speak HTTP/2, and whose calls are counted in
    /// `under_way`. As many as [`limits::HANDSHAKES_MAX`] are looked at at once, and as many as
    /// [`limits::GRPC_CONNECTIONS_MAX`] are open; more wait to be accepted. Dropping the stream
    /// closes the address, and the connections with it when they have nothing to say.
    pub fn incoming(
        self,
        under_way: &UnderWay,
    ) -> impl Stream<Item = io::Result<Conn>> + Send + use<> {
        let tls = self.tls;
        let door = Door::new(self.tcp, limits::GRPC_CONNECTIONS_MAX, under_way);
        let arrivals = stream::unfold(door, async |door| Some((door.accept().await, door)));
        let looked_at = arrivals.filter_map(ready).map(move |(stream, visit)| {
            // A task of its own: who takes long keeps nobody waiting.
            let entering = tokio::spawn(enter(stream, visit, tls.clone()));
            async move { entering.await.ok().flatten().map(Ok) }
        });
        looked_at.buffer_unordered(limits::HANDSHAKES_MAX).filter_map(ready)
    }
}

async fn enter(stream: TcpStream, visit: Visit, tls: Option<ServerTls>) -> Option<Conn> {
    // Tokens and acknowledgements are small and each is wanted at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "nodelay could not be set");
    }
    let conn = match tls {
        Some(tls) => tls.accept(stream).await.ok()?,
        None => stream.into(),
    };
    Some(conn.within(visit).beginning())
}
