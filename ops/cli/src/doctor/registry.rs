//! How the etcd is in which workers register.

use aqueduct_members::{Etcd, Health};
use futures::future::join_all;

use super::{Check, clock};

/// Asks each of the members that were named.
pub(crate) async fn look(etcd: Etcd) -> Vec<Check> {
    let looks = etcd.examine().await.into_iter().map(async |(url, health)| {
        let mut checks = vec![match health {
            Ok(health) => judge(&url, &health),
            Err(error) => {
                let next = "see whether it runs, and --etcd and its certificates; workers that \
                            were found remain meanwhile";
                Check::fail("etcd", format!("{url}: {error}"), next)
            }
        }];
        // Over TLS the clock is judged by the certificates.
        if let Some(host) = url.strip_prefix("http://") {
            checks.push(clock::look("etcd", host.trim_end_matches('/')).await);
        }
        checks
    });
    join_all(looks).await.concat()
}

fn judge(url: &str, health: &Health) -> Check {
    let Health { version, members, workers, errors, .. } = health;
    let members = match members {
        1 => "the only member".to_owned(),
        some => format!("one of {some} members"),
    };
    let found = format!("{url}: version {version}, {members}, {workers} workers registered");
    match errors.first() {
        Some(error) => {
            let next = "see `etcdctl alarm list`; NOSPACE wants a compaction and defragmentation";
            Check::fail("etcd", format!("{found}: {error}"), next)
        }
        None => Check::ok("etcd", found),
    }
}
