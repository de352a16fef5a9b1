//! Which web pages may call: a browser asks before a page of one origin may call another.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use aqueduct_core::Refusal;
use axum::http::{HeaderName, HeaderValue, Method, Uri, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::stream::ANSWER_ID;
use crate::request_id::REQUEST_ID;

/// How long a browser may go by an answer.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Hosts of the machine that a browser runs on.
const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
/// What a list of origins may say.
const BOUND: &str = "local, none, * or origins like https://chat.example:8443, separated by commas";

/// Origins whose pages may call the API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origins {
    /// Those of the machine that the browser runs on, at any port.
    #[default]
    Local,
    /// All.
    Any,
    /// These, as browsers write them.
    Listed(Vec<HeaderValue>),
}

impl Origins {
    /// Whether a page of `origin` may have something done here. A page of this server itself may
    /// where it was named by its address: a name may have been made to lead here by the page that
    /// is asking.
    pub(super) fn may_call(&self, origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
        let is_own = || {
            let parsed = uri(origin);
            let authority = parsed.as_ref().and_then(Uri::authority);
            let same = authority.filter(|own| host.is_some_and(|host| host == own.as_str()));
            same.is_some_and(|own| is_address(own.host()))
        };
        match self {
            Self::Local => is_local(origin) || is_own(),
            Self::Any => true,
            Self::Listed(origins) => origins.contains(origin) || is_own(),
        }
    }

    /// Whether pages that may call are of `host`, in small letters, at whatever port.
    pub(super) fn are_at(&self, host: &str) -> bool {
        let is_it =
            |origin: &HeaderValue| uri(origin).is_some_and(|origin| origin.host() == Some(host));
        match self {
            Self::Local => false,
            Self::Any => true,
            Self::Listed(origins) => origins.iter().any(is_it),
        }
    }

    /// What tells browsers.
    pub(super) fn layer(&self) -> CorsLayer {
        let allowed = match self {
            Self::Local => AllowOrigin::predicate(|origin, _| is_local(origin)),
            Self::Any => AllowOrigin::any(),
            Self::Listed(origins) => AllowOrigin::list(origins.iter().cloned()),
        };
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            // Clients send names of their own making.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([
                HeaderName::from_static(REQUEST_ID),
                HeaderName::from_static(ANSWER_ID),
                header::RETRY_AFTER,
            ])
            .max_age(REMEMBERED)
    }
}

/// Whether a host, as URLs have it, is an address and no name.
pub(super) fn is_address(host: &str) -> bool {
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

fn uri(origin: &HeaderValue) -> Option<Uri> {
    origin.to_str().ok()?.parse().ok()
}

fn is_local(origin: &HeaderValue) -> bool {
    let is_local = |origin: Uri| {
        let scheme = origin.scheme_str().is_some_and(|scheme| ["http", "https"].contains(&scheme));
        scheme && origin.host().is_some_and(|host| LOCAL_HOSTS.contains(&host))
    };
    uri(origin).is_some_and(is_local)
}

impl FromStr for Origins {
    type Err = Refusal;

    fn from_str(words: &str) -> Result<Self, Refusal> {
        match words {
            "local" => Ok(Self::Local),
            "none" => Ok(Self::Listed(Vec::new())),
            "*" => Ok(Self::Any),
            _ => words.split(',').map(origin).collect::<Result<_, _>>().map(Self::Listed),
        }
    }
}

/// One origin, as browsers write it: in small letters, without the port that goes without saying.
fn origin(word: &str) -> Result<HeaderValue, Refusal> {
    let refusal = || Refusal::new("allowed_origins", word, BOUND);
    let origin = word.trim().trim_end_matches('/').to_ascii_lowercase();
    let (scheme, host) = origin.split_once("://").ok_or_else(refusal)?;
    let uri: Uri = origin.parse().map_err(|_| refusal())?;
    if host.contains(['/', '?', '#', '@', '*']) || uri.host().is_none_or(str::is_empty) {
        return Err(refusal());
    }
    let unsaid = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => "",
    };
    let host = host.strip_suffix(unsaid).unwrap_or(host);
    HeaderValue::try_from(format!("{scheme}://{host}")).map_err(|_| refusal())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_lists_are_read() {
        let check = |words: &str, want: &[&str]| {
            let want = want.iter().map(|origin| HeaderValue::from_str(origin).unwrap()).collect();
            assert_eq!(words.parse::<Origins>().unwrap(), Origins::Listed(want), "{words}");
        };
        assert_eq!("local".parse::<Origins>().unwrap(), Origins::Local);
        assert_eq!("*".parse::<Origins>().unwrap(), Origins::Any);
        check("none", &[]);
        check("https://chat.example", &["https://chat.example"]);
        check(
            "HTTPS://Chat.Example:443/, http://a:8080",
            &["https://chat.example", "http://a:8080"],
        );
        check("http://a:80,https://a:80", &["http://a", "https://a:80"]);
        check("http://[::1]:3000", &["http://[::1]:3000"]);
        check("tauri://localhost,app://obsidian.md", &["tauri://localhost", "app://obsidian.md"]);
    }

    #[test]
    fn what_is_no_origin_is_refused_by_name() {
        for words in [
            "",
            "chat.example",
            "https://",
            "https://a/b",
            "https://a?b",
            "https://me@a",
            "https://*.example",
            "https://a,",
            "https://a,*",
            "local,https://a",
            "https://a b",
        ] {
            let refusal = words.parse::<Origins>().unwrap_err();
            assert_eq!(refusal.field, "allowed_origins", "{words}");
        }
    }

    #[test]
    fn pages_of_this_machine_are_known() {
        let check = |origin: &'static str, want: bool| {
            assert_eq!(is_local(&HeaderValue::from_static(origin)), want, "{origin}");
        };
        check("http://localhost", true);
        check("http://localhost:5173", true);
        check("https://127.0.0.1:8443", true);
        check("http://[::1]:3000", true);
        check("http://localhost.example", false);
        check("http://example/localhost", false);
        check("http://localhost@example", false);
        check("https://example.com", false);
        check("ftp://localhost", false);
        check("null", false);
    }
}
