//! Questions of those who look after a cluster to its workers, and the answers.

use aqueduct_core::ask::{
    Answer, Ask, Declined, FilePart, Question, Remembered, Rememberer, Reply, SnapshotHeld,
};
use aqueduct_core::{Refusal, RequestId, limits};

use super::snapshot::{name, name_to_wire};
use super::{Under, bounded, choice, required};
use crate::v1;
use crate::v1::answered::Reply as WireReply;
use crate::v1::ask::Question as WireQuestion;
use crate::v1::ask_memory::Of;
use crate::v1::declined::Kind;

impl From<Ask> for v1::Ask {
    fn from(Ask { ticket, question }: Ask) -> Self {
        let question = match question {
            Question::Snapshots { from, limit } => {
                WireQuestion::Snapshots(v1::AskSnapshots { from: name_to_wire(from), limit })
            }
            Question::Evict(snapshot) => WireQuestion::Evict(name_to_wire(snapshot)),
            Question::Pin { snapshot, pinned } => {
                WireQuestion::Pin(v1::AskPin { snapshot: name_to_wire(snapshot), pinned })
            }
            Question::Memory { of, layer, head, start } => {
                let (of, choice) = match of {
                    Rememberer::Request { request, choice } => (Of::Request(request.0), choice),
                    Rememberer::Snapshot(snapshot) => (Of::Snapshot(name_to_wire(snapshot)), 0),
                };
                WireQuestion::Memory(v1::AskMemory { of: Some(of), choice, layer, head, start })
            }
            Question::Export { snapshot, start } => {
                WireQuestion::Export(v1::AskExport { snapshot: name_to_wire(snapshot), start })
            }
            Question::Import(part) => WireQuestion::Import(part.into()),
        };
        Self { ticket, question: Some(question) }
    }
}

impl TryFrom<v1::Ask> for Ask {
    type Error = Refusal;

    fn try_from(wire: v1::Ask) -> Result<Self, Refusal> {
        let question = match required("question", wire.question)? {
            WireQuestion::Snapshots(wire) => {
                let limit = limits::OPERATOR_LIST_MAX;
                Question::Snapshots {
                    from: name("from", &wire.from)?,
                    limit: Refusal::unless_within("limit", wire.limit, 1, limit)?,
                }
            }
            WireQuestion::Evict(wire) => Question::Evict(name("evict", &wire)?),
            WireQuestion::Pin(wire) => {
                Question::Pin { snapshot: name("snapshot", &wire.snapshot)?, pinned: wire.pinned }
            }
            WireQuestion::Memory(wire) => memory(wire).under("memory")?,
            WireQuestion::Export(wire) => Question::Export {
                snapshot: name("snapshot", &wire.snapshot)?,
                start: within_file("start", wire.start)?,
            },
            WireQuestion::Import(wire) => Question::Import(wire.try_into().under("import")?),
        };
        Ok(Self { ticket: wire.ticket, question })
    }
}

fn memory(wire: v1::AskMemory) -> Result<Question, Refusal> {
    let of = match required("of", wire.of)? {
        Of::Request(request) => {
            let choice = choice(wire.choice)?;
            Rememberer::Request { request: RequestId(request), choice }
        }
        Of::Snapshot(wire) => Rememberer::Snapshot(name("snapshot", &wire)?),
    };
    let layer = Refusal::unless_within("layer", wire.layer, 0, limits::LAYERS_MAX - 1)?;
    let head = Refusal::unless_within("head", wire.head, 0, limits::HEADS_MAX - 1)?;
    Ok(Question::Memory { of, layer, head, start: wire.start })
}

fn within_file(field: &str, at: u64) -> Result<u64, Refusal> {
    Refusal::unless_within(field, at, 0, limits::SNAPSHOT_FILE_BYTES_MAX)
}

impl From<FilePart> for v1::FilePart {
    fn from(FilePart { start, total, bytes }: FilePart) -> Self {
        Self { start, total, bytes: bytes.into() }
    }
}

impl TryFrom<v1::FilePart> for FilePart {
    type Error = Refusal;

    fn try_from(wire: v1::FilePart) -> Result<Self, Refusal> {
        let total = within_file("total", wire.total)?;
        let most = limits::SNAPSHOT_PART_BYTES_MAX;
        Refusal::unless_within("bytes", wire.bytes.len(), 1, most)?;
        let last = total.saturating_sub(wire.bytes.len() as u64);
        let start = Refusal::unless_within("start", wire.start, 0, last)?;
        Refusal::unless_within("end", start + wire.bytes.len() as u64, 1, total)?;
        Ok(Self { start, total, bytes: wire.bytes.into() })
    }
}

impl From<Answer> for v1::Answered {
    fn from(Answer { ticket, reply }: Answer) -> Self {
        let reply = match reply {
            Ok(Reply::Snapshots(held)) => {
                let snapshots = held.into_iter().map(Into::into).collect();
                WireReply::Snapshots(v1::SnapshotsHeld { snapshots })
            }
            Ok(Reply::Done) => WireReply::Done(v1::Done {}),
            Ok(Reply::Memory(memory)) => WireReply::Memory((*memory).into()),
            Ok(Reply::Part(part)) => WireReply::Part(part.into()),
            Err(declined) => WireReply::Declined(declined.into()),
        };
        Self { ticket, reply: Some(reply) }
    }
}

impl TryFrom<v1::Answered> for Answer {
    type Error = Refusal;

    fn try_from(wire: v1::Answered) -> Result<Self, Refusal> {
        let reply = match required("reply", wire.reply)? {
            WireReply::Snapshots(wire) => {
                bounded("snapshots", &wire.snapshots, limits::OPERATOR_LIST_MAX as usize)?;
                let held = wire.snapshots.into_iter().map(SnapshotHeld::try_from);
                Ok(Reply::Snapshots(held.collect::<Result<_, _>>().under("snapshots")?))
            }
            WireReply::Done(v1::Done {}) => Ok(Reply::Done),
            WireReply::Memory(wire) => {
                Ok(Reply::Memory(Box::new(wire.try_into().under("memory")?)))
            }
            WireReply::Part(wire) => Ok(Reply::Part(wire.try_into().under("part")?)),
            WireReply::Declined(wire) => Err(wire.try_into().under("declined")?),
        };
        Ok(Self { ticket: wire.ticket, reply })
    }
}

impl From<Declined> for v1::Declined {
    fn from(declined: Declined) -> Self {
        let (kind, message) = match declined {
            Declined::Gone => (Kind::Gone, String::new()),
            Declined::Busy => (Kind::Busy, String::new()),
            Declined::Refused(message) => (Kind::Refused, message),
        };
        Self { kind: kind.into(), message }
    }
}

impl TryFrom<v1::Declined> for Declined {
    type Error = Refusal;

    fn try_from(wire: v1::Declined) -> Result<Self, Refusal> {
        match Kind::try_from(wire.kind) {
            Ok(Kind::Gone) => Ok(Self::Gone),
            Ok(Kind::Busy) => Ok(Self::Busy),
            Ok(Kind::Refused) => Ok(Self::Refused(wire.message)),
            _ => Err(Refusal::new("kind", wire.kind, "gone, busy or refused")),
        }
    }
}

impl From<SnapshotHeld> for v1::SnapshotHeld {
    fn from(held: SnapshotHeld) -> Self {
        let SnapshotHeld { snapshot, tokens, memory_bytes, disk_bytes, pinned } = held;
        Self { snapshot: name_to_wire(snapshot), tokens, memory_bytes, disk_bytes, pinned }
    }
}

impl TryFrom<v1::SnapshotHeld> for SnapshotHeld {
    type Error = Refusal;

    fn try_from(wire: v1::SnapshotHeld) -> Result<Self, Refusal> {
        let v1::SnapshotHeld { tokens, memory_bytes, disk_bytes, pinned, .. } = wire;
        let snapshot = name("snapshot", &wire.snapshot)?;
        Ok(Self { snapshot, tokens, memory_bytes, disk_bytes, pinned })
    }
}

impl From<Remembered> for v1::Remembered {
    fn from(of: Remembered) -> Self {
        let Remembered { end, layers, kv_heads, keys, start, positions, scores } = of;
        Self { end, layers, kv_heads, keys, start, positions, scores }
    }
}

impl TryFrom<v1::Remembered> for Remembered {
    type Error = Refusal;

    fn try_from(wire: v1::Remembered) -> Result<Self, Refusal> {
        let v1::Remembered { end, layers, kv_heads, keys, start, positions, scores } = wire;
        Refusal::unless_within("layers", layers, 1, limits::LAYERS_MAX)?;
        Refusal::unless_within("kv_heads", kv_heads, 1, limits::HEADS_MAX)?;
        bounded("positions", &positions, limits::SHOWN_KEYS_MAX)?;
        let shown = u64::from(start) + positions.len() as u64;
        Refusal::unless_within("keys", u64::from(keys), shown, u64::from(end))?;
        let is_ascending = positions.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || positions.last().is_some_and(|last| *last >= end) {
            return Err(Refusal::new(
                "positions",
                "not ascending",
                format!("ascending below {end}"),
            ));
        }
        if !scores.is_empty() && scores.len() != positions.len() {
            let bound = format!("one for each of {} positions, or none", positions.len());
            return Err(Refusal::new("scores", scores.len(), bound));
        }
        Ok(Self { end, layers, kv_heads, keys, start, positions, scores })
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::SnapshotKey;

    use super::*;

    #[test]
    fn questions_are_refused_by_field() {
        let check = |question: WireQuestion, want: &str| {
            let refused = Ask::try_from(v1::Ask { ticket: 1, question: Some(question) });
            assert_eq!(refused.map_err(|refusal| refusal.field).unwrap_err(), want);
        };
        let name = || name_to_wire(SnapshotKey([1; 32]));
        let short = || name().slice(1..);
        let list = |from, limit| WireQuestion::Snapshots(v1::AskSnapshots { from, limit });
        check(list(short(), 1), "from");
        check(list(name(), 0), "limit");
        check(list(name(), limits::OPERATOR_LIST_MAX + 1), "limit");
        check(WireQuestion::Evict(short()), "evict");
        check(WireQuestion::Pin(v1::AskPin { snapshot: short(), pinned: true }), "snapshot");
        let good = v1::AskMemory { of: Some(Of::Request(1)), ..Default::default() };
        let check_memory = |change: fn(&mut v1::AskMemory), want: &str| {
            let mut wire = good.clone();
            change(&mut wire);
            check(WireQuestion::Memory(wire), want);
        };
        check_memory(|wire| wire.of = None, "memory.of");
        check_memory(|wire| wire.choice = limits::CHOICES_MAX, "memory.choice");
        check_memory(|wire| wire.layer = limits::LAYERS_MAX, "memory.layer");
        check_memory(|wire| wire.head = limits::HEADS_MAX, "memory.head");
        let export = v1::AskExport { snapshot: name(), start: u64::MAX };
        check(WireQuestion::Export(export), "start");
        let part = |start, total, bytes: usize| {
            WireQuestion::Import(v1::FilePart { start, total, bytes: vec![0; bytes].into() })
        };
        check(part(0, 1, 0), "import.bytes");
        check(part(0, u64::MAX, 1), "import.total");
        check(part(1, 1, 1), "import.start");
        check(part(0, 1, 2), "import.end");
        let most = limits::SNAPSHOT_PART_BYTES_MAX;
        check(part(0, 1 << 30, most + 1), "import.bytes");
    }

    #[test]
    fn answers_are_refused_by_field() {
        let good = v1::Remembered {
            end: 9,
            layers: 2,
            kv_heads: 1,
            keys: 3,
            start: 1,
            positions: vec![4, 8],
            scores: vec![0.5, 1.0],
        };
        assert!(Remembered::try_from(good.clone()).is_ok());
        let check = |change: fn(&mut v1::Remembered), want: &str| {
            let mut wire = good.clone();
            change(&mut wire);
            let refused = Remembered::try_from(wire).map_err(|refusal| refusal.field);
            assert_eq!(refused.unwrap_err(), want);
        };
        check(|wire| wire.layers = 0, "layers");
        check(|wire| wire.kv_heads = limits::HEADS_MAX + 1, "kv_heads");
        check(|wire| wire.keys = 2, "keys");
        check(|wire| wire.keys = 10, "keys");
        check(|wire| wire.positions.reverse(), "positions");
        check(|wire| wire.positions[1] = 9, "positions");
        check(|wire| wire.scores.truncate(wire.scores.len() - 1), "scores");
        let declined = v1::Declined { kind: 0, message: String::new() };
        let wire = v1::Answered { ticket: 1, reply: Some(WireReply::Declined(declined)) };
        assert_eq!(Answer::try_from(wire).unwrap_err().field, "declined.kind");
    }
}
