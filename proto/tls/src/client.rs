//! The dialing end.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use aqueduct_core::{Refusal, limits};
use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{self, Channel, Endpoint};

use crate::files::{TlsError, TlsFiles, authorities, provider, unusable};
use crate::fresh::Fresh;
use crate::names::{self, Resolver};
use crate::refusals::{Reason, Refusals};
use crate::role::Role;

const DEADLINE: Duration = Duration::from_millis(limits::CONNECT_DEADLINE_MS);
/// A server of HTTP/2 speaks first; some proxies do not.
const SPEAKS_WITHIN: Duration = Duration::from_millis(250);
/// Its first frame begins in so many bytes. Longer reads pass by the buffer once it is empty.
const FIRST_BYTES: usize = 16;

type Stream = BufReader<TlsStream<TcpStream>>;

/// Whom a client means to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The host of the URL.
    Host,
    /// A member of the cluster, wherever it is.
    Member(Role),
}

/// How one plane is dialed. Clones are the same one.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<Fresh<ClientConfig, TlsError>>,
    expected: Expected,
    plane: &'static str,
    refusals: Refusals,
}

impl ClientTls {
    /// Believes and shows what `files` say, and talks to none but `expected`; `plane` is what
    /// refusals are counted under.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn open(
        files: TlsFiles,
        expected: Expected,
        plane: &'static str,
        refusals: Refusals,
    ) -> Result<Self, TlsError> {
        let mut paths = vec![files.ca.clone()];
        let pair = files.identity.iter().flat_map(|it| [it.cert.clone(), it.key.clone()]);
        paths.extend(pair);
        let config = Arc::new(Fresh::new(paths, Box::new(move || config(&files)))?);
        Ok(Self { config, expected, plane, refusals })
    }

    async fn dial(&self, uri: &Uri) -> io::Result<Stream> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(443);
        let name = match self.expected {
            Expected::Host => host.clone(),
            Expected::Member(role) => role.name().to_owned(),
        };
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let stream = names::dial(&host, port).await?;
        stream.set_nodelay(true)?;
        let connector = TlsConnector::from(self.config.current());
        let connected = async { heard(connector.connect(name, stream).await?).await };
        connected.await.inspect_err(|error| {
            let reason = match (Reason::of(error), self.expected) {
                (Reason::WrongName, Expected::Member(_)) => Reason::WrongRole,
                (reason, _) => reason,
            };
            self.refusals.count(self.plane, reason, &format_args!("{uri}: {error}"));
        })
    }
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files = self.config.files();
        f.debug_struct("ClientTls").field("files", &files).finish_non_exhaustive()
    }
}

fn config(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unusable(&files.ca, "authorities for TLS 1.3", &error))?
        .with_root_certificates(authorities(&files.ca)?);
    let mut config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = identity.read()?;
            let config = builder.with_client_auth_cert(chain, key);
            config.map_err(|error| unusable(&identity.key, "the key of the certificate", &error))?
        }
    };
    config.alpn_protocols = vec!["h2".into()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The stream once its server has spoken. In TLS 1.3 the client is done with the handshake before
/// the server has seen its certificate, so that a refusal comes where the first answer is read:
/// here it is told from a connection that broke, which may be tried again.
async fn heard(stream: TlsStream<TcpStream>) -> io::Result<Stream> {
    let mut stream = BufReader::with_capacity(FIRST_BYTES, stream);
    match timeout(SPEAKS_WITHIN, stream.fill_buf()).await {
        Ok(Err(error)) => Err(error),
        Ok(Ok([])) => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the server hung up after the handshake",
        )),
        Ok(Ok(_)) | Err(_) => Ok(stream),
    }
}

/// Whether a connection failed because one end did not believe the other: another try fails alike.
pub fn is_refusal(error: &(dyn Error + 'static)) -> bool {
    // What it wraps it does not name as its source.
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let is_here = wrapped.is_some_and(|wrapped| wrapped.is::<rustls::Error>());
    is_here || error.source().is_some_and(is_refusal)
}

/// Connects to `endpoint`, whose URL [`scheme_of`] has found to go with `tls`.
///
/// # Errors
/// Nobody there, or somebody else.
pub async fn connect(
    endpoint: &Endpoint,
    tls: Option<&ClientTls>,
) -> Result<Channel, transport::Error> {
    match tls {
        None => endpoint.connect_with_connector(plain(endpoint)).await,
        Some(tls) => endpoint.connect_with_connector(Connector(tls.clone())).await,
    }
}

/// Dials in plaintext as an endpoint does by itself, but for how it finds addresses.
fn plain(endpoint: &Endpoint) -> HttpConnector<Resolver> {
    let mut connector = HttpConnector::new_with_resolver(Resolver);
    connector.enforce_http(false);
    connector.set_nodelay(endpoint.get_tcp_nodelay());
    connector.set_connect_timeout(endpoint.get_connect_timeout());
    connector
}

/// The scheme of URLs: `https` where certificates are configured, `http` where not.
///
/// # Errors
/// `url`, which is `field`, has another one. Nothing falls back to plaintext, and nothing is
/// encrypted for whoever happens to answer.
pub fn scheme_of(field: &str, url: &str, tls: bool) -> Result<&'static str, Refusal> {
    let (scheme, bound) = if tls {
        ("https", "https://host:port, for certificates are given")
    } else {
        ("http", "http://host:port, or certificates must be given for https")
    };
    match url.split_once("://") {
        Some((given, host)) if given == scheme && !host.is_empty() => Ok(scheme),
        _ => Err(Refusal::new(field, url, bound)),
    }
}

/// Dials for a channel, at first and whenever it has lost its connection.
struct Connector(ClientTls);

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.0.clone();
        Box::pin(async move {
            let dialed = timeout(DEADLINE, tls.dial(&uri)).await;
            Ok(TokioIo::new(dialed.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??))
        })
    }
}
