//! What other members said that was not heard, and why.

use aqueduct_core::Refusal;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Why it was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Of another group.
    Group,
    /// Of no other member, or for none that is here.
    Member,
    /// It is nothing that a member says.
    Form,
    /// It does not fit what this member knows to be agreed on: a disk was lost or put back.
    State,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counts of it. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Unheard(Family<ReasonLabel, Counter>);

impl Reason {
    fn label(self) -> ReasonLabel {
        let reason = match self {
            Self::Group => "group",
            Self::Member => "member",
            Self::Form => "form",
            Self::State => "state",
        };
        ReasonLabel { reason }
    }
}

impl Unheard {
    /// How often there was this reason.
    pub fn of(&self, reason: Reason) -> u64 {
        self.0.get_or_create(&reason.label()).get()
    }

    /// Has them shown.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Calls and messages of other coordinators that were refused";
        registry.register("peer_messages_refused", help, self.0.clone());
    }

    /// Counts one of `from`. The first of a kind is logged for everybody to see, others for those
    /// who look for them.
    pub(super) fn count(&self, why: Reason, from: u64, refusal: &Refusal) {
        if self.0.get_or_create(&why.label()).inc() == 0 {
            tracing::warn!(?why, from, %refusal, "another coordinator was not heard; more like it \
                are counted and logged as debug");
        } else {
            tracing::debug!(?why, from, %refusal, "another coordinator was not heard");
        }
    }
}
