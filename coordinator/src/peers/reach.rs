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
    /// The other member that reaches the most workers, if any reaches one; of several the first.
    pub(crate) async fn reaches_workers(&self) -> Option<u64> {
        let asked = self.group.others().map(async |(to, url)| {
            let workers = timeout(DEADLINE, self.ask_reach(to, url)).await.ok().flatten();
            (workers.unwrap_or(0), to)
        });
        let best = join_all(asked).await.into_iter().rev().max_by_key(|(workers, _)| *workers);
        best.and_then(|(workers, to)| (workers > 0).then_some(to))
    }

    /// The other members but `one`.
    pub(crate) fn all_but(&self, one: u64) -> Vec<u64> {
        let others = self.group.others().map(|(member, _)| member);
        others.filter(|member| *member != one).collect()
    }

    async fn ask_reach(&self, to: u64, url: &str) -> Option<u32> {
        let endpoint = lane::endpoint(url, self.tls.is_some()).ok()?;
        let channel = aqueduct_tls::connect(&endpoint, self.tls.as_ref()).await.ok()?;
        let ask = ReachAsk { group: self.id, from: self.group.identity().member, to };
        let answer = CoordinatorsClient::new(channel).reach(ask).await;
        answer.ok().map(|answer| answer.into_inner().workers)
    }
}
