//! A caller whose coordinator may go away in the middle, and what its journal says of it.
#![allow(dead_code)] // every test file uses a part of it

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use aqueduct_core::journal::Kept;
use serde_json::Value;

use crate::binary::{Running, aqueduct, model};

/// A token and its log probability.
pub(crate) type Token = (u64, f32);

/// A worker that computes the same prompt again and again.
pub(crate) fn worker() -> Running {
    let args = ["worker", "--threads", "1", "--snapshot-bytes", "0", "--listen", "127.0.0.1:0"];
    Running::start(aqueduct().args(args).arg("--model").arg(model()))
}

/// The tokens of the answer of the coordinators at `url`, until it is whole or `fault` has
/// happened, for which `is_time`.
pub(crate) fn answer(
    url: &str,
    is_time: fn(&Value) -> bool,
    fault: impl FnOnce(&mut Child),
) -> Vec<Token> {
    asked(url, &["--no-resume"], is_time, fault)
}

/// The tokens of the whole answer, whatever `fault` does when `is_time`.
pub(crate) fn uninterrupted(
    url: &str,
    is_time: fn(&Value) -> bool,
    fault: impl FnOnce(&mut Child),
) -> Vec<Token> {
    asked(url, &[], is_time, fault)
}

fn asked(
    url: &str,
    flags: &[&str],
    is_time: fn(&Value) -> bool,
    fault: impl FnOnce(&mut Child),
) -> Vec<Token> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    let book = std::fs::read_to_string(model().join("../ops/demo/walden.txt")).unwrap();
    std::fs::write(&file, book.chars().take(40_000).collect::<String>()).unwrap();
    let mut caller = aqueduct()
        .args(["generate", "--server", url, "--json", "--temperature", "0.8", "--seed", "11"])
        .args(["--chunk", "64", "--local", "16", "--heavy", "16", "--max-tokens", "100"])
        .args(flags)
        .arg("--file")
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
            fault(&mut caller);
        }
    }
    caller.wait().unwrap();
    tokens
}

/// When the prompt is half read.
pub(crate) fn in_prefill(row: &Value) -> bool {
    row["event"] == "progress" && row["chunks_done"].as_u64() > Some(4)
}

/// When tokens come.
pub(crate) fn in_decode(row: &Value) -> bool {
    row["event"] == "token" && row["token_idx"].as_u64() > Some(10)
}

/// What a journal has of a request.
pub(crate) fn tokens(kept: &Kept) -> Vec<Token> {
    let drawn = kept.choices[0].tokens.iter().map(|drawn| drawn.token);
    drawn.map(|token| (token.token.into(), token.logprob)).collect()
}
