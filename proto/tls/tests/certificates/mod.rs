//! Authorities that sign what a test asks for.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, KeyPair, date_time_ymd};

/// Files of one certificate.
#[derive(Debug, Clone)]
pub(crate) struct Pem {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// Somebody who signs.
pub(crate) struct Authority {
    folder: PathBuf,
    certificate: Certificate,
    key: KeyPair,
}

impl Authority {
    /// A new one, whose files lie in `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let this = Self { folder: folder.to_owned(), certificate, key };
        std::fs::write(this.ca(), this.certificate.pem()).unwrap();
        this
    }

    /// Its own certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Signs a certificate for these DNS names, and this machine.
    pub(crate) fn sign(&self, file: &str, names: &[&str]) -> Pem {
        self.issue(file, params(names))
    }

    /// Signs one whose time is over.
    pub(crate) fn sign_expired(&self, file: &str, names: &[&str]) -> Pem {
        let mut params = params(names);
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.issue(file, params)
    }

    fn issue(&self, file: &str, params: CertificateParams) -> Pem {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.certificate, &self.key).unwrap();
        let path = |kind: &str| self.folder.join(format!("{file}.{kind}.pem"));
        let pem = Pem { cert: path("cert"), key: path("key") };
        std::fs::write(&pem.cert, certificate.pem()).unwrap();
        std::fs::write(&pem.key, key.serialize_pem()).unwrap();
        pem
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let all = ["127.0.0.1", "localhost"].iter().chain(names);
    CertificateParams::new(all.map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
}
