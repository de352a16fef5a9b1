//! Under which names a server answers that only this machine reaches, and that asks for no keys:
//! a page may have its own name lead here, and is then, to a browser, a page of this server.

use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::origins::is_address;
use super::{ApiError, ApiState, Origins, body};

/// Names under these are registered by nobody: a machine's own, its network's, a container's host.
const UNREGISTERED: [&str; 3] = ["localhost", "local", "internal"];

/// Whether who listens at `address` is reached from this machine alone.
pub(super) fn is_of_this_machine(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Turns calls away that name the server as somebody else may have.
pub(super) async fn of_this_machine(
    State(state): State<ApiState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let origins = &state.0.options.origins;
    // A browser always says one; who says none is no page.
    let mut said = request.headers().get_all(header::HOST).iter();
    let Some(host) = said.find(|host| !may_name(host, origins)).cloned() else {
        return Ok(next.run(request).await);
    };
    body::pass_over_request(request, &state.0.options).await;
    let message = format!(
        "{host:?} may be a web page's own name for this machine: what listens on a loopback \
         address and asks for no keys answers to addresses, to localhost, and to the hosts of \
         --allowed-origins"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, message))
}

/// Whether a server of this machine answers where it is called `host`.
fn may_name(host: &HeaderValue, origins: &Origins) -> bool {
    let authority = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    let Some(authority) = authority else { return false };
    let name = authority.host().to_ascii_lowercase();
    is_address(&name) || is_unregistered(&name) || origins.are_at(&name)
}

/// Whether nobody can have registered `name`, and so say where it leads. What ends with a number is
/// an address to whoever resolves it, such as 127.1.
fn is_unregistered(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit_once('.').map(|(_, last)| last);
    let is_number = |last: &str| last.bytes().all(|byte| byte.is_ascii_digit());
    last.is_none_or(|last| is_number(last) || UNREGISTERED.contains(&last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_somebody_may_have_registered_are_not_answered() {
        let check = |origins: &str, host: &str, want: bool| {
            let header = HeaderValue::from_str(host).unwrap();
            assert_eq!(may_name(&header, &origins.parse().unwrap()), want, "{origins} {host}");
        };
        let listed = "https://chat.example,http://a.example:8080,http://[::1]:3000";
        for (origins, host, want) in [
            ("local", "127.0.0.1:8080", true),
            ("local", "127.1.2.3", true),
            ("local", "127.1:8080", true),
            ("local", "[::1]:8080", true),
            ("local", "192.168.1.7:8080", true),
            ("local", "localhost", true),
            ("local", "LocalHost:8080", true),
            ("local", "localhost.:8080", true),
            ("local", "app.localhost:8080", true),
            ("local", "workstation:8080", true),
            ("local", "workstation.local:8080", true),
            ("local", "host.docker.internal:8080", true),
            ("local", "rebound.example:8080", false),
            ("local", "rebound.example.", false),
            ("local", "localhost.rebound.example", false),
            ("local", "127.0.0.1.rebound.example:8080", false),
            ("local", "mylocalhost.example", false),
            ("local", "chat.example", false),
            ("local", "", false),
            ("local", "a b", false),
            ("none", "rebound.example", false),
            (listed, "chat.example", true),
            (listed, "Chat.Example:9000", true),
            (listed, "a.example", true),
            (listed, "b.a.example", false),
            ("*", "rebound.example", true),
        ] {
            check(origins, host, want);
        }
    }

    #[test]
    fn loopback_addresses_are_of_this_machine_alone() {
        for (address, want) in [
            ("127.0.0.1:80", true),
            ("127.9.9.9:80", true),
            ("[::1]:80", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("0.0.0.0:80", false),
            ("[::]:80", false),
            ("10.0.0.1:80", false),
        ] {
            assert_eq!(is_of_this_machine(address.parse().unwrap()), want, "{address}");
        }
    }
}
