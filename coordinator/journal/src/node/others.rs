//! What a member has to do with the others.

use aqueduct_core::Refusal;
use raft::SnapshotStatus;
use raft::eraftpb::{ConfState, Message, MessageType};

use super::Node;
use super::births::Whose;
use crate::config::Identity;

/// A member of a group, as its leader knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub member: u64,
    /// Whether it is the leader itself.
    pub leads: bool,
    /// For how long nothing was heard of it; `None`: since this process began.
    pub silent_ms: Option<u64>,
    /// Entries of the log that it has not confirmed.
    pub entries_behind: u64,
}

impl Node {
    /// A member of the group, whose journal has this birth, says something. What is old raft
    /// itself knows.
    ///
    /// # Errors
    /// It is of no member, or fits nothing that is here; nothing of it is heard.
    pub fn hear(&mut self, birth: u64, mut message: Message) -> Result<(), Refusal> {
        let Identity { member, members, .. } = &self.options.identity;
        if message.to != *member || message.from == *member || !members.contains(&message.from) {
            let value = format_args!("{}, {}", message.from, message.to);
            let bound = format!("another one of {members:?}, and {member}");
            return Err(Refusal::new("from, to", value, bound));
        }
        if message.msg_type == MessageType::MsgSnapshot {
            let everybody = ConfState::from((members.clone(), Vec::new()));
            message.mut_snapshot().mut_metadata().set_conf_state(everybody);
        }
        match self.births.note(message.from, birth) {
            Whose::Known => {}
            Whose::Reborn => self.forget(message.from),
            Whose::Gone { kept, is_first } => {
                if is_first {
                    warn_of_two(message.from, birth, kept);
                }
                let bound = "that of a journal that is not lost";
                return Err(Refusal::new("birth", format_args!("{birth:016x}"), bound));
            }
        }
        self.heard_ms.insert(message.from, self.ticked_ms.unwrap_or(0));
        self.overhears(&message);
        if self.is_too_young_for(&message) || self.declines(&message) {
            return Ok(());
        }
        self.check(&message)?;
        self.learn(&mut message);
        if let Err(error) = self.raw.step(message) {
            tracing::debug!(%error, "a message was dropped");
        }
        Ok(())
    }

    /// What `member` confirmed is lost, and its disk with it: it is told everything again.
    fn forget(&mut self, member: u64) {
        tracing::warn!(member, "a coordinator has lost its journal, and begins with an empty one");
        if let Some(progress) = self.raw.raft.mut_prs().get_mut(member) {
            progress.matched = 0;
            progress.snapshot_failure();
            progress.become_probe();
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

    /// All members as this one knows them, if it leads; nothing otherwise.
    pub fn members(&self) -> Vec<Member> {
        let raft = &self.raw.raft;
        let now_ms = self.ticked_ms.unwrap_or(0);
        let last = raft.raft_log.last_index();
        let seen = |(member, progress): (&u64, &raft::Progress)| {
            let leads = *member == raft.id;
            let heard_ms = if leads { Some(now_ms) } else { self.heard_ms.get(member).copied() };
            Member {
                member: *member,
                leads,
                silent_ms: heard_ms.map(|heard_ms| now_ms.saturating_sub(heard_ms)),
                entries_behind: last.saturating_sub(progress.matched),
            }
        };
        let mut members = match self.is_leading() {
            true => raft.prs().iter().map(seen).collect(),
            false => Vec::new(),
        };
        members.sort_unstable_by_key(|seen| seen.member);
        members
    }

    /// Stops leading, in favour of nobody: who was silent for so long that another one leads, or
    /// soon will, does not go on in its term.
    pub fn abdicate(&mut self) {
        if self.is_leading() {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, raft::INVALID_ID);
        }
    }
}

/// Once for each journal: whatever was under way says no more, a second member goes on.
fn warn_of_two(member: u64, birth: u64, kept: u64) {
    tracing::warn!(
        member,
        birth = format_args!("{birth:016x}"),
        kept = format_args!("{kept:016x}"),
        "a coordinator's journal that is lost says something: if it goes on, two have one number"
    );
}
