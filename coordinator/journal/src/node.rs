//! One member of the group without clock, disk or network. Whoever holds it brings time,
//! messages and records, and carries out its [`Work`], in order: write, then send.

mod births;
mod clock;
mod leaving;
mod newborn;
mod others;
mod patience;
mod sound;
#[cfg(test)]
mod tests;
mod volume;

use std::collections::BTreeMap;

use aqueduct_core::journal::Record;
use aqueduct_core::{Refusal, RequestId, limits};
use aqueduct_proto::v1;
use prost::Message as _;
use raft::eraftpb::{Entry as RaftEntry, Message, Snapshot};
use raft::{RawNode, Ready, StateRole};

use crate::config::{Identity, Options};
use crate::log::{Cut, Entry, Frozen, Hard, Point, Saved, Write};
use crate::logger::logger;
use crate::shelf::Shelf;
use crate::state::{Misfit, State};
use births::Births;
use newborn::Newborn;
pub use others::Member;
use patience::Patience;
use volume::Volume;

/// Raft counts time in these.
pub(crate) const TICK_MS: u64 = 50;
/// A leader is heard of so often.
const HEARTBEAT_TICKS: usize = 2;
/// A member that has not heard of a leader for this long, and a random time of at most as long
/// again, stands for election.
pub(crate) const ELECTION_TICKS: usize = 20;
/// A member that was stopped for longer has not missed that many heartbeats.
const CATCH_UP_TICKS: u64 = 4;
/// Messages of a leader that one member has not answered yet.
const MESSAGES_UNANSWERED_MAX: usize = 64;

/// What is to be done, in this order: send `now` while `write` is made safe, send `after`, and
/// say [`done`](Self::done). Meanwhile the member hears nothing; one whose work cannot be done
/// must not be used any more.
#[must_use]
pub struct Work<'a> {
    node: &'a mut Node,
    number: u64,
    /// To be on disk, flushed, before anything else; `None` where nothing is.
    pub write: Option<Write>,
    /// To be sent at once.
    pub now: Vec<Message>,
    /// Promises what is written: to be sent when that is on disk.
    pub after: Vec<Message>,
    /// Agreed on since the work before, and in the state by now.
    pub applied: Vec<Applied>,
}

impl Work<'_> {
    /// It is done: what was to be written is on disk, and flushed.
    pub fn done(self) {
        let Self { node, number, .. } = self;
        node.raw.on_persist_ready(number);
        node.raw.advance_apply_to(node.applied.index);
    }
}

/// A record that the group has agreed on, whoever proposed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Where it stands.
    pub ticket: Ticket,
    /// What it is about.
    pub request: RequestId,
    /// Whether it fitted.
    pub result: Result<(), Misfit>,
}

/// Where a proposed record will stand. If another term's stands there, it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// The index.
    pub index: u64,
    /// The term of its leader.
    pub term: u64,
}

/// How a member stands in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It leads in this term, and has everything that was agreed on before.
    Leads {
        /// The term.
        term: u64,
    },
    /// Another one does, if it knows who.
    Follows {
        /// Whoever leads.
        leader: Option<u64>,
    },
}

/// Why a record could not be proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unable {
    /// Another member leads, or none.
    #[error("this member does not lead")]
    NotLeading,
    /// Too much waits for a majority.
    #[error("too much waits for a majority")]
    Busy,
    /// Nobody could read it again: its fields are out of bounds.
    #[error("the record is out of bounds")]
    Unreadable,
}

/// A member that cannot go on: what it has been given is not what this program writes.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The group, or a record.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A record that is no record.
    #[error("entry {index} of the journal: {reason}")]
    Entry {
        /// Its place.
        index: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Raft refuses what was saved.
    #[error("raft: {0}")]
    Raft(#[from] raft::Error),
}

/// A member.
pub struct Node {
    raw: RawNode<Shelf>,
    options: Options,
    state: State,
    applied: Point,
    /// How much was applied since the last compaction.
    since: Volume,
    /// How long an election is put off.
    patience: Patience,
    ticked_ms: Option<u64>,
    /// By the journal.
    clock_ms: Option<u64>,
    /// What the last record said that is later than all before it.
    told_ms: u64,
    /// When others were heard last.
    heard_ms: BTreeMap<u64, u64>,
    births: Births,
    /// While what this member promised may have been lost.
    newborn: Option<Newborn>,
}

impl Node {
    /// A member that goes on from what it has saved.
    ///
    /// # Errors
    /// What was saved is not of this program, or does not fit together.
    pub fn new(options: Options, saved: &Saved) -> Result<Self, Broken> {
        options.identity.validate()?;
        let state = match &saved.frozen {
            Some(frozen) => State::decode(options.bounds, &frozen.data)?,
            None => State::new(options.bounds),
        };
        let applied = saved.frozen.as_ref().map_or(Point::default(), |frozen| frozen.point);
        let Identity { member, members, .. } = options.identity.clone();
        let config = raft::Config {
            id: member,
            applied: applied.index,
            election_tick: ELECTION_TICKS,
            // What is random is ours, so that a seed gives it again.
            min_election_tick: ELECTION_TICKS,
            max_election_tick: ELECTION_TICKS + 1,
            heartbeat_tick: HEARTBEAT_TICKS,
            max_size_per_msg: limits::JOURNAL_MESSAGE_BYTES,
            max_inflight_msgs: MESSAGES_UNANSWERED_MAX,
            max_uncommitted_size: limits::JOURNAL_WAITING_BYTES,
            check_quorum: true,
            pre_vote: true,
            ..raft::Config::default()
        };
        let raw = RawNode::new(&config, Shelf::new(members, saved), &logger())?;
        let seed = options.seed ^ member.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let since = Volume::default();
        let mut node = Self {
            raw,
            options,
            state,
            applied,
            since,
            patience: Patience::new(seed),
            ticked_ms: None,
            clock_ms: None,
            told_ms: 0,
            heard_ms: BTreeMap::new(),
            births: Births::default(),
            newborn: saved.is_newborn.then(Newborn::default),
        };
        node.hear_time();
        if node.options.identity.is_alone() {
            node.raw.campaign()?;
        }
        Ok(node)
    }

    /// What all that is agreed on, as far as this member knows, comes to.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Index of the last entry in it.
    pub fn applied(&self) -> u64 {
        self.applied.index
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        let raft = &self.raw.raft;
        if raft.state == StateRole::Leader && self.applied.term == raft.term {
            return Standing::Leads { term: raft.term };
        }
        let leader = (raft.leader_id != 0 && raft.leader_id != raft.id).then_some(raft.leader_id);
        Standing::Follows { leader }
    }

    /// Whether it takes records, though it may not know yet all that was agreed on before.
    pub(crate) fn is_leading(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// It is `now_ms`, on any clock that does not go back.
    pub fn tick(&mut self, now_ms: u64) {
        let ticked_ms = *self.ticked_ms.get_or_insert(now_ms);
        let ticks = now_ms.saturating_sub(ticked_ms) / TICK_MS;
        if ticks == 0 {
            return;
        }
        self.ticked_ms = Some(ticked_ms + ticks * TICK_MS);
        self.pass_time(ticks);
        (0..ticks.min(CATCH_UP_TICKS)).for_each(|_| self.tick_once());
    }

    fn tick_once(&mut self) {
        self.newborn.iter_mut().for_each(Newborn::tick);
        let raft = &self.raw.raft;
        let may_lead =
            raft.state != StateRole::Leader && raft.election_elapsed + 1 >= ELECTION_TICKS;
        if may_lead && (!self.may_stand() || self.patience.lasts()) {
            // Whoever has led was not heard for so long that another one may be voted for.
            self.raw.raft.election_elapsed = ELECTION_TICKS;
            return;
        }
        self.raw.tick();
    }

    /// Has the group agree on `record`, if this member leads in `term`, or in any if that is
    /// `None`. Where it will stand.
    ///
    /// # Errors
    /// This member does not lead, or too much waits already; a record out of bounds, which would
    /// end every journal that it stands in.
    pub fn propose(&mut self, record: Record, term: Option<u64>) -> Result<Ticket, Unable> {
        let is_now = term.is_none_or(|term| term == self.raw.raft.term);
        if !self.is_leading() || !is_now {
            return Err(Unable::NotLeading);
        }
        let wire = v1::JournalRecord::from(record);
        let data = wire.encode_to_vec();
        Record::try_from(wire).map_err(|_| Unable::Unreadable)?;
        self.raw.propose(Vec::new(), data).map_err(|_| Unable::Busy)?;
        let raft = &self.raw.raft;
        Ok(Ticket { index: raft.raft_log.last_index(), term: raft.term })
    }

    /// What is to be done next, if anything is.
    ///
    /// # Errors
    /// What was agreed on cannot be read.
    pub fn work(&mut self) -> Result<Option<Work<'_>>, Broken> {
        if !self.raw.has_ready() {
            return Ok(None);
        }
        let mut ready = self.raw.ready();
        let number = ready.number();
        let mut write = Write::default();
        if !ready.snapshot().is_empty() {
            self.restore(ready.snapshot(), &mut write)?;
        }
        let mut applied = Vec::new();
        for entry in ready.take_committed_entries() {
            applied.extend(self.apply(&entry)?);
        }
        self.raw.mut_store().append(ready.entries());
        write.entries = ready.entries().iter().map(Entry::of_raft).collect();
        write.hard = self.remember(&ready);
        write.is_grown = self.grows_up();
        let must_write = ready.must_sync() | self.compact(&mut write) | write.is_grown;
        let (now, after) = (ready.take_messages(), ready.take_persisted_messages());
        self.raw.advance_append_async(ready);
        let write = must_write.then_some(write);
        Ok(Some(Work { node: self, number, write, now, after, applied }))
    }

    /// Votes as they are; how far entries are agreed on is written when something else is, since
    /// the group finds it out again.
    fn remember(&mut self, ready: &Ready) -> Hard {
        let shelf = self.raw.mut_store();
        if let Some(hard) = ready.hs() {
            shelf.set_hard(Hard::of_raft(hard));
        }
        let hard = shelf.hard();
        Hard { commit: hard.commit.max(self.applied.index), ..hard }
    }

    /// The leader has cut off what this member lacks, and sends what it comes to.
    fn restore(&mut self, snapshot: &Snapshot, write: &mut Write) -> Result<(), Broken> {
        self.state = State::decode(self.options.bounds, &snapshot.data)?;
        let metadata = snapshot.get_metadata();
        self.applied = Point { index: metadata.index, term: metadata.term };
        self.hear_time();
        self.since = Volume::default();
        let frozen = Frozen { point: self.applied, data: snapshot.data.clone() };
        let cut = Cut { point: self.applied, all: true };
        let shelf = self.raw.mut_store();
        shelf.freeze(frozen.clone());
        shelf.compact(cut);
        (write.frozen, write.cut) = (Some(frozen), Some(cut));
        Ok(())
    }

    /// `None` for the mark at the beginning of a term.
    fn apply(&mut self, entry: &RaftEntry) -> Result<Option<Applied>, Broken> {
        let (index, term) = (entry.index, entry.term);
        self.applied = Point { index, term };
        self.since.entries += 1;
        self.since.bytes += entry.data.len() as u64;
        if entry.data.is_empty() {
            return Ok(None);
        }
        let broken = |reason: String| Broken::Entry { index, reason };
        let wire = v1::JournalRecord::decode(entry.data.as_ref());
        let wire = wire.map_err(|error| broken(error.to_string()))?;
        let record = Record::try_from(wire).map_err(|refusal| broken(refusal.to_string()))?;
        let request = record.request;
        let result = self.state.apply(record);
        self.hear_time();
        Ok(Some(Applied { ticket: Ticket { index, term }, request, result }))
    }

    /// Puts what the log comes to in its place, if it is long. Whether it does.
    fn compact(&mut self, write: &mut Write) -> bool {
        let bounds = self.options.bounds;
        let bytes = bounds.log_bytes.max(self.state.bytes());
        if self.since.cost(&bounds) < bytes + self.later_by(bytes) || write.frozen.is_some() {
            return false;
        }
        self.since = Volume::default();
        let frozen = Frozen { point: self.applied, data: self.state.encode() };
        let last = self.cut_at(bytes);
        let shelf = self.raw.mut_store();
        shelf.freeze(frozen.clone());
        write.frozen = Some(frozen);
        if let Some(point) = shelf.point(last).filter(|point| *point != shelf.cut()) {
            let cut = Cut { point, all: false };
            shelf.compact(cut);
            write.cut = Some(cut);
        }
        true
    }

    /// A member promises nothing while it writes all of that, so not all of them do at one entry.
    fn later_by(&self, bytes: u64) -> u64 {
        let Identity { member, members, .. } = &self.options.identity;
        let before = members.iter().filter(|other| *other < member).count();
        bytes / 2 / members.len() as u64 * before as u64
    }

    /// The last entry that may go: what a member that is there still lacks stays, unless that
    /// is more than a snapshot.
    fn cut_at(&self, bytes: u64) -> u64 {
        let raft = &self.raw.raft;
        let shelf = raft.store();
        if raft.state != StateRole::Leader || shelf.bytes() > bytes.saturating_mul(2) {
            return self.applied.index;
        }
        let there = raft.prs().iter().filter(|(_, progress)| progress.recent_active);
        let slowest = there.map(|(_, progress)| progress.matched).min();
        slowest.unwrap_or(u64::MAX).clamp(shelf.cut().index, self.applied.index)
    }
}
