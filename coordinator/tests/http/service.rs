//! The server itself: models, health, metrics, clients that go away, shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aqueduct_coordinator::http::{ApiOptions, ApiState, serve};
use aqueduct_coordinator::submit::{Busy, RequestError};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::client::{DEADLINE, answering, generator, request, request_with, start, start_with};
use super::script::Script;

pub(crate) async fn until(what: &AtomicUsize, count: usize) {
    let reached = async {
        while what.load(Ordering::SeqCst) < count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, reached).await.expect("did not happen in time");
}

#[tokio::test]
async fn models_health_and_metrics() {
    let server = start(answering("some words")).await;
    let models = server.get("/v1/models").await.json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("tiny")));
    let model = server.get("/v1/models/tiny").await.json();
    assert_eq!(model, models["data"][0]);
    assert_eq!((&model["object"], &model["root"]), (&json!("model"), &json!("tiny")));
    assert_eq!((&model["parent"], &model["permission"]), (&json!(null), &json!([])));
    assert!(model["created"].as_u64().is_some_and(|began| began > 1_700_000_000), "{model}");
    assert_eq!(server.get("/v1/models/other").await.status, 404);
    assert_eq!(server.get("/v1/models/").await.json(), models);
    for path in ["/v1/models", "/v1/models/tiny", "/health", "/metrics"] {
        let reply = server.send(&request("HEAD", path, b"")).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, ""), "{path}");
    }
    let named = start_with(answering("x"), ApiOptions::new("org/tiny")).await;
    for path in ["/v1/models/org/tiny", "/v1/models/org%2Ftiny"] {
        assert_eq!(named.get(path).await.json()["id"], "org/tiny", "{path}");
    }
    for path in ["/health", "/ping"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    assert_eq!(server.send(&request("POST", "/ping", b"")).await.status, 200);
    let version = server.get("/version").await.json();
    assert_eq!(version, json!({ "version": env!("CARGO_PKG_VERSION") }));
    server.completion(json!({ "prompt": "a" })).await;
    server.completion(json!({ "prompt": "a", "aqueduct": { "chunk_tokens": 8 } })).await;
    let metrics = server.get("/metrics").await;
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
    assert!(metrics.body.contains("\n# TYPE requests_total counter\n"), "{}", metrics.body);
    let accept = "Accept: application/openmetrics-text;version=1.0.0\r\n";
    let open = server.send(&request_with(accept, "GET", "/metrics", b"")).await;
    assert!(open.head.contains("content-type: application/openmetrics-text"), "{}", open.head);
    assert!(open.body.ends_with("# EOF\n"), "{}", open.body);
    for line in [
        "requests_total{outcome=\"Finished\"} 2",
        "time_to_first_token_seconds_count 2",
        "prompt_tokens_total 2",
        "num_requests_waiting 2",
        "num_tokens_waiting 30",
        "request_queue_time_seconds_count 2",
        "clamps_total 2",
    ] {
        assert!(metrics.body.lines().any(|seen| seen == line), "{line}: {}", metrics.body);
    }
}

#[tokio::test]
async fn no_proxy_is_to_hold_events_back() {
    let server = start(answering("some words")).await;
    let chat = json!({ "messages": [{ "role": "user", "content": "?" }], "stream": true });
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "a", "stream": true })),
        ("/v1/chat/completions", chat),
        ("/v1/responses", json!({ "input": "?", "stream": true })),
    ] {
        let reply = server.post(path, &body.to_string()).await;
        assert!(reply.head.contains("x-accel-buffering: no"), "{path}: {}", reply.head);
        assert!(reply.head.contains("content-type: text/event-stream"), "{path}: {}", reply.head);
    }
}

#[tokio::test]
async fn every_answer_has_the_id_of_its_call() {
    let server = start(answering("some words")).await;
    let ask = |id: &str, body: &str| {
        let headers = format!("x-request-id: {id}\r\n");
        request_with(&headers, "POST", "/v1/completions", body.as_bytes())
    };
    for body in ["{\"prompt\": \"a\"}", "{\"prompt\": \"a\", \"stream\": true}", "{"] {
        let reply = server.send(&ask("trace-7", body)).await;
        assert!(reply.head.contains("x-request-id: trace-7"), "{}", reply.head);
    }
    assert_eq!(server.script.seen.lock().unwrap()[0].caller_id, "trace-7");
    let reply = server.send(&ask("not fit", "{")).await;
    assert!(reply.head.contains("x-request-id: req-"), "{}", reply.head);
    assert!(server.get("/nowhere").await.head.contains("x-request-id: req-"));
}

#[tokio::test]
async fn what_is_not_taken_is_counted_by_reason() {
    let busy = RequestError::Busy {
        busy: Busy::Requests { queued: 3 },
        retry_after: Duration::from_secs(1),
    };
    let server = start(Script { refuse: Some(busy), ..Script::default() }).await;
    assert_eq!(server.completion(json!({ "prompt": "a" })).await.status, 429);
    let metrics = server.get("/metrics").await.body;
    let line = "requests_rejected_total{reason=\"queued_requests\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_request() {
    let server = start(Script { hang: true, ..Script::default() }).await;
    for (round, stream) in [false, true].into_iter().enumerate() {
        let body = json!({ "prompt": ["a", "b"], "stream": stream }).to_string();
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client.write_all(&request("POST", "/v1/completions", body.as_bytes())).await.unwrap();
        if stream {
            client.read_u8().await.unwrap();
        } else {
            let script = &server.script;
            let accepted = async {
                while script.seen.lock().unwrap().len() < 2 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(DEADLINE, accepted).await.unwrap();
        }
        drop(client);
        until(&server.script.cancelled, 2 * (round + 1)).await;
    }
    let metrics = server.get("/metrics").await.body;
    assert!(metrics.contains("requests_total{outcome=\"Cancelled\"} 4"), "{metrics}");
}

#[tokio::test]
async fn shutdown_ends_the_server() {
    let generator = generator(Arc::new(answering("x")));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
        Instant::now() + DEADLINE
    };
    let state = ApiState::new(generator, ApiOptions::new("tiny"));
    let server = tokio::spawn(serve(state, listener, shutdown));
    let idle = TcpStream::connect(address).await.unwrap();
    stop.send(()).unwrap();
    tokio::time::timeout(DEADLINE, server).await.expect("still serving").unwrap();
    drop(idle);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn an_answer_that_does_not_end_keeps_no_server_longer_than_it_says() {
    let script = Arc::new(Script { hang: true, ..Script::default() });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<Instant>();
    let state = ApiState::new(generator(script.clone()), ApiOptions::new("tiny"));
    let server = tokio::spawn(serve(state, listener, async { stopped.await.unwrap() }));
    let mut client = TcpStream::connect(address).await.unwrap();
    let body = json!({ "prompt": "a" }).to_string();
    client.write_all(&request("POST", "/v1/completions", body.as_bytes())).await.unwrap();
    let accepted = async {
        while script.seen.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, accepted).await.unwrap();
    let by = Instant::now() + Duration::from_secs(2); // longer than who asks for nothing may stay
    stop.send(by).unwrap();
    tokio::time::timeout(DEADLINE, server).await.expect("still serving").unwrap();
    assert!(Instant::now() >= by, "the answer had all of its time");
}
