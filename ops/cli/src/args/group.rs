//! Coordinators that keep one journal.

use aqueduct_coordinator::peers::Group;
use aqueduct_core::{Addresses, Refusal};
use clap::Args;

/// A group of coordinators, in the words of etcd's flags where these say the same.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GroupArgs {
    /// Name of this coordinator among those of --peers
    #[arg(
        long,
        visible_alias = "name",
        value_name = "NAME",
        env = "AQUEDUCT_ID",
        hide_env_values = true,
        requires = "peers"
    )]
    id: Option<String>,
    /// Coordinators that keep one journal, this one too, each as NAME=http://host:port (https
    /// where --cluster-tls-cert is given), separated by commas; all are told the same. One of them
    /// leads; three survive the loss of one [default: this coordinator is alone]
    #[arg(long, visible_alias = "initial-cluster", value_name = "NAME=URL", env = "AQUEDUCT_PEERS",
          hide_env_values = true, value_delimiter = ',', num_args = 1..,
          requires_all = ["id", "data_dir"])]
    peers: Vec<String>,
    /// Tells the group from others that have, or had, the same members; new journals in the place
    /// of lost ones want another one
    #[arg(
        long,
        visible_alias = "initial-cluster-token",
        value_name = "WORD",
        env = "AQUEDUCT_CLUSTER_TOKEN",
        hide_env_values = true,
        default_value = "aqueduct"
    )]
    cluster_token: String,
    /// Address to listen on for other coordinators [default: that of this one's URL in --peers]
    #[arg(
        long,
        value_name = "ADDR",
        env = "AQUEDUCT_PEER_LISTEN",
        hide_env_values = true,
        requires = "peers"
    )]
    peer_listen: Option<String>,
    /// Where callers of the HTTP API reach this coordinator, whom another one sends here [default:
    /// the address of --http, or its port at the host of this one's URL in --peers]
    #[arg(
        long,
        value_name = "URL",
        env = "AQUEDUCT_ADVERTISE_HTTP",
        hide_env_values = true,
        requires = "peers"
    )]
    advertise_http: Option<String>,
    /// The same of the gRPC API
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
