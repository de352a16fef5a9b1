//! What a member of a journal's group is told when it starts.

use std::time::Duration;

use aqueduct_core::{Refusal, limits};

/// Who keeps the journal. It is written down with it: a disk that turns up elsewhere could vote
/// twice in one term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// This member; from 1.
    pub member: u64,
    /// All of them, this one too; ascending.
    pub members: Vec<u64>,
    /// Which group they are. What a new journal is made with stays with it, whatever is said
    /// later.
    pub group: u64,
    /// What they are called, and their token: a journal of others is not taken, while addresses
    /// may change. 0 where nobody asks.
    pub named: u64,
}

/// How a member keeps the journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Who it is.
    pub identity: Identity,
    /// Of the random part of when it stands for election.
    pub seed: u64,
    /// How much it keeps.
    pub bounds: Bounds,
    /// How long a record may take to be agreed on.
    pub append_deadline: Duration,
}

/// How much a journal keeps. Members must agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of requests under way.
    pub live_bytes: u64,
    /// Bytes of requests that have ended.
    pub ended_bytes: u64,
    /// How many of these.
    pub ended: usize,
    /// For how long.
    pub ended_ms: u64,
    /// Bytes of the log, if it is not to be shorter than what it comes to.
    pub log_bytes: u64,
    /// Entries of the log.
    pub log_entries: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            live_bytes: limits::JOURNAL_LIVE_BYTES_MAX,
            ended_bytes: limits::JOURNAL_ENDED_BYTES_MAX,
            ended: limits::JOURNAL_ENDED_MAX,
            ended_ms: limits::JOURNAL_ENDED_MS,
            log_bytes: limits::JOURNAL_LOG_BYTES,
            log_entries: limits::JOURNAL_LOG_ENTRIES,
        }
    }
}

impl Identity {
    /// A group of one.
    pub fn alone() -> Self {
        Self { member: 1, members: vec![1], group: 0, named: 0 }
    }

    /// Whether nobody else is in the group.
    pub fn is_alone(&self) -> bool {
        self.members.len() == 1
    }

    /// Checks that the group can work and has this member.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn validate(&self) -> Result<(), Refusal> {
        let count = self.members.len();
        Refusal::unless_within("members", count, 1, limits::JOURNAL_MEMBERS_MAX)?;
        if self.members[0] == 0 || !self.members.is_sorted_by(|a, b| a < b) {
            let members = format!("{:?}", self.members);
            return Err(Refusal::new("members", members, "ascending from 1"));
        }
        if !self.members.contains(&self.member) {
            return Err(Refusal::new("member", self.member, format!("one of {:?}", self.members)));
        }
        Ok(())
    }
}

impl Options {
    /// A coordinator of its own.
    pub fn alone() -> Self {
        Self {
            identity: Identity::alone(),
            seed: 0,
            bounds: Bounds::default(),
            append_deadline: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_whole_and_has_its_member() {
        let check = |member: u64, members: &[u64], want: &str| {
            let refused =
                Identity { member, members: members.to_vec(), group: 0, named: 0 }.validate();
            let text = refused.map_err(|refusal| refusal.to_string()).err();
            assert_eq!(text.unwrap_or_default(), want);
        };
        check(1, &[1], "");
        check(2, &[1, 2, 3], "");
        check(1, &[], "members = 0: must be between 1 and 7");
        check(0, &[0, 1], "members = [0, 1]: must be ascending from 1");
        check(1, &[1, 1], "members = [1, 1]: must be ascending from 1");
        check(4, &[1, 2], "member = 4: must be one of [1, 2]");
    }
}
