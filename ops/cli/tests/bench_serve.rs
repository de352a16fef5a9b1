//! What `bench serve` reports and refuses.

mod binary;

use std::collections::BTreeSet;

use binary::{model, rows, run, stderr};
use serde_json::Value;

/// Short prompts and answers, for a moment.
const QUICK: [&str; 20] = [
    "--prompt-tokens",
    "40,200",
    "--weight",
    "3,1",
    "--chunk",
    "64",
    "--local",
    "8",
    "--heavy",
    "8",
    "--max-tokens",
    "4",
    "--seconds",
    "0.3",
    "--long-tokens",
    "1024",
    "--threads",
    "1",
    "--workers",
    "2",
];

fn bench(more: &[&str]) -> Vec<Value> {
    let model = model();
    let command = ["bench", "serve", "--model", model.to_str().unwrap(), "--json"];
    rows(&run([&command[..], &QUICK, more].concat()))
}

#[test]
fn every_scheduler_arrival_and_load_has_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let rows = bench(&["--load", "2,8", "--plot", plot.to_str().unwrap()]);
    let name = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    for scheduler in ["decode-first", "static", "plain"] {
        let of = rows.iter().filter(|row| row["scheduler"] == scheduler);
        let arrivals: Vec<_> = of.map(|row| name(row, "arrival")).collect();
        let want = ["poisson", "poisson", "closed", "closed", "idle", "long", "idle", "long"];
        assert_eq!(arrivals, want, "{scheduler}");
    }
    let mut heard = BTreeSet::new();
    for row in &rows {
        let value = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        assert!([2.0, 8.0].contains(&value("load")), "{row}");
        if value("tokens_per_second") > 0.0 {
            heard.insert(name(row, "arrival"));
        }
        if row["arrival"] == "poisson" && value("requests") == 0.0 {
            continue; // a moment is short
        }
        assert!(value("ttft_ms_p50") > 0.0 || row["arrival"] == "idle", "{row}");
        assert!(value("ttft_ms_p99") >= value("ttft_ms_p50"), "{row}");
        assert!(value("itl_ms_p95") >= value("itl_ms_p50"), "{row}");
        assert!(value("itl_ms_p99") >= value("itl_ms_p95"), "{row}");
        assert!(value("rejected") == 0.0, "{row}");
        assert_eq!(row["itl_over_idle"].is_number(), row["arrival"] == "long", "{row}");
        assert!(row["cpu"].is_string() && row["commit"].is_string(), "{row}");
    }
    // In a moment this short a machine that is busy may not come to a token.
    assert!(["poisson", "closed", "idle", "long"].iter().all(|kind| heard.contains(*kind)));
    let plot = std::fs::read_to_string(plot).unwrap();
    assert!(plot.contains(">decode-first<") && plot.contains(">long prompt<"), "{plot}");
}

#[test]
fn a_full_queue_is_counted() {
    let rows =
        bench(&["--arrival", "poisson", "--load", "3000", "--queue", "1", "--scheduler", "static"]);
    assert!(rows[0]["rejected"].as_u64().unwrap() > 0, "{rows:?}");
}

#[test]
fn wrong_input_is_refused() {
    let model = model();
    let check = |args: &[&str], said: &str| {
        let output = run([&["bench", "serve", "--model", model.to_str().unwrap()], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
    };
    check(&["--scheduler", "fifo"], "scheduler = fifo: must be decode-first, static or plain");
    check(&["--step-tokens", "0"], "step_tokens = 0: must be between 1 and");
    check(&["--weight", "1"], "weights = 1: must be between 2 and 2");
    check(&["--weight", "1,-1"], "weight = -1: must be between 0.001 and");
    check(&["--load", "0"], "load = 0: must be between 0.001 and 4096");
    check(&["--load", "5000000000"], "load = 5000000000: must be between");
    check(&["--load", "1.5"], "load = 1.5: must be a whole number of callers");
    check(&["--seconds", "NaN"], "seconds = NaN: must be between 0.001 and");
    check(&["--seconds", "1e300"], ": must be between 0.001 and 604800");
    check(&["--max-tokens", "1"], "max_tokens = 1: must be between 2 and");
    check(&["--prompt-tokens", "0,9"], "prompt_tokens = 0: must be between 1 and");
}
