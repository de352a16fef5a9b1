//! Coordinators that are there before their workers, and commands that end in peace.

mod binary;

use std::net::TcpListener;
use std::process::Command;

use binary::{Running, aqueduct, model, run, stderr, wait_for};
use serde_json::Value;

#[test]
fn a_coordinator_without_workers_says_so_and_recovers() {
    // A port that was free a moment ago: its worker comes later.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(model()).args(["--worker", &format!("http://{address}")]);
    let coordinator = Running::start(&mut command);

    let (status, answer) = coordinator.http("GET", "/health", "");
    assert_eq!(status, 503, "{answer}");
    let (status, answer) = coordinator.http("POST", "/v1/completions", r#"{"prompt": "Simplify"}"#);
    assert_eq!(status, 503, "{answer}");
    assert!(answer.contains("no worker"), "{answer}");
    let (status, answer) = coordinator.http("GET", "/v1/models", "");
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains(r#""max_model_len":65536"#), "{answer}");
    let url = format!("http://{}", coordinator.address("grpc"));
    let output = run(["generate", "--server", &url, "Simplify"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let reason = wait_for("a reason", || {
        let shown = run(["status", "--server", &url, "-o", "json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        let reason = shown["nodes"][0]["reason"].as_str().unwrap().to_owned();
        (!reason.is_empty()).then_some(reason)
    });
    assert_eq!(reason, "transport error: tcp connect error: Connection refused (os error 111)");

    let mut command = aqueduct();
    command.args(["worker", "--listen", &address, "--threads", "1", "--model"]).arg(model());
    let _worker = Running::start(&mut command);
    coordinator.wait_until_ready();
    assert_eq!(coordinator.complete("Simplify")["usage"]["completion_tokens"], 4);
    assert_eq!(coordinator.terminate(), Some(0));
}

#[test]
fn a_command_that_went_well_warns_of_nothing() {
    let model = model();
    let model = model.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens.txt");
    std::fs::write(&tokens, "1 2 3 4 5 6 7 8").unwrap();
    let (tokens, out) = (tokens.to_str().unwrap(), folder.path().join("logits.safetensors"));
    let eval = ["eval", "logits", "--model", model, "--tokens-file", tokens, "--policy", "dense"];
    let eval = [&eval[..], &["--workers", "2", "--out", out.to_str().unwrap()]].concat();
    let check = |args: &[&str]| {
        let output = run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("WARN"), "{args:?}: {}", stderr(&output));
    };
    check(&["generate", "--model", model, "--workers", "2", "--max-tokens", "2", "Simplify"]);
    check(&eval);
    check(&[&eval[..], &["--link", "grpc"]].concat());
}

#[test]
fn servers_may_have_as_many_files_open_as_the_hard_limit_lets_them() {
    let script = "ulimit -Sn 300 && ulimit -Hn 4000 && exec \"$0\" worker \
                  --listen 127.0.0.1:0 --threads 1 --model \"$1\"";
    let mut shell = Command::new("bash");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_aqueduct")]).arg(model());
    let worker = Running::start(&mut shell);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", worker.id())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["4000", "4000", "files"]);
}
