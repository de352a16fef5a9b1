//! What `bench kernels` and `bench decode` report and refuse.

mod binary;

use std::process::Stdio;

use binary::{aqueduct, model, rows, run, signal, stderr, wait_for};

/// One kernel that takes no time, on one thread.
const QUICK: [&str; 8] =
    ["bench", "kernels", "--filter", "norm f32", "--threads", "1", "--reps", "3"];

#[test]
fn every_kernel_has_a_row() {
    let rows = rows(&run([&QUICK[..], &["--json", "--isa", "portable"]].concat()));
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert_eq!((&row["kernel"], &row["path"]), (&"norm".into(), &"portable f32".into()));
        for count in ["flop", "bytes", "reps", "threads", "cores"] {
            assert!(row[count].as_u64().unwrap() > 0, "{count} of {row}");
        }
        for share in ["us", "peak_share", "bandwidth_share"] {
            assert!(row[share].as_f64().unwrap() > 0.0, "{share} of {row}");
        }
        assert!(row["us_spread"].as_f64().unwrap() >= 0.0, "{row}");
        assert!(row["cpu"].is_string() && row["commit"].is_string(), "{row}");
    }
    assert_eq!(rows[0]["shape"], "1x1024");
    let ratio = |key: &str| rows[1][key].as_u64().unwrap() / rows[0][key].as_u64().unwrap();
    assert_eq!((ratio("flop"), ratio("bytes")), (1024, 1024), "of 1024 rows and of one");
}

#[test]
fn a_person_gets_a_table() {
    let output = run(QUICK);
    let table = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].contains("1 thread, reads "), "{table}");
    assert!(lines[1].starts_with("kernel     path ") && lines[1].ends_with("of memory"), "{table}");
    assert!(lines[2].starts_with("norm ") && lines[2].ends_with(" %"), "{table}");
    assert_eq!(lines.len(), 4);
}

#[test]
fn a_journal_is_measured_beside_its_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let args = ["bench", "journal", "--seconds", "1", "--callers", "4", "--data-dir", path];
    let rows = rows(&run([&args[..], &["--members", "1,3", "--json"]].concat()));
    assert_eq!(rows.iter().map(|row| row["members"].clone()).collect::<Vec<_>>(), [1, 3]);
    for row in &rows {
        assert!(row["records"].as_u64().unwrap() >= 8, "{row}");
        let [p50, p99] = ["append_ms_p50", "append_ms_p99"].map(|p| row[p].as_f64().unwrap());
        assert!(row["fsync_ms_p50"].as_f64().unwrap() > 0.0, "{row}");
        assert!(p50 > 0.0 && p99 >= p50, "{row}");
    }
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0, "something is left");
    let refused = stderr(&run([&args[..], &["--members", "8"]].concat()));
    assert!(refused.contains("members = 8: must be between 1 and 7"), "{refused}");
}

#[test]
fn a_slow_worker_is_measured_with_a_second_one_and_without() {
    let model = model();
    let model = model.to_str().unwrap();
    let args = ["bench", "slow", "--workers", "2", "--threads", "2", "--chunks", "8", "--model"];
    let small = ["--chunk", "64", "--local", "16", "--heavy", "16", "--reps", "1"];
    let args = [&args[..], &[model], &small[..]].concat();
    let slow = ["--pause-ms", "300", "--hedge-ms", "0,20", "--json"];
    let rows = rows(&run([&args[..], &slow[..]].concat()));
    assert_eq!(rows.iter().map(|row| row["hedge_ms"].clone()).collect::<Vec<_>>(), [0, 20]);
    for row in &rows {
        assert_eq!((&row["identical"], &row["chunks"]), (&true.into(), &8.into()), "{row}");
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(rows[0]["hedges"], 0);
    let refused = stderr(&run([&args[..], &["--pause-ms", "5000"]].concat()));
    assert!(refused.contains("pause_ms = 5000: must be between 1 and 1700"), "{refused}");
}

/// The state of a process, as one letter, and who has started it; `None` once it is gone.
fn process(id: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[test]
fn a_bench_that_is_stopped_leaves_no_worker() {
    let args = ["bench", "recover", "--workers", "2", "--threads", "2", "--chunks", "8"];
    let mut command = aqueduct();
    command.args(args).args(["--chunk", "64", "--reps", "1000", "--model"]).arg(model());
    let mut bench = command.stdout(Stdio::null()).spawn().unwrap();
    let id = bench.id();
    let of_bench = |other: &u32| process(*other).is_some_and(|(_, parent)| parent == id);
    let workers = wait_for("both workers", || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let workers: Vec<u32> = ids.filter(of_bench).collect();
        (workers.len() == 2).then_some(workers)
    });
    signal(id, "TERM");
    let ended = wait_for("the end of the bench", || bench.try_wait().unwrap());
    assert_eq!(ended.code(), Some(1));
    let is_there = |worker: &u32| process(*worker).is_some_and(|(state, _)| state != 'Z');
    wait_for("the end of its workers", || (!workers.iter().any(is_there)).then_some(()));
}

/// Short prompts, small memories, few tokens.
const SHORT: [&str; 12] = [
    "--depth-tokens",
    "64,128",
    "--chunk",
    "32",
    "--local",
    "8",
    "--heavy",
    "8",
    "--tokens",
    "3",
    "--reps",
    "2",
];

#[test]
fn every_depth_is_decoded() {
    let model = model();
    let decode = ["bench", "decode", "--model", model.to_str().unwrap()];
    let combined = ["--policy", "h2o,dense", "--workers", "1,2", "--json"];
    let rows = rows(&run([&decode[..], &SHORT, &combined].concat()));
    assert_eq!(rows.len(), 8);
    for row in &rows {
        let [speed, ms] =
            ["tokens_per_second", "ms_per_token"].map(|key| row[key].as_f64().unwrap());
        assert!(speed > 0.0 && (speed * ms / 1e3 - 1.0).abs() < 1e-6, "{row}");
        assert!(row["spread"].as_f64().unwrap() >= 0.0, "{row}");
        assert!(row["bandwidth_share"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["weight_bytes"].as_u64().unwrap() > 1_000_000, "{row}");
        assert!(row["cpu"].is_string() && row["commit"].is_string(), "{row}");
    }
    let bytes = |policy: &str, depth: u32| {
        let row = rows.iter().find(|r| r["policy"] == policy && r["depth_tokens"] == depth);
        row.unwrap()["kv_bytes"].as_u64().unwrap()
    };
    assert_eq!(bytes("h2o", 64), bytes("h2o", 128), "flat");
    assert!(bytes("dense", 128) > bytes("dense", 64), "grows");
}

#[test]
fn a_profile_has_every_part() {
    let model = model();
    let profile = ["bench", "profile", "--model", model.to_str().unwrap()];
    let rest = ["--prompt-tokens", "64", "--chunk", "32", "--tokens", "2", "--policy", "h2o,dense"];
    let rows = rows(&run([&profile[..], &rest, &["--reps", "1", "--json"]].concat()));
    let part = |phase: &str, policy: &str, part: &str| {
        let row = rows.iter().find(|row| {
            (&row["phase"], &row["policy"], &row["part"])
                == (&phase.into(), &policy.into(), &part.into())
        });
        row.unwrap_or_else(|| panic!("{phase}, {policy}, {part}"))["share"].as_f64().unwrap()
    };
    for (phase, policy) in
        [("prefill", "h2o"), ("prefill", "dense"), ("decode", "h2o"), ("decode", "dense")]
    {
        let parts = ["embed", "project", "select", "finish", "head", "rest"];
        let known: f64 = parts.map(|name| part(phase, policy, name)).iter().sum();
        assert!(known > 0.0 && known < 1.0, "{phase}, {policy}: {known}");
        assert_eq!(part(phase, policy, "all"), 1.0);
    }
    assert_eq!(part("prefill", "dense", "sample"), 0.0);
    assert_eq!(rows.len(), 40);
}

#[test]
fn wrong_input_is_refused() {
    let model = model();
    let decode = ["decode", "--model", model.to_str().unwrap()];
    let check = |args: &[&str], said: &str| {
        let output = run([&["bench"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
    };
    check(&["kernels", "--filter", "attend nonsense"], "filter = attend nonsense: must be parts");
    check(&["kernels", "--isa", "sse9"], "must be one of portable");
    check(&["kernels", "--reps", "0"], "reps = 0: must be between 1 and");
    check(&["kernels", "--threads", "99999"], "threads = 99999: must be between 0 and");
    let profile = ["profile", "--model", model.to_str().unwrap(), "--prompt-tokens"];
    check(&[&profile[..], &["0"]].concat(), "prompt_tokens = 0: must be between 1 and");
    check(&[&profile[..], &["9", "--reps", "0"]].concat(), "reps = 0: must be between 1 and");
    let check = |args: &[&str], said: &str| check(&[&decode[..], args].concat(), said);
    check(&["--depth-tokens", "0"], "depth_tokens = 0: must be between 1 and");
    check(&["--depth-tokens", "9", "--tokens", "0"], "tokens = 0: must be between 1 and");
    check(&["--depth-tokens", "9", "--reps", "0"], "reps = 0: must be between 1 and");
    check(&["--depth-tokens", "9", "--reps", "4096", "--tokens", "4096"], "reps * tokens = 1677");
}

#[test]
fn a_loss_is_measured_and_changes_no_bit() {
    let model = model();
    let short =
        ["--chunks", "6", "--workers", "3", "--chunk", "256", "--local", "8", "--heavy", "8"];
    let check = |fault: &str, policies: &str| {
        let args = ["bench", "recover", "--reps", "1", "--json", "--model"];
        let what = [model.to_str().unwrap(), "--fault", fault, "--policy", policies];
        let rows = rows(&run([&args[..], &what, &short].concat()));
        let lost: Vec<_> = rows.iter().map(|row| row["lost"].as_str().unwrap()).collect();
        assert_eq!(lost, ["prefill", "home", "before"].repeat(policies.split(',').count()));
        for row in &rows {
            assert_eq!((&row["identical"], &row["chunks"]), (&true.into(), &6.into()), "{row}");
            assert_eq!(row["fault"], fault);
            for time in ["seconds", "fault_free_seconds", "chunk_seconds", "ratio", "detect_ms"] {
                assert!(row[time].as_f64().unwrap() > 0.0, "{time} of {row}");
            }
        }
    };
    check("kill", "h2o,dense");
    check("hang", "h2o");
    let one = stderr(&run(["bench", "recover", "--workers", "1", "--model", "nowhere"]));
    assert!(one.contains("workers = 1: must be between 2 and 1024"), "{one}");
}
