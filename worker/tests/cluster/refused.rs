//! A worker that a coordinator refuses says so where its own operator looks.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use aqueduct_kernels::KvDtype;
use aqueduct_proto::v1::WorkerCommand;
use aqueduct_proto::v1::worker_client::WorkerClient;
use futures::stream;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::rig::{Carrier, cluster};
use crate::tiny_model::tiny;

/// Warnings of this thread, each as a line.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.0, "{field}={value} ").unwrap();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_worker_that_is_refused_says_by_whom_and_why() {
    let warnings = Warnings::default();
    let _here = tracing::subscriber::set_default(warnings.clone());
    let member = cluster(&tiny(KvDtype::F32), 1, Carrier::Grpc).await.remove(0);
    let session = async |reason: Option<&str>| {
        let mut client = WorkerClient::connect(member.peer.0.clone()).await.unwrap();
        let mut request = Request::new(stream::pending::<WorkerCommand>());
        let reason = reason.map(|reason| MetadataValue::from_bytes(reason.as_bytes()));
        reason.map(|reason| request.metadata_mut().insert_bin("aqueduct-refused-bin", reason));
        let mut events = client.control(request).await.unwrap().into_inner();
        assert!(events.message().await.unwrap().is_some(), "its hello, whatever was said");
    };
    let told = || {
        let all = warnings.0.lock().unwrap();
        all.iter().filter(|line| line.contains("refuses this worker")).cloned().collect::<Vec<_>>()
    };
    session(None).await;
    assert_eq!(told(), Vec::<String>::new());
    session(Some("fingerprint = a: must be b\nand no second line")).await;
    session(Some("fingerprint = a: must be b\nand no second line")).await;
    let told = told();
    assert_eq!(told.len(), 1, "{told:?}");
    for part in ["coordinator=127.0.0.1", "fingerprint = a: must be b\\nand no second line"] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }
}
