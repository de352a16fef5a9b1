//! A coordinator's place in its group: how it speaks to the others, and leads.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use aqueduct_coordinator::keys::Keys;
use aqueduct_coordinator::peers::{Answers, Group, Known, Passage, Post, Unheard, serve_with};
use aqueduct_coordinator::text::TextModel;
use aqueduct_coordinator::{Candidate, Keeping};
use aqueduct_core::Addresses;
use aqueduct_journal::{Journal, Options};
use aqueduct_tls::{ClientTls, Listener, Role};
use tokio::sync::watch;

use crate::args::{ClusterTlsArgs, GroupArgs};
use crate::front::{self, Doors};

/// A member that has not joined yet.
pub(crate) struct Membership {
    pub(crate) group: Group,
    /// What they say that is not heard.
    pub(crate) unheard: Unheard,
    /// For the other members.
    listener: Listener,
    /// Where callers reach this one.
    addresses: Addresses,
    /// How other members are spoken to; plaintext if `None`.
    tls: Option<ClientTls>,
    /// Whether calls are passed on between members. Not in plaintext what callers encrypt.
    passes: bool,
}

impl Membership {
    /// Binds the address for other members; `None` where the coordinator is alone.
    ///
    /// # Errors
    /// What is no group, an address that is taken, a certificate that cannot be used.
    pub(crate) async fn open(
        args: &GroupArgs,
        tls: &ClusterTlsArgs,
        doors: &Doors,
    ) -> anyhow::Result<Option<Self>> {
        let Some(group) = args.group()? else { return Ok(None) };
        let listening = tls.listen("peers", &doors.refusals)?;
        let tcp = front::bind("peer_listen", args.listen(group.url())).await?;
        let grpc = url_of(&doors.grpc, group.url())?;
        let http = doors.http.as_ref().map(|listener| url_of(listener, group.url()));
        let http = http.transpose()?.unwrap_or_else(|| grpc.clone());
        let is_safe = doors.http.iter().chain([&doors.grpc]).any(|door| door.tls.is_some());
        Ok(Some(Self {
            addresses: args.addresses(Addresses { http, grpc }),
            passes: !is_safe || listening.is_some(),
            listener: Listener { tcp, tls: listening },
            tls: tls.dial((Role::Coordinator, "peers"), &doors.refusals)?,
            unheard: Unheard::default(),
            group,
        }))
    }

    /// Opens the journal in `folder`, and has the coordinator behind `candidate` serve whenever
    /// the others agree that it leads. What serves the others, and answers what callers ask of
    /// them, until `shutdown`.
    ///
    /// # Errors
    /// A journal that is not this member's, or addresses that are none.
    pub(crate) fn join(
        self,
        candidate: Candidate,
        folder: &Path,
        (text, keys): (Arc<TextModel>, Option<Keys>),
    ) -> anyhow::Result<impl FnOnce(Answers, front::Stop) -> front::Server + use<>> {
        let Self { group, unheard, listener, addresses, tls, passes } = self;
        let post = Post::new(group.clone(), addresses, tls.clone(), unheard.clone())?;
        let options = Options { identity: group.identity(), ..Options::alone() };
        let journal = Journal::open(folder, options, post);
        let journal = journal.with_context(|| format!("data_dir = {}", folder.display()))?;
        let ear = journal.ear();
        let (member, group_id) = (ear.member(), format!("{:016x}", ear.group()));
        tracing::info!(folder = %folder.display(), member, group_id, "joins its group");
        let (publish, known) = watch::channel(Known::default());
        let constrain = Arc::new(move |form| text.constraint("grammar", form));
        let of_group = Some(group.clone());
        let passage = Passage::new(group.clone(), ear.group(), journal.standing(), tls);
        let passage = if keys.is_none() { passage.open_to_all() } else { passage };
        let keeping = Keeping { journal, constrain, keys, group: of_group };
        let candidate = if passes { candidate.passing(passage) } else { candidate };
        candidate.stand(keeping, known);
        Ok(move |answers: Answers, stop: front::Stop| -> front::Server {
            let answers = if passes { answers } else { Answers::default() };
            Box::pin(async move {
                let (member, heard) = ((group, ear), (publish, unheard));
                let served = serve_with(answers, member, heard, listener, stop).await;
                if let Err(error) = served {
                    tracing::error!(%error, "other coordinators are not heard any more");
                }
            })
        })
    }
}

/// Where callers find `listener`: at its own address or, where it listens on all of its machine,
/// at the host by which the others know this coordinator.
fn url_of(listener: &Listener, own: &str) -> std::io::Result<String> {
    let scheme = if listener.tls.is_some() { "https" } else { "http" };
    let address = listener.tcp.local_addr()?;
    Ok(format!("{scheme}://{}", host_of(address, own)))
}

fn host_of(address: SocketAddr, own: &str) -> String {
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    let host = own.split_once("://").map_or(own, |(_, host)| host);
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let host =
        host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(host, _)| host);
    format!("{host}:{}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_find_an_address_that_is_one() {
        let check = |address: &str, own: &str, want: &str| {
            assert_eq!(host_of(address.parse().unwrap(), own), want);
        };
        check("127.0.0.1:8080", "http://c1:7072", "127.0.0.1:8080");
        check("0.0.0.0:8080", "http://c1.example:7072", "c1.example:8080");
        check("[::]:8080", "https://[fd00::1]:7072", "[fd00::1]:8080");
        check("0.0.0.0:8080", "https://c1", "c1:8080");
    }
}
