//! Questions of operators, and answers.

use aqueduct_core::ask::{
    Declined, FilePart, Question, Remembered, Rememberer, Reply, SnapshotHeld,
};
use aqueduct_core::limits;
use proptest::prelude::*;

use super::{request, snapshot};

pub(super) fn question() -> impl Strategy<Value = Question> {
    let start = 0..limits::SNAPSHOT_FILE_BYTES_MAX;
    prop_oneof![
        (snapshot(), 1..=limits::OPERATOR_LIST_MAX)
            .prop_map(|(from, limit)| Question::Snapshots { from, limit }),
        snapshot().prop_map(Question::Evict),
        (snapshot(), any::<bool>())
            .prop_map(|(snapshot, pinned)| Question::Pin { snapshot, pinned }),
        (request(), snapshot(), 0..limits::CHOICES_MAX).prop_map(|(request, snapshot, choice)| {
            let of = match choice % 2 {
                0 => Rememberer::Request { request, choice },
                _ => Rememberer::Snapshot(snapshot),
            };
            Question::Memory { of, layer: choice, head: choice, start: choice }
        }),
        (snapshot(), start).prop_map(|(snapshot, start)| Question::Export { snapshot, start }),
        part().prop_map(Question::Import),
    ]
}

fn part() -> impl Strategy<Value = FilePart> {
    (0..1u64 << 20, 0..9u64, prop::collection::vec(any::<u8>(), 1..9)).prop_map(
        |(start, more, bytes)| {
            let total = start + bytes.len() as u64 + more;
            FilePart { start, total, bytes }
        },
    )
}

pub(super) fn reply() -> impl Strategy<Value = Result<Reply, Declined>> {
    let sizes = (any::<u64>(), any::<u64>());
    let held = (snapshot(), any::<u32>(), sizes, any::<bool>()).prop_map(
        |(snapshot, tokens, (memory_bytes, disk_bytes), pinned)| SnapshotHeld {
            snapshot,
            tokens,
            memory_bytes,
            disk_bytes,
            pinned,
        },
    );
    let keys = prop::collection::btree_map(0..1000u32, -1.0f32..1.0, 0..9);
    prop_oneof![
        prop::collection::vec(held, 0..4).prop_map(|held| Ok(Reply::Snapshots(held))),
        Just(Ok(Reply::Done)),
        keys.prop_map(|keys| {
            let (positions, scores) = keys.into_iter().unzip();
            let (layers, kv_heads, start) = (3, 2, 7);
            let of = Remembered { end: 1000, layers, kv_heads, keys: 99, start, positions, scores };
            Ok(Reply::Memory(Box::new(of)))
        }),
        part().prop_map(|part| Ok(Reply::Part(part))),
        Just(Err(Declined::Gone)),
        Just(Err(Declined::Busy)),
        ".{0,20}".prop_map(|why| Err(Declined::Refused(why))),
    ]
}
