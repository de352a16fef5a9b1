//! The whole protocol over real sockets, with devices that are memory of this process.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use aqueduct_core::{ChunkKey, RequestId, WireDtype};
use aqueduct_kernels::MemorySet;

use super::Direct;
use crate::in_process::{Meeting, Trouble};
use crate::link::conformance::{Rig, grpc_rig, key, set, suite, wait_for_receipt};
use crate::link::{Outcome, Parcel};

const ROOM: u64 = 1 << 30;
const LAYERS: Range<u32> = 0..8;
const PROBE: RequestId = RequestId(99);
/// Of devices that come in time.
const LONG: Duration = Duration::from_secs(30);
/// Of devices that never come.
const SHORT: Duration = Duration::from_millis(100);
const SOUND: [Trouble; 2] = [Trouble::None; 2];

/// A link to a worker whose device meets the sender's.
struct Pairing {
    rig: Rig,
    meeting: Arc<Meeting>,
}

impl Pairing {
    fn new(troubles: [Trouble; 2], patience: Duration) -> Self {
        Self::with_room(ROOM, troubles, patience)
    }

    fn with_room(inbox_bytes: u64, troubles: [Trouble; 2], patience: Duration) -> Self {
        let meeting = Arc::new(Meeting::default());
        let direct = |trouble| Some(Direct::new(meeting.fabric(trouble)).within(patience));
        Self { rig: grpc_rig(inbox_bytes, troubles.map(direct)), meeting }
    }

    /// Sends sets that nobody wants until devices have begun to exchange one; its receipt is
    /// still to come.
    fn until_begun(mut self) -> Self {
        let (deadline, probe) = (Instant::now() + LONG, Arc::new(set(1, 0)));
        let key = ChunkKey { request: PROBE, ..key(1, 0) };
        loop {
            assert!(self.rig.offer(key, 0, &probe));
            loop {
                assert!(Instant::now() < deadline, "the devices never joined");
                if self.meeting.begun() > 0 {
                    return self;
                }
                if !self.rig.link.receipts().is_empty() {
                    break;
                }
                std::thread::yield_now();
            }
        }
    }

    /// Sends layers of a chunk and finds them, bit for bit, in the inbox.
    fn check_layers(&mut self, chunk_idx: u32) {
        for layer in LAYERS {
            let (key, memory) = (key(chunk_idx, 0), Arc::new(set(9, layer)));
            assert_eq!(self.rig.send(key, layer, &memory), Outcome::Delivered);
            assert_eq!(self.rig.inbox.take(key, layer), Some(memory), "layer {layer}");
        }
    }
}

fn wait_until(meeting: &Meeting, wanted: impl Fn(&Meeting) -> bool) {
    let deadline = Instant::now() + LONG;
    while !wanted(meeting) {
        assert!(Instant::now() < deadline, "it never came to that");
        std::thread::yield_now();
    }
}

#[test]
fn conforms() {
    let meetings = RefCell::new(Vec::new());
    suite(|inbox_bytes| {
        let Pairing { mut rig, meeting } =
            Pairing::with_room(inbox_bytes, SOUND, LONG).until_begun();
        wait_for_receipt(&mut rig);
        rig.inbox.forget(PROBE);
        meetings.borrow_mut().push((meeting.clone(), meeting.moved()));
        rig
    });
    let moved = |(meeting, before): (Arc<Meeting>, usize)| meeting.moved() - before;
    let mut moved: Vec<usize> = meetings.take().into_iter().map(moved).collect();
    // The empty set and states go over gRPC, and what is not taken does not move.
    let after_a_refusal = moved.remove(7); // by a new call, whose pair may not have joined yet
    assert_eq!(moved, [8, 3, 0, 2, 1, 7, 0, 8]);
    assert!(after_a_refusal <= 1);
}

#[test]
fn sets_go_over_grpc_while_devices_join_and_if_they_never_do() {
    let check = |troubles| {
        let mut pairing = Pairing::new(troubles, SHORT);
        let deadline = Instant::now() + 3 * SHORT;
        let mut chunk_idx = 0;
        while Instant::now() < deadline {
            chunk_idx += 1;
            pairing.check_layers(chunk_idx);
        }
        assert_eq!(pairing.meeting.begun(), 0);
    };
    check([Trouble::NeverJoins, Trouble::None]);
    check([Trouble::None, Trouble::NeverJoins]);
    check([Trouble::None, Trouble::NoLibrary]);
}

#[test]
fn only_devices_of_one_kind_form_a_pair() {
    let check = |names: [Option<&'static str>; 2], groups: usize| {
        let meeting = Arc::new(Meeting::default());
        let direct = |name| Direct::new(meeting.named(name, Trouble::None));
        let rig = grpc_rig(ROOM, names.map(|name| name.map(direct)));
        Pairing { rig, meeting: meeting.clone() }.check_layers(1);
        assert_eq!(meeting.groups(), groups, "{names:?}");
    };
    check([Some("nccl-22703"), Some("nccl-22703")], 1);
    check([Some("nccl-22703"), Some("nccl-22602")], 0);
    check([Some("nccl-22703"), None], 0);
    check([None, Some("nccl-22703")], 0);
    check([None, None], 0);
}

#[test]
fn what_goes_wrong_between_devices_goes_over_grpc_and_stays_there() {
    let check = |troubles| {
        let mut pairing = Pairing::new(troubles, SHORT);
        let (deadline, mut chunk_idx) = (Instant::now() + LONG, 1);
        while pairing.meeting.begun() == 0 {
            assert!(Instant::now() < deadline, "the devices never joined");
            pairing.check_layers(chunk_idx);
            chunk_idx += 1;
        }
        wait_until(&pairing.meeting, |meeting| meeting.given_up() == 2); // at both ends
        let begun = pairing.meeting.begun();
        pairing.check_layers(chunk_idx);
        assert_eq!(pairing.meeting.begun(), begun, "the pair stays apart: {troubles:?}");
    };
    for trouble in [Trouble::NeverMoves, Trouble::Fails] {
        check([trouble, Trouble::None]);
        check([Trouble::None, trouble]);
    }
    let changes: [fn(&mut MemorySet); 6] = [
        |set| set.keys.positions.swap(0, 1),
        |set| set.keys.positions[8] = 18, // ascending still, and below end
        |set| set.keys.positions[8] = u32::MAX,
        |set| set.score[3] = f32::NAN,
        |set| set.score[3] += 1.0,
        |set| set.votes[3] = -1.0,
    ];
    for change in changes {
        check([Trouble::Changes(change), Trouble::None]);
    }
}

#[test]
fn a_peer_that_dies_between_answer_and_exchange_is_a_failure_in_time() {
    let mut pairing = Pairing::new([Trouble::None, Trouble::NeverMoves], LONG).until_begun();
    let memory = Arc::new(set(9, 1));
    assert!(pairing.rig.offer(key(1, 0), 1, &memory));
    let started = Instant::now();
    pairing.rig.peer.take().unwrap().shutdown_background();
    let probe = wait_for_receipt(&mut pairing.rig).outcome; // nobody keeps the probe
    assert!(matches!(probe, Outcome::Withdrawn | Outcome::Failed(_)), "{probe:?}");
    let outcome = wait_for_receipt(&mut pairing.rig).outcome;
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    assert!(started.elapsed() < LONG, "nobody waits for the devices' own deadline");
    wait_until(&pairing.meeting, |meeting| meeting.given_up() == 2);
    assert_eq!(Arc::strong_count(&memory), 1, "the link keeps a set that it could not send");
}

#[test]
fn a_withdrawn_set_does_not_part_the_devices() {
    let mut pairing = Pairing::new(SOUND, LONG).until_begun();
    wait_for_receipt(&mut pairing.rig);
    let deadline = Instant::now() + LONG;
    let (memory, wire) = (Weak::new(), WireDtype::F32);
    let parcel = Parcel { key: key(1, 0), layer: 0, memory, base: None, wire, deadline };
    assert!(pairing.rig.link.send(parcel).is_ok());
    assert_eq!(wait_for_receipt(&mut pairing.rig).outcome, Outcome::Withdrawn);
    let moved = pairing.meeting.moved();
    pairing.check_layers(1);
    assert_eq!(pairing.meeting.moved() - moved, LAYERS.len());
}

#[test]
fn a_link_that_is_dropped_gives_its_pair_up_at_both_ends() {
    let Pairing { rig, meeting } =
        Pairing::new([Trouble::None, Trouble::NeverMoves], LONG).until_begun();
    let Rig { link, peer: _peer, _keep, .. } = rig;
    drop(link);
    wait_until(&meeting, |meeting| meeting.given_up() == 2);
}
