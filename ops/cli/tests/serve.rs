//! `aqueduct serve` over real sockets: answers, streams, survives garbage, stops.

mod binary;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use binary::{Running, aqueduct, model, rows, run, stderr, wait_for};
use serde_json::Value;

#[test]
fn completes_over_http_whole_and_streamed() {
    let server = Running::serve(&["--workers", "2", "--chunk", "64"]);
    let (status, _) = server.http("GET", "/health", "");
    assert_eq!(status, 200);

    let prompt = "I went to the woods because I wished to live deliberately. ".repeat(20);
    let body = serde_json::json!({
        "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1,
        "aqueduct": { "policy": "h2o", "local": 8, "heavy": 8 },
    });
    let (status, answer) = server.http("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let whole: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(whole["usage"]["completion_tokens"], 8, "{whole}");
    let text = whole["choices"][0]["text"].as_str().unwrap();

    let mut body = body;
    body["stream"] = true.into();
    let (status, answer) = server.http("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let events: Vec<&str> =
        answer.lines().filter_map(|line| line.trim().strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"), "{answer}");
    let pieces = events[..events.len() - 1].iter().map(|event| {
        let event: Value = serde_json::from_str(event).unwrap();
        event["choices"][0]["text"].as_str().unwrap_or_default().to_owned()
    });
    assert_eq!(pieces.collect::<String>(), text);

    // What was not taken is counted, and what is in use comes back to nothing.
    let (status, _) = server.http("POST", "/v1/completions", "{\"prompt\": \"a\", \"n\": 0}");
    assert_eq!(status, 400);
    let metrics = || server.http("GET", "/metrics", "").1;
    assert!(metrics().contains("requests_rejected_total{reason=\"invalid\"} 1"), "{}", metrics());
    wait_for("pools", || metrics().contains("pool_bytes{worker=").then_some(()));
    wait_for("no pages", || (server.metric("kv_cache_usage_perc") == 0.0).then_some(()));

    assert_eq!(server.terminate(), Some(0), "SIGTERM ends it in peace");
}

#[test]
fn a_model_is_called_what_its_file_is_or_what_the_operator_says() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("Small-1.5B.v2");
    std::os::unix::fs::symlink(model(), &link).unwrap();
    let check = |args: &[&str], name: &str| {
        let mut command = aqueduct();
        command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
        let server = Running::start(command.arg(&link).args(args));
        let (_, models) = server.http("GET", "/v1/models", "");
        let models: Value = serde_json::from_str(&models).unwrap();
        assert_eq!(models["data"][0]["id"], name);
        let ask = |model: &str| {
            let body = serde_json::json!({ "prompt": "Simplify", "max_tokens": 1, "model": model });
            server.http("POST", "/v1/completions", &body.to_string())
        };
        let (status, answer) = ask(name);
        assert!(status == 200 && answer.contains(&format!(r#""model":"{name}""#)), "{answer}");
        assert_eq!(ask("another").0, 404);
    };
    check(&[], "Small-1.5B.v2");
    check(&["--served-model-name", "team/small"], "team/small");
}

/// Connects and says what no protocol of ours begins with.
fn pester(address: &str) {
    let noise = |idx: u32| (idx.wrapping_mul(2_654_435_761) >> 24) as u8;
    let noise: Vec<u8> = (0..65_536).map(noise).collect();
    for bytes in [&noise[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\xff\xff", b"GET", b""] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        // The server may close the connection at any byte.
        stream.write_all(bytes).ok();
        stream.read_to_end(&mut Vec::new()).ok();
    }
}

#[test]
fn garbage_on_every_port_is_survived() {
    let server = Running::serve(&["--chunk", "64"]);
    let before = server.complete("Simplify");
    pester(server.address("http"));
    pester(server.address("grpc"));
    for (body, status) in [("{", 400), ("[]", 400), (r#"{"prompt": 1.5}"#, 400)] {
        let (got, answer) = server.http("POST", "/v1/completions", body);
        assert_eq!(got, status, "{body}: {answer}");
    }
    let (status, answer) =
        server.http("POST", "/v1/completions", r#"{"prompt": [1, 4096], "max_tokens": 1}"#);
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("4096"), "{answer}");
    assert_eq!(server.complete("Simplify")["choices"], before["choices"]);
}

#[test]
fn generates_through_a_server_as_without_one() {
    let server = Running::serve(&["--workers", "3"]);
    let url = format!("http://{}", server.address("grpc"));
    let model = model();
    let model = model.to_str().unwrap();
    let common = [
        "--json",
        "--temperature",
        "0",
        "--max-tokens",
        "6",
        "--chunk",
        "32",
        "--local",
        "8",
        "--heavy",
        "8",
        "Time is but the stream I go a-fishing in. ".repeat(12).leak(),
    ];
    let text =
        |rows: &[Value]| -> String { rows.iter().filter_map(|row| row["text"].as_str()).collect() };
    let remote = rows(&run([&["generate", "--server", &url], &common[..]].concat()));
    assert_eq!(remote[0]["event"], "accepted");
    assert_eq!(remote[remote.len() - 1]["event"], "summary");
    assert_eq!(remote[remote.len() - 1]["output_tokens"], 6);
    let embedded = rows(&run([&["generate", "--model", model], &common[..]].concat()));
    assert_eq!(text(&embedded), text(&remote));
}

#[test]
fn errors_of_a_server_are_exit_codes() {
    let server = Running::serve(&[]);
    let url = format!("http://{}", server.address("grpc"));
    let output = run(["generate", "--server", &url, "--temperature", "3", "x"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("temperature = 3"), "{}", stderr(&output));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("long.txt");
    std::fs::write(&file, "word ".repeat(20_000)).unwrap();
    let book = model().join("../ops/demo/walden.txt");
    let whole = ["--server", &url, "--file", book.to_str().unwrap()];
    let output = run([&["generate"], &whole[..]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("65536"), "{}", stderr(&output));
    let long = ["--file", file.to_str().unwrap(), "--max-tokens", "20000"];
    let output = run([&["generate", "--server", &url, "--deadline-s", "1"], &long[..]].concat());
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    drop(server);
    let output = run(["generate", "--server", &url, "x"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn a_second_signal_does_not_wait_for_answers() {
    let server = Running::serve(&[]);
    let body = serde_json::json!({ "prompt": "On and on", "max_tokens": 60_000, "stream": true,
        "ignore_eos": true });
    let answer = server.send("POST", "/v1/completions", &body.to_string());
    wait_for("the request to run", || (server.metric("num_requests_running") == 1.0).then_some(()));
    server.signal("TERM");
    // The door stays open, so that who asks hears why; the answer under way could go on.
    wait_for("nothing new to be taken", || {
        (server.http("GET", "/health", "").0 == 503).then_some(())
    });
    assert_eq!(server.metric("num_requests_running"), 1.0);
    assert_eq!(server.terminate(), Some(0));
    drop(answer);
}

#[test]
fn separate_processes_make_one_cluster() {
    let worker = || {
        let args = ["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--model"];
        Running::start(aqueduct().args(args).arg(model()))
    };
    let workers = [worker(), worker()];
    let mut command = aqueduct();
    command.args([
        "coordinator",
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--chunk",
        "16",
    ]);
    command.arg("--model").arg(model());
    for worker in &workers {
        command.args(["--worker", worker.address("url")]);
    }
    let coordinator = Running::start(&mut command);
    coordinator.wait_until_ready();
    let prompt = "A man is rich in proportion to the number of things. ".repeat(8);
    workers.iter().for_each(|worker| pester(worker.address("address")));
    let apart = coordinator.complete(&prompt);
    let together = Running::serve(&["--chunk", "16"]).complete(&prompt);
    assert_eq!(apart["choices"], together["choices"]);
}
