//! What a certificate makes of its owner.

use std::net::SocketAddr;

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;

use crate::refusals::{Reason, Refusals};
use crate::under_way::UnderWay;

/// A part in the cluster, which a certificate names among its DNS names. The authority that signs
/// such a name decides who plays the part; an address is in none of them, so that machines may
/// come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// May give work to workers.
    Coordinator,
    /// May be given work, and hand memory to other workers.
    Worker,
    /// A person, or their tool, who may look after the cluster.
    Operator,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Coordinator, Self::Worker, Self::Operator];

    /// The DNS name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator.aqueduct",
            Self::Worker => "worker.aqueduct",
            Self::Operator => "operator.aqueduct",
        }
    }

    /// Whether a certificate, which was verified before, names it.
    fn is_in(self, certificate: &ParsedCertificate<'_>) -> bool {
        let name = ServerName::try_from(self.name());
        name.is_ok_and(|name| verify_server_name(certificate, &name).is_ok())
    }
}

/// Who is at the other end of a connection that was accepted.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// Where from.
    pub address: Option<SocketAddr>,
    /// `None` on a plaintext connection, of which nothing is asked.
    shown: Option<Shown>,
    under_way: UnderWay,
}

/// What came of a handshake.
#[derive(Debug, Clone)]
struct Shown {
    roles: Vec<Role>,
    plane: &'static str,
    refusals: Refusals,
}

impl Caller {
    /// Somebody of whom no certificate is asked.
    pub(crate) fn unasked(address: Option<SocketAddr>) -> Self {
        Self { address, ..Self::default() }
    }

    /// Somebody who came to `plane` and showed this certificate, or none.
    pub(crate) fn shown(
        address: SocketAddr,
        certificate: Option<&CertificateDer<'_>>,
        (plane, refusals): (&'static str, Refusals),
    ) -> Self {
        let parsed = certificate.and_then(|der| ParsedCertificate::try_from(der).ok());
        let has = |role: &Role| parsed.as_ref().is_some_and(|parsed| role.is_in(parsed));
        let roles = Role::ALL.into_iter().filter(has).collect();
        let shown = Some(Shown { roles, plane, refusals });
        Self { address: Some(address), shown, ..Self::default() }
    }

    /// Its calls, by which its connection is kept.
    pub(crate) fn under_way(&self) -> &UnderWay {
        &self.under_way
    }

    pub(crate) fn count_in(&mut self, under_way: &UnderWay) {
        self.under_way = under_way.clone();
    }

    /// Whether its certificate says that it is `role`.
    pub fn is(&self, role: Role) -> bool {
        self.shown.as_ref().is_some_and(|shown| shown.roles.contains(&role))
    }

    /// Whether it may act as `role`: as its certificate says, or freely on a plaintext connection.
    /// A refusal is counted.
    pub fn may_be(&self, role: Role) -> bool {
        let Some(Shown { plane, refusals, .. }) = &self.shown else { return true };
        let may = self.is(role);
        if !may {
            let wanted = role.name();
            let detail = format_args!("{:?}: a call that is only for {wanted}", self.address);
            refusals.count(plane, Reason::WrongRole, &detail);
        }
        may
    }
}
