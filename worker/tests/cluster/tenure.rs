//! Coordinators of one group: a worker works for the leader of the latest term alone.

use aqueduct_core::{Tenure, limits};
use aqueduct_kernels::KvDtype;
use aqueduct_proto::convert::peers::put_tenure;
use aqueduct_proto::v1::worker_client::WorkerClient;
use aqueduct_proto::v1::{WorkerCommand, WorkerEvent};
use aqueduct_proto::{COORDINATORS_METADATA, TERM_METADATA};
use futures::stream;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status, Streaming};

use crate::rig::{Carrier, Member, cluster};
use crate::tiny_model::tiny;

/// A session that asks for nothing.
async fn session(
    member: &Member,
    tell: impl FnOnce(&mut MetadataMap),
) -> Result<Streaming<WorkerEvent>, Status> {
    let mut client = WorkerClient::connect(member.peer.0.clone()).await.unwrap();
    let mut request = Request::new(stream::pending::<WorkerCommand>());
    tell(request.metadata_mut());
    Ok(client.control(request).await?.into_inner())
}

/// What ends a session.
async fn end(mut events: Streaming<WorkerEvent>) -> Status {
    let read = async {
        loop {
            if let Err(status) = events.message().await.map(|event| event.expect("no reason")) {
                return status;
            }
        }
    };
    let deadline = std::time::Duration::from_millis(limits::CONNECT_DEADLINE_MS);
    tokio::time::timeout(deadline, read).await.expect("it goes on")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_leader_has_no_session() {
    let member = cluster(&tiny(KvDtype::F32), 1, Carrier::Grpc).await.remove(0);
    let in_term = |group, term| {
        move |metadata: &mut MetadataMap| put_tenure(Tenure { group, term }, metadata)
    };
    let deposed = session(&member, in_term(1, 5)).await.unwrap();
    let mut other = session(&member, in_term(2, 1)).await.unwrap();
    let mut alone = session(&member, |_| {}).await.unwrap();
    let mut leads = session(&member, in_term(1, 6)).await.unwrap();
    let status = end(deposed).await;
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().starts_with("aqueduct-term = 5: must be at least 6"), "{status}");
    let refused = session(&member, in_term(1, 5)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for goes_on in [&mut leads, &mut other, &mut alone] {
        assert!(goes_on.message().await.unwrap().is_some(), "its hello");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenure_is_whole_or_refused() {
    let member = cluster(&tiny(KvDtype::F32), 1, Carrier::Grpc).await.remove(0);
    let check = async |field: &'static str, value: &'static str, want: &str| {
        let tell = |metadata: &mut MetadataMap| {
            metadata.insert(field, value.parse().unwrap());
        };
        let refused = session(&member, tell).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().starts_with(want), "{refused}");
    };
    check(TERM_METADATA, "1", "aqueduct-group = absent").await;
    check(COORDINATORS_METADATA, "1", "aqueduct-term = absent").await;
    check(TERM_METADATA, "soon", "aqueduct-term = \"soon\"").await;
}
