//! A coordinator that is killed, at any moment: the next one goes on with what it had accepted,
//! and gives the same tokens.

mod binary;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use aqueduct_core::journal::{Kept, Outcome};
use aqueduct_journal::{Journal, Options, Standing};
use binary::{Running, aqueduct, model, run, stderr, wait_for};
use serde_json::Value;

/// A token and its log probability.
type Token = (u64, f32);

fn worker() -> Running {
    // The same prompt is asked for again and again, and is to be computed every time.
    let args = ["worker", "--threads", "1", "--snapshot-bytes", "0", "--listen", "127.0.0.1:0"];
    Running::start(aqueduct().args(args).arg("--model").arg(model()))
}

fn coordinator(workers: &[Running], data_dir: &Path) -> Running {
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--data-dir"]);
    command.arg(data_dir).arg("--model").arg(model());
    for worker in workers {
        command.args(["--worker", worker.address("url")]);
    }
    let coordinator = Running::start(&mut command);
    wait_for("the workers", || {
        (coordinator.metric("workers_up") == workers.len() as f64).then_some(())
    });
    coordinator
}

/// The tokens of an answer, until it is whole or `fault` has happened, for which `is_time`.
fn answer(coordinator: &Running, is_time: fn(&Value) -> bool, fault: impl FnOnce()) -> Vec<Token> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    let book = std::fs::read_to_string(model().join("../ops/demo/walden.txt")).unwrap();
    std::fs::write(&file, book.chars().take(40_000).collect::<String>()).unwrap();
    let url = format!("http://{}", coordinator.address("grpc"));
    let mut caller = aqueduct()
        .args(["generate", "--server", &url, "--json", "--temperature", "0.8", "--seed", "11"])
        .args(["--chunk", "64", "--local", "16", "--heavy", "16", "--max-tokens", "100"])
        .args(["--no-resume", "--file"])
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut tokens = Vec::new();
    let mut fault = Some(fault);
    for line in BufReader::new(caller.stdout.take().unwrap()).lines() {
        let row: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if row["event"] == "token" {
            let logprob = row["logprob"].as_f64().unwrap() as f32;
            tokens.push((row["token"].as_u64().unwrap(), logprob));
        }
        if let Some(fault) = fault.take_if(|_| is_time(&row)) {
            fault();
        }
    }
    caller.wait().unwrap();
    tokens
}

/// What the last request of a journal has come to.
fn last(data_dir: &Path) -> Kept {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let journal = Journal::open(data_dir, Options::alone(), ()).unwrap();
        let mut standing = journal.standing();
        let leads = standing.wait_for(|standing| matches!(standing, Standing::Leads { .. }));
        drop(leads.await.unwrap());
        let last = journal.read(|state| state.iter().last().map(|(_, kept)| kept.clone()));
        last.await.unwrap().unwrap()
    })
}

fn tokens(kept: &Kept) -> Vec<Token> {
    let drawn = kept.choices[0].tokens.iter().map(|drawn| drawn.token);
    drawn.map(|token| (token.token.into(), token.logprob)).collect()
}

#[test]
fn a_killed_coordinator_loses_nothing_that_it_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let workers = [worker(), worker()];
    let first = coordinator(&workers, folder.path());
    let want = answer(&first, |_| false, || {});
    assert!(want.len() > 20, "{want:?}");
    assert_eq!(first.terminate(), Some(0));
    assert_eq!(tokens(&last(folder.path())), want);

    let in_prefill: fn(&Value) -> bool =
        |row| row["event"] == "progress" && row["chunks_done"].as_u64() > Some(4);
    let in_decode: fn(&Value) -> bool =
        |row| row["event"] == "token" && row["token_idx"].as_u64() > Some(10);
    for is_time in [in_prefill, in_decode] {
        let killed = coordinator(&workers, folder.path());
        let told = answer(&killed, is_time, || killed.signal("KILL"));
        assert!(told.len() < want.len() && want.starts_with(&told), "{told:?}");
        drop(killed);
        let next = coordinator(&workers, folder.path());
        wait_for("the request", || (next.metric("num_requests_running") > 0.0).then_some(()));
        wait_for("its end", || (next.metric("num_requests_running") == 0.0).then_some(()));
        assert_eq!(next.terminate(), Some(0));
        let kept = last(folder.path());
        assert_eq!(tokens(&kept), want);
        assert_eq!(kept.ended.unwrap().outcome, Outcome::Finished);
    }
}

#[test]
fn a_journal_that_is_none_is_refused_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("journal.redb");
    std::fs::write(&file, "no journal").unwrap();
    let ports = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let model = model();
    let args = ["serve", "--model", model.to_str().unwrap(), "--data-dir"];
    let folder = folder.path().to_str().unwrap();
    let output = run([&args[..], &[folder], &ports].concat());
    assert!(stderr(&output).contains("the journal is corrupt"), "{}", stderr(&output));
    assert_ne!(output.status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "no journal");
}
