//! Workers and coordinators that are stopped while they are at work: no stream breaks.

mod binary;

use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use binary::{Running, aqueduct, coordinator, rows, run, stderr, wait_for, worker};
use serde_json::{Value, json};

/// A streamed answer, of which something has come.
struct Answer {
    lines: std::io::Lines<BufReader<TcpStream>>,
    text: String,
}

impl Answer {
    fn begin(coordinator: &Running, prompt: &str, max_tokens: u32) -> Self {
        let body = json!({
            "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": true,
            "ignore_eos": true, "aqueduct": { "chunk_tokens": 16 },
        });
        let stream = coordinator.send("POST", "/v1/completions", &body.to_string());
        let lines = BufReader::new(stream).lines();
        let mut answer = Self { lines, text: String::new() };
        assert!(answer.next(), "nothing came");
        answer
    }

    /// Reads on; false when the answer has come to its end as it should.
    fn next(&mut self) -> bool {
        loop {
            let line = self.lines.next().expect("the stream broke").unwrap();
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return false;
            }
            let event: Value = serde_json::from_str(data).unwrap();
            assert!(event["error"].is_null(), "{event}");
            self.text += event["choices"][0]["text"].as_str().unwrap_or_default();
            return true;
        }
    }

    fn whole(mut self) -> String {
        while self.next() {}
        self.text
    }
}

const PROMPTS: [&str; 4] = [
    "I went to the woods because I wished to live deliberately, to front only the facts of life",
    "The mass of men lead lives of quiet desperation. What is called resignation is desperation",
    "Simplify, simplify",
    "Our life is frittered away by detail. An honest man has hardly need to count more than ten",
];

#[test]
fn a_worker_that_is_told_to_stop_breaks_no_stream() {
    let (first, second) = (worker(), worker());
    let coordinator = coordinator(&[&first, &second], &[]);
    let answers = PROMPTS.map(|prompt| Answer::begin(&coordinator, prompt, 150));
    first.signal("TERM");
    let left = || first.http_at("monitor", "GET", "/readyz", "").0 == 503;
    wait_for("it to say that it goes", || left().then_some(()));
    let during = PROMPTS.map(|prompt| Answer::begin(&coordinator, prompt, 150));
    let texts = answers.map(Answer::whole);
    assert_eq!(during.map(Answer::whole), texts);
    assert_eq!(first.ended(), Some(0));
    let after = PROMPTS.map(|prompt| Answer::begin(&coordinator, prompt, 150));
    assert_eq!(after.map(Answer::whole), texts);
    let metrics = coordinator.http("GET", "/metrics", "").1;
    assert!(metrics.contains("\nchunk_retries_total 0\n"), "nothing was done twice: {metrics}");
}

#[test]
fn what_a_worker_decodes_goes_on_elsewhere_when_it_is_told_to_stop() {
    let (first, second) = (worker(), worker());
    let coordinator = coordinator(&[&first, &second], &[]);
    // So long that nobody could wait for their end.
    let mut long = PROMPTS.map(|prompt| Answer::begin(&coordinator, prompt, 50_000));
    first.signal("TERM");
    assert_eq!(first.ended(), Some(0));
    let want = PROMPTS.map(|prompt| Answer::begin(&coordinator, prompt, 400).whole());
    for (answer, want) in long.iter_mut().zip(want) {
        while answer.text.len() < want.len() {
            assert!(answer.next(), "it ended");
        }
        assert!(answer.text.starts_with(&want), "{:?} instead of {want:?}", answer.text);
    }
    let metrics = coordinator.http("GET", "/metrics", "").1;
    assert!(metrics.contains("\nchunk_retries_total 0\n"), "nothing was done twice: {metrics}");
}

#[test]
fn a_coordinator_that_is_told_to_stop_answers_what_it_has_taken() {
    let worker = worker();
    let coordinator = coordinator(&[&worker], &[]);
    // One that lasts until this test has seen enough.
    let long = Answer::begin(&coordinator, PROMPTS[0], 50_000);
    let short = Answer::begin(&coordinator, PROMPTS[1], 100);
    assert_eq!(coordinator.http("GET", "/readyz", "").0, 200);
    coordinator.signal("TERM");
    let unready = || (coordinator.http("GET", "/readyz", "").0 == 503).then_some(());
    wait_for("it to take nothing new", unready);
    assert_eq!(coordinator.http("GET", "/livez", "").0, 200);
    let (status, answer) = coordinator.http("POST", "/v1/completions", r#"{"prompt": "a"}"#);
    assert_eq!(status, 503, "{answer}");
    let url = format!("http://{}", coordinator.address("grpc"));
    let output = run(["generate", "--server", &url, "Simplify"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(!short.whole().is_empty());
    drop(long);
    assert_eq!(coordinator.ended(), Some(0));
}

#[test]
fn what_takes_too_long_is_cut_off_and_the_end_is_a_good_one() {
    let server = Running::serve(&["--grace-s", "1"]);
    server.wait_until_ready();
    let long = Answer::begin(&server, PROMPTS[0], 50_000);
    assert_eq!(server.terminate(), Some(0));
    drop(long);
}

#[test]
fn operators_drain_workers_and_take_it_back() {
    let (first, second) = (worker(), worker());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json").to_str().unwrap().to_owned();
    let key = |more: &[&str]| {
        let args = ["keys", "new", "--name", "someone", "--api-keys", &file];
        let output = run(args.iter().chain(more));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let (admin, caller) = (key(&["--admin"]), key(&[]));
    let coordinator = coordinator(&[&first, &second], &["--api-keys", &file]);
    let url = format!("http://{}", coordinator.address("grpc"));
    let node = |key: &str, args: &[&str]| {
        let mut command = aqueduct();
        command.arg("node").args(args).args(["--server", &url]).env("AQUEDUCT_API_KEY", key);
        command.output().unwrap()
    };
    let states = || {
        let listed = rows(&node(&caller, &["list", "--json"]));
        listed.iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (one, two) = (first.address("url"), second.address("url"));
    let refused = node(&caller, &["drain", one]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--admin"), "{}", stderr(&refused));
    let unknown = node(&admin, &["drain", "nobody"]);
    assert_eq!(unknown.status.code(), Some(1), "{}", stderr(&unknown));
    assert!(stderr(&unknown).contains("worker = nobody"), "{}", stderr(&unknown));
    assert_eq!(states(), ["up", "up"]);

    assert!(node(&admin, &["drain", one]).status.success());
    assert_eq!(states(), ["drained", "up"]);
    assert!(node(&admin, &["drain", two]).status.success());
    assert_eq!(coordinator.http("GET", "/readyz", "").0, 503);
    assert!(node(&admin, &["undrain", two]).status.success());
    assert_eq!(coordinator.http("GET", "/readyz", "").0, 200);
    assert_eq!(states(), ["drained", "up"]);
    drop(first);
    let generated = aqueduct()
        .args(["generate", "--server", &url, "--max-tokens", "4", "Simplify, simplify"])
        .env("AQUEDUCT_API_KEY", &caller)
        .output()
        .unwrap();
    assert!(generated.status.success(), "{}", stderr(&generated));
}
