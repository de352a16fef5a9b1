//! A member whose journal is new: its group is new too, or its disk was lost. Then it has forgotten
//! whom it voted for and what it confirmed, and others may count on both.
//!
//! So it takes part in no election but a group's first, that of term 1, in which nobody has
//! anything; whoever votes there is a newborn no more. It is over where anybody leads, or has a
//! log that is not empty: another newborn's vote would make a second leader of the same term, and
//! a group that begins beside what was agreed on. Later ones are not for it: who stands in them
//! with an empty log may have been told of nothing that the newborn has forgotten.
//! It hears nobody for as long as one may lead who does not know yet that it is deposed, then it
//! follows, and when it has all that its leader knew to be agreed on, it votes.
//!
//! Of two members it votes and stands as if it had forgotten nothing: nothing was agreed on and
//! nobody was elected without the other one, which has forgotten nothing, and without which nobody
//! is elected now. When it has voted it hears who leads, but is a newborn until it has everything:
//! until then the other one's journal is the only one.

use aqueduct_core::limits;
use raft::eraftpb::{Message, MessageType};

use super::{ELECTION_TICKS, Node, TICK_MS};
use crate::log::Point;

/// By then check quorum has ended the lead of whoever led with what was lost, and what was under
/// way from before has come or been given up.
const DEAF_TICKS: u64 = 2 * ELECTION_TICKS as u64 + limits::PEER_DEADLINE_MS / TICK_MS;

/// Of a group's first election.
const FIRST_TERM: u64 = 1;

/// How far it has come.
#[derive(Debug, Default)]
pub(super) struct Newborn {
    ticks: u64,
    /// What its leader knew to be agreed on, and the leader's term.
    goal: Option<Point>,
    /// Somebody leads, or did: the first election is over.
    is_late: bool,
}

impl Newborn {
    pub(super) fn tick(&mut self) {
        self.ticks = self.ticks.saturating_add(1);
    }
}

impl Node {
    /// Whether this member may have forgotten what it promised.
    pub fn is_newborn(&self) -> bool {
        self.newborn.is_some()
    }

    /// A newborn stands in the first election only.
    pub(super) fn may_stand(&self) -> bool {
        let in_first = self.raw.raft.term + 1 == FIRST_TERM;
        let may = |newborn: &Newborn| in_first && !newborn.is_late;
        self.is_of_pair() || self.newborn.as_ref().is_none_or(may)
    }

    /// What a newborn makes of a message, whether or not it may hear it.
    pub(super) fn overhears(&mut self, message: &Message) {
        let is_leaders = matches!(
            message.msg_type,
            MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot
        );
        let is_vote = matches!(
            message.msg_type,
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
        );
        // The first entry is a leader's.
        let has_log = message.commit > 0 || (is_vote && message.index > 0);
        if is_leaders || has_log {
            self.begins_late();
        }
    }

    /// A newborn hears that others have a journal: the first election is over.
    pub(crate) fn begins_late(&mut self) {
        self.newborn.iter_mut().for_each(|newborn| newborn.is_late = true);
    }

    /// Whether a newborn must not hear `message`, or not yet.
    pub(super) fn is_too_young_for(&self, message: &Message) -> bool {
        let Some(newborn) = &self.newborn else { return false };
        match message.msg_type {
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => {
                !self.is_of_pair()
                    && (newborn.is_late
                        || message.term != FIRST_TERM
                        || self.raw.raft.raft_log.last_index() > 0)
            }
            // It would take over the term, and could not stand in the first one any more.
            MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => {
                !self.is_of_pair() && (newborn.is_late || message.reject)
            }
            MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot => {
                // Once it has voted, nobody leads in its term who led before.
                let has_voted = self.is_of_pair() && self.raw.raft.vote != 0;
                newborn.ticks < DEAF_TICKS && !has_voted
            }
            MessageType::MsgTimeoutNow => true,
            _ => false,
        }
    }

    /// What a newborn makes of a message that it may hear.
    pub(super) fn learn(&mut self, message: &mut Message) {
        let Some(newborn) = &mut self.newborn else { return };
        match message.msg_type {
            // Of entries that it had: appends will say what is agreed on of those that it has.
            MessageType::MsgHeartbeat if message.commit > self.raw.raft.raft_log.last_index() => {
                message.commit = 0;
            }
            MessageType::MsgAppend if message.term >= self.raw.raft.term => {
                newborn.goal = Some(Point { index: message.commit, term: message.term });
            }
            _ => {}
        }
    }

    fn is_of_pair(&self) -> bool {
        self.options.identity.members.len() == 2
    }

    /// Whether it is a newborn no more; to be written down.
    pub(super) fn grows_up(&mut self) -> bool {
        let Some(newborn) = &self.newborn else { return false };
        let raft = &self.raw.raft;
        let is_agreed = |goal: Point| {
            // An entry of the leader's own term: all that was agreed on in others is before it.
            goal.term == raft.term
                && self.applied.term == raft.term
                && self.applied.index >= goal.index
        };
        let was_in_first = raft.store().hard().vote != 0 && !self.is_of_pair();
        let leads = self.is_leading() && self.applied.term == raft.term;
        let is_grown = was_in_first || leads || newborn.goal.is_some_and(is_agreed);
        if is_grown {
            self.newborn = None;
        }
        is_grown
    }
}
