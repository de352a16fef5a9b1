//! What the memory must keep, asked for and kept to: the shipped model behind one server.

mod binary;

use binary::{Running, rows, run, stderr};
use serde_json::{Value, json};

const TEXT: &str = "I went to the woods because I wished to live deliberately, to front only the \
                    essential facts of life, and see if I could not learn what it had to teach. ";

/// Greedy, in chunks of 64 tokens under h2o with 4 + 4 + 4 keys, which keep some of the mass.
fn generate(url: &str, flags: &[&str]) -> Vec<Value> {
    let prompt = TEXT.repeat(8);
    let common = ["--json", "--temperature", "0", "--max-tokens", "8", "--chunk", "64"];
    let budget = match flags.contains(&"exact") {
        true => &[][..],
        false => &["--sinks", "4", "--local", "4", "--heavy", "4"],
    };
    rows(&run([&["generate", "--server", url], &common[..], budget, flags, &[&prompt]].concat()))
}

fn tokens(rows: &[Value]) -> Vec<&Value> {
    rows.iter().filter(|row| row["event"] == "token").map(|row| &row["token"]).collect()
}

fn escalations(rows: &[Value]) -> Vec<&str> {
    let again = rows.iter().filter(|row| row["event"] == "escalated");
    again.map(|row| row["next"].as_str().unwrap()).collect()
}

#[test]
fn a_floor_escalates_to_the_exact_answer_or_is_met_or_reported() {
    let server = Running::serve(&["--workers", "2"]);
    let url = format!("http://{}", server.address("grpc"));
    let dense = generate(&url, &["--policy", "dense"]);

    let exact = generate(&url, &["--quality", "exact"]);
    assert_eq!(tokens(&exact), tokens(&dense));
    assert_eq!(exact.last().unwrap()["policy"], "dense");

    let high = generate(&url, &["--quality", "memory", "--min-retained-mass", "1"]);
    let tries = ["h2o 4 + 8 + 8", "h2o 4 + 16 + 16", "h2o 4 + 32 + 31", "dense"];
    assert_eq!(escalations(&high), tries);
    assert_eq!(tokens(&high), tokens(&dense));
    let summary = high.last().unwrap();
    assert_eq!((&summary["escalations"], &summary["policy"]), (&json!(4), &json!("dense")));
    assert_eq!(summary["lowest_retained_mass"], 1.0);

    let low = generate(&url, &["--min-retained-mass", "0.01"]);
    assert_eq!(escalations(&low), [""; 0]);
    let kept = low.last().unwrap()["lowest_retained_mass"].as_f64().unwrap();
    assert!((0.01..1.0).contains(&kept), "{kept}");

    let told = generate(&url, &["--min-retained-mass", "0.999", "--below-floor", "report"]);
    assert_eq!((escalations(&told), tokens(&told)), (vec![], tokens(&low)));
    let warnings = told.last().unwrap()["warnings"].to_string();
    assert!(warnings.contains("below min_retained_mass = 0.999"), "{warnings}");
    assert_eq!(server.metric("escalations_total"), 4.0);

    let body = json!({
        "prompt": TEXT.repeat(8), "max_tokens": 8, "temperature": 0, "aqueduct": {
            "local": 4, "heavy": 4, "chunk_tokens": 64, "min_retained_mass": 0.99,
        },
    });
    let (status, answer) = server.http("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert!(answer["aqueduct"]["escalations"].as_u64().unwrap() > 0, "{answer}");
    assert!(answer["aqueduct"]["lowest_retained_mass"].as_f64().unwrap() >= 0.99, "{answer}");
}

#[test]
fn half_a_demand_is_refused_by_field() {
    let server = Running::serve(&[]);
    let url = format!("http://{}", server.address("grpc"));
    let check = |flags: &[&str], part: &str| {
        let output = run([&["generate", "--server", &url, "x"], flags].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    };
    check(&["--min-retained-mass", "1.5"], "min_retained_mass = 1.5: must be above 0");
    check(&["--below-floor", "report"], "below_floor = report: must be given with");
    check(&["--quality", "exact", "--min-retained-mass", "0.5"], "min_retained_mass = 0.5");
    check(&["--quality", "exact", "--policy", "window"], "policy = window: must be dense");
    check(&["--quality", "exact", "--local", "8"], "absent beside quality exact");
    check(&["--quality", "best"], "exact or memory");
}
