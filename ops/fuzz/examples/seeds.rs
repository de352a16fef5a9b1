//! Writes the seeds that are made from words rather than by hand:
//! `cargo run --manifest-path ops/fuzz/Cargo.toml --example seeds`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use aqueduct_core::journal::{Accepted, Batch, Drawn, Outcome, Record, RecordKind};
use aqueduct_core::work::{
    Assignment, Base, Begun, CONVENTION, ChunkReport, Command, DecodeSpec, Event, NextHop, Outputs,
    Peer, RetainedMass, TokenLogprob,
};
use aqueduct_core::{
    Carry, ChunkKey, ChunkSpan, Constraint, Directory, Epoch, Form, Grammar, KvDtype, MemoryPolicy,
    RequestId, Sampling, StartKey, Steering, Telling, Thinking, TokenBytes, TraceParent, WireDtype,
};
use aqueduct_gguf::write::Writer;
use aqueduct_proto::convert::call::{self, CallBlock, CallHeader, Kind};
use aqueduct_proto::convert::frame::{SetHeader, Spared, split};
use aqueduct_proto::convert::notice::Notice;
use aqueduct_proto::v1;
use aqueduct_proto::v1::peer_message::Kind as Letter;
use aqueduct_torch::write as torch;
use prost::Message;

const KEY: ChunkKey = ChunkKey { request: RequestId(7), chunk_idx: 1, epoch: Epoch(2) };

fn main() -> std::io::Result<()> {
    write("gguf", "small", &gguf())?;
    write("torch", "file", &torch_file())?;
    write("torch", "pickle", &torch_pickle())?;
    write("frames", "one_part", &frames(&set(3, KvDtype::F32)))?;
    write("frames", "empty_memory", &frames(&set(0, KvDtype::Bf16)))?;
    write("frames", "state", &frames(&SetHeader { state: 3, ..set(0, KvDtype::Bf16) }))?;
    let base = Base { chunk_idx: 0, epoch: Epoch(1), end: 4 };
    let spared = Some(Spared { base, rows: 1, crc32: 9 });
    write("frames", "spared", &frames(&SetHeader { spared, ..set(3, KvDtype::F32) }))?;
    write("frames", "notice", &notice_frame().encode_length_delimited_to_vec())?;
    // Refused: what a frame without a dtype says already has no second form.
    let wire = v1::WireDtype::F32.into();
    let second = v1::HandOffFrame { wire, crc32: 0, ..notice_frame() };
    write("frames", "notice_f32", &second.encode_length_delimited_to_vec())?;
    write("exchange", "ask", &ask())?;
    write("messages", "assign", &message(0, &v1::WorkerCommand::from(assign(false))))?;
    write("messages", "assign_shards", &message(0, &v1::WorkerCommand::from(assign(true))))?;
    write("messages", "decode", &message(0, &v1::WorkerCommand::from(decode())))?;
    write("messages", "chunk_done", &message(1, &v1::WorkerEvent::from(chunk_done())))?;
    let request = v1::GenerateRequest {
        policy: Some(MemoryPolicy::default().into()),
        sampling: Some(Sampling::default().into()),
        stop: vec!["\n".to_owned()],
        exchange: v1::Exchange::Stay.into(),
        wire: v1::WireDtype::F16.into(),
        ..Default::default()
    };
    write("messages", "request", &message(2, &request))?;
    write("journal", "records", &records())?;
    write("journal", "letters", &letters())
}

/// What a member that leads says to one that follows.
fn letters() -> Vec<u8> {
    let record =
        Record { request: RequestId(7), at_ms: 1, kind: RecordKind::Ended(Outcome::Finished) };
    let record = v1::JournalRecord::from(record).encode_to_vec();
    let of = |kind: Letter, term| v1::PeerMessage { kind: kind.into(), term, ..Default::default() };
    let entry = |record: Vec<u8>| v1::PeerEntry { term: 1, record: record.into() };
    let snapshot = Some(v1::PeerSnapshot { index: 9, term: 2, state: Vec::new().into() });
    let append = of(Letter::Append, 1);
    let entries = vec![entry(Vec::new()), entry(record)];
    let messages = vec![
        v1::PeerMessage { entries, commit: 1, ..append },
        v1::PeerMessage { commit: 2, ..of(Letter::Heartbeat, 1) },
        v1::PeerMessage { snapshot, ..of(Letter::Snapshot, 2) },
        v1::PeerMessage { index: 9, log_term: 2, transfer: true, ..of(Letter::Vote, 3) },
        of(Letter::TimeoutNow, 3),
        of(Letter::VoteAnswer, 4),
        v1::PeerMessage { index: 9, ..of(Letter::AppendAnswer, 4) },
    ];
    v1::PeerBatch { messages }.encode_to_vec()
}

/// A request from its beginning to its end.
fn records() -> Vec<u8> {
    let accepted = Accepted {
        steering: Steering::by_bias([(5, 1.0)]),
        form: Form { thinking: None, grammar: Some(Grammar::json_object()) },
        choices: 2,
        max_tokens: 8,
        eos: vec![2],
        priority: 1,
        caller_id: "a".to_owned(),
        telling: Telling {
            resumable: true,
            stop: vec!["\n".to_owned()],
            tools: true,
            holder: "k".to_owned(),
            once: Some(StartKey { name: "mine".to_owned(), content: [7; 32] }),
            ..Telling::default()
        },
        ..Accepted::of("m", vec![1, 2, 3])
    };
    let token = TokenLogprob { token: 4, logprob: -0.5 };
    let tokens = vec![Drawn { token, top: vec![token] }];
    let kinds = [
        RecordKind::Accepted(Box::new(accepted)),
        RecordKind::Tokens(Batch { choice: 1, first_idx: 0, tokens }),
        RecordKind::ChoiceEnded { choice: 1, eos: true },
        RecordKind::Ended(Outcome::Finished),
        RecordKind::Drained { worker: "w".to_owned(), draining: true },
    ];
    let encoded = kinds.into_iter().map(|kind| {
        let record = Record { request: RequestId(7), at_ms: 1, kind };
        v1::JournalRecord::from(record).encode_length_delimited_to_vec()
    });
    encoded.flatten().collect()
}

fn write(target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)
}

fn message(kind: u8, wire: &impl Message) -> Vec<u8> {
    [vec![kind], wire.encode_to_vec()].concat()
}

fn assign(is_sharded: bool) -> Command {
    let peer = Peer("http://127.0.0.1:1".to_owned());
    let next = NextHop { peer, epoch: Epoch(2), base: None };
    let shards = Directory {
        holders: vec![Peer("local://w1".to_owned())],
        shards: vec![(0, Epoch(1))],
        carry: Carry::Fewest,
        wire: WireDtype::Bf16,
    };
    Command::Assign(Box::new(Assignment {
        key: KEY,
        span: ChunkSpan { idx: 1, start: 4, tokens: 3 },
        chunk_count: 3,
        chunk_tokens: 4,
        policy: MemoryPolicy::default(),
        tokens: vec![1, 2, 3],
        next_token: Some(4),
        outputs: Outputs::Logprobs(2),
        next: (!is_sharded).then_some(next),
        shards: is_sharded.then(|| Box::new(shards)),
        wire: WireDtype::F16,
        deadline_ms: 1000,
        trace: TraceParent::new([7; 16], [9; 8], 1),
    }))
}

fn decode() -> Command {
    Command::Decode(Box::new(DecodeSpec {
        request: KEY.request,
        sampling: Sampling { repetition_penalty: 1.1, ..Sampling::default() },
        constraint: Some(Constraint {
            form: Form {
                thinking: Some(Thinking {
                    begun: false,
                    always: true,
                    open: "<think>".to_owned(),
                    close: "</think>".to_owned(),
                    ending: vec![1, 2],
                    head: vec![3],
                    most: Some(9),
                }),
                grammar: Some(Grammar::json_object()),
            },
            vocabulary: TokenBytes::of([b"{".as_slice(), b"}"]).into(),
        }),
        steering: Steering::by_bias([(3, -1.0)]),
        prompt_vocabulary: vec![1, 2, 3],
        choices: 2,
        max_tokens: 16,
        eos: vec![0],
        begun: vec![
            Begun { choice: 0, ended: true, ..Begun::default() },
            Begun { choice: 1, tokens: vec![3, 5], ended: false },
        ],
        keeps: true,
        trace: TraceParent::new([7; 16], [9; 8], 0),
        shows: true,
        handed_over: None,
        gathers: false,
    }))
}

fn chunk_done() -> Event {
    let retained = vec![RetainedMass { kept: 1.0, total: 2.0 }];
    let report = ChunkReport { retained, memory_bytes: 64, memory_tokens: 3, ..Default::default() };
    Event::ChunkDone { key: KEY, report: Box::new(report) }
}

fn gguf() -> Vec<u8> {
    Writer::new()
        .str("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .f32("llama.rope.freq_base", 10_000.0)
        .bool("tokenizer.ggml.add_bos_token", true)
        .strs("tokenizer.ggml.tokens", &["<s>", "é", ""])
        .i32s("tokenizer.ggml.token_type", &[3, -1, 1])
        .f32s("tokenizer.ggml.scores", &[0.5, -2.0, 0.0])
        .tensor("a.weight", &[2, 3], 0, &[1; 24])
        .tensor("b.weight", &[32], 8, &[2; 34])
        .finish()
}

fn torch_file() -> Vec<u8> {
    torch::Writer::new()
        .tensor("a.weight", "FloatStorage", &[2, 3], &[1; 24])
        .view("b.weight", ("FloatStorage", 0, 6), 3, &[3], &[1])
        .tensor("mask", "BoolStorage", &[1, 2], &[1, 0])
        .finish()
}

/// Of a dictionary as `torch.save` writes it, with what it remembers and with versions of modules.
fn torch_pickle() -> Vec<u8> {
    let parts: [&[u8]; 7] = [
        b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01(X\x01\x00\x00\x00aq\x02",
        b"ctorch._utils\n_rebuild_tensor_v2\nq\x03((X\x07\x00\x00\x00storageq\x04",
        b"ctorch\nHalfStorage\nq\x05X\x01\x00\x00\x000q\x06X\x03\x00\x00\x00cpuq\x07K\x20tq\x08Q",
        b"K\x00K\x04K\x08\x86q\x09K\x08K\x01\x86q\x0a\x89h\x00)Rq\x0btq\x0cRq\x0d",
        b"X\x01\x00\x00\x00bq\x0eh\x0du}q\x0fX\x09\x00\x00\x00_metadataq\x10",
        b"h\x00)Rq\x11X\x00\x00\x00\x00q\x12}q\x13X\x07\x00\x00\x00versionq\x14K\x01s",
        b"ssb.",
    ];
    parts.concat()
}

fn set(keys: u32, kv: KvDtype) -> SetHeader {
    SetHeader {
        key: KEY,
        layer: 0,
        convention: CONVENTION,
        kv,
        kv_heads: 1,
        head_dim: 2,
        keys,
        end: 16,
        wire: WireDtype::F32,
        state: 0,
        spared: None,
    }
}

fn notice_frame() -> v1::HandOffFrame {
    let notice = Notice::new(set(3, KvDtype::Bf16), &[1; 36]).to_frame();
    notice.expect("the header is within bounds")
}

fn ask() -> Vec<u8> {
    let (request, epoch) = (KEY.request, KEY.epoch);
    let block = CallBlock { request, branch: 0, layer: 1, epoch, start: 4, tokens: 2, chunks: 3 };
    let header = CallHeader {
        heads: 2,
        head_dim: 2,
        items: 1,
        bytes: 40,
        policy: Some(MemoryPolicy::default()),
        ..CallHeader::new(7, Kind::Attend, block)
    };
    let frames = call::split(&header, vec![1; 40].into()).expect("the header is within bounds");
    frames.flat_map(|frame| frame.encode_length_delimited_to_vec()).collect()
}

fn frames(set: &SetHeader) -> Vec<u8> {
    let payload = vec![1; set.payload_bytes() as usize].into();
    let frames = split(set, payload).expect("the header is within bounds");
    frames.iter().flat_map(Message::encode_length_delimited_to_vec).collect()
}
