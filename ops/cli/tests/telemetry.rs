//! Spans of one request, from five processes, at a real OTLP receiver: one tree, under the span
//! of its caller. The figures of these processes at the same one: those of their pages.

mod binary;
mod collector;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use binary::{Running, aqueduct, model, run, stderr, wait_for};
use collector::{Collector, Push, Seen, hex, int, page_lines};
use serde_json::Value;

/// An interval that ends after the test.
const NEVER_MS: &str = "86400000";

fn exporting(command: &mut Command, collector: &str, interval_ms: &str) -> Running {
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50").args(["--otlp-endpoint", collector]);
    Running::start(command.args(["--otlp-interval-ms", interval_ms]))
}

fn cluster(workers: usize, collector: &str, interval_ms: &str) -> (Vec<Running>, Running) {
    let worker = |_| {
        let mut command = aqueduct();
        command.args(["worker", "--threads", "1", "--listen", "127.0.0.1:0", "--model"]);
        command.arg(model()).args(["--monitor", "127.0.0.1:0"]);
        exporting(&mut command, collector, interval_ms)
    };
    let workers: Vec<_> = (0..workers).map(worker).collect();
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(model());
    for worker in &workers {
        command.args(["--worker", worker.address("url")]);
    }
    let coordinator = exporting(&mut command, collector, interval_ms);
    let up = workers.len() as f64;
    wait_for("the workers", || (coordinator.metric("workers_up") == up).then_some(()));
    (workers, coordinator)
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

#[test]
fn spans_of_five_processes_are_one_tree() {
    let collector = Collector::default();
    let (_runtime, url) = collector.start();
    let (_workers, coordinator) = cluster(4, &url, NEVER_MS);
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
        let seen = collector.spans_of(TRACE);
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
fn a_collector_that_is_away_or_silent_delays_nobody() {
    // A port that nobody listens at, and one where nobody answers.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [nobody, silent.local_addr().unwrap()] {
        let to = format!("http://{address}");
        let server = Running::serve(&["--otlp-endpoint", &to, "--otlp-interval-ms", "100"]);
        assert_eq!(server.complete("Simplify")["usage"]["completion_tokens"], 4);
        let asked = Instant::now();
        assert_eq!(server.terminate(), Some(0));
        // Shorter than the deadline of one export.
        assert!(asked.elapsed() < Duration::from_secs(8), "{address}: {:?}", asked.elapsed());
    }
}

/// The figures of a process when they have come to be those of its page at `door`.
fn agreed(collector: &Collector, process: &Running, door: &str) -> BTreeSet<String> {
    wait_for(&format!("the figures at {door}"), || {
        let (status, page) = process.open_metrics_at(door);
        assert_eq!(status, 200, "{page}");
        let pushed = collector.pushes_of(process.id()).last()?.page();
        (pushed == page_lines(&page)).then_some(pushed)
    })
}

#[test]
fn pushed_figures_are_those_of_the_pages() {
    let collector = Collector::default();
    let (_runtime, url) = collector.start();
    let (workers, coordinator) = cluster(2, &url, "100");
    let ask = || {
        let prompt = "I went to the woods because I wished to live deliberately. ".repeat(20);
        let mut body = serde_json::json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0 });
        body["aqueduct"] = serde_json::json!({ "chunk_tokens": 32 });
        let (status, answer) = coordinator.http("POST", "/v1/completions", &body.to_string());
        assert_eq!(status, 200, "{answer}");
    };
    ask();
    let (status, _) = coordinator.http("POST", "/v1/completions", r#"{"prompt": "a", "n": 0}"#);
    assert_eq!(status, 400);
    let figures = agreed(&collector, &coordinator, "http");
    for line in [
        "# TYPE requests counter",
        "# UNIT time_to_first_token_seconds seconds",
        "requests_total{outcome=\"Finished\"} 1.0",
        "requests_rejected_total{reason=\"invalid\"} 1.0",
        "time_to_first_token_seconds_count 1.0",
        "workers_up 2.0",
    ] {
        assert!(figures.contains(line), "{line} is not in {figures:#?}");
    }
    for worker in &workers {
        let figures = agreed(&collector, worker, "monitor");
        assert!(figures.iter().any(|line| line.starts_with("worker_pool_used_bytes ")));
    }
    ask();
    agreed(&collector, &coordinator, "http");
    let pushes = collector.pushes_of(coordinator.id());
    let tokens = |push: &Push| push.sum("prompt_tokens_total");
    assert!(pushes.iter().all(|push| push.service == "aqueduct-coordinator"));
    assert!(pushes.is_sorted_by(|one, next| one.times().1 < next.times().1));
    assert!(pushes.is_sorted_by(|one, next| tokens(one) <= tokens(next)));
    assert_eq!(tokens(pushes.last().unwrap()), coordinator.metric("prompt_tokens_total"));
    let starts: BTreeSet<_> = pushes.iter().map(|push| push.times().0).collect();
    assert_eq!(starts.len(), 1, "{starts:?}");
    assert!(starts.iter().all(|start| *start > 0 && *start < pushes[0].times().1));
    let of = |worker: &Running| collector.pushes_of(worker.id()).remove(0);
    let of_workers = [of(&workers[0]), of(&workers[1])];
    assert!(of_workers.iter().all(|push| push.service == "aqueduct-worker"));
    assert_ne!(of_workers[0].instance, of_workers[1].instance);
}

#[test]
fn the_last_push_has_the_last_request() {
    let collector = Collector::default();
    let (_runtime, url) = collector.start();
    let (mut workers, coordinator) = cluster(1, &url, NEVER_MS);
    coordinator.complete("Simplify");
    let (_, page) = coordinator.open_metrics_at("http");
    let (worker, pid) = (workers.remove(0), coordinator.id());
    assert!(collector.pushes_of(pid).is_empty() && collector.pushes_of(worker.id()).is_empty());
    assert_eq!(coordinator.terminate(), Some(0));
    let pushes = collector.pushes_of(pid);
    assert_eq!(pushes.len(), 1);
    assert_eq!(pushes[0].sum("generation_tokens_total"), 4.0);
    let sums = |lines: BTreeSet<String>| -> BTreeSet<String> {
        let is_sum = |line: &String| {
            ["_total", "_sum", "_count", "_bucket"].iter().any(|kind| line.contains(kind))
        };
        lines.into_iter().filter(is_sum).collect()
    };
    assert_eq!(sums(pushes[0].page()), sums(page_lines(&page)));
    let pid = worker.id();
    assert_eq!(worker.terminate(), Some(0));
    assert_eq!(collector.pushes_of(pid).len(), 1);
}

/// A server whose log is in `log`, and that makes no spans.
fn logging_to(log: &Path, collector: &str) -> Running {
    let mut command = aqueduct();
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(model()).env("OTEL_TRACES_SAMPLER", "always_off");
    command.stderr(File::create(log).unwrap());
    exporting(&mut command, collector, "100")
}

fn count(log: &Path, words: &str) -> usize {
    std::fs::read_to_string(log).unwrap().matches(words).count()
}

const AWAY: &str = "figures do not reach the collector";
const BACK: &str = "the collector takes figures again";

#[test]
fn a_collector_that_comes_late_gets_all() {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    let (tries, is_open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let slamming = std::thread::spawn({
        let (tries, is_open) = (tries.clone(), is_open.clone());
        move || {
            while is_open.load(Ordering::Relaxed) {
                drop(door.accept());
                tries.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let server = logging_to(&log, &format!("http://{address}"));
    server.complete("Simplify");
    let seen = tries.load(Ordering::Relaxed);
    wait_for("more pushes", || (tries.load(Ordering::Relaxed) > seen + 4).then_some(()));
    assert_eq!((count(&log, AWAY), count(&log, BACK)), (1, 0));
    is_open.store(false, Ordering::Relaxed);
    slamming.join().unwrap();
    let collector = Collector::default();
    let (runtime, _) = collector.start_at(&address.to_string());
    let figures = agreed(&collector, &server, "http");
    assert!(figures.contains("requests_total{outcome=\"Finished\"} 1.0"), "{figures:#?}");
    wait_for("its return in the log", || (count(&log, BACK) == 1).then_some(()));
    assert_eq!(count(&log, AWAY), 1);
    drop(runtime); // each outage is told, not only the first
    wait_for("its end in the log", || (count(&log, AWAY) == 2).then_some(()));
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn what_a_collector_rejects_is_logged() {
    let collector = Collector::rejecting(3);
    let (_runtime, url) = collector.start();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let server = logging_to(&log, &url);
    wait_for("pushes", || (collector.pushes_of(server.id()).len() > 3).then_some(()));
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(count(&log, "rejected=3 said=\"points of tomorrow\""), 1);
    assert_eq!(count(&log, AWAY), 0);
}

#[test]
fn intervals_out_of_bounds_are_refused() {
    let check = |ms: &str, wanted: &str| {
        let output = run(["doctor", "--otlp-interval-ms", ms]);
        assert_eq!(output.status.code(), Some(2), "{ms}: {}", stderr(&output));
        assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    };
    let bound = "must be 0, or between 100 and 86400000";
    check("99", &format!("otlp_interval_ms = 99: {bound}"));
    check("86400001", &format!("otlp_interval_ms = 86400001: {bound}"));
    check("often", "'often' for '--otlp-interval-ms <MS>'");
}

#[test]
fn figures_stay_here_where_none_are_wanted() {
    let collector = Collector::default();
    let (_runtime, url) = collector.start();
    let server = Running::serve(&["--otlp-endpoint", &url, "--otlp-interval-ms", "0"]);
    server.complete("Simplify");
    let pid = server.id();
    assert_eq!(server.terminate(), Some(0));
    assert!(collector.pushes_of(pid).is_empty());
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
    command.stderr(File::create(&file).unwrap());
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
