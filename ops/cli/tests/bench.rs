//! What `bench kernels` reports and refuses.

mod binary;

use binary::{rows, run, stderr};

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
    assert!(lines[1].starts_with("kernel    path ") && lines[1].ends_with("of memory"), "{table}");
    assert!(lines[2].starts_with("norm ") && lines[2].ends_with(" %"), "{table}");
    assert_eq!(lines.len(), 4);
}

#[test]
fn wrong_input_is_refused() {
    let check = |args: &[&str], said: &str| {
        let output = run([&["bench"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
    };
    check(&["kernels", "--filter", "attend nonsense"], "filter = attend nonsense: must be parts");
    check(&["kernels", "--isa", "sse9"], "must be one of portable");
    check(&["kernels", "--reps", "0"], "reps = 0: must be between 1 and");
    check(&["kernels", "--threads", "99999"], "threads = 99999: must be between 0 and");
}
