//! Which of a member's words raft can take. It ends the process over some that are well formed,
//! because a healthy member never says them; one whose disk was lost, or put back, may.

use aqueduct_core::Refusal;
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};

use super::Node;
use crate::log::Point;
use crate::state::State;

/// Elections that a member may have missed. A term that is further ahead would in the end leave
/// the group without one.
const TERMS_AHEAD_MAX: u64 = 1 << 32;

impl Node {
    /// Whether raft can hear `message`, of a member to this one, as things stand here.
    ///
    /// # Errors
    /// The first field that fits nothing here.
    pub(super) fn check(&self, message: &Message) -> Result<(), Refusal> {
        let raft = &self.raw.raft;
        let most = raft.term.saturating_add(TERMS_AHEAD_MAX);
        Refusal::unless_within("term", message.term, 1, most)?;
        if message.term < raft.term {
            return Ok(()); // it is old, and raft looks no further
        }
        let last = raft.raft_log.last_index();
        let is_now = message.term == raft.term;
        match message.msg_type {
            // A newborn's leader takes it for the one that it was.
            MessageType::MsgHeartbeat if self.is_newborn() => Ok(()),
            MessageType::MsgHeartbeat => at_most("heartbeat.commit", message.commit, last),
            MessageType::MsgAppend => self.check_append(message),
            MessageType::MsgSnapshot => self.check_snapshot(message),
            MessageType::MsgAppendResponse if is_now && self.is_leading() => {
                at_most("append_answer.index", message.index, last)?;
                at_most("append_answer.reject_hint", message.reject_hint, last)
            }
            MessageType::MsgRequestVoteResponse if is_now && !message.reject => self.check_vote(),
            _ => Ok(()),
        }
    }

    /// What was agreed on is in every leader's log, as it is here.
    fn check_append(&self, message: &Message) -> Result<(), Refusal> {
        let before = Point { index: message.index, term: message.log_term };
        self.check_agreed("append.log_term", before)?;
        let entries = message.entries.iter();
        let mut points = entries.map(|entry| Point { index: entry.index, term: entry.term });
        points.try_for_each(|point| self.check_agreed("append.entries.term", point))
    }

    fn check_agreed(&self, field: &str, point: Point) -> Result<(), Refusal> {
        let log = &self.raw.raft.raft_log;
        let known = log.first_index() - 1..=log.committed;
        let ours = known.contains(&point.index).then(|| log.term(point.index));
        match ours {
            Some(Ok(term)) if term != point.term => {
                let bound = format!("{term}, as entry {} was agreed on here", point.index);
                Err(Refusal::new(field, point.term, bound))
            }
            _ => Ok(()),
        }
    }

    fn check_snapshot(&self, message: &Message) -> Result<(), Refusal> {
        let snapshot = message.get_snapshot();
        let point =
            Point { index: snapshot.get_metadata().index, term: snapshot.get_metadata().term };
        self.check_agreed("snapshot.term", point)?;
        let (committed, least) = self.raw.raft.raft_log.commit_info();
        if point.index > committed {
            Refusal::unless_within("snapshot.term", point.term, least, message.term)?;
        }
        State::decode(self.options.bounds, &snapshot.data).map(drop)
    }

    /// Nobody answers before the question is on disk, and with it all that it was asked for.
    fn check_vote(&self) -> Result<(), Refusal> {
        let raft = &self.raw.raft;
        let hard = raft.store().hard();
        if raft.state != StateRole::Candidate || (hard.term, hard.vote) == (raft.term, raft.id) {
            return Ok(());
        }
        let bound = format!("at most {}, the term of the last election asked for", hard.term);
        Err(Refusal::new("vote_answer.term", raft.term, bound))
    }
}

fn at_most(field: &str, index: u64, last: u64) -> Result<(), Refusal> {
    match index <= last {
        true => Ok(()),
        false => {
            let bound = format!("at most {last}, the last entry here: a disk was lost or put back");
            Err(Refusal::new(field, index, bound))
        }
    }
}
