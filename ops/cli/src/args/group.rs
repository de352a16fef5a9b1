//! Coordinators that keep one journal.

use aqueduct_coordinator::peers::Group;
use aqueduct_core::{Addresses, Refusal};
use clap::Args;

/// A group of coordinators, in the words of etcd's flags where these say the same.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GroupArgs {
    /// Name of this coordinator in --peers
    #[arg(
        long,
        visible_alias = "name",
        value_name = "NAME",
        env = "AQUEDUCT_ID",
        hide_env_values = true,
        requires = "peers"
    )]
    id: Option<String>,
    /// All coordinators of the group, this one included, as NAME=http://host:port (https with
    /// --cluster-tls-cert), separated by commas; the same on each. They keep one journal, and one
    /// of them leads; three survive the loss of one [default: a single coordinator]
    #[arg(long, visible_alias = "initial-cluster", value_name = "NAME=URL", env = "AQUEDUCT_PEERS",
          hide_env_values = true, value_delimiter = ',', num_args = 1..,
          requires_all = ["id", "data_dir"])]
    peers: Vec<String>,
    /// Token that tells the group from others with the same members; choose another one to start
    /// again with empty journals
    #[arg(
        long,
        visible_alias = "initial-cluster-token",
        value_name = "WORD",
        env = "AQUEDUCT_CLUSTER_TOKEN",
        hide_env_values = true,
        default_value = "aqueduct"
    )]
    cluster_token: String,
    /// Listen address for other coordinators [default: the address of this one's URL in --peers]
    #[arg(
        long,
        value_name = "ADDR",
        env = "AQUEDUCT_PEER_LISTEN",
        hide_env_values = true,
        requires = "peers"
    )]
    peer_listen: Option<String>,
    /// URL of this coordinator's HTTP API, to which other coordinators redirect callers [default:
    /// the address of --http, or its port at the host of this one's URL in --peers]
    #[arg(
        long,
        value_name = "URL",
        env = "AQUEDUCT_ADVERTISE_HTTP",
        hide_env_values = true,
        requires = "peers"
    )]
    advertise_http: Option<String>,
    /// URL of this coordinator's gRPC API, likewise [default: as above, from --grpc]
    #[arg(
        long,
        value_name = "URL",
        env = "AQUEDUCT_ADVERTISE_GRPC",
        hide_env_values = true,
        requires = "peers"
    )]
    advertise_grpc: Option<String>,
}

impl GroupArgs {
    /// `None` where the coordinator is alone.
    ///
    /// # Errors
    /// What is no group, or does not have this coordinator.
    pub(crate) fn group(&self) -> Result<Option<Group>, Refusal> {
        let Some(id) = self.id.as_ref().filter(|_| !self.peers.is_empty()) else {
            return Ok(None);
        };
        Group::new(id, &self.peers, &self.cluster_token).map(Some)
    }

    /// Where a member at `url` listens.
    pub(crate) fn listen<'a>(&'a self, url: &'a str) -> &'a str {
        let host = url.split_once("://").map_or(url, |(_, host)| host);
        self.peer_listen.as_deref().unwrap_or(host)
    }

    /// Where callers reach a coordinator that would be found at `bound`.
    pub(crate) fn addresses(&self, bound: Addresses) -> Addresses {
        Addresses {
            http: self.advertise_http.clone().unwrap_or(bound.http),
            grpc: self.advertise_grpc.clone().unwrap_or(bound.grpc),
        }
    }
}
