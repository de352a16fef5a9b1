//! A small HTTPS client, for tests that look at certificates.
#![allow(dead_code)] // every test file uses a part of it

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::certificates::Pem;

/// Whom to call, and how.
pub(crate) struct Https {
    address: String,
    config: Arc<ClientConfig>,
}

/// An open connection.
pub(crate) struct Connection {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

impl Https {
    pub(crate) fn new(address: &str, ca: &Path, shown: Option<&Pem>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match shown {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let chain = vec![CertificateDer::from_pem_file(&pem.cert).unwrap()];
                let key = PrivateKeyDer::from_pem_file(&pem.key).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        Self { address: address.into(), config: Arc::new(config) }
    }

    pub(crate) fn connect(&self) -> io::Result<Connection> {
        let tcp = TcpStream::connect(&self.address)?;
        tcp.set_read_timeout(Some(Duration::from_secs(60)))?;
        let host = self.address.split(':').next().unwrap().to_owned();
        let tls = ClientConnection::new(self.config.clone(), host.try_into().unwrap());
        let stream = StreamOwned::new(tls.map_err(io::Error::other)?, tcp);
        Ok(Connection { stream: BufReader::new(stream) })
    }

    /// Status and body of one call on a connection of its own.
    pub(crate) fn try_call(
        &self,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<(u16, String)> {
        self.connect()?.call(method, path, body)
    }

    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.try_call(method, path, body).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.call("GET", path, "")
    }
}

impl Connection {
    /// Status and body of one call; the connection stays open.
    pub(crate) fn call(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<(u16, String)> {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(head.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let mut length = 0;
        while line.trim_end() != "" {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        Ok((status, String::from_utf8(body).unwrap()))
    }
}
