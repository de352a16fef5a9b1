//! What certificates are worth, for somebody who looks before they are used.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, RootCertStore};

use crate::files::{Identity, TlsError, authorities, provider, unusable};

/// No certificate is good for so long, and errors about time say until when it is.
const NEVER: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(250_000_000_000));
/// A name that nobody has, so that the error about it says which ones there are.
const NOBODY: &str = "nobody.invalid";

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// DNS names and addresses that the certificate is for.
    pub names: Vec<String>,
    /// `None` where its time is over.
    pub seconds_left: Option<u64>,
    /// Why those who believe the authorities would not believe it; time is no reason.
    pub distrusted: Option<String>,
}

/// Looks at a certificate and its key at the time `now`, and whether the authorities in `ca`
/// vouch for it, where these are given.
///
/// # Errors
/// A file that cannot be read or used; a key that is not the certificate's.
pub fn inspect(
    identity: &Identity,
    ca: Option<&Path>,
    now: SystemTime,
) -> Result<Inspected, TlsError> {
    let (chain, key) = identity.read()?;
    CertifiedKey::from_der(chain.clone(), key, &provider())
        .map_err(|error| unusable(&identity.key, "the key of the certificate", &error))?;
    let wrong = |error: &dyn std::error::Error| unusable(&identity.cert, "a certificate", error);
    let nobody = ServerName::try_from(NOBODY).map_err(|error| wrong(&error))?;
    let parsed = ParsedCertificate::try_from(&chain[0]).map_err(|error| wrong(&error))?;
    let names = match verify_server_name(&parsed, &nobody) {
        Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            presented,
            ..
        })) => presented.iter().map(|name| plain(name)).collect(),
        _ => Vec::new(),
    };
    let roots = match ca {
        Some(ca) => authorities(ca)?,
        None => own_root(&chain[0]).map_err(|error| wrong(&error))?,
    };
    let verify = |time: UnixTime| -> Result<(), Error> {
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(&chain[0], &chain[1..], &nobody, &[], time).map(drop)
    };
    let ends = match verify(NEVER) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            not_after.as_secs()
        }
        Err(error) => return Err(wrong(&error)),
        Ok(()) => NEVER.as_secs(),
    };
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds_left = ends.checked_sub(now.as_secs());
    let distrusted = match verify(UnixTime::since_unix_epoch(now)) {
        // The chain is looked at before the name.
        Ok(())
        | Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })) => None,
        Err(_) if ca.is_none() || seconds_left.is_none() => None,
        Err(error) => Some(error.to_string()),
    };
    Ok(Inspected { names, seconds_left, distrusted })
}

/// A certificate as its own authority, where no other is known.
fn own_root(certificate: &CertificateDer<'static>) -> Result<Arc<RootCertStore>, Error> {
    let mut store = RootCertStore::empty();
    store.add(certificate.clone())?;
    Ok(Arc::new(store))
}

/// `name` of `DnsName("name")`, the form that errors have it in.
fn plain(presented: &str) -> String {
    let quoted = presented.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"'));
    let bare = presented.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
    quoted.or(bare).map_or(presented, |(name, _)| name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_out_of_errors() {
        assert_eq!(plain("DnsName(\"worker.aqueduct\")"), "worker.aqueduct");
        assert_eq!(plain("IpAddress(127.0.0.1)"), "127.0.0.1");
        assert_eq!(plain("other"), "other");
    }
}
