//! Starts that are made more than once with one key, and count once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use aqueduct_coordinator::http::ApiOptions;
use aqueduct_coordinator::submit::RequestError;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{
    DEADLINE, Reply, Server, answering, generator, request, request_with, serving, start,
};
use super::script::Script;
use super::service::until;

/// A call with a key.
fn call(path: &str, key: &str, body: &Value) -> Vec<u8> {
    let headers = format!("idempotency-key: {key}\r\n");
    request_with(&headers, "POST", path, body.to_string().as_bytes())
}

async fn ask(server: &Server, key: &str, body: &Value) -> Reply {
    server.send(&call("/v1/completions", key, body)).await
}

fn starts(server: &Server) -> usize {
    server.script.seen.lock().unwrap().len()
}

#[tokio::test]
async fn the_same_call_is_the_same_request() {
    let server = start(answering("to the woods")).await;
    for stream in [false, true] {
        let body = json!({ "prompt": "a", "stream": stream, "n": 2, "logprobs": 1 });
        let key = format!("key-{stream}");
        let first = ask(&server, &key, &body).await;
        let again = ask(&server, &key, &body).await;
        assert_eq!((first.status, again.status), (200, 200), "{}", again.body);
        assert!(first.body.contains("\"finish_reason\":\"length\""), "{}", first.body);
        assert_eq!(again.body, first.body);
    }
    assert_eq!(starts(&server), 2, "one for each key");
    let plain = json!({ "prompt": "a" });
    server.completion(plain.clone()).await;
    server.completion(plain).await;
    assert_eq!(starts(&server), 4, "without a key each is another one");
}

#[tokio::test]
async fn a_response_is_the_same_one_too() {
    let server = start(answering("to the woods")).await;
    for stream in [false, true] {
        let body = json!({ "input": "a", "stream": stream });
        let key = format!("key-{stream}");
        let [first, again] = [
            server.send(&call("/v1/responses", &key, &body)).await,
            server.send(&call("/v1/responses", &key, &body)).await,
        ];
        assert_eq!((first.status, again.status), (200, 200), "{}", again.body);
        assert!(first.body.contains("resp_r0000000000000007"), "{}", first.body);
        assert_eq!(again.body, first.body);
    }
    assert_eq!(starts(&server), 2, "one for each key");
}

#[tokio::test]
async fn who_lost_the_answer_has_it_with_the_key() {
    let server = start(Script { hang: true, ..Script::default() }).await;
    let body = json!({ "prompt": "a", "max_tokens": 4 });
    let mut caller = TcpStream::connect(server.address).await.unwrap();
    caller.write_all(&call("/v1/completions", "mine", &body)).await.unwrap();
    let has_begun = async {
        while starts(&server) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, has_begun).await.unwrap();
    drop(caller);
    let body = json!({ "prompt": "a", "max_tokens": 4, "stream": true });
    let other = ask(&server, "mine", &body).await;
    assert_eq!(other.status, 400, "{}", other.body);
    let mut again = TcpStream::connect(server.address).await.unwrap();
    let body = json!({ "prompt": "a", "max_tokens": 4 });
    again.write_all(&call("/v1/completions", "mine", &body)).await.unwrap();
    let cancelled = request("DELETE", "/v1/requests/r0000000000000007", b"");
    let resumed =
        async { while !server.get("/metrics").await.body.contains("streams_resumed_total 1") {} };
    tokio::time::timeout(DEADLINE, resumed).await.unwrap();
    assert_eq!((starts(&server), server.script.cancelled.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(server.send(&cancelled).await.status, 204);
    let mut told = String::new();
    again.read_to_string(&mut told).await.unwrap();
    assert!(told.contains("request_not_found"), "{told}");
    until(&server.script.cancelled, 1).await;
}

#[tokio::test]
async fn a_key_stands_for_what_was_asked_with_it() {
    let server = start(answering("x")).await;
    let body = json!({ "prompt": "a" });
    ask(&server, "mine", &body).await;
    let bound = "must be one of its own, for r0000000000000007 was asked for something else";
    let mut others = vec![call("/v1/completions", "mine", &json!({ "prompt": "b" }))];
    let chat = json!({ "messages": [{ "role": "user", "content": "?" }] });
    others.push(call("/v1/chat/completions", "mine", &chat));
    for other in others {
        let refused = server.send(&other).await;
        assert_eq!(refused.status, 400);
        let error = refused.json()["error"].clone();
        assert_eq!(error["param"], "idempotency_key");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("idempotency_key = mine: {bound}")), "{message}");
    }
    assert_eq!(starts(&server), 1);
}

#[tokio::test]
async fn what_cannot_be_started_again_is_refused() {
    let server = start(answering("x")).await;
    let check = async |key: &str, body: Value, param: &str| {
        let refused = ask(&server, key, &body).await;
        let told = refused.json()["error"]["param"].clone();
        assert_eq!((refused.status, told.as_str()), (400, Some(param)), "{}", refused.body);
    };
    check("two words", json!({ "prompt": "a" }), "idempotency_key").await;
    check(&"k".repeat(256), json!({ "prompt": "a" }), "idempotency_key").await;
    check("mine", json!({ "prompt": ["a", "b"] }), "prompt").await;
    check("mine", json!({ "prompt": "a", "echo": true }), "echo").await;
    assert_eq!(starts(&server), 0);
}

#[tokio::test]
async fn a_start_that_was_refused_leaves_nothing() {
    let refuse = Some(RequestError::Unavailable("no worker".into()));
    let server = start(Script { refuse, ..answering("x") }).await;
    for tries in 1..=2 {
        assert_eq!(ask(&server, "mine", &json!({ "prompt": "a" })).await.status, 503);
        assert_eq!(starts(&server), tries);
    }
}

#[tokio::test]
async fn what_another_coordinator_has_written_down_is_found() {
    let first = start(answering("to the woods")).await;
    let body = json!({ "prompt": "a", "stream": true });
    let want = ask(&first, "mine", &body).await;
    let asked = first.script.seen.lock().unwrap()[0].clone();
    let next = Arc::new(Script { remembers: Some(asked), ..answering("to the woods") });
    let next = serving(generator(next.clone()), next, ApiOptions::new("tiny"), None).await;
    let told = ask(&next, "mine", &body).await;
    assert_eq!((told.status, starts(&next)), (200, 0), "{}", told.body);
    let chunks = |reply: &Reply| reply.body.matches("data: ").count();
    assert!(chunks(&told) > 2 && chunks(&told) == chunks(&want), "{}", told.body);
    assert_eq!(ask(&next, "mine", &json!({ "prompt": "b" })).await.status, 400);
    assert_eq!(ask(&next, "another", &body).await.status, 200);
    assert_eq!(starts(&next), 1);
}
