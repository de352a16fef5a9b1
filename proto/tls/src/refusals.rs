//! Who was turned away, and why.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use rustls::{CertificateError, Error, InvalidMessage};

/// Why a connection was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// It was not TLS.
    Plaintext,
    /// It showed no certificate where one is needed.
    NoCertificate,
    /// Nobody whom we believe has signed it.
    UnknownAuthority,
    /// Over, or not begun.
    Expired,
    /// Another role than this connection is for.
    WrongRole,
    /// A server that is not the host that was meant.
    WrongName,
    /// The other end refused us.
    RefusedByPeer,
    /// It ended, or said nothing, before it was known who it is.
    BrokenOff,
    /// Whatever else a handshake can fail for.
    Handshake,
}

impl Reason {
    /// As a label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plaintext => "plaintext",
            Self::NoCertificate => "no_certificate",
            Self::UnknownAuthority => "unknown_authority",
            Self::Expired => "expired",
            Self::WrongRole => "wrong_role",
            Self::WrongName => "wrong_name",
            Self::RefusedByPeer => "refused_by_peer",
            Self::BrokenOff => "broken_off",
            Self::Handshake => "handshake",
        }
    }

    /// What a handshake failed for.
    pub(crate) fn of(error: &io::Error) -> Self {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
        match cause {
            None => Self::BrokenOff,
            Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => Self::Plaintext,
            Some(Error::NoCertificatesPresented) => Self::NoCertificate,
            Some(Error::AlertReceived(_)) => Self::RefusedByPeer,
            Some(Error::InvalidCertificate(error)) => match error {
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Self::Expired,
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    Self::UnknownAuthority
                }
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => Self::WrongName,
                _ => Self::Handshake,
            },
            Some(_) => Self::Handshake,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

type Counts = BTreeMap<(&'static str, Reason), u64>;

/// What was refused in a process, by plane and reason. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<Counts>>);

impl Refusals {
    /// Counts one. The first of a kind is logged for everybody to see; others, of which a scanner
    /// makes thousands, for those who look for them.
    pub fn count(&self, plane: &'static str, reason: Reason, detail: &dyn fmt::Display) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry((plane, reason)).or_insert(0);
        *count += 1;
        if *count == 1 && reason != Reason::BrokenOff {
            tracing::warn!(plane, %reason, %detail, "a connection was refused; more like it are \
                counted and logged as debug");
        } else {
            tracing::debug!(plane, %reason, %detail, "a connection was refused");
        }
    }

    /// Plane, reason and count of every kind that there was.
    pub fn read(&self) -> Vec<(&'static str, Reason, u64)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|(&(plane, reason), &count)| (plane, reason, count)).collect()
    }

    /// How many there were of one kind.
    pub fn of(&self, plane: &str, reason: Reason) -> u64 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_kind = counts.iter().filter(|((at, why), _)| *at == plane && *why == reason);
        of_kind.map(|(_, count)| count).sum()
    }
}

impl Collector for Refusals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Connections and calls that were refused for who made them";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("connections_refused", help, None, kind)?;
        for (plane, reason, count) in self.read() {
            let labels = [("plane", plane), ("reason", reason.as_str())];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
