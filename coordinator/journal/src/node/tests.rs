//! Members of one group without disks: what is written is there. What one says arrives within a
//! tick, where nobody keeps it from the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use aqueduct_core::RequestId;
use aqueduct_core::journal::{Accepted, Outcome, Record, RecordKind};
use raft::eraftpb::MessageType;

use super::*;
use crate::config::Bounds;

struct Group {
    nodes: BTreeMap<u64, Node>,
    births: BTreeMap<u64, u64>,
    seed: u64,
    bounds: Bounds,
    under_way: VecDeque<(u64, Message)>,
    /// Who hears nobody, and is not heard.
    away: BTreeSet<u64>,
    /// So many votes that are asked for are lost.
    votes_lost: u64,
    now_ms: u64,
    /// Who has asked whether it would be voted for.
    asked: BTreeSet<u64>,
    /// After which entries members compacted their logs.
    compacted: BTreeMap<u64, Vec<u64>>,
}

impl Group {
    fn new(members: u64, seed: u64) -> Self {
        Self::within(members, seed, Bounds::default())
    }

    fn within(members: u64, seed: u64, bounds: Bounds) -> Self {
        let mut group = Self {
            nodes: BTreeMap::new(),
            births: (1..=members).map(|member| (member, member)).collect(),
            seed,
            bounds,
            under_way: VecDeque::new(),
            away: BTreeSet::new(),
            votes_lost: 0,
            now_ms: 0,
            asked: BTreeSet::new(),
            compacted: BTreeMap::new(),
        };
        (1..=members).for_each(|member| group.start(member));
        group
    }

    /// On an empty disk.
    fn start(&mut self, member: u64) {
        let identity =
            Identity { member, members: self.births.keys().copied().collect(), group: 7, named: 0 };
        let options =
            Options { identity, seed: self.seed, bounds: self.bounds, ..Options::alone() };
        let saved =
            Saved { group: 7, birth: self.births[&member], is_newborn: true, ..Saved::default() };
        self.nodes.insert(member, Node::new(options, &saved).unwrap());
    }

    fn lose_disk(&mut self, member: u64) {
        self.under_way.clear();
        *self.births.get_mut(&member).unwrap() += 100;
        self.start(member);
    }

    fn node(&mut self, member: u64) -> &mut Node {
        self.nodes.get_mut(&member).unwrap()
    }

    fn work(&mut self, member: u64) {
        let birth = self.births[&member];
        let node = self.nodes.get_mut(&member).unwrap();
        while let Some(mut work) = node.work().unwrap() {
            let now = std::mem::take(&mut work.now);
            let after = std::mem::take(&mut work.after);
            if let Some(frozen) = work.write.take().and_then(|write| write.frozen) {
                self.compacted.entry(member).or_default().push(frozen.point.index);
            }
            work.done();
            for message in now.into_iter().chain(after) {
                if message.msg_type == MessageType::MsgRequestPreVote {
                    self.asked.insert(member);
                }
                self.under_way.push_back((birth, message));
            }
        }
    }

    fn pass(&mut self) {
        self.now_ms += TICK_MS;
        let members: Vec<_> = self.births.keys().copied().collect();
        for member in members {
            let now_ms = self.now_ms;
            self.node(member).tick(now_ms);
            self.work(member);
        }
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some((birth, message)) = self.under_way.pop_front() {
            let (from, to) = (message.from, message.to);
            if self.away.contains(&from) || self.away.contains(&to) {
                continue;
            }
            if message.msg_type == MessageType::MsgRequestVote && self.votes_lost > 0 {
                self.votes_lost -= 1;
                continue;
            }
            self.node(to).hear(birth, message).unwrap();
            self.work(to);
        }
    }

    fn pass_ticks(&mut self, ticks: usize) {
        (0..ticks).for_each(|_| self.pass());
    }

    fn leader(&self) -> Option<u64> {
        let leads = |node: &Node| matches!(node.standing(), Standing::Leads { .. });
        let mut there = self.nodes.iter().filter(|(member, _)| !self.away.contains(member));
        there.find(|(_, node)| leads(node)).map(|(member, _)| *member)
    }

    /// Who leads, once somebody does.
    fn elects(&mut self) -> u64 {
        for _ in 0..400 {
            if let Some(leader) = self.leader() {
                return leader;
            }
            self.pass();
        }
        panic!("nobody leads");
    }

    fn others(&self, leader: u64) -> Vec<u64> {
        self.births.keys().copied().filter(|member| *member != leader).collect()
    }

    fn propose(&mut self, leader: u64, kind: RecordKind) {
        let record = Record { request: RequestId(7), at_ms: 1, kind };
        self.node(leader).propose(record, None).unwrap();
        self.work(leader);
        self.deliver();
    }
}

fn cancelled() -> RecordKind {
    RecordKind::Ended(Outcome::Cancelled)
}

#[test]
fn who_resigns_says_who_is_to_lead() {
    let mut group = Group::new(3, 1);
    let leader = group.elects();
    let others = group.others(leader);
    group.pass_ticks(5);
    // Nobody hears of it.
    let node = group.node(leader);
    let mut check = |tried: &[u64], want: Option<u64>| {
        assert_eq!(node.resign(tried), want);
        assert_eq!(node.raw.raft.lead_transferee, want);
    };
    check(&[], Some(others[0]));
    check(&others[..1], Some(others[1]));
    check(&others, None);
    check(&others[1..], Some(others[0]));
    assert_eq!(group.node(others[1]).resign(&[]), None, "it does not lead");
    group.work(leader);
    group.under_way.retain(|(_, message)| message.to == others[0]);
    group.pass_ticks(2);
    assert_eq!(group.leader(), Some(others[0]));
}

#[test]
fn the_lead_goes_to_who_is_there_and_has_most() {
    // Whatever raft has just counted.
    for ticks in 0..45 {
        let mut group = Group::new(3, 1);
        let leader = group.elects();
        let others = group.others(leader);
        group.pass_ticks(5 + ticks);
        // Nobody has answered since.
        let now_ms = group.now_ms + TICK_MS;
        group.node(leader).tick(now_ms);
        assert_eq!(group.node(leader).resign(&[]), Some(others[0]), "after {ticks} ticks");
    }
    let mut group = Group::new(3, 1);
    let leader = group.elects();
    let others = group.others(leader);
    group.pass_ticks(5);
    group.away.insert(others[0]);
    group.propose(leader, cancelled());
    assert_eq!(group.node(leader).resign(&[]), Some(others[1]), "it has more");
    group.node(leader).resign(&others);
    group.pass_ticks(25);
    assert_eq!(group.node(leader).resign(&others[1..]), None, "it is silent");
}

#[test]
fn who_is_about_to_go_leads_only_where_nobody_else_does() {
    for seed in 0..20 {
        let mut group = Group::new(3, seed);
        let leader = group.elects();
        let others = group.others(leader);
        group.pass_ticks(5);
        group.node(others[0]).be_reluctant();
        assert_eq!(group.node(leader).resign(&[]), Some(others[0]));
        group.work(leader);
        group.pass_ticks(30);
        assert_eq!(group.leader(), Some(leader), "nobody takes it over");
        group.away.insert(leader);
        assert_eq!(group.elects(), others[1]);

        let mut group = Group::new(3, seed);
        let leader = group.elects();
        let others = group.others(leader);
        others.iter().for_each(|other| group.node(*other).be_reluctant());
        group.away.insert(leader);
        assert!(others.contains(&group.elects()));
    }
}

#[test]
fn whoever_stands_first_is_voted_for() {
    let mut ties = 0;
    for seed in 0..40 {
        let mut group = Group::new(3, seed);
        let leader = group.elects();
        let others = group.others(leader);
        group.pass_ticks(5);
        group.away.insert(leader);
        group.asked.clear();
        let have_asked =
            |group: &Group| others.iter().filter(|it| group.asked.contains(it)).count();
        while have_asked(&group) == 0 {
            group.pass();
        }
        match have_asked(&group) {
            1 => assert!(group.leader().is_some(), "seed {seed}"),
            _ => ties += 1, // each votes for itself
        }
    }
    assert!(ties < 10, "{ties}");
}

#[test]
fn a_pair_survives_the_loss_of_a_vote() {
    for seed in 0..20 {
        let mut group = Group::new(2, seed);
        group.votes_lost = 1;
        group.elects();
        assert_eq!(group.votes_lost, 0);
    }
}

#[test]
fn a_pair_survives_the_loss_of_either_disk() {
    for (seed, leads) in (0..20).map(|seed| (seed, seed % 2 == 0)) {
        let mut group = Group::new(2, seed);
        let leader = group.elects();
        let other = group.others(leader)[0];
        group.propose(leader, RecordKind::Accepted(Box::new(Accepted::of("m", vec![1]))));
        group.pass_ticks(5);
        group.lose_disk(if leads { leader } else { other });
        let know = |node: &Node| node.state().get(RequestId(7)).is_some() && !node.is_newborn();
        let are_whole = |group: &Group| group.nodes.values().all(know);
        let done = (0..400).any(|_| {
            group.pass();
            are_whole(&group)
        });
        assert!(done, "seed {seed}");
        assert_eq!(group.nodes.values().filter(|node| node.is_leading()).count(), 1);
    }
}

/// A journal of another group is where its own was.
#[test]
fn a_newborn_that_is_told_of_another_journal_begins_none() {
    let mut group = Group::new(3, 1);
    group.nodes.values_mut().for_each(Node::begins_late);
    group.pass_ticks(200);
    assert_eq!(group.leader(), None);
    assert!(group.nodes.values().all(Node::is_newborn));
}

#[test]
fn members_compact_their_logs_one_after_another() {
    let bounds = Bounds { log_bytes: 4096, log_entries: 64, ..Bounds::default() };
    let mut group = Group::within(3, 1, bounds);
    let leader = group.elects();
    for _ in 0..100 {
        group.propose(leader, cancelled());
        group.pass();
    }
    let first: Vec<_> = group.compacted.values().map(|entries| entries[0]).collect();
    assert!(first.len() == 3 && first.is_sorted_by(|a, b| a + 3 < *b), "{first:?}");
}

/// The next leader's own clock, hours off, does not matter: it goes on with that of the last one.
#[test]
fn time_goes_on_from_what_was_written_last() {
    let at = |at_ms: u64| Record { request: RequestId(7), at_ms, kind: cancelled() };
    let write = |group: &mut Group, leader: u64, at_ms: u64| {
        group.node(leader).propose(at(at_ms), None).unwrap();
        group.work(leader);
        group.deliver();
        // All have heard how far it is agreed on.
        group.pass_ticks(5);
    };
    let clock = |group: &Group, member: u64| group.nodes[&member].clock_ms();
    let mut group = Group::new(3, 1);
    let leader = group.elects();
    group.pass_ticks(5);
    assert_eq!(clock(&group, leader), None, "nothing was written");
    let began_ms = group.now_ms;
    write(&mut group, leader, 1_000_000);
    group.pass_ticks(20);
    // What was on its way for long says nothing.
    write(&mut group, leader, 5);
    let check = |group: &Group, member: u64| {
        let passed_ms = group.now_ms - began_ms;
        let now_ms = clock(group, member).unwrap();
        let is_right = (1_000_000 + passed_ms - 250..=1_000_000 + passed_ms).contains(&now_ms);
        assert!(is_right, "member {member}: {now_ms} after {passed_ms}");
    };
    (1..=3).for_each(|member| check(&group, member));
    group.away.insert(leader);
    let next = group.elects();
    assert_ne!(next, leader);
    check(&group, next);
    // By one that was started again it is earlier, and so it is for all.
    write(&mut group, next, 1_000_300);
    let others = group.others(leader);
    for member in &others {
        let now_ms = clock(&group, *member).unwrap();
        assert!((1_000_300..1_001_000).contains(&now_ms), "member {member}: {now_ms}");
    }
    write(&mut group, next, 9_000_000);
    let told = others.iter().map(|member| clock(&group, *member));
    assert!(told.clone().all(|now_ms| now_ms >= Some(9_000_000)), "{:?}", told.collect::<Vec<_>>());
}
