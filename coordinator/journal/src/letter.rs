//! Raft's messages as they travel between members, and what of them is believed: a kind that one
//! member says to another, entries that follow one another, and nothing that a healthy member of
//! this program would not say. Who belongs to the group is the node's to know.

use aqueduct_core::journal::Record;
use aqueduct_core::{Refusal, limits};
use aqueduct_proto::v1;
use aqueduct_proto::v1::peer_message::Kind;
use prost::Message as _;
use raft::CAMPAIGN_TRANSFER;
use raft::eraftpb::{Entry, Message, MessageType, Snapshot};

/// Of terms and indices, so that the next ones are numbers too.
const NUMBER_MAX: u64 = u64::MAX / 2;
/// Entries of one message: those of a log, and of one that is not compacted yet.
const ENTRIES_MAX: usize = 4 * limits::JOURNAL_LOG_ENTRIES as usize;

const KINDS: [(Kind, MessageType); 10] = [
    (Kind::Append, MessageType::MsgAppend),
    (Kind::AppendAnswer, MessageType::MsgAppendResponse),
    (Kind::Vote, MessageType::MsgRequestVote),
    (Kind::VoteAnswer, MessageType::MsgRequestVoteResponse),
    (Kind::Snapshot, MessageType::MsgSnapshot),
    (Kind::Heartbeat, MessageType::MsgHeartbeat),
    (Kind::HeartbeatAnswer, MessageType::MsgHeartbeatResponse),
    (Kind::PreVote, MessageType::MsgRequestPreVote),
    (Kind::PreVoteAnswer, MessageType::MsgRequestPreVoteResponse),
    (Kind::TimeoutNow, MessageType::MsgTimeoutNow),
];

/// Messages of one member to another, as bytes.
pub fn encode(messages: Vec<Message>) -> Vec<u8> {
    let messages = messages.into_iter().filter_map(to_wire).collect();
    v1::PeerBatch { messages }.encode_to_vec()
}

/// The messages again, which are of `from` to `to`.
///
/// # Errors
/// Bytes that are no messages, or a field that no member says.
pub fn decode(bytes: &[u8], (from, to): (u64, u64)) -> Result<Vec<Message>, Refusal> {
    let batch = v1::PeerBatch::decode(bytes)
        .map_err(|error| Refusal::new("batch", error, "messages of a coordinator"))?;
    let most = limits::PEER_MESSAGES_MAX;
    Refusal::unless_within("messages", batch.messages.len(), 1, most)?;
    let read = |wire| Ok(Message { from, to, ..of_wire(wire)? });
    batch.messages.into_iter().map(read).collect()
}

/// About how many bytes it takes.
pub fn bytes_of(message: &Message) -> u64 {
    let entries = message.entries.iter().map(|entry| entry.data.len() as u64 + 16);
    let snapshot = message.snapshot.as_ref().map_or(0, |snapshot| snapshot.data.len() as u64);
    64 + entries.sum::<u64>() + snapshot
}

/// `None` for what a member says to itself.
fn to_wire(message: Message) -> Option<v1::PeerMessage> {
    let (kind, _) = KINDS.into_iter().find(|(_, raft)| *raft == message.msg_type)?;
    let transfer = message.context == CAMPAIGN_TRANSFER;
    let entry = |entry: Entry| v1::PeerEntry { term: entry.term, record: entry.data.into() };
    let snapshot = message.snapshot.into_option().map(|snapshot| v1::PeerSnapshot {
        index: snapshot.get_metadata().index,
        term: snapshot.get_metadata().term,
        state: snapshot.data.into(),
    });
    Some(v1::PeerMessage {
        kind: kind.into(),
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message.entries.into_iter().map(entry).collect(),
        commit: message.commit,
        commit_term: message.commit_term,
        snapshot,
        reject: message.reject,
        reject_hint: message.reject_hint,
        transfer,
    })
}

fn of_wire(wire: v1::PeerMessage) -> Result<Message, Refusal> {
    let kind = wire.kind();
    let known = KINDS.into_iter().find(|(known, _)| *known == kind);
    let (_, msg_type) = known
        .ok_or_else(|| Refusal::new("kind", wire.kind, "a kind of message that members send"))?;
    // Raft takes a message without a term for one of its own.
    Refusal::unless_within("term", wire.term, 1, NUMBER_MAX)?;
    numbers(kind, &wire)?;
    let mut message = Message {
        msg_type,
        term: wire.term,
        log_term: wire.log_term,
        index: wire.index,
        commit: wire.commit,
        commit_term: wire.commit_term,
        reject: wire.reject,
        reject_hint: wire.reject_hint,
        ..Message::default()
    };
    if wire.transfer {
        message.context = CAMPAIGN_TRANSFER.to_vec();
    }
    let most = if kind == Kind::Append { ENTRIES_MAX } else { 0 };
    Refusal::unless_within("entries", wire.entries.len(), 0, most)?;
    let mut last_term = wire.log_term.max(1);
    for (entry, index) in wire.entries.into_iter().zip(wire.index + 1..) {
        Refusal::unless_within("entries.term", entry.term, last_term, wire.term)?;
        let most = limits::JOURNAL_RECORD_BYTES_MAX;
        Refusal::unless_within("entries.record", entry.record.len(), 0, most)?;
        record(&entry.record)?;
        last_term = entry.term;
        let data = entry.record.into();
        message.entries.push(Entry { index, term: entry.term, data, ..Entry::default() });
    }
    match (kind, wire.snapshot) {
        (Kind::Snapshot, Some(wire)) => message.set_snapshot(snapshot(wire, message.term)?),
        (Kind::Snapshot, None) => return Err(Refusal::new("snapshot", "absent", "present")),
        (_, Some(_)) => return Err(Refusal::new("snapshot", "present", "absent")),
        (_, None) => {}
    }
    Ok(message)
}

/// A log begins with nothing, at index 0 and of term 0; nothing else is of term 0.
fn numbers(kind: Kind, wire: &v1::PeerMessage) -> Result<(), Refusal> {
    for (field, index) in
        [("index", wire.index), ("commit", wire.commit), ("reject_hint", wire.reject_hint)]
    {
        Refusal::unless_within(field, index, 0, NUMBER_MAX)?;
    }
    for (field, term) in [("log_term", wire.log_term), ("commit_term", wire.commit_term)] {
        Refusal::unless_within(field, term, 0, wire.term)?;
    }
    let names_entry = matches!(kind, Kind::Append | Kind::Vote | Kind::PreVote);
    if names_entry && (wire.index == 0) != (wire.log_term == 0) {
        let bound = format!("0 at index 0, and nowhere else (index = {})", wire.index);
        return Err(Refusal::new("log_term", wire.log_term, bound));
    }
    match wire.transfer && kind != Kind::Vote {
        true => Err(Refusal::new("transfer", true, "of a vote")),
        false => Ok(()),
    }
}

/// What everybody would have to read once it is agreed on; empty at the beginning of a term.
fn record(bytes: &[u8]) -> Result<(), Refusal> {
    if bytes.is_empty() {
        return Ok(());
    }
    let wire = v1::JournalRecord::decode(bytes)
        .map_err(|error| Refusal::new("entries.record", error, "a journal's record"))?;
    Record::try_from(wire).map(drop)
}

fn snapshot(wire: v1::PeerSnapshot, term: u64) -> Result<Snapshot, Refusal> {
    Refusal::unless_within("snapshot.index", wire.index, 1, NUMBER_MAX)?;
    Refusal::unless_within("snapshot.term", wire.term, 1, term)?;
    let mut snapshot = Snapshot { data: wire.state.into(), ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (wire.index, wire.term);
    Ok(snapshot)
}

#[cfg(test)]
mod tests {
    use aqueduct_core::RequestId;
    use aqueduct_core::journal::{Outcome, RecordKind};

    use super::*;

    /// A record.
    fn ended() -> Vec<u8> {
        let kind = RecordKind::Ended(Outcome::Cancelled);
        v1::JournalRecord::from(Record { request: RequestId(7), at_ms: 1, kind }).encode_to_vec()
    }

    fn append() -> Message {
        let entry = |index, term, data: &[u8]| Entry {
            index,
            term,
            data: data.to_vec(),
            ..Entry::default()
        };
        Message {
            msg_type: MessageType::MsgAppend,
            from: 2,
            to: 3,
            term: 7,
            log_term: 5,
            index: 10,
            commit: 9,
            entries: vec![entry(11, 6, b""), entry(12, 7, &ended())].into(),
            ..Message::default()
        }
    }

    fn install() -> Message {
        let msg_type = MessageType::MsgSnapshot;
        let mut message = Message { msg_type, from: 1, to: 2, term: 4, ..Message::default() };
        let snapshot = message.mut_snapshot();
        snapshot.data = b"state".to_vec();
        snapshot.mut_metadata().index = 8;
        snapshot.mut_metadata().term = 3;
        message
    }

    #[test]
    fn messages_come_as_they_were() {
        let vote = Message {
            msg_type: MessageType::MsgRequestVote,
            from: 2,
            to: 3,
            term: 8,
            context: CAMPAIGN_TRANSFER.to_vec(),
            commit: 4,
            commit_term: 3,
            ..Message::default()
        };
        let answer = Message {
            msg_type: MessageType::MsgAppendResponse,
            from: 2,
            to: 3,
            term: 1,
            reject: true,
            reject_hint: 17,
            ..Message::default()
        };
        for messages in [vec![append(), vote, answer], vec![install()]] {
            let pair = (messages[0].from, messages[0].to);
            assert_eq!(decode(&encode(messages.clone()), pair), Ok(messages));
        }
        assert!(bytes_of(&append()) > bytes_of(&Message::default()));
    }

    #[test]
    fn what_no_member_says_is_refused() {
        let check = |change: fn(&mut v1::PeerMessage), want: &str| {
            let mut wire = to_wire(append()).unwrap();
            change(&mut wire);
            assert_eq!(of_wire(wire).unwrap_err().field, want);
        };
        check(|wire| wire.kind = 0, "kind");
        check(|wire| wire.kind = 99, "kind");
        check(|wire| wire.term = u64::MAX, "term");
        check(|wire| wire.term = 0, "term");
        check(|wire| wire.index = u64::MAX, "index");
        check(|wire| wire.kind = Kind::Heartbeat.into(), "entries");
        check(|wire| wire.entries[1].term = 8, "entries.term");
        check(|wire| wire.entries[1].term = 5, "entries.term");
        check(|wire| wire.log_term = 7, "entries.term");
        check(|wire| wire.log_term = 8, "log_term");
        check(|wire| wire.log_term = 0, "log_term");
        check(|wire| wire.index = 0, "log_term");
        check(|wire| (wire.index, wire.log_term, wire.entries[0].term) = (0, 0, 0), "entries.term");
        check(|wire| wire.commit_term = 8, "commit_term");
        check(|wire| wire.commit = u64::MAX, "commit");
        check(|wire| wire.reject_hint = u64::MAX, "reject_hint");
        check(|wire| wire.transfer = true, "transfer");
        check(|wire| wire.entries[1].record = vec![0xff].into(), "entries.record");
        check(|wire| wire.entries[1].record = vec![0x10, 1].into(), "record");
        check(|wire| wire.snapshot = Some(v1::PeerSnapshot::default()), "snapshot");
        let check = |change: fn(&mut v1::PeerMessage), want: &str| {
            let mut wire = to_wire(install()).unwrap();
            change(&mut wire);
            assert_eq!(of_wire(wire).unwrap_err().field, want);
        };
        check(|wire| wire.snapshot = None, "snapshot");
        check(|wire| wire.snapshot.as_mut().unwrap().index = 0, "snapshot.index");
        check(|wire| wire.snapshot.as_mut().unwrap().term = 5, "snapshot.term");
        assert_eq!(decode(b"", (1, 2)).unwrap_err().field, "messages");
        assert_eq!(decode(b"what is this", (1, 2)).unwrap_err().field, "batch");
        let hup = Message { msg_type: MessageType::MsgHup, ..Message::default() };
        assert_eq!(decode(&encode(vec![hup]), (1, 2)).unwrap_err().field, "messages");
    }
}
