//! What coordinators of one group tell each other of themselves.

use crate::{Refusal, limits};

/// Where callers reach a coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// Its HTTP API, as `http://host:port`, or https.
    pub http: String,
    /// Its gRPC API.
    pub grpc: String,
}

impl Addresses {
    /// Checks that callers can be told of both.
    ///
    /// # Errors
    /// One that is no URL of a host, or is too long.
    pub fn validate(&self) -> Result<(), Refusal> {
        for (field, url) in [("http", &self.http), ("grpc", &self.grpc)] {
            if !is_address(url) {
                let most = limits::ADDRESS_BYTES_MAX;
                let bound =
                    format!("http://host:port or https://host:port of at most {most} bytes");
                return Err(Refusal::new(field, url, bound));
            }
        }
        Ok(())
    }
}

/// In what a coordinator of a group gives work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// Its group.
    pub group: u64,
    /// The term of the group in which it leads; a later one has another leader.
    pub term: u64,
}

/// Whether `url` is a scheme and a host, and nothing after them.
pub fn is_address(url: &str) -> bool {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let is_visible = |byte: u8| byte.is_ascii_graphic() && !b"/?#@\"\\".contains(&byte);
    url.len() <= limits::ADDRESS_BYTES_MAX
        && host.is_some_and(|host| !host.is_empty() && host.bytes().all(is_visible))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_and_a_host() {
        let check = |url: &str, want: bool| {
            let good = "http://127.0.0.1:8080".to_owned();
            let addresses = Addresses { http: good, grpc: url.to_owned() };
            let refused = addresses.validate().err();
            assert_eq!(
                refused.as_ref().map(|refusal| refusal.field.as_str()),
                match want {
                    true => None,
                    false => Some("grpc"),
                }
            );
        };
        check("https://c1.example:7070", true);
        check("http://[::1]:7070", true);
        check("", false);
        check("http://", false);
        check("c1.example:7070", false);
        check("http://c1.example/path", false);
        check("http://user@c1.example", false);
        check("http://c1\r\nx: y", false);
        check(&format!("http://{}", "c".repeat(limits::ADDRESS_BYTES_MAX)), false);
    }
}
