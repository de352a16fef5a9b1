//! Random words of `aqueduct-core`, for the round trips of every conversion.

mod ask;
mod decode;
mod form;
mod shape;

use aqueduct_core::ask::{Answer, Ask};
use aqueduct_core::snapshot::{Keep, Made, Restore, SnapshotNews};
use aqueduct_core::work::{
    Assignment, Base, ChunkReport, Command, Emitted, Event, FailureKind, MergeAudit, NextHop,
    Outputs, Peer, PoolUse, RetainedMass, TokenLogprob, Traffic, WorkerInfo,
};
use aqueduct_core::{
    Carry, ChunkKey, ChunkSpan, Directory, Epoch, KvDtype, MemoryPolicy, ModelShape, PolicyKind,
    RequestId, Sampling, Scoring, SnapshotKey, SnapshotsHeld, Steering, TraceParent, WideHeads,
    WindowedLayers, WireDtype, limits,
};
pub(crate) use form::{constraint, form};
use proptest::prelude::*;
pub(crate) use shape::shape;

pub(crate) fn key() -> impl Strategy<Value = ChunkKey> {
    (any::<u64>(), 0..limits::PROMPT_TOKENS_MAX, any::<u32>()).prop_map(|(request, idx, epoch)| {
        ChunkKey { request: RequestId(request), chunk_idx: idx, epoch: Epoch(epoch) }
    })
}

pub(crate) fn policy() -> impl Strategy<Value = MemoryPolicy> {
    let kind = prop::sample::select(vec![PolicyKind::Dense, PolicyKind::Window, PolicyKind::H2o]);
    let budget = 0..=limits::MEMORY_TOKENS_MAX;
    let scoring = (0.001f32..=1.0, 0u32..1000, any::<bool>())
        .prop_map(|(decay, window, age_normalised)| Scoring { decay, window, age_normalised });
    (kind, budget.clone(), budget.clone(), budget, scoring).prop_map(
        |(kind, sinks, local, heavy, scoring)| MemoryPolicy { kind, sinks, local, heavy, scoring },
    )
}

pub(crate) fn sampling() -> impl Strategy<Value = Sampling> {
    let logprobs = prop::option::of(0..=limits::TOP_LOGPROBS_MAX);
    let added = -limits::PENALTY_MOST..=limits::PENALTY_MOST;
    let repeated = limits::REPETITION_PENALTY_MIN..=limits::REPETITION_PENALTY_MAX;
    let penalties = (added.clone(), added, repeated);
    let drawn = (0.0f32..=2.0, 0.001f32..=1.0, 0..limits::VOCAB_MAX, 0.0f32..=1.0);
    let min_tokens = 0..=limits::OUTPUT_TOKENS_MAX;
    (drawn, penalties, min_tokens, any::<u64>(), logprobs).prop_map(
        |((temperature, top_p, top_k, min_p), penalties, min_tokens, seed, logprobs)| Sampling {
            temperature,
            top_p,
            top_k,
            min_p,
            presence_penalty: penalties.0,
            frequency_penalty: penalties.1,
            repetition_penalty: penalties.2,
            min_tokens,
            seed,
            logprobs,
        },
    )
}

pub(crate) fn steering() -> impl Strategy<Value = Steering> {
    prop::collection::btree_map(0..limits::VOCAB_MAX, -100.0f32..=100.0, 0..4)
        .prop_map(Steering::by_bias)
}

pub(crate) fn token_logprob() -> impl Strategy<Value = TokenLogprob> {
    (0..limits::VOCAB_MAX, prop_oneof![-50.0f32..=0.0, Just(f32::NEG_INFINITY)])
        .prop_map(|(token, logprob)| TokenLogprob { token, logprob })
}

pub(crate) fn top() -> impl Strategy<Value = Vec<TokenLogprob>> {
    prop::collection::vec(token_logprob(), 0..=limits::TOP_LOGPROBS_MAX as usize)
}

pub(crate) fn next_hop() -> impl Strategy<Value = NextHop> {
    ("(http|local)://[a-z0-9:.-]{1,40}", any::<u32>(), prop::option::of(base()))
        .prop_map(|(peer, epoch, base)| NextHop { peer: Peer(peer), epoch: Epoch(epoch), base })
}

/// `next` as it may be for chunk `chunk_idx`: what its worker has given is of chunks before.
fn to_chunk(next: NextHop, chunk_idx: u32) -> NextHop {
    NextHop { base: next.base.filter(|base| base.chunk_idx < chunk_idx), ..next }
}

pub(crate) fn base() -> impl Strategy<Value = Base> {
    (0..1000u32, any::<u32>(), 1..64u32).prop_map(|(chunk_idx, epoch, chunk_tokens)| Base {
        chunk_idx,
        epoch: Epoch(epoch),
        end: (chunk_idx + 1) * chunk_tokens,
    })
}

fn outputs() -> impl Strategy<Value = Outputs> {
    prop_oneof![
        Just(Outputs::None),
        Just(Outputs::Logits),
        (0..=limits::TOP_LOGPROBS_MAX).prop_map(Outputs::Logprobs),
    ]
}

fn wire_dtype(number: u32) -> WireDtype {
    [WireDtype::F32, WireDtype::Bf16, WireDtype::F16][number as usize % 3]
}

fn assignment() -> impl Strategy<Value = Assignment> {
    let tokens = prop::collection::vec(0..limits::VOCAB_MAX, 1..40);
    let next_token = prop::option::of(0..limits::VOCAB_MAX);
    let rest = (policy(), outputs(), 1..=limits::REQUEST_DEADLINE_MS);
    (0..1000u32, 1..64u32, tokens, next_token, prop::option::of(next_hop()), rest, key()).prop_map(
        |(idx, chunk_tokens, tokens, next_token, next, (policy, outputs, deadline_ms), key)| {
            let next = next.map(|next| to_chunk(next, idx + 1));
            let shards = (next.is_none() && deadline_ms % 2 == 0).then(|| directory(idx));
            Assignment {
                key: ChunkKey { chunk_idx: idx, ..key },
                span: ChunkSpan { idx, start: idx * chunk_tokens, tokens: tokens.len() as u32 },
                chunk_count: if next.is_some() { idx + 2 } else { idx + 1 },
                chunk_tokens,
                policy,
                tokens,
                next_token,
                outputs,
                next,
                shards: shards.map(Box::new),
                wire: wire_dtype(idx),
                deadline_ms,
                trace: trace(deadline_ms),
            }
        },
    )
}

/// Half of all requests are traced.
fn trace(number: u64) -> Option<TraceParent> {
    let trace = [number as u8; 16];
    TraceParent::new(trace, [0x5a; 8], number as u8).filter(|_| number % 2 == 1)
}

/// Where the shards of `chunks` chunks are: on three workers in turn.
fn directory(chunks: u32) -> Directory {
    Directory {
        holders: (0..3).map(|idx| Peer(format!("local://w{idx}"))).collect(),
        shards: (0..chunks).map(|idx| (idx % 3, Epoch(idx / 7))).collect(),
        carry: [Carry::Queries, Carry::Keys, Carry::Fewest][chunks as usize % 3],
        wire: [WireDtype::F32, WireDtype::Bf16, WireDtype::F16][chunks as usize / 3 % 3],
    }
}

/// A chunk in the middle of a prompt, with everything set.
pub(crate) fn example_assignment() -> Assignment {
    Assignment {
        key: ChunkKey { request: RequestId(7), chunk_idx: 1, epoch: Epoch(2) },
        span: ChunkSpan { idx: 1, start: 3, tokens: 3 },
        chunk_count: 3,
        chunk_tokens: 3,
        policy: MemoryPolicy::default(),
        tokens: vec![1, 2, 3],
        next_token: Some(4),
        outputs: Outputs::Logprobs(5),
        next: Some(NextHop { peer: Peer("local://w1".into()), epoch: Epoch(0), base: None }),
        shards: None,
        wire: WireDtype::F16,
        deadline_ms: 1000,
        trace: trace(1),
    }
}

fn request() -> impl Strategy<Value = RequestId> {
    any::<u64>().prop_map(RequestId)
}

pub(crate) fn command() -> impl Strategy<Value = Command> {
    let chunk_idx = || 0..limits::PROMPT_TOKENS_MAX;
    prop_oneof![
        assignment().prop_map(|assignment| Command::Assign(Box::new(assignment))),
        (request(), chunk_idx(), next_hop()).prop_map(|(request, chunk_idx, next)| {
            let next = to_chunk(next, chunk_idx);
            Command::Redirect { request, chunk_idx, next }
        }),
        (request(), chunk_idx())
            .prop_map(|(request, chunk_idx)| Command::Confirm { request, chunk_idx }),
        (request(), chunk_idx())
            .prop_map(|(request, chunk_idx)| Command::Drop { request, chunk_idx }),
        (request(), chunk_idx(), snapshot(), masses()).prop_map(
            |(request, idx, snapshot, retained)| {
                let choice = Made::Choice(idx % limits::CHOICES_MAX);
                let made = if idx % 2 == 0 { Made::Chunk(idx) } else { choice };
                Command::Keep(Box::new(Keep { request, made, snapshot, retained }))
            }
        ),
        (key(), snapshot(), prop::option::of(next_hop())).prop_map(|(key, snapshot, next)| {
            let wire = wire_dtype(key.chunk_idx);
            Command::Restore(Box::new(Restore { key, snapshot, next, wire }))
        }),
        decode::spec().prop_map(|spec| Command::Decode(Box::new(spec))),
        (request(), next_hop()).prop_map(|(request, next)| Command::HandOver { request, next }),
        (request(), 0..limits::CHOICES_MAX)
            .prop_map(|(request, choice)| Command::StopChoice { request, choice }),
        request().prop_map(|request| Command::Cancel { request }),
        (any::<u64>(), ask::question())
            .prop_map(|(ticket, question)| Command::Ask(Box::new(Ask { ticket, question }))),
    ]
}

pub(crate) fn kv() -> impl Strategy<Value = KvDtype> {
    prop::sample::select(vec![KvDtype::F32, KvDtype::Bf16])
}

pub(crate) fn info() -> impl Strategy<Value = WorkerInfo> {
    (next_hop(), "[0-9a-f]{64}", shape(), kv(), 1..256u32, any::<u32>()).prop_map(
        |(next, fingerprint, shape, kv, threads, convention)| WorkerInfo {
            peer: next.peer,
            fingerprint,
            shape,
            kv,
            threads,
            device: ["", "cpu amx"][threads as usize % 2].to_owned(),
            pool_tokens: if threads % 2 == 0 { u64::MAX } else { u64::from(convention) + 1 },
            keeps_snapshots: threads % 3 == 0,
            convention,
        },
    )
}

/// A worker as the shipped model makes it.
pub(crate) fn example_info() -> WorkerInfo {
    let shape = ModelShape {
        vocab: 4096,
        layers: 6,
        width: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ffn: 640,
        max_positions: 0,
        recurrent_layers: 0,
        state_bytes: 0,
        wide: WideHeads::NONE,
        kv_shared_layers: 0,
        windowed: WindowedLayers::NONE,
    };
    WorkerInfo {
        peer: Peer("local://w0".into()),
        fingerprint: "0af3".into(),
        shape,
        kv: KvDtype::Bf16,
        threads: 2,
        device: "cpu avx2".into(),
        pool_tokens: u64::MAX,
        keeps_snapshots: true,
        convention: 1,
    }
}

fn snapshot() -> impl Strategy<Value = SnapshotKey> {
    any::<[u8; 32]>().prop_map(SnapshotKey)
}

fn news() -> impl Strategy<Value = SnapshotNews> {
    let names = || prop::collection::vec(snapshot(), 0..5);
    (names(), names(), any::<[u64; 3]>()).prop_map(
        |(kept, dropped, [count, memory_bytes, disk_bytes])| SnapshotNews {
            kept,
            dropped,
            held: SnapshotsHeld { count, memory_bytes, disk_bytes },
        },
    )
}

fn masses() -> impl Strategy<Value = Vec<RetainedMass>> {
    let mass = (0.0f64..1e6, 0.0f64..1e6).prop_map(|(kept, total)| RetainedMass { kept, total });
    prop::collection::vec(mass, 0..12)
}

fn report() -> impl Strategy<Value = ChunkReport> {
    (masses(), any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
        |(retained, memory_bytes, memory_tokens, busy_us, wait_us)| ChunkReport {
            retained,
            memory_bytes,
            memory_tokens,
            busy_us,
            wait_us,
            traffic: Traffic {
                sent_bytes: busy_us,
                received_bytes: wait_us,
                asked: memory_tokens,
                fetched: memory_tokens / 3,
                spared_bytes: busy_us / 3,
            },
            audits: (0..memory_tokens % 3)
                .map(|layer| MergeAudit { layer, rows: wait_us, error: 1e-6, lse_error: 0.0 })
                .collect(),
        },
    )
}

fn failure() -> impl Strategy<Value = FailureKind> {
    prop::sample::select(vec![
        FailureKind::Invalid,
        FailureKind::Exhausted,
        FailureKind::Deadline,
        FailureKind::Peer,
        FailureKind::Internal,
    ])
}

fn emitted() -> impl Strategy<Value = Emitted> {
    let idx = (0..limits::CHOICES_MAX, 0..limits::OUTPUT_TOKENS_MAX);
    (any::<u64>(), idx, token_logprob(), top()).prop_map(
        |(request, (choice, token_idx), TokenLogprob { token, logprob }, top)| Emitted {
            request: RequestId(request),
            choice,
            token_idx,
            token,
            logprob,
            top,
        },
    )
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    let start = || 0..limits::PROMPT_TOKENS_MAX - 64;
    let logits = (1..5u32, 1..9usize).prop_flat_map(|(rows, vocab)| {
        let count = rows as usize * vocab;
        (Just(rows), prop::collection::vec(-100.0f32..100.0, count))
    });
    let entries = prop::collection::vec((token_logprob(), top()), 1..6);
    prop_oneof![
        info().prop_map(|info| Event::Hello(Box::new(info))),
        (key(), 0..=limits::LAYERS_MAX)
            .prop_map(|(key, layers_done)| Event::Progress { key, layers_done }),
        (key(), start(), logits).prop_map(|(key, start, (rows, logits))| Event::Logits {
            key,
            start,
            rows,
            logits
        }),
        (key(), start(), entries).prop_map(|(key, start, entries)| Event::PromptLogprobs {
            key,
            start,
            entries
        }),
        (key(), report())
            .prop_map(|(key, report)| Event::ChunkDone { key, report: Box::new(report) }),
        (key(), failure(), ".{0,20}").prop_map(|(key, kind, message)| Event::ChunkFailed {
            key,
            kind,
            message
        }),
        news().prop_map(|news| Event::Snapshots(Box::new(news))),
        (0..=limits::POOL_BYTES_MAX, 1..9u64)
            .prop_map(|(bytes, part)| { Event::Pool(PoolUse { bytes, used_bytes: bytes / part }) }),
        emitted().prop_map(|emitted| Event::Token(Box::new(emitted))),
        super::seen::tests::seen().prop_map(|seen| Event::Seen(Box::new(seen))),
        (any::<u64>(), 0..limits::CHOICES_MAX, any::<bool>()).prop_map(|(request, choice, eos)| {
            Event::ChoiceDone { request: RequestId(request), choice, eos }
        }),
        (any::<u64>(), failure(), ".{0,20}").prop_map(|(request, kind, message)| {
            Event::DecodeFailed { request: RequestId(request), kind, message }
        }),
        any::<u64>().prop_map(|request| Event::HandedOver { request: RequestId(request) }),
        Just(Event::Draining),
        (any::<u64>(), ask::reply())
            .prop_map(|(ticket, reply)| Event::Answered(Box::new(Answer { ticket, reply }))),
    ]
}
