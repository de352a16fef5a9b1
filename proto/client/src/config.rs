//! How a client connects.

use std::str::FromStr;
use std::time::Duration;

use aqueduct_core::limits;
use aqueduct_tls::TlsFiles;

use crate::error::ClientError;

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
    /// How long a stream that was lost is asked for again, within the request's own deadline. A
    /// server keeps what nobody reads for a minute unless it was told otherwise.
    pub resume_within: Duration,
    /// Whom to believe, and what to show, where the URL is `https://`; files that change are read
    /// again with the next connection. Plaintext if `None`.
    pub tls: Option<TlsFiles>,
    /// Sent with every call, where the server asks for one.
    pub api_key: Option<ApiKey>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_deadline: Duration::from_millis(limits::CONNECT_DEADLINE_MS),
            call_deadline: Duration::from_secs(60),
            busy_tries: 3,
            resume_within: Duration::from_millis(limits::RESUME_GRACE_MS),
            tls: None,
            api_key: None,
        }
    }
}

/// A key that the server knows. Neither `Debug` nor any error shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl FromStr for ApiKey {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let is_one = (1..=limits::API_KEY_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        let most = limits::API_KEY_BYTES_MAX;
        let bound = || format!("api_key: must be 1 to {most} visible characters");
        is_one.then(|| Self(text.into())).ok_or_else(|| ClientError::InvalidArgument(bound()))
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked_and_not_shown() {
        let key: ApiKey = "aq_1_secret".parse().unwrap();
        let options = ClientOptions { api_key: Some(key), ..ClientOptions::default() };
        assert!(!format!("{options:?}").contains("secret"));
        for bad in ["", "two words", "é", &"x".repeat(limits::API_KEY_BYTES_MAX + 1)] {
            let error = bad.parse::<ApiKey>().unwrap_err().to_string();
            assert!(error.starts_with("api_key") && !error.contains("two words"), "{error}");
        }
    }
}
