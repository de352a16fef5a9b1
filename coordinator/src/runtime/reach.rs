//! Whether workers are reached from here. A coordinator that leads and has none for some time asks
//! the other members; one that reaches any leads better.

use std::collections::BTreeSet;
use std::time::Duration;

use aqueduct_core::limits;
use axum::http::Uri;
use futures::future::join_all;
use tokio::time::timeout;

use super::Coordinator;

/// Workers that are tried: one is enough, and no cluster is knocked at as a whole.
const TRIED_MAX: usize = 16;
/// How long a connection may take: one lost packet costs a second.
const DEADLINE: Duration = Duration::from_millis(limits::PEER_DEADLINE_MS);

impl Coordinator {
    /// How many workers accept a connection from here, of some that it is told of; none where it
    /// is about to go. Whether they would work for it is not asked.
    pub(crate) async fn workers_reached(&self) -> u32 {
        if self.is_leaving() || !self.is_open() {
            return 0;
        }
        let urls = self.roll.as_ref().map(|roll| roll.borrow().clone());
        reached(&urls.unwrap_or_default()).await
    }
}

/// The same of the workers at `urls`.
pub(super) async fn reached(urls: &BTreeSet<String>) -> u32 {
    // All members try the same, spread over the names, which may be those of racks.
    let every = urls.len().div_ceil(TRIED_MAX).max(1);
    let tried = urls.iter().step_by(every).map(|url| accepts(url));
    join_all(tried).await.into_iter().map(u32::from).sum()
}

async fn accepts(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    // By the addresses that sessions are opened to.
    matches!(timeout(DEADLINE, aqueduct_tls::dial(host, port)).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn those_that_accept_a_connection_are_counted() {
        let open = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let urls = [&open, &closed].map(|it| format!("http://{}", it.local_addr().unwrap()));
        drop(closed);
        let check = async |urls: &[&str], want: u32| {
            let urls = urls.iter().map(|&url| url.to_owned()).collect();
            assert_eq!(reached(&urls).await, want, "{urls:?}");
        };
        check(&[], 0).await;
        check(&[&urls[0]], 1).await;
        check(&[&urls[0], &urls[1], "http://[::1]:1", "nothing"], 1).await;
    }
}
