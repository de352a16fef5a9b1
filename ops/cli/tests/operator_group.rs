//! Every command for those who look after a cluster, against three coordinators and four workers,
//! word for word: asked of the one that leads, of one that follows, and after the leader's death.

mod binary;
mod terminal;
mod transcript;
mod trio;

use std::net::TcpStream;

use binary::{Running, aqueduct, model, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;
use terminal::{OTHER_SCREEN, OWN_SCREEN, Terminal};
use transcript::Transcript;
use trio::{COORDINATORS, Site, Trio, health};

/// Three chunks of eight tokens.
const PROMPT: &str = "I went to the woods because I wished to live deliberately, to front only";

/// Of which every processor makes the same bits.
fn worker() -> Running {
    let args = ["worker", "--threads", "1", "--isa", "portable", "--listen", "127.0.0.1:0"];
    Running::start(aqueduct().args(args).arg("--model").arg(model()))
}

/// A cluster, and somebody at a terminal who looks after it.
struct Desk {
    trio: Trio,
    leader: usize,
    seen: Transcript,
    folder: TempDir,
}

impl Desk {
    fn start() -> Self {
        let mut workers: Vec<_> = (0..4).map(|_| worker()).collect();
        // As coordinators list them.
        workers.sort_by_key(|worker| worker.address("url").to_owned());
        // No second try of a chunk, whatever else this machine does.
        let find = ["--hedge-ms", "0", "--worker"].map(str::to_owned).into_iter();
        let urls = workers.iter().map(|worker| worker.address("url").to_owned());
        let trio = Trio::at_site(Site::here(find.chain(urls).collect()), workers);
        let (leader, folder) = (trio.leader(None), tempfile::tempdir().unwrap());
        let config = folder.path().join("config.json");
        let (server, config) = (trio.url(leader), config.to_str().unwrap());
        let mut seen =
            Transcript::new(&[("AQUEDUCT_SERVER", &server), ("AQUEDUCT_CONFIG", config)]);
        seen.name(folder.path().to_str().unwrap(), "/folder");
        for (idx, worker) in trio.workers.iter().enumerate() {
            seen.name(worker.address("url"), &format!("http://worker-{idx}"));
        }
        let followers = (0..COORDINATORS).filter(|idx| *idx != leader);
        for (idx, name) in [leader].into_iter().chain(followers).zip(["first", "second", "third"]) {
            seen.name(&trio.url(idx), &format!("http://{name}"));
            seen.name(trio.peer(idx), &format!("http://{name}:peer"));
            seen.name(&format!("coordinator-{idx}"), name);
        }
        Self { trio, leader, seen, folder }
    }

    fn follower(&self) -> usize {
        (self.leader + 1) % COORDINATORS
    }

    fn worker(&self, idx: usize) -> String {
        self.trio.workers[idx].address("url").to_owned()
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// What the coordinator `idx` answers, which is not written down.
    fn ask(&self, idx: usize, args: &[&str]) -> Value {
        let server = self.trio.url(idx);
        let args = [args, &["-o", "json", "--server", &server]].concat();
        let output = aqueduct().args(args).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// The only request of this state, once there is one; its id is written as `name` from now on.
    fn request(&mut self, idx: usize, state: &str, name: &str) -> String {
        let asked = ["request", "list", "--all", "--state", state];
        let (id, caller) = wait_for(state, || {
            let request = self.ask(idx, &asked)["requests"][0].clone();
            let word = |field: &str| request[field].as_str().map(str::to_owned);
            word("id").zip(word("caller_id"))
        });
        self.seen.name(&id, name);
        if caller != "walden" {
            self.seen.name(&caller, "SOME-CALLER");
        }
        id
    }
}

/// A request that goes on for as long as the test does, unless somebody ends it.
fn endless(coordinator: &Running, more: &Value) -> TcpStream {
    let mut memory = json!({ "chunk_tokens": 8, "sinks": 2, "local": 3, "heavy": 2 });
    memory.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let body = json!({
        "prompt": PROMPT, "max_tokens": 50_000, "temperature": 0, "stream": true,
        "ignore_eos": true, "cache_prompt": false, "aqueduct": memory,
    });
    coordinator.send("POST", "/v1/completions", &body.to_string())
}

#[test]
fn operators_of_a_group_are_told_what_is_so() {
    let mut desk = Desk::start();
    status(&mut desk);
    nodes(&mut desk);
    requests(&mut desk);
    snapshots(&mut desk);
    requests_under_way(&mut desk);
    contexts(&mut desk);
    mistakes(&mut desk);
    followers(&mut desk);
    after_the_leader(&mut desk);
}

fn status(desk: &mut Desk) {
    desk.seen.note("A cluster that has just begun");
    desk.seen.forms(&["status"]);
    desk.seen.run(&["top", "--once"]);
    desk.seen.check("status");
}

fn nodes(desk: &mut Desk) {
    let (second, third) = (desk.worker(1), desk.worker(2));
    desk.seen.forms(&["node", "list"]);
    desk.seen.run(&["node", "list", "--json"]);
    desk.seen.forms(&["node", "show", &second]);
    desk.seen.note("A worker is drained, and somebody watches");
    let server = desk.trio.url(desk.leader);
    let drain = || {
        let args = ["node", "drain", &third, "--server", &server];
        assert!(aqueduct().args(args).status().unwrap().success());
    };
    desk.seen.watch(&["node", "list"], 5, drain, "drained");
    desk.seen.run(&["node", "drain", &third]);
    desk.seen.run(&["node", "list", "-o", "wide"]);
    desk.seen.run(&["status"]);
    desk.seen.run(&["node", "undrain", &third]);
    desk.seen.run(&["node", "list"]);
    desk.seen.check("node");
}

fn requests(desk: &mut Desk) {
    desk.seen.note("No request yet");
    desk.seen.run(&["request", "list"]);
    desk.seen.run(&["request", "list", "-o", "yaml"]);
    let body = json!({
        "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": true, "n": 2,
        "aqueduct": { "chunk_tokens": 8, "sinks": 2, "local": 3, "heavy": 2 },
    });
    let headers = ["x-request-id: walden"];
    let leader = desk.trio.at(desk.leader);
    let (status, answer) = leader.post_with("/v1/completions", &headers, &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let id = desk.request(desk.leader, "finished", "REQUEST-1");
    desk.seen.note("One that has ended");
    desk.seen.run(&["request", "list"]);
    desk.seen.forms(&["request", "list", "--all"]);
    desk.seen.forms(&["request", "show", &id]);
    desk.seen.run(&["request", "show", "walden"]);
    traced(desk);
    desk.seen.check("request");
}

/// Of one chunk: workers tell of several in the order in which they are heard.
fn traced(desk: &mut Desk) {
    let body = json!({
        "prompt": "Simplify, simplify", "max_tokens": 2, "temperature": 0, "ignore_eos": true,
        "cache_prompt": false,
    });
    let headers = ["x-request-id: simple"];
    let leader = desk.trio.at(desk.leader);
    let (status, answer) = leader.post_with("/v1/completions", &headers, &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let id = wait_for("its end", || {
        let request = desk.ask(desk.leader, &["request", "show", "simple"])["request"].clone();
        let id = request["id"].as_str().map(str::to_owned);
        id.filter(|_| request["state"] == "finished")
    });
    desk.seen.name(&id, "REQUEST-S");
    desk.seen.forms(&["request", "trace", "simple"]);
}

/// What the first request left.
fn snapshots(desk: &mut Desk) {
    let held = wait_for("two snapshots", || {
        let held = desk.ask(desk.leader, &["cache", "list"])["snapshots"].clone();
        (held.as_array().map(Vec::len) == Some(2)).then_some(held)
    });
    desk.seen.forms(&["cache", "list"]);
    let name = held[0]["snapshot"].as_str().unwrap().to_owned();
    let at = held[0]["worker"].as_str().unwrap().to_owned();
    let short = &name[..8];
    let file = desk.file("walden.snapshot");
    desk.seen.run(&["cache", "list", "--worker", &at]);
    desk.seen.forms(&["cache", "show", "--snapshot", short, "--layer", "3", "--head", "1"]);
    let server = desk.trio.url(desk.leader);
    let pin = || {
        let args = ["cache", "pin", short, "--server", &server];
        assert!(aqueduct().args(args).output().unwrap().status.success());
    };
    desk.seen.watch(&["cache", "list", "--worker", &at], 2, pin, "yes");
    desk.seen.run(&["cache", "pin", short]);
    desk.seen.run(&["cache", "unpin", short]);
    desk.seen.note("A snapshot goes from one worker to another, as a file");
    desk.seen.run(&["cache", "export", short, &file]);
    desk.seen.run(&["cache", "evict", short]);
    desk.seen.run(&["cache", "list"]);
    let elsewhere = (0..4).map(|idx| desk.worker(idx)).find(|url| *url != at).unwrap();
    desk.seen.run(&["cache", "import", &file, "--worker", &elsewhere]);
    desk.seen.run(&["cache", "list", "-o", "wide"]);
    desk.seen.note("What is not there, and what is no snapshot");
    desk.seen.run(&["cache", "evict", "0123456789abcdef", short]);
    desk.seen.run(&["cache", "evict", short]);
    desk.seen.run(&["cache", "show", "--snapshot", short]);
    desk.seen.run(&["cache", "pin", "walden"]);
    std::fs::write(&file, "Simplify, simplify").unwrap();
    desk.seen.run(&["cache", "import", &file]);
    desk.seen.check("cache");
}

fn requests_under_way(desk: &mut Desk) {
    desk.seen.growing(true);
    let _caller = endless(desk.trio.at(desk.leader), &json!({}));
    let id = desk.request(desk.leader, "decode", "REQUEST-2");
    desk.seen.forms(&["request", "list", "--state", "decode"]);
    desk.seen.run(&["request", "show", &id]);
    desk.seen.run(&["cache", "show", &id, "--head", "1", "-o", "json"]);
    let home = desk.ask(desk.leader, &["request", "show", &id])["request"]["home"].clone();
    desk.seen.run(&["node", "show", home.as_str().unwrap()]);
    desk.seen.run(&["status"]);
    desk.seen.run(&["top", "--once"]);
    top_on_a_terminal(desk);
    let server = desk.trio.url(desk.leader);
    let cancel = || {
        let args = ["request", "cancel", &id, "--server", &server];
        assert!(aqueduct().args(args).output().unwrap().status.success());
    };
    desk.seen.watch(&["request", "list", "--all"], 4, cancel, "cancelled");
    desk.seen.run(&["request", "list"]);
    desk.seen.note("What has ended cannot be ended again");
    desk.seen.run(&["request", "cancel", &id]);
    desk.seen.run(&["request", "list", "--all", "--state", "cancelled", "-o", "wide"]);
    desk.seen.growing(false);
    desk.seen.check("request-under-way");
}

/// Keys, another size, and the end: by `q`, and by Ctrl-C.
fn top_on_a_terminal(desk: &Desk) {
    let resized = desk.file("resized");
    let server = desk.trio.url(desk.leader);
    let top = format!("{} top --interval 0.1 --server {server}", env!("CARGO_BIN_EXE_aqueduct"));
    let resize = format!("while [ ! -e {resized} ]; do sleep 0.1; done; stty rows 20 cols 70");
    let line = format!("stty rows 30 cols 100; ({resize}) </dev/tty & exec {top}");
    let mut terminal = Terminal::run(&line);
    terminal.wait_for("rows", |seen| seen.contains("NODE") && seen.contains("WAVEFRONT of r"));
    terminal.wait_for("the end of the screen", |seen| seen.contains("q quit"));
    let cleared = |seen: &str| seen.matches("\u{1b}[2J").count();
    let before = terminal.wait_for("a frame", |seen| seen.contains("Uptime")).len();
    terminal.type_keys("r");
    terminal.wait_for("the other order", |seen| seen.contains('▲'));
    terminal.type_keys("\u{1b}[C");
    terminal.wait_for("another column", |seen| seen.matches('▲').count() > 1);
    let seen = terminal.wait_for("frames", |seen| seen.len() > before);
    assert_eq!(seen.matches("NODE").count(), 1, "what has not changed is not drawn: {seen:?}");
    assert!(cleared(&seen) < 2, "{seen:?}");
    std::fs::write(&resized, "").unwrap();
    terminal.wait_for("another size", |seen| seen.matches("NODE").count() > 1);
    terminal.type_keys("q");
    let seen = terminal.ended(0);
    assert!(seen.contains(OTHER_SCREEN) && seen.contains(OWN_SCREEN), "{seen:?}");

    let mut terminal = Terminal::run(&format!("stty rows 30 cols 100; exec {top}"));
    terminal.wait_for("rows", |seen| seen.contains("NODE"));
    terminal.type_keys("\u{3}");
    assert!(terminal.ended(0).contains(OWN_SCREEN));
}

fn contexts(desk: &mut Desk) {
    let [leader, follower] = [desk.leader, desk.follower()].map(|idx| desk.trio.url(idx));
    let here = std::env::current_dir().unwrap().join("ca.pem");
    desk.seen.name(here.to_str().unwrap(), "HERE/ca.pem");
    desk.seen.run(&["context", "list"]);
    desk.seen.run(&["context", "set", "blue", "--server", &leader]);
    desk.seen.run(&[
        "context",
        "set",
        "green",
        "--server",
        "https://green:7070",
        "--tls-ca",
        "ca.pem",
    ]);
    desk.seen.forms(&["context", "list"]);
    let config = desk.file("config.json");
    let turn = || {
        let args = ["context", "use", "green", "--config", &config];
        assert!(aqueduct().args(args).status().unwrap().success());
    };
    desk.seen.watch(&["context", "list"], 3, turn, "*   ");
    desk.seen.run(&["context", "set", "green", "--server", &follower]);
    desk.seen.run(&["node", "list", "--context", "green"]);
    desk.seen.run(&["context", "delete", "blue"]);
    desk.seen.run(&["context", "use", "blue"]);
    desk.seen.run(&["status", "--context", "blue"]);
    desk.seen.run(&["context", "list", "-o", "json"]);
    desk.seen.check("context");
}

/// Codes: 1 for what is not there, 2 for what is wrong.
fn mistakes(desk: &mut Desk) {
    desk.seen.run(&["request", "show", "nobody"]);
    desk.seen.run(&["request", "trace", "nobody"]);
    desk.seen.run(&["request", "cancel", "nobody", "none"]);
    desk.seen.run(&["request", "list", "--state", "lost"]);
    desk.seen.run(&["request", "show"]);
    desk.seen.run(&["node", "show", "nobody"]);
    desk.seen.run(&["node", "drain", "nobody"]);
    desk.seen.run(&["cache", "show", "walden", "--layer", "99"]);
    desk.seen.run(&["cache", "show"]);
    desk.seen.run(&["status", "-o", "xml"]);
    desk.seen.run(&["status", "--watch", "--interval", "0"]);
    desk.seen.run(&["status", "--server", "https://first"]);
    desk.seen.run(&["statsu"]);
    desk.seen.run(&["top"]);
    desk.seen.run(&["top", "--once", "--server", "http://127.0.0.1:1"]);
    desk.seen.check("mistakes");
}

/// A coordinator that follows sends its callers to the one that leads.
fn followers(desk: &mut Desk) {
    let follower = desk.trio.url(desk.follower());
    let fourth = desk.worker(3);
    desk.trio.follows(desk.follower(), desk.leader);
    // Which of the two it is, is chance.
    desk.seen.name(&follower, "http://follower");
    let file = desk.file("some.snapshot");
    let held = desk.ask(desk.leader, &["cache", "list"])["snapshots"].clone();
    let short = &held[0]["snapshot"].as_str().unwrap()[..8];
    let asked: &[&[&str]] = &[
        &["status"],
        &["top", "--once"],
        &["node", "list"],
        &["node", "show", &fourth],
        &["node", "drain", &fourth],
        &["node", "undrain", &fourth],
        &["request", "list", "--all"],
        &["request", "show", "walden"],
        &["request", "trace", "simple"],
        &["request", "cancel", "walden"],
        &["cache", "list"],
        &["cache", "show", "--snapshot", short],
        &["cache", "pin", short],
        &["cache", "unpin", short],
        &["cache", "export", short, &file],
        &["cache", "evict", short],
        &["cache", "import", &file, "--worker", &fourth],
    ];
    desk.seen.growing(true);
    for args in asked.iter().copied() {
        desk.seen.run(&[args, &["--server", &follower]].concat());
    }
    desk.seen.growing(false);
    desk.seen.check("follower");
}

fn after_the_leader(desk: &mut Desk) {
    let killed = desk.leader;
    let stream = endless(desk.trio.at(killed), &json!({ "resumable": true }));
    let id = desk.request(killed, "decode", "REQUEST-3");
    let dead = desk.trio.url(killed);
    desk.trio.kill(killed);
    let next = desk.trio.leader(Some(killed));
    desk.leader = next;
    drop(stream);
    let other = COORDINATORS - killed - next;
    let (next_url, other_url) = (desk.trio.url(next), desk.trio.url(other));
    desk.seen.name(&next_url, "http://next");
    desk.seen.name(&other_url, "http://other");
    for (idx, name) in [(next, "next"), (other, "other"), (killed, "dead")] {
        desk.seen.name(&format!("coordinator-{idx}"), name);
    }
    desk.request(next, "decode", "REQUEST-3");
    desk.trio.follows(other, next);
    let all = [dead.as_str(), &other_url, &next_url].join(",");
    desk.seen.growing(true);
    desk.seen.note("Any of a group may be asked, also where one is dead");
    desk.seen.run(&["status", "--server", &all]);
    desk.seen.run(&["node", "list", "--server", &all]);
    desk.seen.run(&["request", "list", "--server", &all]);
    desk.seen.run(&["cache", "list", "--server", &other_url]);
    desk.seen.note("Of what was under way when another one led");
    desk.seen.run(&["request", "show", "walden", "--server", &next_url]);
    desk.seen.run(&["request", "cancel", &id, "--server", &all]);
    wait_for("its end", || {
        let listed = desk.ask(next, &["request", "list"])["requests"].clone();
        (listed == json!([])).then_some(())
    });
    desk.seen.run(&["request", "list", "--server", &all]);
    desk.seen.note("Of the dead one alone");
    desk.seen.run(&["status", "--server", &dead]);
    desk.trio.kill(next);
    wait_for("nobody to lead", || (health(desk.trio.at(other)).0 == 503).then_some(()));
    desk.seen.note("Of the last of three, without a majority");
    desk.seen.run(&["status", "--server", &other_url]);
    desk.seen.check("after-the-leader");
}
