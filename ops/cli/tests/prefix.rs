//! Prompts that begin alike, asked of the binary: the same answer, and only the rest is computed.

mod binary;

use binary::{Running, aqueduct, model, rows, run, wait_for};
use serde_json::{Value, json};

fn book(chars: usize) -> String {
    let book = std::fs::read_to_string(model().join("../ops/demo/walden.txt")).unwrap();
    book.chars().take(chars).collect()
}

/// The choices for `prompt`, with every bit of the log probabilities, and how many of its tokens
/// were cached.
fn ask_under(policy: &str, server: &Running, prompt: &str, cache_prompt: bool) -> (Value, u64) {
    let memory = json!({ "policy": policy, "chunk_tokens": 64, "local": 16, "heavy": 16 });
    let body = json!({
        "prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 2,
        "cache_prompt": cache_prompt, "aqueduct": memory,
    });
    let (status, answer) = server.http("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let choices = answer["choices"].clone();
    (json!([choices, answer["aqueduct"]["retained_mass_per_layer"]]), cached)
}

/// `ask_under` of one policy.
fn asking(policy: &str) -> impl Fn(&Running, &str, bool) -> (Value, u64) {
    move |server, prompt, cache_prompt| ask_under(policy, server, prompt, cache_prompt)
}

#[test]
fn a_repeated_prefix_gives_the_same_answer_on_any_number_of_workers() {
    repeat("h2o");
}

#[test]
fn exact_attention_over_a_repeated_prefix_gives_the_same_answer() {
    repeat("dense");
}

fn repeat(policy: &str) {
    let ask = asking(policy);
    let prompt = book(12_000);
    let asked = format!("{prompt} What is it about?");
    let alone = Running::serve(&["--snapshot-bytes", "0"]);
    let (want, cached) = ask(&alone, &asked, true);
    assert_eq!((ask(&alone, &asked, true), cached), ((want.clone(), 0), 0));
    for workers in ["1", "2", "4"] {
        let server = Running::serve(&["--workers", workers]);
        assert_eq!(ask(&server, &format!("{prompt} And why?"), true).1, 0);
        let (seen, cached) = ask(&server, &asked, true);
        assert!(seen == want && cached > 1000, "{workers} workers, {cached} cached: {seen}");
        assert_eq!(ask(&server, &asked, false), (want.clone(), 0));
        let (again, more) = ask(&server, &asked, true);
        assert!(again == want && more >= cached);
        let hits = server.metric("prefix_cache_hits_total");
        assert_eq!(hits, (cached + more) as f64);
        assert!(server.metric("prefix_cache_queries_total") > hits);
        wait_for("the figures", || (server.metric("snapshots") > 0.0).then_some(()));
        assert!(server.metric("snapshot_bytes") > 0.0);
    }
}

#[test]
fn a_restart_goes_on_from_disk() {
    restart("h2o");
    restart("dense");
}

fn restart(policy: &str) {
    let ask = asking(policy);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let args = ["--workers", "2", "--snapshot-dir", path];
    let prompt = book(8_000);
    let server = Running::serve(&args);
    let (want, _) = ask(&server, &prompt, true);
    let on_disk = || server.metric("snapshot_disk_bytes") >= server.metric("snapshot_bytes");
    wait_for("the disk", || (server.metric("snapshot_bytes") > 0.0 && on_disk()).then_some(()));
    assert_eq!(server.terminate(), Some(0));
    let server = Running::serve(&args);
    wait_for("the files", || (server.metric("snapshots") > 0.0).then_some(()));
    let (seen, cached) = ask(&server, &prompt, true);
    assert!(seen == want && cached > 500, "{cached}");
}

#[test]
fn a_holder_that_is_killed_changes_no_bit() {
    kill_holders("h2o");
}

#[test]
fn a_holder_of_exact_keys_that_is_killed_changes_no_bit() {
    kill_holders("dense");
}

fn kill_holders(policy: &str) {
    let ask = asking(policy);
    let worker = || {
        let args = ["worker", "--threads", "1", "--listen", "127.0.0.1:0", "--model"];
        Running::start(aqueduct().args(args).arg(model()))
    };
    let mut workers: Vec<Running> = (0..3).map(|_| worker()).collect();
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(model());
    for worker in &workers {
        command.args(["--worker", worker.address("url")]);
    }
    let coordinator = Running::start(&mut command);
    wait_for("all workers", || (coordinator.metric("workers_up") == 3.0).then_some(()));
    let prompt = book(12_000);
    let (want, _) = ask(&coordinator, &prompt, true);
    while let Some(worker) = workers.pop() {
        let (seen, cached) = ask(&coordinator, &prompt, true);
        assert!(seen == want && cached > 0, "{cached}");
        if workers.is_empty() {
            break;
        }
        // Asked while it is dying, and before anybody has noticed.
        let dying = std::thread::spawn(move || drop(worker));
        assert_eq!(ask(&coordinator, &prompt, true).0, want);
        dying.join().unwrap();
        let left = workers.len() as f64;
        wait_for("the loss", || (coordinator.metric("workers_up") == left).then_some(()));
        assert_eq!(ask(&coordinator, &prompt, true).0, want);
    }
}

#[test]
fn bench_prefix_says_what_it_saves() {
    let model = model();
    let args = ["bench", "prefix", "--json", "--prefix-tokens", "1000", "--workers", "1,3"];
    let memory = ["--chunk", "32", "--local", "8", "--heavy", "8", "--policy", "h2o,window,dense"];
    let model = ["--model", model.to_str().unwrap()];
    let rows = rows(&run([&args[..], &memory[..], &model[..]].concat()));
    assert_eq!(rows.len(), 6);
    for row in &rows {
        assert_eq!((&row["cached_tokens"], &row["identical"]), (&json!(992), &json!(true)));
        assert!(row["share"].as_f64().unwrap() > 0.0 && row["snapshots"].as_u64().unwrap() > 9);
    }
}
