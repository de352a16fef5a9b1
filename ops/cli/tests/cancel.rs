//! A caller that goes away frees what it held.

mod binary;

use std::process::Stdio;

use binary::{Running, aqueduct, wait_for};

/// Tokens that keep two workers busy for long.
fn long_prompt() -> String {
    "If a man does not keep pace with his companions, he hears another drummer. ".repeat(3000)
}

/// Begins a long prefill, ends its caller in the middle, and sees the next request answered.
fn freed(begin: impl FnOnce(&Running) -> Box<dyn FnOnce()>) {
    let server = Running::serve(&["--workers", "2", "--policy", "dense", "--chunk", "256"]);
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

#[test]
fn a_grpc_caller_that_is_killed() {
    freed(|server| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prompt.txt");
        std::fs::write(&file, long_prompt()).unwrap();
        let url = format!("http://{}", server.address("grpc"));
        let mut caller = aqueduct()
            .args(["generate", "--server", &url, "--policy", "dense", "--chunk", "256", "--file"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Box::new(move || {
            caller.kill().unwrap();
            caller.wait().unwrap();
            drop(folder);
        })
    });
}
