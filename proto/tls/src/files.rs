//! PEM files, and what they are read into.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why TLS cannot be set up. Names files; never says what is in them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read.
    #[error("{path}: {reason}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// A file that does not hold what it should.
    #[error("{path}: must hold {wanted}: {reason}", path = path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        wanted: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// Who somebody is, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, and those between it and its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Who a client is, and whom it believes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that it believes.
    pub ca: PathBuf,
    /// What it shows of itself, if anything.
    pub identity: Option<Identity>,
}

/// A certificate with its chain, and its key.
pub(crate) type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Identity {
    pub(crate) fn read(&self) -> Result<Pair, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?);
        let key = key.map_err(|error| unusable(&self.key, "a private key", &error))?;
        Ok((certificates(&self.cert)?, key))
    }
}

/// The authorities of a file, of which there is at least one.
pub(crate) fn authorities(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = store.add(certificate);
        added.map_err(|error| unusable(path, "certificates of authorities", &error))?;
    }
    Ok(Arc::new(store))
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn unusable(
    path: &Path,
    wanted: &'static str,
    reason: &dyn std::error::Error,
) -> TlsError {
    TlsError::Unusable { path: path.to_owned(), wanted, reason: reason.to_string() }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path)
        .map_err(|error| TlsError::Unreadable { path: path.to_owned(), reason: error.to_string() })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| unusable(path, "certificates", &error))?;
    if found.is_empty() {
        let (path, reason) = (path.to_owned(), "there is none in it".to_owned());
        return Err(TlsError::Unusable { path, wanted: "certificates", reason });
    }
    Ok(found)
}
