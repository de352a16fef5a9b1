//! Workers that are killed while they work: the answer is the one without the fault.

mod binary;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use binary::{Running, aqueduct, model, wait_for};
use serde_json::Value;

/// A worker at `address`; port 0 takes a free one.
fn worker(address: &str) -> Running {
    // The same prompt is asked for again and again, and is to be computed every time.
    let args = ["worker", "--threads", "1", "--snapshot-bytes", "0", "--listen", address];
    Running::start(aqueduct().args(args).arg("--model").arg(model()))
}

/// Three workers and their coordinator.
fn cluster() -> ([Running; 3], Running) {
    let workers = [(); 3].map(|()| worker("127.0.0.1:0"));
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
    command.arg("--model").arg(model());
    for worker in &workers {
        command.args(["--worker", worker.address("url")]);
    }
    let coordinator = Running::start(&mut command);
    wait_for_workers(&coordinator, 3);
    (workers, coordinator)
}

/// Waits until the coordinator counts so many workers.
fn wait_for_workers(coordinator: &Running, up: u32) {
    wait_for(&format!("{up} workers"), || {
        (coordinator.metric("workers_up") == f64::from(up)).then_some(())
    });
}

/// What is asked for, and so much of the book that it can be interrupted.
#[derive(Clone, Copy)]
struct Ask {
    chars: usize,
    options: &'static [&'static str],
}

const HANDED_OFF: Ask =
    Ask { chars: 120_000, options: &["--chunk", "64", "--local", "16", "--heavy", "16"] };
const EXACT: Ask = Ask { chars: 40_000, options: &["--chunk", "256", "--policy", "dense"] };
const SHARDED: Ask = Ask {
    chars: 60_000,
    options: &["--chunk", "128", "--local", "16", "--heavy", "16", "--exchange", "stay"],
};

fn prompt(chars: usize) -> String {
    let book = std::fs::read_to_string(model().join("../ops/demo/walden.txt")).unwrap();
    book.chars().take(chars).collect()
}

/// The tokens of the answer and their log probabilities; `fault` happens as soon as a few of
/// the prompt's chunks are done.
fn answer(coordinator: &Running, ask: Ask, fault: impl FnOnce()) -> Vec<(Value, Value)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, prompt(ask.chars)).unwrap();
    let url = format!("http://{}", coordinator.address("grpc"));
    let mut caller = aqueduct()
        .args(["generate", "--server", &url, "--json", "--temperature", "0"])
        .args(ask.options)
        .args(["--max-tokens", "6", "--deadline-s", "60", "--file"])
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut fault = Some(fault);
    let mut tokens = Vec::new();
    for line in BufReader::new(caller.stdout.take().unwrap()).lines() {
        let row: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let number = |field: &str| row[field].as_u64().unwrap();
        match row["event"].as_str().unwrap() {
            "progress" if number("chunks_done") > 4 => {
                if let Some(fault) = fault.take() {
                    assert!(number("chunks_done") < number("chunk_count"), "too late: {row}");
                    fault();
                }
            }
            "token" => tokens.push((row["token"].clone(), row["logprob"].clone())),
            _ => {}
        }
    }
    assert!(caller.wait().unwrap().success());
    assert!(fault.is_none() && tokens.len() == 6, "{tokens:?}");
    tokens
}

fn check(ask: Ask, retries_max: f64) {
    let ([first, _second, _third], coordinator) = cluster();
    let want = answer(&coordinator, ask, || {});
    assert_eq!(coordinator.metric("chunk_retries_total"), 0.0);
    assert_eq!(answer(&coordinator, ask, || drop(first)), want);
    let retries = coordinator.metric("chunk_retries_total");
    assert!(retries > 0.0 && retries < retries_max, "{retries}");
    assert_eq!(answer(&coordinator, ask, || {}), want, "with the workers that are left");
}

#[test]
fn a_killed_worker_changes_no_bit() {
    check(HANDED_OFF, 60.0); // its chunks alone are done again
}

#[test]
fn a_killed_holder_changes_no_bit() {
    check(EXACT, 200.0);
    check(SHARDED, 400.0);
}

#[test]
fn the_last_of_three_goes_on_and_a_restarted_one_takes_over() {
    let ([first, second, third], coordinator) = cluster();
    let want = answer(&coordinator, HANDED_OFF, || {});
    let address = first.address("address").to_owned();
    assert_eq!(answer(&coordinator, HANDED_OFF, || drop((first, second))), want);
    wait_for_workers(&coordinator, 1);
    let _again = worker(&address);
    wait_for_workers(&coordinator, 2);
    drop(third);
    wait_for_workers(&coordinator, 1);
    assert_eq!(answer(&coordinator, HANDED_OFF, || {}), want);
}
