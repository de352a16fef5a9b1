//! What `bench exchange` reports and refuses.

mod binary;

use binary::{model, rows, run, stderr};
use serde_json::Value;

/// 256 tokens in chunks of 32.
const SMALL: [&str; 8] =
    ["--depth-tokens", "256", "--chunk", "32", "--reps", "2", "--threads", "1"];

fn bench(more: &[&str]) -> Vec<Value> {
    let model = model();
    let command = ["bench", "exchange", "--model", model.to_str().unwrap(), "--json"];
    rows(&run([&command[..], &SMALL, more].concat()))
}

/// Bytes of a layer by the formula of docs/WIRE.md, for the shipped model's shape.
fn formula(row: &Value) -> u64 {
    let config = std::fs::read_to_string(model().join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let count = |field: &str| config[field].as_u64().unwrap();
    let (heads, kv_heads) = (count("num_attention_heads"), count("num_key_value_heads"));
    let head_dim = config["head_dim"].as_u64().unwrap_or(count("hidden_size") / heads);
    let (kv, wire) = (2, 4);
    let keys = kv_heads * 256 * (2 * head_dim * kv + 12);
    let workers = row["workers"].as_u64().unwrap();
    let tokens = row["block_tokens"].as_u64().unwrap();
    let queries = workers * heads * tokens * (head_dim * wire + (head_dim * wire + 8));
    match row["exchange"].as_str().unwrap() {
        "move" => keys,
        "stay" => queries,
        _ => keys.min(queries),
    }
}

#[test]
fn every_block_and_exchange_has_a_row() {
    let rows = bench(&["--workers", "4", "--block-tokens", "1,64", "--link", "loopback"]);
    let names: Vec<_> = rows.iter().map(|row| row["exchange"].as_str().unwrap()).collect();
    assert_eq!(names, ["move", "stay", "auto", "move", "stay", "auto"]);
    for row in &rows {
        assert_eq!(row["bytes"].as_u64().unwrap(), formula(row), "{row}");
        assert!(row["layer_us"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["layer_us_spread"].as_f64().unwrap() >= 0.0, "{row}");
        assert!(row["cpu"].is_string() && row["commit"].is_string(), "{row}");
    }
    let crossing = rows[0]["crossing_tokens"].as_u64().unwrap();
    assert!((2..=64).contains(&crossing), "{crossing}");
    assert_eq!(rows[2]["bytes"], rows[1]["bytes"], "one token goes to the keys");
    assert_eq!(rows[5]["bytes"], rows[3]["bytes"], "the keys come to many");
}

#[test]
fn sockets_carry_what_the_formula_says() {
    for row in bench(&["--workers", "4", "--block-tokens", "1,64", "--link", "grpc"]) {
        let (bytes, formula) = (row["bytes"].as_u64().unwrap(), formula(&row));
        assert!(bytes.abs_diff(formula) * 20 <= formula, "{formula}: {row}");
    }
}

#[test]
fn a_stream_is_measured_beside_a_copy() {
    let rows = bench(&["--stream"]);
    let names: Vec<_> = rows.iter().map(|row| row["stream"].as_str().unwrap()).collect();
    assert_eq!(names, ["grpc", "plain", "tcp"]);
    for row in &rows {
        let [bytes, seconds, speed] =
            ["bytes", "seconds", "gb_per_second"].map(|key| row[key].as_f64().unwrap());
        assert!(bytes > 0.0 && (speed * seconds / bytes * 1e9 - 1.0).abs() < 1e-6, "{row}");
    }
}

#[test]
fn wrong_input_is_refused() {
    let model = model();
    let check = |args: &[&str], said: &str| {
        let command = ["bench", "exchange", "--model", model.to_str().unwrap()];
        let output = run([&command[..], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
    };
    check(&["--workers", "0"], "workers = 0: must be between 1 and");
    check(&["--block-tokens", "0"], "block_tokens = 0: must be between 1 and");
    check(&["--depth-tokens", "0"], "depth_tokens = 0: must be between 1 and");
    check(&["--chunk", "0"], "chunk = 0: must be between 1 and");
    check(&["--reps", "0"], "reps = 0: must be between 1 and");
    check(&["--link", "pigeon"], "loopback");
}

#[test]
fn merged_states_are_what_f64_says() {
    let model = model();
    let merge = ["eval", "merge", "--model", model.to_str().unwrap(), "--threads", "1", "--json"];
    let prompt = ["--prompt-tokens", "150", "--chunk", "32", "--workers", "3"];
    for policy in ["dense", "h2o"] {
        let more = ["--policy", policy, "--kv", "f32", "--local", "8", "--heavy", "8"];
        let rows = rows(&run([&merge[..], &prompt, &more].concat()));
        let layers: Vec<_> = rows.iter().map(|row| row["layer"].as_u64().unwrap()).collect();
        assert!(layers.len() > 1 && layers.into_iter().eq(0..rows.len() as u64));
        for row in &rows {
            assert_eq!(row["bound"].as_f64(), Some(1e-5), "{row}");
            assert!(row["error"].as_f64().unwrap() < 1e-5, "{row}");
            assert!(row["lse_error"].as_f64().unwrap() < 1e-5, "{row}");
            assert!(row["rows"].as_u64().unwrap() > 0, "{row}");
            assert_eq!(row["exchange"], "stay", "{row}");
        }
    }
}
