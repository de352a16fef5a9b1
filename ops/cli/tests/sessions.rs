//! Sessions: a turn costs its own tokens and gives what prefilling it behind the last answer gives,
//! on any number of workers, whatever else they do.

mod binary;

use std::sync::Arc;
use std::time::Duration;

use aqueduct_coordinator::submit::{RequestError, Submission, Update};
use aqueduct_coordinator::{Config, Coordinator, Session as Workers};
use aqueduct_core::work::Outputs;
use aqueduct_core::{Exchange, MemoryPolicy, Sampling, Session, SessionUse, TokenId, WireDtype};
use aqueduct_engine::{Block, LoadOptions, LocalPort, Model, Sequence, Want, WeightDtype, prefill};
use aqueduct_kernels::{Cpu, CpuOptions, KvDtype, Leaves};
use aqueduct_worker::{LoopbackHub, SnapshotOptions, Worker, WorkerOptions};
use binary::{Running, aqueduct, wait_for};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);
const CHUNK_TOKENS: u32 = 32;
fn h2o() -> MemoryPolicy {
    MemoryPolicy::h2o(2, 8, 8)
}

fn model(kv: KvDtype) -> Arc<Model> {
    let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
    let options = LoadOptions { kv, weights: WeightDtype::Auto, backend: Arc::new(cpu) };
    Arc::new(Model::load(&binary::model(), &options, &mut |_| {}).unwrap())
}

async fn cluster(model: &Arc<Model>, count: usize, bytes: u64) -> (Coordinator, Vec<Worker>) {
    let hub = LoopbackHub::default();
    let start = |idx| {
        let mut options = WorkerOptions::new(format!("local://w{idx}"), hub.clone());
        options.snapshots = SnapshotOptions { bytes, disk: None };
        Worker::start(model.clone(), options).unwrap()
    };
    let workers: Vec<Worker> = (0..count).map(start).collect();
    let session = |worker: &Worker| {
        let (commands, events) = worker.open_session();
        Workers::in_process(worker.info().peer.to_string(), commands, events)
    };
    let sessions = workers.iter().map(session).collect();
    let coordinator = Coordinator::start(Config::default(), sessions).unwrap();
    assert!(coordinator.wait_for_workers(count, PATIENCE).await);
    (coordinator, workers)
}

/// A turn: what is said, and how many tokens answer it.
#[derive(Debug, Clone)]
struct Turn {
    said: Vec<TokenId>,
    answer_tokens: u32,
}

fn turn(idx: u32, tokens: u32, answer_tokens: u32) -> Turn {
    let said = (0..tokens).map(|at| (at * at * 31 + at * 7 + idx * 101) % 4000 + 1).collect();
    Turn { said, answer_tokens }
}

/// Edge lengths: less than a chunk, a whole one and more, an answer longer than a chunk, a turn
/// without words, one that is only remembered.
fn conversation() -> Vec<Turn> {
    vec![
        turn(0, 150, 7),
        turn(1, 5, 40),
        turn(2, 0, 3),
        turn(3, 63, 1),
        turn(4, 70, 0),
        turn(5, 9, 4),
    ]
}

fn submission(turn: &Turn, policy: MemoryPolicy, session: Option<SessionUse>) -> Submission {
    Submission {
        session,
        policy,
        chunk_tokens: CHUNK_TOKENS,
        exchange: Exchange::Move,
        wire: WireDtype::F32,
        sampling: Sampling { logprobs: Some(2), ..Sampling::greedy() },
        max_tokens: turn.answer_tokens,
        deadline: PATIENCE,
        ..Submission::of(turn.said.clone())
    }
}

/// What a turn came to.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    /// With the bits of their log probabilities.
    tokens: Vec<(TokenId, u32)>,
    session: Option<Session>,
    cached_tokens: u32,
}

async fn ask(coordinator: &Coordinator, asked: Submission) -> Result<Answer, RequestError> {
    let mut handle = coordinator.submit(asked).await?;
    let mut answer = Answer { tokens: Vec::new(), session: None, cached_tokens: 0 };
    while let Some(update) = handle.next().await.transpose()? {
        match update {
            Update::Token(token) => answer.tokens.push((token.token, token.logprob.to_bits())),
            Update::Session(session) => answer.session = Some(session),
            Update::Prefilled(report) => answer.cached_tokens = report.cached_tokens,
            _ => {}
        }
    }
    Ok(answer)
}

/// The same by the engine alone, turn by turn: chunks of what is not remembered yet, then a token
/// at a time; the last token of an answer is the first of the next turn.
fn reference(model: &Model, turns: &[Turn], policy: &MemoryPolicy) -> Vec<Vec<TokenId>> {
    let mut port = LocalPort::empty(model);
    let mut pending: Option<TokenId> = None;
    let mut answers = Vec::new();
    for Turn { said, answer_tokens } in turns {
        let tokens: Vec<TokenId> = pending.take().into_iter().chain(said.iter().copied()).collect();
        let mut logits = Vec::new();
        let leaves = Leaves::of_chunks(CHUNK_TOKENS);
        for tokens in tokens.chunks(CHUNK_TOKENS as usize) {
            let block = Block { tokens, start: port.end(), leaves };
            let done = prefill(model, block, policy, &mut port, Want::Last).unwrap();
            logits = model.logits(&done.hidden.last_row()).unwrap().into_vec();
        }
        let leaves = leaves.going_on_behind(port.end());
        let mut sequence = Sequence::new(model, port.layers().to_vec(), leaves);
        let mut answer = Vec::new();
        for _ in 0..*answer_tokens {
            if let Some(token) = pending {
                logits = sequence.step(model, token, policy).unwrap();
            }
            let best = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
            pending = best.map(|token| token as TokenId);
            answer.extend(pending);
        }
        port = LocalPort::resume(sequence.memory().to_vec(), model);
        answers.push(answer);
    }
    answers
}

async fn check(model: &Arc<Model>, policy: MemoryPolicy) {
    let turns = conversation();
    let want = reference(model, &turns, &policy);
    let mut bits: Option<Vec<Answer>> = None;
    for count in 1..=4 {
        let (coordinator, _workers) = cluster(model, count, 1 << 30).await;
        let (mut asked, mut answers) = (SessionUse::New, Vec::new());
        for (turn, want) in turns.iter().zip(&want) {
            let known = asked.goes_on().map_or(0, |session| session.end);
            let chunks = coordinator.stats().chunks_done;
            let answer = ask(&coordinator, submission(turn, policy, Some(asked))).await.unwrap();
            let tokens: Vec<TokenId> = answer.tokens.iter().map(|token| token.0).collect();
            assert_eq!(&tokens, want, "{count} workers, {policy:?}");
            let pending = asked.goes_on().is_some_and(|session| session.pending.is_some());
            let own = turn.said.len() as u64 + u64::from(pending);
            let want = chunks + own.div_ceil(CHUNK_TOKENS.into());
            wait_for("the figures", || (coordinator.stats().chunks_done >= want).then_some(()));
            assert_eq!(coordinator.stats().chunks_done, want, "only what is new");
            assert_eq!(answer.cached_tokens, known);
            asked = SessionUse::GoOn(answer.session.expect("kept"));
            answers.push(answer);
            // Others come and go, and take pages.
            let other = submission(&self::turn(9, 100, 5), policy, None);
            ask(&coordinator, other).await.unwrap();
        }
        // An earlier turn can be gone on from again, with the same answer.
        let first = answers[0].session.map(SessionUse::GoOn);
        let again = ask(&coordinator, submission(&turns[1], policy, first)).await.unwrap();
        assert_eq!(again, answers[1]);
        assert_eq!(*bits.get_or_insert_with(|| answers.clone()), answers, "{count} workers");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_costs_its_own_tokens_and_gives_what_the_engine_gives() {
    let model = model(KvDtype::Bf16);
    check(&model, h2o()).await;
    check(&model, MemoryPolicy::window(2, 12)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_gone_on_from_is_refused() {
    let model = model(KvDtype::F32);
    let (coordinator, _workers) = cluster(&model, 2, 1 << 30).await;
    let first = submission(&turn(0, 40, 3), h2o(), Some(SessionUse::New));
    let session = ask(&coordinator, first.clone()).await.unwrap().session.unwrap();
    let next = submission(&turn(1, 3, 2), h2o(), Some(SessionUse::GoOn(session)));
    let refused = async |asked: Submission| match ask(&coordinator, asked).await {
        Err(RequestError::Refused(refusal)) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    for (asked, want) in [
        (Submission { policy: MemoryPolicy::h2o(2, 8, 7), ..next.clone() }, "same policy"),
        (Submission { chunk_tokens: 64, ..next.clone() }, "chunk_tokens"),
        (Submission { wire: WireDtype::F16, ..next.clone() }, "wire"),
        (Submission { policy: MemoryPolicy::dense(), ..next.clone() }, "not dense"),
        (Submission { exchange: Exchange::Stay, ..next.clone() }, "not stay"),
        (Submission { choices: 2, ..next.clone() }, "choices beside a session = 2"),
        (Submission { outputs: Outputs::Logprobs(1), ..next.clone() }, "prompt_logprobs"),
    ] {
        let seen = refused(asked).await;
        assert!(seen.contains(want), "{seen}");
    }
    let other = SessionUse::GoOn(Session { model: [0; 8], ..session });
    let seen = refused(Submission { session: Some(other), ..next.clone() }).await;
    assert!(seen.contains("the model that is served"), "{seen}");
    let unknown = Session { pending: Some(1), ..session };
    let unknown = Submission { session: Some(SessionUse::GoOn(unknown)), ..next.clone() };
    assert_eq!(ask(&coordinator, unknown).await, Err(RequestError::SessionLost));
    assert!(ask(&coordinator, next.clone()).await.is_ok(), "the session is none the worse");
    let (forgetful, _workers) = cluster(&model, 1, 0).await;
    let Err(RequestError::Refused(refusal)) = ask(&forgetful, first).await else { panic!() };
    assert!(refusal.to_string().contains("no worker keeps anything"), "{refusal}");
}

/// A turn over HTTP: the choices, tokens that were not computed, and the session after it.
fn post(server: &Running, content: &str, session: &str) -> (Value, u64, String) {
    let body = json!({
        "messages": [{ "role": "user", "content": content }], "max_tokens": 9, "temperature": 0,
        "aqueduct": {
            "chunk_tokens": 32, "local": 8, "heavy": 8, "wire": "f16", "session": session,
        },
    });
    let (status, answer) = server.http("POST", "/v1/chat/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let session = answer["aqueduct"]["session"].as_str().expect("a session").to_owned();
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    (answer["choices"].clone(), cached.as_u64().unwrap(), session)
}

/// Three questions, one after the other.
fn converse(server: &Running) -> Vec<(Value, u64, String)> {
    let book = std::fs::read_to_string(binary::model().join("../ops/demo/walden.txt")).unwrap();
    let book: String = book.chars().take(3000).collect();
    let first = post(server, &format!("{book} What is it?"), "new");
    let second = post(server, "Why did he go there?", &first.2);
    let third = post(server, "Who says so?", &second.2);
    vec![first, second, third]
}

#[test]
fn a_chat_goes_on_over_http_in_two_bytes_and_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let args = ["--kv", "f32", "--snapshot-dir", path];
    let server = Running::serve(&args);
    let want = converse(&server);
    assert!(want[0].1 == 0 && want[1].1 > 500 && want[2].1 > want[1].1, "{want:?}");
    let on_disk = || server.metric("snapshot_disk_bytes") >= server.metric("snapshot_bytes");
    wait_for("the disk", || (server.metric("snapshot_bytes") > 0.0 && on_disk()).then_some(()));
    assert_eq!(server.terminate(), Some(0));
    let server = Running::serve(&args);
    wait_for("the files", || (server.metric("snapshots") > 0.0).then_some(()));
    assert_eq!(post(&server, "Who says so?", &want[1].2), want[2]);
    let mut lost = want[1].2.clone();
    lost.replace_range(60..64, "0000");
    let body = json!({
        "prompt": "And?",
        "aqueduct": {
            "chunk_tokens": 32, "local": 8, "heavy": 8, "wire": "f16", "session": lost,
        },
    });
    let (status, answer) = server.http("POST", "/v1/completions", &body.to_string());
    assert!(status == 404 && answer.contains("session_lost"), "{status} {answer}");

    let worker = || {
        let args =
            ["worker", "--threads", "1", "--listen", "127.0.0.1:0", "--kv", "f32", "--model"];
        Running::start(aqueduct().args(args).arg(binary::model()))
    };
    let workers: Vec<Running> = (0..3).map(|_| worker()).collect();
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(binary::model());
    for worker in &workers {
        command.args(["--worker", worker.address("url")]);
    }
    let coordinator = Running::start(&mut command);
    wait_for("all workers", || (coordinator.metric("workers_up") == 3.0).then_some(()));
    assert_eq!(converse(&coordinator), want, "three processes, over gRPC");
}
