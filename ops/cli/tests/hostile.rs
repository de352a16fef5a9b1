//! Callers that ask for too much: the server refuses them clearly and serves the next one.

mod binary;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use binary::{Running, wait_for};

/// More than the coordinator runs and queues at once.
const CALLERS: usize = 300;

/// The head of an answer; its body is left unread.
fn head(stream: &TcpStream) -> String {
    let lines = BufReader::new(stream).lines().map(|line| line.unwrap().to_lowercase());
    lines.take_while(|line| !line.is_empty()).map(|line| line + "\n").collect()
}

#[test]
fn a_full_queue_says_when_to_try_again() {
    let server = Running::serve(&["--workers", "2"]);
    let body = serde_json::json!({ "prompt": "On and on", "max_tokens": 60_000, "stream": true,
        "ignore_eos": true });
    let call = |_| server.send("POST", "/v1/completions", &body.to_string());
    let callers: Vec<TcpStream> = (0..CALLERS).map(call).collect();
    let heads: Vec<String> = callers.iter().map(head).collect();
    let (taken, refused): (Vec<&String>, Vec<&String>) =
        heads.iter().partition(|head| head.starts_with("http/1.1 200"));
    assert!(!taken.is_empty() && !refused.is_empty(), "{} were taken", taken.len());
    for head in refused {
        assert!(head.starts_with("http/1.1 429") && head.contains("\nretry-after: "), "{head}");
    }
    drop(callers);
    wait_for("everybody to be gone", || {
        let left = server.metric("num_requests_running") + server.metric("num_requests_waiting");
        (left == 0.0).then_some(())
    });
    server.complete("Simplify");
}

#[test]
fn bodies_that_no_model_should_see_are_refused() {
    let server = Running::serve(&[]);
    let deep = "[".repeat(100_000);
    for body in [
        format!(r#"{{"prompt": {deep}"#),
        format!(r#"{{"prompt": "x", "tools": {deep}{}}}"#, "]".repeat(100_000)),
        r#"{"prompt": "\ud800"}"#.to_owned(),
        r#"{"prompt": "x", "temperature": 1e999}"#.to_owned(),
    ] {
        let (status, answer) = server.http("POST", "/v1/completions", &body);
        assert_eq!(status, 400, "{answer}");
        let error: serde_json::Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(error["error"]["type"], "invalid_request_error", "{answer}");
    }
    let mut stream = TcpStream::connect(server.address("http")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 300000000\r\n\r\n")
        .unwrap();
    let head = head(&stream);
    assert!(head.starts_with("http/1.1 413"), "before the body is sent: {head}");
    drop(stream);
    let mut hello = TcpStream::connect(server.address("http")).unwrap();
    hello.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").unwrap();
    hello.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = Vec::new();
    hello.read_to_end(&mut answer).ok(); // a reset is as good as an end
    assert!(answer.starts_with(b"HTTP/1.1 400"), "a TLS hello: {answer:?}");
    server.complete("Simplify");
}
