//! Certificates, as PEM files: of the API for callers, of the cluster, of etcd.

use std::path::PathBuf;

use aqueduct_client::{Identity, TlsFiles};
use aqueduct_core::Refusal;
use aqueduct_tls::{Asked, ClientTls, Expected, Refusals, Role, ServerTls, TlsError};
use clap::{Args, ValueEnum};

/// What callers see of a coordinator, and what it asks of them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServerTlsArgs {
    /// Certificate of both APIs, with any intermediate certificates [default: plaintext]
    #[arg(
        long,
        value_name = "PEM",
        env = "AQUEDUCT_TLS_CERT",
        hide_env_values = true,
        requires = "tls_key"
    )]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert
    #[arg(
        long,
        value_name = "PEM",
        env = "AQUEDUCT_TLS_KEY",
        hide_env_values = true,
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,
    /// CA certificates for callers' certificates [default: callers need no certificate]
    #[arg(
        long,
        value_name = "PEM",
        env = "AQUEDUCT_TLS_CA",
        hide_env_values = true,
        requires = "tls_cert"
    )]
    tls_ca: Option<PathBuf>,
    /// Whether callers must present a certificate: required or optional
    #[arg(long, value_name = "WHEN", env = "AQUEDUCT_TLS_CLIENT_AUTH", hide_env_values = true,
          requires = "tls_ca", value_enum, hide_possible_values = true,
          default_value_t = ClientAuth::Required)]
    tls_client_auth: ClientAuth,
}

/// Who must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ClientAuth {
    #[default]
    Required,
    Optional,
}

impl ServerTlsArgs {
    /// For an API that speaks `protocol` and counts what it refuses under `plane`; `None` is
    /// plaintext.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(crate) fn open(
        &self,
        plane: (&'static str, &'static str),
        refusals: &Refusals,
    ) -> Result<Option<ServerTls>, TlsError> {
        let Some(identity) = identity(&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let asked = match (&self.tls_ca, self.tls_client_auth) {
            (None, _) => Asked::Nothing,
            (Some(ca), ClientAuth::Required) => Asked::Certificate(ca.clone()),
            (Some(ca), ClientAuth::Optional) => Asked::Maybe(ca.clone()),
        };
        ServerTls::open(identity, asked, plane, refusals.clone()).map(Some)
    }
}

/// How members of a cluster know each other.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClusterTlsArgs {
    /// Certificate for connections between members (coordinators and workers); names its owner's
    /// role, coordinator.aqueduct or worker.aqueduct [default: plaintext]
    #[arg(long, value_name = "PEM", env = "AQUEDUCT_CLUSTER_TLS_CERT", hide_env_values = true,
          requires_all = ["cluster_tls_key", "cluster_tls_ca"])]
    cluster_tls_cert: Option<PathBuf>,
    /// Private key of --cluster-tls-cert
    #[arg(long, value_name = "PEM", env = "AQUEDUCT_CLUSTER_TLS_KEY", hide_env_values = true,
          requires_all = ["cluster_tls_cert", "cluster_tls_ca"])]
    cluster_tls_key: Option<PathBuf>,
    /// CA certificates for members' certificates
    #[arg(long, value_name = "PEM", env = "AQUEDUCT_CLUSTER_TLS_CA", hide_env_values = true,
          requires_all = ["cluster_tls_cert", "cluster_tls_key"])]
    cluster_tls_ca: Option<PathBuf>,
}

impl ClusterTlsArgs {
    /// The certificate and the authorities, if any are given.
    pub(crate) fn files(&self) -> (Option<Identity>, Option<PathBuf>) {
        (identity(&self.cluster_tls_cert, &self.cluster_tls_key), self.cluster_tls_ca.clone())
    }

    /// Whether members speak TLS.
    pub(crate) fn is_given(&self) -> bool {
        self.cluster_tls_cert.is_some()
    }

    /// How members of this role are dialed, counting under `plane`; `None` is plaintext.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(crate) fn dial(
        &self,
        (role, plane): (Role, &'static str),
        refusals: &Refusals,
    ) -> Result<Option<ClientTls>, TlsError> {
        let identity = identity(&self.cluster_tls_cert, &self.cluster_tls_key);
        let Some(ca) = self.cluster_tls_ca.clone() else { return Ok(None) };
        let (files, member) = (TlsFiles { ca, identity }, Expected::Member(role));
        ClientTls::open(files, member, plane, refusals.clone()).map(Some)
    }

    /// How a member is dialed at `plane`; `None` is plaintext.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(crate) fn listen(
        &self,
        plane: &'static str,
        refusals: &Refusals,
    ) -> Result<Option<ServerTls>, TlsError> {
        let identity = identity(&self.cluster_tls_cert, &self.cluster_tls_key);
        let Some((identity, ca)) = identity.zip(self.cluster_tls_ca.clone()) else {
            return Ok(None);
        };
        let plane = (plane, "h2");
        ServerTls::open(identity, Asked::Membership(ca), plane, refusals.clone()).map(Some)
    }
}

/// How etcd is known, and knows us.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct EtcdTlsArgs {
    /// CA certificates for etcd's certificates [default: plaintext]
    #[arg(long, value_name = "PEM", env = "AQUEDUCT_ETCD_TLS_CA", hide_env_values = true)]
    etcd_tls_ca: Option<PathBuf>,
    /// Client certificate for etcd, if it requires one
    #[arg(long, value_name = "PEM", env = "AQUEDUCT_ETCD_TLS_CERT", hide_env_values = true,
          requires_all = ["etcd_tls_key", "etcd_tls_ca"])]
    etcd_tls_cert: Option<PathBuf>,
    /// Private key of --etcd-tls-cert
    #[arg(long, value_name = "PEM", env = "AQUEDUCT_ETCD_TLS_KEY", hide_env_values = true,
          requires_all = ["etcd_tls_cert", "etcd_tls_ca"])]
    etcd_tls_key: Option<PathBuf>,
}

impl EtcdTlsArgs {
    /// The certificate and the authorities, if any are given.
    pub(crate) fn files(&self) -> (Option<Identity>, Option<PathBuf>) {
        (identity(&self.etcd_tls_cert, &self.etcd_tls_key), self.etcd_tls_ca.clone())
    }

    /// How etcd is dialed; `None` is plaintext.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(crate) fn dial(&self, refusals: &Refusals) -> Result<Option<ClientTls>, TlsError> {
        let identity = identity(&self.etcd_tls_cert, &self.etcd_tls_key);
        let Some(ca) = self.etcd_tls_ca.clone() else { return Ok(None) };
        let files = TlsFiles { ca, identity };
        ClientTls::open(files, Expected::Host, "etcd", refusals.clone()).map(Some)
    }
}

/// How a command that asks a server knows it, and is known. Servers have variables of these names
/// too, and commands run where they are set: so the variables are not clap's, which would have them
/// go together as flags must, and of them counts what goes with the server that is asked.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClientTlsArgs {
    /// CA certificates for the server's certificate, with an https URL [env: AQUEDUCT_TLS_CA]
    #[arg(long, value_name = "PEM")]
    tls_ca: Option<PathBuf>,
    /// Client certificate, if the server asks for one [env: AQUEDUCT_TLS_CERT]
    #[arg(long, value_name = "PEM")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert [env: AQUEDUCT_TLS_KEY]
    #[arg(long, value_name = "PEM")]
    tls_key: Option<PathBuf>,
}

impl ClientTlsArgs {
    /// The authorities to believe where `urls` are asked: those of the environment are for https.
    fn ca(&self, urls: &str) -> Option<PathBuf> {
        let is_https = || urls.split(',').any(|url| url.starts_with("https://"));
        self.tls_ca.clone().or_else(|| variable("AQUEDUCT_TLS_CA").filter(|_| is_https()))
    }

    /// Whether authorities were named for `urls`.
    pub(crate) fn is_given(&self, urls: &str) -> bool {
        self.ca(urls).is_some()
    }

    /// The certificate and its key.
    ///
    /// # Errors
    /// One of them without the other.
    pub(crate) fn pair(&self) -> Result<Option<Identity>, Refusal> {
        let cert = self.tls_cert.clone().or_else(|| variable("AQUEDUCT_TLS_CERT"));
        let key = self.tls_key.clone().or_else(|| variable("AQUEDUCT_TLS_KEY"));
        match (cert, key) {
            (Some(cert), Some(key)) => Ok(Some(Identity { cert, key })),
            (None, None) => Ok(None),
            (Some(cert), None) => {
                Err(Refusal::new("tls_cert", cert.display(), "given with --tls-key"))
            }
            (None, Some(key)) => {
                Err(Refusal::new("tls_key", key.display(), "given with --tls-cert"))
            }
        }
    }

    /// What was given, by itself.
    pub(crate) fn pem(&self) -> (Option<Identity>, Option<PathBuf>) {
        let ca = self.tls_ca.clone().or_else(|| variable("AQUEDUCT_TLS_CA"));
        (self.pair().ok().flatten(), ca)
    }

    /// Checks that no flag would be passed over where `urls` are asked.
    ///
    /// # Errors
    /// A flag that says nothing without another one.
    pub(crate) fn check(&self, urls: &str) -> Result<(), Refusal> {
        let Some(typed) = self.tls_cert.as_ref().or(self.tls_key.as_ref()) else { return Ok(()) };
        self.pair()?;
        match self.is_given(urls) {
            true => Ok(()),
            false => Err(Refusal::new("tls_cert", typed.display(), "given with --tls-ca")),
        }
    }

    /// For the SDK, which is to ask any of `urls`, which commas separate.
    ///
    /// # Errors
    /// A URL that is none, or whose scheme does not go with the files.
    pub(crate) fn files(&self, urls: &str) -> Result<Option<TlsFiles>, Refusal> {
        let ca = self.ca(urls);
        for url in urls.split(',') {
            aqueduct_tls::scheme_of("server", url, ca.is_some())?;
        }
        let identity = self.pair().ok().flatten();
        Ok(ca.map(|ca| TlsFiles { ca, identity }))
    }
}

/// A path of the environment; one that is empty is none.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn identity(cert: &Option<PathBuf>, key: &Option<PathBuf>) -> Option<Identity> {
    cert.clone().zip(key.clone()).map(|(cert, key)| Identity { cert, key })
}
