//! Garbage on the gRPC port: a clear answer, and the next request works.

use aqueduct_core::work::{Base, CONVENTION, Command, Outputs};
use aqueduct_core::{ChunkKey, Epoch, MemoryPolicy, RequestId, limits};
use aqueduct_kernels::KvDtype;
use aqueduct_proto::FINGERPRINT_METADATA;
use aqueduct_proto::convert::frame::{self, SetHeader, Spared};
use aqueduct_proto::convert::notice::Notice;
use aqueduct_proto::v1::hand_off_ack::Verdict;
use aqueduct_proto::v1::worker_client::WorkerClient;
use aqueduct_proto::v1::{self, HandOffAck, HandOffFrame, WorkerCommand, worker_event};
use aqueduct_worker::Stats;
use futures::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Request, Status};

use crate::rig::{Carrier, Job, Member, cluster, run};
use crate::tiny_model::{STATE_LEN, hybrid, tiny};

async fn member() -> Member {
    cluster(&tiny(KvDtype::F32), 1, Carrier::Grpc).await.remove(0)
}

async fn still_works(mut member: Member) {
    assert_eq!(member.stats(), Stats::default());
    let job = Job { outputs: Outputs::None, ..Job::new(20, MemoryPolicy::h2o(2, 3, 3)) };
    assert_eq!(run(std::slice::from_mut(&mut member), &job, 3).await.tokens.len(), 6);
}

async fn hand_off(
    member: &Member,
    fingerprint: &'static str,
    frames: Vec<HandOffFrame>,
) -> Result<Vec<HandOffAck>, Status> {
    let mut client = WorkerClient::connect(member.peer.0.clone()).await.unwrap();
    let mut request = Request::new(stream::iter(frames));
    request.metadata_mut().insert(FINGERPRINT_METADATA, fingerprint.parse().unwrap());
    let mut acks = client.hand_off(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(ack) = acks.message().await? {
        all.push(ack);
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_not_http() {
    let member = member().await;
    let address = member.peer.0.strip_prefix("http://").unwrap().to_owned();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\x00\xff\xff\xff\xff".to_vec();
    for bytes in [vec![0xff; 4096], b"GET / HTTP/1.0\r\n\r\n".to_vec(), preface] {
        let mut socket = tokio::net::TcpStream::connect(&address).await.unwrap();
        let _ = socket.write_all(&bytes).await; // the server may close before all is written
        let _ = socket.shutdown().await;
        let _ = socket.read_to_end(&mut Vec::new()).await;
    }
    still_works(member).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_cannot_be_used_are_answered_and_dropped() {
    let member = member().await;
    let corrupt =
        HandOffFrame { convention: CONVENTION, payload: vec![1; 99].into(), ..<_>::default() };
    let acks = hand_off(&member, "tiny-F32", vec![corrupt.clone(), corrupt]).await.unwrap();
    assert_eq!(acks.len(), 2);
    assert!(acks.iter().all(|ack| ack.verdict() == Verdict::Corrupt));
    assert!(acks[0].message.contains("checksum"), "{}", acks[0].message);
    let other = HandOffFrame { convention: 9, ..<_>::default() };
    let refused = hand_off(&member, "tiny-F32", vec![other]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("convention 9"));
    still_works(member).await;
}

/// A frame whose checksum is right, of a set of `keys` keys per KV head.
fn sound(request: u64, kv_heads: u32, keys: u32) -> HandOffFrame {
    let set = header(request, kv_heads, keys);
    frame::split(&set, vec![0; set.payload_bytes() as usize].into()).unwrap().remove(0)
}

fn header(request: u64, kv_heads: u32, keys: u32) -> SetHeader {
    SetHeader {
        key: ChunkKey { request: RequestId(request), chunk_idx: 1, epoch: Epoch(0) },
        layer: 0,
        convention: CONVENTION,
        kv: aqueduct_core::KvDtype::F32,
        kv_heads,
        head_dim: 8,
        keys,
        end: keys.max(8),
        wire: aqueduct_core::WireDtype::F32,
        state: 0,
        spared: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_with_a_right_checksum_are_not_believed_either() {
    let member = member().await;
    let refused = async |frame: HandOffFrame, why: &str| {
        let acks = hand_off(&member, "tiny-F32", vec![frame]).await.unwrap();
        assert_eq!(acks[0].verdict(), Verdict::Corrupt, "{why}");
        assert!(acks[0].message.contains(why), "{}", acks[0].message);
    };
    refused(sound(1, 3, 0), "kv_heads = 3").await;
    refused(sound(1, 2, 2), "positions").await; // twice position 0
    refused(HandOffFrame { crc32: 1, ..sound(1, 2, 1) }, "checksum").await;
    refused(HandOffFrame { keys: u32::MAX, ..sound(1, 2, 1) }, "checksum").await;
    let state = SetHeader { state: 2, ..header(1, 2, 0) };
    let payload = vec![0; state.payload_bytes() as usize].into();
    let state = frame::split(&state, payload).unwrap().remove(0);
    refused(state.clone(), "state = 2").await; // that layer has keys
    refused(HandOffFrame { state: 3, ..state }, "checksum").await;
    // Nobody here has given anything that a set could lack.
    let base = Base { chunk_idx: 0, epoch: Epoch(0), end: 8 };
    let spared = Some(Spared { base, rows: 0, crc32: 0 });
    let set = SetHeader { spared, ..header(1, 2, 1) };
    let lists = vec![0; set.payload_bytes() as usize].into();
    let lacking = frame::split(&set, lists).unwrap();
    let acks = hand_off(&member, "tiny-F32", lacking).await.unwrap();
    assert_eq!(acks[0].verdict(), Verdict::Whole);
    // Part 0 of a set of two parts, and the stream ends: nothing of it is kept.
    let acks = hand_off(&member, "tiny-F32", vec![sound(1, 2, 40_000)]).await.unwrap();
    assert!(acks.len() == 1 && acks[0].verdict() == Verdict::Ok, "{acks:?}");
    // A set of a request that nobody knows waits for an assignment; a cancel frees it.
    let acks = hand_off(&member, "tiny-F32", vec![sound(9, 2, 0)]).await.unwrap();
    assert_eq!(acks[0].verdict(), Verdict::Ok);
    assert!(member.stats().inbox_bytes > 0);
    member.send(Command::Cancel { request: RequestId(9) }).await;
    member.settle_empty().await;
    let acks = hand_off(&member, "tiny-F32", vec![sound(9, 2, 0)]).await.unwrap();
    assert_eq!(acks[0].verdict(), Verdict::Stale);
    still_works(member).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_are_those_of_the_model_and_can_be_some() {
    let member = cluster(&hybrid(KvDtype::F32), 1, Carrier::Grpc).await.remove(0);
    let ack_of = async |request: u64, layer: u32, state: &[f32]| {
        let set = SetHeader { state: state.len() as u32, layer, ..header(request, 2, 0) };
        let payload: Vec<u8> = state.iter().flat_map(|x| x.to_le_bytes()).collect();
        let frames = frame::split(&set, payload.into()).unwrap();
        hand_off(&member, "hybrid-F32", frames).await.unwrap().remove(0)
    };
    let refused = async |layer: u32, state: &[f32], why: &str| {
        let ack = ack_of(1, layer, state).await;
        assert_eq!(ack.verdict(), Verdict::Corrupt, "{why}");
        assert!(ack.message.contains(why), "{}", ack.message);
    };
    refused(8, &[], "state = 0").await;
    refused(8, &[0.5; STATE_LEN - 1], "state = 47").await;
    refused(0, &[0.5; STATE_LEN], "state = 48").await;
    refused(8, &[f32::NAN; STATE_LEN], "must be finite").await;
    refused(8, &[f32::INFINITY; STATE_LEN], "must be finite").await;
    assert_eq!(member.stats(), Stats::default());
    assert_eq!(ack_of(1, 8, &[-0.5; STATE_LEN]).await.verdict(), Verdict::Ok);
    assert!(member.stats().inbox_bytes > 4 * STATE_LEN as u64);
    member.send(Command::Cancel { request: RequestId(1) }).await;
    member.settle_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_models_worker_is_refused() {
    let member = member().await;
    let refused = hand_off(&member, "tiny-Bf16", vec![]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("tiny-F32"), "{}", refused.message());
    still_works(member).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_too_large_is_refused() {
    let member = member().await;
    let huge = vec![0; limits::GRPC_MESSAGE_BYTES_MAX + 1].into();
    let frame = HandOffFrame { convention: CONVENTION, payload: huge, ..<_>::default() };
    let acks = hand_off(&member, "tiny-F32", vec![frame]).await;
    assert!(acks.is_err() || acks.unwrap().is_empty());
    still_works(member).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_cannot_be_used_ends_its_session_with_the_field() {
    let member = member().await;
    let mut client = WorkerClient::connect(member.peer.0.clone()).await.unwrap();
    let decode = v1::Decode { request: 9, choices: 1, max_tokens: 1, ..<_>::default() };
    let kind = Some(v1::worker_command::Kind::Decode(decode));
    let mut events = client
        .control(stream::iter([WorkerCommand { kind, crc32: None }]))
        .await
        .unwrap()
        .into_inner();
    let hello = events.message().await.unwrap().unwrap();
    assert!(matches!(hello.kind, Some(worker_event::Kind::Hello(_))));
    let news = events.message().await.unwrap().unwrap();
    assert!(matches!(news.kind, Some(worker_event::Kind::Snapshots(_))));
    let refused = loop {
        match events.message().await {
            Ok(event) => {
                let kind = event.expect("the session ends with an error").kind;
                assert!(matches!(kind, Some(worker_event::Kind::Pool(_))));
            }
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "decode.sampling = absent: must be present");
    still_works(member).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_without_a_pair_is_refused_and_parts_are_still_taken() {
    let member = member().await;
    let notice = Notice::new(header(9, 2, 1), &[0; 24]).to_frame().unwrap();
    let frames = vec![notice.clone(), sound(9, 2, 1), notice];
    let acks = hand_off(&member, "tiny-F32", frames).await.unwrap();
    let verdicts: Vec<Verdict> = acks.iter().map(HandOffAck::verdict).collect();
    assert_eq!(verdicts, [Verdict::Corrupt, Verdict::Ok, Verdict::Corrupt], "{acks:?}");
    member.send(Command::Cancel { request: RequestId(9) }).await;
    member.settle_empty().await;
    still_works(member).await;
}
