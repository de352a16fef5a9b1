//! How a client connects.

use std::time::Duration;

use aqueduct_core::limits;
use aqueduct_tls::TlsFiles;

/// Options of [`Client::connect`](crate::Client::connect).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientOptions {
    /// How long the connection may take.
    pub connect_deadline: Duration,
    /// How long `tokenize` and `describe` may take.
    pub call_deadline: Duration,
    /// How often a request is sent to a server that is busy and says when to come again, within
    /// the request's own deadline; 1 is never again.
    pub busy_tries: u32,
    /// Whom to believe, and what to show, where the URL is `https://`; files that change are read
    /// again with the next connection. Plaintext if `None`.
    pub tls: Option<TlsFiles>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_deadline: Duration::from_millis(limits::CONNECT_DEADLINE_MS),
            call_deadline: Duration::from_secs(60),
            busy_tries: 3,
            tls: None,
        }
    }
}
