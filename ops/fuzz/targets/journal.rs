//! The journal: any bytes are records, a snapshot, or what another coordinator says, or refused;
//! whatever records come, what they come to survives being written down, and whatever another
//! coordinator says, a member lives on.
#![no_main]
#![forbid(unsafe_code)]

use aqueduct_core::journal::Record;
use aqueduct_journal::{
    Bounds, Identity, Message as Said, Node, Options, Saved, State, decode, encode,
};
use aqueduct_proto::convert::peers::Gathering;
use aqueduct_proto::v1;
use libfuzzer_sys::fuzz_target;
use prost::Message;

/// Small, so that little input reaches them.
const BOUNDS: Bounds = Bounds {
    live_bytes: 20_000,
    ended_bytes: 4_000,
    ended: 3,
    ended_ms: 1_000,
    log_bytes: 1,
    log_entries: 1,
};

fuzz_target!(|input: &[u8]| {
    if let Ok(state) = State::decode(BOUNDS, input) {
        survives(&state);
    }
    let mut state = State::new(BOUNDS);
    let mut rest = input;
    while let Ok(wire) = v1::JournalRecord::decode_length_delimited(&mut rest) {
        if let Ok(record) = Record::try_from(wire) {
            let _ = state.apply(record);
        }
    }
    survives(&state);
    if let Ok(messages) = decode(input, (2, 1)) {
        assert_eq!(decode(&encode(messages.clone()), (2, 1)), Ok(messages.clone()));
        hears(messages);
    }
    if let Ok(Ok(gathering)) = v1::PeerFrame::decode(input).map(Gathering::begin) {
        let _ = gathering.finish();
    }
});

fn survives(state: &State) {
    let again = State::decode(BOUNDS, &state.encode()).expect("it was within bounds");
    assert_eq!(*state, again);
}

fn hears(messages: Vec<Said>) {
    let identity = Identity { member: 1, members: vec![1, 2, 3], group: 0, named: 0 };
    let options = Options { identity, bounds: BOUNDS, ..Options::alone() };
    let mut node = Node::new(options, &Saved::default()).expect("it is new");
    for message in messages {
        let _ = node.hear(0, message);
        while let Some(work) = node.work().expect("what it took can be read") {
            work.done();
        }
    }
}
