//! Spans of one request, from five processes, at a real OTLP receiver: one tree, under the span
//! of its caller.

mod binary;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use binary::{Running, aqueduct, model, run, stderr, wait_for};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

/// A span, and the process that it comes from.
#[derive(Debug, Clone)]
struct Seen {
    service: String,
    pid: i64,
    span: Span,
}

/// A collector that remembers.
#[derive(Debug, Clone, Default)]
struct Receiver(Arc<Mutex<Vec<Seen>>>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let mut seen = self.0.lock().unwrap();
        for of_process in request.into_inner().resource_spans {
            let resource = of_process.resource.unwrap_or_default().attributes;
            let service = text(&resource, "service.name");
            let pid = int(&resource, "process.pid");
            let spans = of_process.scope_spans.into_iter().flat_map(|scope| scope.spans);
            seen.extend(spans.map(|span| Seen { service: service.clone(), pid, span }));
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Any> {
    let of = |AnyValue { value }: &'a AnyValue| value.as_ref();
    attributes.iter().find(|entry| entry.key == key)?.value.as_ref().and_then(of)
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    match attribute(attributes, key) {
        Some(Any::StringValue(text)) => text.clone(),
        other => panic!("{key}: {other:?} in {attributes:?}"),
    }
}

fn int(attributes: &[KeyValue], key: &str) -> i64 {
    match attribute(attributes, key) {
        Some(Any::IntValue(number)) => *number,
        other => panic!("{key}: {other:?} in {attributes:?}"),
    }
}

impl Receiver {
    /// Serves on a free port, whose URL is given.
    fn start(&self) -> (tokio::runtime::Runtime, String) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        runtime.spawn(server);
        (runtime, url)
    }

    /// Spans of a trace.
    fn of(&self, trace: &str) -> Vec<Seen> {
        let of_trace = |seen: &&Seen| hex(&seen.span.trace_id) == trace;
        self.0.lock().unwrap().iter().filter(of_trace).cloned().collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn traced(command: &mut std::process::Command, collector: &str) -> Running {
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50").args(["--otlp-endpoint", collector]);
    Running::start(command)
}

fn cluster(collector: &str) -> (Vec<Running>, Running) {
    let worker = |_| {
        let mut command = aqueduct();
        command.args(["worker", "--threads", "1", "--listen", "127.0.0.1:0", "--model"]);
        traced(command.arg(model()), collector)
    };
    let workers: Vec<_> = (0..4).map(worker).collect();
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(model());
    for worker in &workers {
        command.args(["--worker", worker.address("url")]);
    }
    let coordinator = traced(&mut command, collector);
    wait_for("the workers", || (coordinator.metric("workers_up") == 4.0).then_some(()));
    (workers, coordinator)
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

#[test]
fn spans_of_five_processes_are_one_tree() {
    let receiver = Receiver::default();
    let (_runtime, url) = receiver.start();
    let (_workers, coordinator) = cluster(&url);
    let body = serde_json::json!({
        "prompt": "I went to the woods because I wished to live deliberately. ".repeat(20),
        "max_tokens": 4, "temperature": 0, "ignore_eos": true, "aqueduct": { "chunk_tokens": 32 },
    });
    let traceparent = format!("traceparent: 00-{TRACE}-{CALLER}-01");
    let (status, answer) =
        coordinator.post_with("/v1/completions", &[&traceparent], &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let chunks = |seen: &[Seen]| {
        seen.iter().filter(|seen| seen.span.name == "chunk").cloned().collect::<Vec<_>>()
    };
    let seen = wait_for("all spans", || {
        let seen = receiver.of(TRACE);
        let names: BTreeSet<_> = seen.iter().map(|seen| seen.span.name.as_str()).collect();
        let wanted = ["call", "chunk", "decode", "layers", "queue", "request"];
        let all = wanted.iter().all(|name| names.contains(name));
        let chunk_count =
            chunks(&seen).first().map(|seen| int(&seen.span.attributes, "chunk_count") as usize);
        (all && chunk_count == Some(chunks(&seen).len())).then_some(seen)
    });
    let parents: BTreeMap<String, &Seen> =
        seen.iter().map(|seen| (hex(&seen.span.span_id), seen)).collect();
    assert_eq!(parents.len(), seen.len(), "ids of spans are unique");
    for Seen { service, span, .. } in &seen {
        let parent = hex(&span.parent_span_id);
        let over = match parents.get(&parent) {
            Some(over) => (over.service.as_str(), over.span.name.as_str()),
            None => ("caller", parent.as_str()),
        };
        let coordinator = "aqueduct-coordinator";
        let want = match span.name.as_str() {
            "call" => ("caller", CALLER),
            "request" => (coordinator, "call"),
            "queue" | "chunk" | "decode" => (coordinator, "request"),
            "layers" => ("aqueduct-worker", "chunk"),
            other => panic!("{other} of {service} is not documented"),
        };
        assert_eq!(over, want, "{service}: {span:?}");
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
    }
    let at = |seen: &[Seen]| seen.iter().map(|seen| seen.pid).collect::<BTreeSet<_>>();
    assert_eq!(at(&seen).len(), 5, "processes");
    assert_eq!(at(&chunks(&seen)).len(), 4, "workers");
    let idx = |seen: Seen| int(&seen.span.attributes, "chunk_idx");
    let mut chunks: Vec<_> = chunks(&seen).into_iter().map(idx).collect();
    chunks.sort_unstable();
    assert_eq!(chunks, (0..chunks.len() as i64).collect::<Vec<_>>());
}

#[test]
fn a_collector_that_is_away_delays_nobody() {
    // A port that nobody listens at.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Running::serve(&["--otlp-endpoint", &format!("http://{nobody}")]);
    assert_eq!(server.complete("Simplify")["usage"]["completion_tokens"], 4);
    let asked = Instant::now();
    assert_eq!(server.terminate(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(20), "spans that cannot leave are given up");
}

#[test]
fn what_is_no_collector_is_refused() {
    let check = |endpoint: &str| {
        let output = run(["doctor", "--otlp-endpoint", endpoint]);
        assert_eq!(output.status.code(), Some(2), "{endpoint}: {}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("otlp_endpoint = ") && said.contains(endpoint), "{said}");
    };
    check("collector:4317");
    check("https://collector:4317");
    check("http://");
}

#[test]
fn logs_are_objects_where_programs_read_them() {
    let mut command = aqueduct();
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(model()).args(["--log", "info", "--log-format", "json"]).stdout(Stdio::piped());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    command.stderr(std::fs::File::create(&file).unwrap());
    let server = Running::start(&mut command);
    server.wait_until_ready();
    let (status, _) = server.http("POST", "/v1/completions", r#"{"prompt": "a", "n": 0}"#);
    assert_eq!(status, 400);
    assert_eq!(server.terminate(), Some(0));
    let log = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty());
    for line in lines {
        for field in ["timestamp", "level", "target"] {
            assert!(line[field].is_string(), "{field} in {line}");
        }
        assert!(line["fields"]["message"].is_string(), "{line}");
    }
}
