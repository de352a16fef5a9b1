//! A member among others that say anything at all: it lives on, in whatever role it is told, and
//! what it has written down is a journal.

use aqueduct_core::RequestId;
use aqueduct_core::journal::{Outcome, Record, RecordKind};
use aqueduct_journal::{Bounds, Message, MessageType, Node, State, Store, decode};
use aqueduct_proto::v1;
use aqueduct_proto::v1::peer_message::Kind;
use proptest::prelude::*;
use prost::Message as _;

use crate::disk::Disk;
use crate::options;

/// The one that is told; the others are 2 and 3.
const MEMBER: u64 = 1;

/// What it is when others begin to say anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// New, and too young to hear whoever leads.
    Deaf,
    /// New, and old enough.
    Newborn,
    Follower,
    PreCandidate,
    Candidate,
    Leader,
    HandingOver,
}

const ROLES: [Role; 7] = [
    Role::Deaf,
    Role::Newborn,
    Role::Follower,
    Role::PreCandidate,
    Role::Candidate,
    Role::Leader,
    Role::HandingOver,
];

/// What happens to it.
#[derive(Debug, Clone)]
enum Step {
    Told { from: u64, letter: v1::PeerMessage },
    Works,
    Waits,
    Proposes,
    Sent { kind: MessageType, to: u64, arrived: bool },
    Resigns,
}

struct Member {
    node: Node,
    store: Store,
    disk: Disk,
    now_ms: u64,
}

impl Member {
    fn new(role: Role) -> Self {
        let (disk, options) = (Disk::default(), options(MEMBER, 1));
        let (store, saved) = Store::open_on(disk.clone(), &options.identity, true).unwrap();
        let node = Node::new(options, &saved).unwrap();
        let mut member = Self { node, store, disk, now_ms: 0 };
        member.become_what(role);
        member
    }

    /// By what healthy members say.
    fn become_what(&mut self, role: Role) {
        if role == Role::Newborn {
            (0..50).for_each(|_| {
                self.waits();
                self.works();
            });
        }
        if role >= Role::Follower {
            self.hears(2, of(Kind::Vote, 1));
            assert!(!self.node.is_newborn(), "it has voted");
            let entries =
                [1, 1, 2, 2, 2].map(|term| v1::PeerEntry { term, record: record().into() });
            let append = of(Kind::Append, 2);
            self.hears(2, v1::PeerMessage { entries: entries.to_vec(), commit: 4, ..append });
        }
        if role >= Role::PreCandidate {
            self.waits_for(MessageType::MsgRequestPreVote);
        }
        if role >= Role::Candidate {
            self.hears(2, of(Kind::PreVoteAnswer, 3));
        }
        if role >= Role::Leader {
            self.hears(2, of(Kind::VoteAnswer, 3));
            assert!(self.node.propose(ended(), None).is_ok(), "it leads");
        }
        if role >= Role::HandingOver {
            self.hears(2, v1::PeerMessage { index: 6, ..of(Kind::AppendAnswer, 3) });
            assert_eq!(self.node.resign(&[]), Some(2));
        }
    }

    fn hears(&mut self, from: u64, letter: v1::PeerMessage) {
        assert_eq!(self.told(from, letter), Ok(()));
        self.works();
    }

    /// As it comes from a wire.
    fn told(&mut self, from: u64, letter: v1::PeerMessage) -> Result<(), String> {
        let batch = v1::PeerBatch { messages: vec![letter] }.encode_to_vec();
        let messages = decode(&batch, (from, MEMBER)).map_err(|refusal| refusal.field)?;
        let mut heard = messages.into_iter().map(|message| self.node.hear(from, message));
        heard.try_for_each(|heard| heard.map_err(|refusal| refusal.field))
    }

    fn works(&mut self) -> Vec<Message> {
        let mut sent = Vec::new();
        while let Some(mut work) = self.node.work().unwrap() {
            sent.append(&mut work.now);
            if let Some(write) = work.write.take() {
                self.store.write(&write).unwrap();
            }
            sent.append(&mut work.after);
            work.done();
        }
        sent
    }

    fn waits_for(&mut self, kind: MessageType) {
        let says = |sent: Vec<Message>| sent.iter().any(|message| message.msg_type == kind);
        assert!((0..100).any(|_| {
            self.waits();
            says(self.works())
        }));
    }

    fn waits(&mut self) {
        self.now_ms += 100;
        self.node.tick(self.now_ms);
    }

    fn does(&mut self, step: Step) {
        match step {
            Step::Told { from, letter } => drop(self.told(from, letter)),
            Step::Works => drop(self.works()),
            Step::Waits => self.waits(),
            Step::Proposes => drop(self.node.propose(ended(), None)),
            Step::Sent { kind, to, arrived } => self.node.sent(kind, to, arrived),
            Step::Resigns => drop(self.node.resign(&[])),
        }
    }
}

fn of(kind: Kind, term: u64) -> v1::PeerMessage {
    v1::PeerMessage { kind: kind.into(), term, ..v1::PeerMessage::default() }
}

fn ended() -> Record {
    Record { request: RequestId(7), at_ms: 1, kind: RecordKind::Ended(Outcome::Cancelled) }
}

fn record() -> Vec<u8> {
    v1::JournalRecord::from(ended()).encode_to_vec()
}

/// Of a term or an entry: mostly one that could be.
fn number() -> impl Strategy<Value = u64> {
    let far = [u64::MAX, u64::MAX / 2 + 1, u64::MAX / 2, 1 << 33, 1 << 31];
    prop_oneof![9 => 0..12u64, 1 => prop::sample::select(far.to_vec())]
}

fn entries() -> impl Strategy<Value = Vec<v1::PeerEntry>> {
    let entry = (number(), prop::sample::select(vec![Vec::new(), record(), vec![0xff]]));
    let entry = entry.prop_map(|(term, record)| v1::PeerEntry { term, record: record.into() });
    prop::collection::vec(entry, 0..5)
}

fn snapshot() -> impl Strategy<Value = v1::PeerSnapshot> {
    let states = vec![State::new(Bounds::default()).encode(), vec![0xff]];
    (number(), number(), prop::sample::select(states))
        .prop_map(|(index, term, state)| v1::PeerSnapshot { index, term, state: state.into() })
}

fn letter() -> impl Strategy<Value = v1::PeerMessage> {
    let numbers = (number(), number(), number(), number(), number(), number());
    let parts = (prop::bool::weighted(0.3), prop::bool::weighted(0.1), prop::bool::weighted(0.7));
    (0..=11i32, numbers, parts, entries(), snapshot()).prop_map(
        |(kind, (term, log_term, index, commit, commit_term, reject_hint), parts, entries, of)| {
            let (reject, transfer, fits) = parts;
            let is = |wanted: Kind| !fits || kind == i32::from(wanted);
            v1::PeerMessage {
                kind,
                term,
                log_term: if fits { log_term.min(term) } else { log_term },
                index,
                commit,
                commit_term: if fits { commit_term.min(term) } else { commit_term },
                entries: if is(Kind::Append) { entries } else { Vec::new() },
                snapshot: is(Kind::Snapshot).then_some(of),
                reject,
                reject_hint,
                transfer: transfer && is(Kind::Vote),
            }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let kinds = vec![MessageType::MsgSnapshot, MessageType::MsgAppend, MessageType::MsgHeartbeat];
    let sent = (prop::sample::select(kinds), 0..5u64, any::<bool>());
    prop_oneof![
        12 => (1..5u64, letter()).prop_map(|(from, letter)| Step::Told { from, letter }),
        3 => Just(Step::Works),
        3 => Just(Step::Waits),
        1 => Just(Step::Proposes),
        1 => sent.prop_map(|(kind, to, arrived)| Step::Sent { kind, to, arrived }),
        1 => Just(Step::Resigns),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn nothing_that_is_said_ends_a_member(
        role in prop::sample::select(ROLES.to_vec()),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut member = Member::new(role);
        steps.into_iter().for_each(|step| member.does(step));
        member.works();
        let Member { node, store, disk, .. } = member;
        drop((node, store));
        let options = options(MEMBER, 1);
        let (_, saved) = Store::open_on(disk, &options.identity, false).unwrap();
        Node::new(options, &saved).unwrap();
    }
}

/// It may have voted for whoever leads, and forgotten that; so may another newborn.
#[test]
fn a_newborn_that_knows_of_a_leader_is_in_no_first_election() {
    let vote = |kind| v1::PeerMessage { index: 3, log_term: 2, ..of(kind, 4) };
    let answer = v1::PeerMessage { reject: true, commit: 3, ..of(Kind::PreVoteAnswer, 1) };
    let told = [of(Kind::Heartbeat, 1), vote(Kind::Vote), vote(Kind::PreVote), answer];
    for told in std::iter::once(None).chain(told.map(Some)) {
        let knows = told.is_some();
        let mut member = Member::new(Role::Deaf);
        told.iter().for_each(|told| member.hears(2, told.clone()));
        let stands = (0..100).any(|_| {
            member.waits();
            !member.works().is_empty()
        });
        assert_eq!(stands, !knows, "{told:?}");
        let mut member = Member::new(Role::Deaf);
        told.iter().for_each(|told| member.hears(2, told.clone()));
        member.hears(3, of(Kind::Vote, 1));
        assert_eq!(member.node.is_newborn(), knows, "whoever votes is one no more");
    }
}

#[test]
fn what_fits_nothing_here_is_refused() {
    let check = |role: Role, letter: v1::PeerMessage, want: &str| {
        let told = Member::new(role).told(2, letter);
        assert_eq!(told.err().as_deref().unwrap_or_default(), want, "{role:?}");
    };
    for role in ROLES.into_iter().filter(|role| *role >= Role::Follower) {
        let far = of(Kind::Heartbeat, 1 << 40);
        check(role, far, "term");
        check(role, v1::PeerMessage { commit: 40, ..of(Kind::Heartbeat, 9) }, "heartbeat.commit");
    }
    let append = v1::PeerMessage { index: 3, log_term: 2, ..of(Kind::Append, 9) };
    check(Role::Follower, append.clone(), "");
    check(Role::Follower, v1::PeerMessage { log_term: 1, ..append.clone() }, "append.log_term");
    let entries = [3, 3].map(|term| v1::PeerEntry { term, record: record().into() }).to_vec();
    let conflict = v1::PeerMessage { entries, ..append };
    check(Role::Follower, conflict.clone(), "append.entries.term");
    let agreed = v1::PeerMessage { index: 4, ..conflict };
    check(Role::Follower, agreed, ""); // the fifth was not agreed on
    for (index, term, is_one) in
        [(4, 2, true), (4, 1, false), (6, 1, false), (6, 2, true), (2, 2, false), (2, 1, true)]
    {
        let snapshot = Some(v1::PeerSnapshot { index, term, state: Vec::new().into() });
        let want = if is_one { "" } else { "snapshot.term" };
        check(Role::Follower, v1::PeerMessage { snapshot, ..of(Kind::Snapshot, 9) }, want);
    }
    let garbage = v1::PeerSnapshot { index: 6, term: 2, state: vec![0xff].into() };
    let garbage = v1::PeerMessage { snapshot: Some(garbage), ..of(Kind::Snapshot, 9) };
    check(Role::Follower, garbage, "snapshot");
    let answer = |index| v1::PeerMessage { index, ..of(Kind::AppendAnswer, 3) };
    check(Role::Leader, answer(7), "");
    check(Role::Leader, answer(8), "append_answer.index");
    let reject = v1::PeerMessage { reject: true, reject_hint: 8, ..answer(6) };
    check(Role::Leader, reject, "append_answer.reject_hint");
}

/// A member that is told to stand, and in the same breath that it was voted for.
#[test]
fn nobody_is_voted_for_who_has_not_asked() {
    let mut member = Member::new(Role::Follower);
    let entries = vec![v1::PeerEntry { term: 2, record: record().into() }];
    let append = v1::PeerMessage { index: 5, log_term: 2, entries, ..of(Kind::Append, 2) };
    assert_eq!(member.told(2, append), Ok(()));
    assert_eq!(member.told(2, of(Kind::TimeoutNow, 2)), Ok(()));
    assert_eq!(member.told(2, of(Kind::VoteAnswer, 3)), Err("vote_answer.term".to_owned()));
    member.works();
    assert_eq!(member.told(2, of(Kind::VoteAnswer, 3)), Ok(()));
    member.works();
    assert!(member.node.propose(ended(), None).is_ok(), "it leads");
}
