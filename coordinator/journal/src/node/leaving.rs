//! How a member that is about to go leaves the lead to others.

use std::cmp::Reverse;

use raft::ProgressState;
use raft::eraftpb::{Message, MessageType};

use super::{ELECTION_TICKS, Node, TICK_MS};

/// Whoever was heard within it is there. Raft's own word for that is none before it was heard
/// since the last check of the quorum, of which there is one every second.
const THERE_MS: u64 = ELECTION_TICKS as u64 * TICK_MS;

impl Node {
    /// Has another member lead, if this one does, and says which: one that is there and that was
    /// not `tried`, of these whoever has most of the journal. The others need not find out that
    /// this one goes.
    pub fn resign(&mut self, tried: &[u64]) -> Option<u64> {
        let next = self.successor(tried);
        let raft = &mut self.raw.raft;
        // While one is to take over nothing can be proposed, and nobody else takes over.
        if raft.lead_transferee.is_some_and(|transferee| Some(transferee) != next) {
            raft.abort_leader_transfer();
        }
        self.raw.transfer_leader(next?);
        next
    }

    fn successor(&self, tried: &[u64]) -> Option<u64> {
        if !self.is_leading() {
            return None;
        }
        let raft = &self.raw.raft;
        let now_ms = self.ticked_ms.unwrap_or(0);
        let is_there = |member: u64| {
            let heard_ms = self.heard_ms.get(&member);
            heard_ms.is_some_and(|heard_ms| now_ms.saturating_sub(*heard_ms) <= THERE_MS)
        };
        let may_lead =
            |member: u64| member != raft.id && !tried.contains(&member) && is_there(member);
        let others = raft.prs().iter().filter(|(member, _)| may_lead(**member));
        let best = others.max_by_key(|(member, progress)| {
            // One that is not told entries as they come has to catch up first.
            (progress.state == ProgressState::Replicate, progress.matched, Reverse(**member))
        });
        best.map(|(member, _)| *member)
    }

    /// It is about to go: from now on it takes the lead from nobody, and stands for election only
    /// where all others that could have had their turn. Not never: those may be about to go too.
    pub fn be_reluctant(&mut self) {
        self.patience.be_reluctant();
    }

    /// Whether it is to lead, and does not want to.
    pub(super) fn declines(&self, message: &Message) -> bool {
        message.msg_type == MessageType::MsgTimeoutNow && self.patience.is_reluctant()
    }
}
