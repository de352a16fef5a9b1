//! What `eval ppl`, `bench prefill`, `doctor` and `demo` report.

mod binary;

use std::process::Stdio;

use binary::{aqueduct, model, rows, run};

#[test]
fn ppl_has_a_row_for_each_policy() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "The mass of men lead lives of quiet desperation. ".repeat(60)).unwrap();
    let model = model();
    let [model, text] = [&model, &text].map(|path| path.to_str().unwrap());
    let rows = rows(&run([
        "eval",
        "ppl",
        "--model",
        model,
        "--text",
        text,
        "--context",
        "200",
        "--windows",
        "2",
        "--policy",
        "dense,window,h2o",
        "--budget",
        "32",
        "--chunk",
        "48",
        "--workers",
        "2",
        "--json",
    ]));
    let policies: Vec<_> = rows.iter().map(|row| row["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["dense", "window", "h2o"]);
    for row in &rows {
        assert_eq!(row["tokens"], 200, "the second halves of two windows");
        let (ppl, nll) = (row["ppl"].as_f64().unwrap(), row["nll"].as_f64().unwrap());
        assert!(nll.is_finite() && nll > 0.0 && (nll.exp() - ppl).abs() < 1e-9 * ppl, "{row}");
        let retained = row["retained_mass"].as_f64().unwrap();
        assert!(retained > 0.0 && retained <= 1.0, "{row}");
    }
    assert!(rows[0]["budget"].is_null());
    assert_eq!((&rows[1]["budget"], &rows[2]["budget"]), (&32.into(), &32.into()));
    assert!(rows[2]["retained_mass"].as_f64() > rows[1]["retained_mass"].as_f64());
}

#[test]
fn bench_has_a_row_for_each_combination() {
    let model = model();
    let rows = rows(&run([
        "bench",
        "prefill",
        "--model",
        model.to_str().unwrap(),
        "--prompt-tokens",
        "64,128",
        "--policy",
        "h2o,dense",
        "--workers",
        "1,2",
        "--chunk",
        "32",
        "--local",
        "8",
        "--heavy",
        "8",
        "--reps",
        "2",
        "--json",
    ]));
    assert_eq!(rows.len(), 8);
    for row in &rows {
        assert!(row["tokens_per_second"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["seconds_spread"].as_f64().unwrap() >= 0.0, "{row}");
        assert!(row["cpu"].is_string() && row["commit"].is_string(), "{row}");
    }
    let bytes = |policy: &str, tokens: u32| {
        let row = rows.iter().find(|r| r["policy"] == policy && r["prompt_tokens"] == tokens);
        row.unwrap()["kv_bytes"].as_u64().unwrap()
    };
    assert_eq!(bytes("h2o", 64), bytes("h2o", 128), "flat");
    assert!(bytes("dense", 128) > bytes("dense", 64), "grows");
}

#[test]
fn bench_counts_what_travels_between_processes_and_what_is_spared() {
    let model = model();
    let bench = ["bench", "prefill", "--model", model.to_str().unwrap(), "--link", "grpc"];
    let prompt = ["--prompt-tokens", "256", "--workers", "1,2", "--chunk", "32"];
    let budget = ["--local", "8", "--heavy", "8", "--json"];
    let rows = rows(&run([&bench[..], &prompt, &budget].concat()));
    // 7 hops of 6 layers, 2 KV heads, 20 keys: what docs/WIRE.md says of whole sets.
    let whole = 7 * 6 * 2 * 20 * (2 * 64 * 2 + 12);
    let figure = |row: &serde_json::Value, name: &str| row[name].as_u64().unwrap();
    for (row, (workers, wanted)) in rows.iter().zip([(1, 0), (2, whole)]) {
        let (bytes, spared) = (figure(row, "exchange_bytes"), figure(row, "spared_bytes"));
        assert_eq!((figure(row, "workers"), bytes + spared), (workers, wanted), "{row}");
        assert_eq!(spared > 0, workers > 1, "a worker has no wire to itself: {row}");
    }
}

#[test]
fn bench_goes_beyond_the_positions_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["generation_config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(model().join(file), folder.path().join(file)).unwrap();
    }
    let config = std::fs::read_to_string(model().join("config.json")).unwrap();
    let short = config.replace("65536", "100");
    std::fs::write(folder.path().join("config.json"), short).unwrap();
    let rows = rows(&run([
        "bench",
        "prefill",
        "--model",
        folder.path().to_str().unwrap(),
        "--prompt-tokens",
        "128",
        "--chunk",
        "64",
        "--json",
    ]));
    assert_eq!(rows[0]["prompt_tokens"], 128);
}

#[test]
fn doctor_looks_at_machine_and_model() {
    let model = model();
    let rows = rows(&run(["doctor", "--model", model.to_str().unwrap(), "--json"]));
    assert_eq!(rows[0]["check"], "machine");
    assert!(rows[0]["threads"].as_u64().unwrap() >= 1);
    assert_eq!((&rows[1]["check"], &rows[1]["layers"]), (&"model".into(), &6.into()));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = aqueduct().args(["doctor", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn demo_answers_and_draws() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let rows = rows(&run(["demo", "--prompt-tokens", "3000", "--out", out, "--json"]));
    assert_eq!(rows[0]["workers"], 4);
    assert!(rows[0]["kv_bytes"].as_u64() < rows[0]["dense_bytes"].as_u64());
    let picture = std::fs::read_to_string(rows[0]["picture"].as_str().unwrap()).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("layer 5, head 1"));
}
