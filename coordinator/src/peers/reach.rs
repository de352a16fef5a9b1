//! Which member reaches workers: asked by one that leads and has none.

use std::time::Duration;

use aqueduct_core::limits;
use aqueduct_proto::v1::ReachAsk;
use aqueduct_proto::v1::coordinators_client::CoordinatorsClient;
use futures::future::join_all;
use tokio::time::timeout;

use super::{Passage, lane};

/// How long a member may take to connect, to try and to answer.
const DEADLINE: Duration = Duration::from_millis(2 * limits::PEER_DEADLINE_MS);

impl Passage {
    /// The other members that reach workers, and those that reach none or do not say.
    pub(crate) async fn reaches_workers(&self) -> (Vec<u64>, Vec<u64>) {
        let asked = self.group.others().map(async |(to, url)| {
            let workers = timeout(DEADLINE, self.ask_reach(to, url)).await.ok().flatten();
            (to, workers.unwrap_or(0))
        });
        let (some, none): (Vec<_>, Vec<_>) =
            join_all(asked).await.into_iter().partition(|(_, workers)| *workers > 0);
        let names = |members: Vec<(u64, u32)>| members.into_iter().map(|(to, _)| to).collect();
        (names(some), names(none))
    }

    async fn ask_reach(&self, to: u64, url: &str) -> Option<u32> {
        let endpoint = lane::endpoint(url, self.tls.is_some()).ok()?;
        let channel = aqueduct_tls::connect(&endpoint, self.tls.as_ref()).await.ok()?;
        let ask = ReachAsk { group: self.id, from: self.group.identity().member, to };
        let answer = CoordinatorsClient::new(channel).reach(ask).await;
        answer.ok().map(|answer| answer.into_inner().workers)
    }
}
