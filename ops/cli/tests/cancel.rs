//! A caller that goes away frees what it held.

mod binary;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use binary::{Running, aqueduct, wait_for};

/// Tokens that keep two workers busy for long.
fn long_prompt() -> String {
    "If a man does not keep pace with his companions, he hears another drummer. ".repeat(3000)
}

/// Begins a long prefill, ends its caller in the middle, and sees the next request answered.
fn freed(begin: impl FnOnce(&Running) -> Box<dyn FnOnce()>) {
    freed_within("3600", begin);
}

/// The same, where a server waits so long for a caller to come back.
fn freed_within(grace_s: &str, begin: impl FnOnce(&Running) -> Box<dyn FnOnce()>) {
    let args = ["--workers", "2", "--policy", "dense", "--chunk", "256", "--resume-grace-s"];
    let server = Running::serve(&[&args[..], &[grace_s]].concat());
    let end = begin(&server);
    wait_for("the long request to run", || {
        (server.metric("num_requests_running") == 1.0).then_some(())
    });
    end();
    wait_for("the long request to be gone", || {
        (server.metric("num_requests_running") == 0.0).then_some(())
    });
    let short = server.complete("Simplify, simplify");
    let finished = server.metric("prompt_tokens_total");
    assert_eq!(Some(finished), short["usage"]["prompt_tokens"].as_f64(), "only the short prompt");
}

#[test]
fn an_http_caller_that_hangs_up() {
    freed(|server| {
        let body = serde_json::json!({ "prompt": long_prompt(), "max_tokens": 4 });
        let stream = server.send("POST", "/v1/completions", &body.to_string());
        Box::new(move || drop(stream))
    });
}

#[test]
fn an_http_caller_that_hangs_up_on_a_stream() {
    freed(|server| {
        let body = serde_json::json!({ "prompt": long_prompt(), "max_tokens": 4, "stream": true });
        let stream = server.send("POST", "/v1/completions", &body.to_string());
        Box::new(move || drop(stream))
    });
}

/// Begins with the command line, and ends that so.
fn freed_by(signal: &'static str, grace_s: &str) {
    freed_within(grace_s, move |server| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prompt.txt");
        std::fs::write(&file, long_prompt()).unwrap();
        let url = format!("http://{}", server.address("grpc"));
        let mut caller = aqueduct()
            .args(["generate", "--server", &url, "--policy", "dense", "--chunk", "256", "--json"])
            .arg("--file")
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Box::new(move || {
            let mut accepted = String::new();
            let mut told = BufReader::new(caller.stdout.take().unwrap());
            told.read_line(&mut accepted).unwrap();
            binary::signal(caller.id(), signal);
            caller.wait().unwrap();
            drop(folder);
        })
    });
}

#[test]
fn a_grpc_caller_that_is_killed() {
    freed_by("KILL", "1");
}

#[test]
fn a_grpc_caller_that_is_interrupted() {
    freed_by("INT", "3600"); // it says so itself
}
