//! What a member has to do with the others.

use raft::SnapshotStatus;
use raft::eraftpb::{ConfState, Message, MessageType};

use super::Node;
use crate::config::Identity;
use crate::state::State;

impl Node {
    /// A member of the group says something. What is none of its words is dropped: raft itself
    /// knows what is old.
    pub fn hear(&mut self, mut message: Message) {
        let Identity { member, members, .. } = &self.options.identity;
        if message.to != *member || message.from == *member || !members.contains(&message.from) {
            tracing::warn!(from = message.from, to = message.to, "a message of no member");
            return;
        }
        if message.msg_type == MessageType::MsgSnapshot {
            let everybody = ConfState::from((members.clone(), Vec::new()));
            message.mut_snapshot().mut_metadata().set_conf_state(everybody);
        }
        if !self.is_sound(&message) {
            return;
        }
        if let Err(error) = self.raw.step(message) {
            tracing::debug!(%error, "a message was dropped");
        }
    }

    /// Whether raft can hear it: it ends the process over what cannot be.
    fn is_sound(&mut self, message: &Message) -> bool {
        let last = self.raw.raft.raft_log.last_index();
        match message.msg_type {
            MessageType::MsgHeartbeat if message.commit > last => {
                let (from, confirmed) = (message.from, message.commit);
                if !std::mem::replace(&mut self.is_told_of_loss, true) {
                    tracing::error!(
                        from,
                        confirmed,
                        last,
                        "this journal lacks what it has confirmed: it is not the one that it was"
                    );
                }
                false
            }
            MessageType::MsgAppendResponse => message.reject || message.index <= last,
            MessageType::MsgSnapshot => {
                let state = State::decode(self.options.bounds, &message.get_snapshot().data);
                state.inspect_err(|error| tracing::error!(%error, "no snapshot")).is_ok()
            }
            _ => true,
        }
    }

    /// A message did, or did not, come to the member that it was for. Must be said of every
    /// snapshot; of others only that they did not.
    pub fn sent(&mut self, kind: MessageType, to: u64, arrived: bool) {
        if kind == MessageType::MsgSnapshot {
            let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
            self.raw.report_snapshot(to, status);
        } else if !arrived {
            self.raw.report_unreachable(to);
        }
    }

    /// Has the member lead that has most of the journal, if this one does: the others need not
    /// find out that it goes.
    pub fn resign(&mut self) {
        let raft = &self.raw.raft;
        let others = raft.prs().iter().filter(|(member, _)| **member != raft.id);
        let there = others.filter(|(_, progress)| progress.recent_active);
        let best = there.max_by_key(|(member, progress)| (progress.matched, **member));
        if let Some(best) = best.map(|(member, _)| *member).filter(|_| self.is_leading()) {
            self.raw.transfer_leader(best);
        }
    }
}
