//! Everything at random for a while: nothing may be stuck, and nothing may be left.

mod binary;

use binary::{model, rows, run, stderr};

/// As long as `AQUEDUCT_SOAK_SECONDS` says; `AQUEDUCT_SOAK_SEED` asks for the same again.
#[test]
fn nothing_is_left_of_any_request() {
    let seconds = std::env::var("AQUEDUCT_SOAK_SECONDS").unwrap_or_else(|_| "20".into());
    let seed = std::env::var("AQUEDUCT_SOAK_SEED").ok();
    let model = model();
    let mut args = vec!["bench", "soak", "--model", model.to_str().unwrap(), "--json"];
    args.extend(["--prompt-tokens", "2048", "--seconds", seconds.as_str()]);
    args.extend(seed.iter().flat_map(|seed| ["--seed", seed.as_str()]));
    let output = run(args);
    println!("{}", stderr(&output)); // the seed, to be shown where this fails
    let rows = rows(&output);
    let count =
        |field: &str| rows[0][field].as_u64().unwrap_or_else(|| panic!("{field}: {rows:?}"));
    for some in ["finished", "dropped", "late", "output_tokens", "rss_warm_bytes"] {
        assert!(count(some) > 0, "{some}: {rows:?}");
    }
    for none in ["failed", "running", "queued", "requests_held"] {
        assert_eq!(count(none), 0, "{none}: {rows:?}");
    }
    for none in ["inbox_bytes", "outbox_bytes", "home_bytes", "shard_bytes"] {
        assert_eq!(count(none), 0, "{none}: {rows:?}");
    }
}

#[test]
fn wrong_input_is_refused() {
    let model = model();
    let check = |args: &[&str], said: &str| {
        let output = run([&["bench", "soak", "--model", model.to_str().unwrap()], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
    };
    check(&["--seconds", "0"], "seconds = 0: must be between 1 and");
    check(&["--callers", "0"], "callers = 0: must be between 1 and");
    check(&["--prompt-tokens", "0"], "prompt_tokens = 0: must be between 1 and");
    check(&["--scheduler", "fifo"], "scheduler = fifo: must be decode-first, static or plain");
}
