//! A cluster of processes that know each other by certificates, and whom it turns away.

mod binary;
#[path = "../../../proto/tls/tests/certificates/mod.rs"]
mod certificates;
mod https;

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

use binary::{Running, aqueduct, model, run, stderr, wait_for};
use certificates::{Authority, Pem};
use https::Https;
use serde_json::{Value, json};

const WORKER: &str = "worker.aqueduct";
const COORDINATOR: &str = "coordinator.aqueduct";

/// The files of a cluster, of its callers, and of somebody else.
struct Files {
    folder: tempfile::TempDir,
    cluster: Authority,
    callers: Authority,
    others: Authority,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = |name| Authority::new(&folder.path().join(name));
        let (cluster, callers) = (authority("cluster"), authority("callers"));
        Self { cluster, callers, others: authority("others"), folder }
    }

    /// A worker that shows `pem`.
    fn worker(&self, pem: &Pem) -> Running {
        let mut command = aqueduct();
        command.args(["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--model"]);
        command.arg(model()).args(["--monitor", "127.0.0.1:0"]);
        Running::start(command.args(cluster_flags(pem, &self.cluster)))
    }

    /// A coordinator of `workers`, both of whose sides have certificates.
    fn coordinator(&self, workers: &[&Running], callers: &Pem, more: &[&str]) -> Running {
        let mut command = aqueduct();
        command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        command.arg("--model").arg(model()).arg("--worker");
        command.args(workers.iter().map(|worker| worker.address("url")));
        let own = self.cluster.sign("coordinator", &[COORDINATOR]);
        command.args(cluster_flags(&own, &self.cluster));
        command.arg("--tls-cert").arg(&callers.cert).arg("--tls-key").arg(&callers.key);
        Running::start(command.args(more))
    }

    fn ca(&self) -> &'static str {
        text(&self.callers.ca())
    }
}

/// For arguments; a test is short.
fn text(path: &Path) -> &'static str {
    path.to_str().unwrap().to_owned().leak()
}

fn cluster_flags(pem: &Pem, authority: &Authority) -> [String; 6] {
    let [cert, key, ca] = [&pem.cert, &pem.key, &authority.ca()].map(|path| text(path).to_owned());
    [
        "--cluster-tls-cert".into(),
        cert,
        "--cluster-tls-key".into(),
        key,
        "--cluster-tls-ca".into(),
        ca,
    ]
}

/// A counter of a process, from its metrics.
fn refused(metrics: &str, plane: &str, reason: &str) -> f64 {
    let name = format!("connections_refused_total{{plane=\"{plane}\",reason=\"{reason}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.map_or(0.0, |count| count.trim().parse().unwrap())
}

fn until_refused(metrics: impl Fn() -> String, plane: &str, reason: &str) {
    wait_for(&format!("{plane} {reason}"), || {
        (refused(&metrics(), plane, reason) >= 1.0).then_some(())
    });
}

fn asking(policy: &str) -> String {
    let aqueduct = json!({ "chunk_tokens": 8, "local": 4, "heavy": 2, "sinks": 1 });
    let aqueduct = match policy {
        "dense" => json!({ "chunk_tokens": 8, "policy": "dense", "exchange": "stay" }),
        _ => aqueduct,
    };
    let prompt = "I went to the woods because I wished to live deliberately, to front only the \
        essential facts of life, and see if I could not learn what it had to teach.";
    json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0, "aqueduct": aqueduct }).to_string()
}

fn choices(answer: &str) -> Value {
    let answer: Value = serde_json::from_str(answer).unwrap();
    assert!(answer["choices"][0]["text"].is_string(), "{answer}");
    answer["choices"].clone()
}

#[test]
fn every_plane_has_certificates_and_the_answers_are_the_same() {
    let files = Files::new();
    let plain = Running::serve(&["--workers", "2"]);
    let worker = files.cluster.sign("worker", &[WORKER]);
    let workers = [files.worker(&worker), files.worker(&worker)];
    assert!(workers[0].address("url").starts_with("https://"));
    let shown = files.callers.sign("server", &[]);
    let refs = [&workers[0], &workers[1]];
    let more = ["--tls-ca", files.ca(), "--monitor", "127.0.0.1:0"];
    let coordinator = files.coordinator(&refs, &shown, &more);
    let caller = files.callers.sign("alice", &["alice"]);
    let https = Https::new(coordinator.address("http"), &files.callers.ca(), Some(&caller));
    let up = || https.get("/metrics").1.contains("\nworkers_up 2\n").then_some(());
    wait_for("both workers", up);

    for policy in ["h2o", "dense"] {
        let (status, answer) = https.call("POST", "/v1/completions", &asking(policy));
        assert_eq!(status, 200, "{answer}");
        let (_, want) = plain.http("POST", "/v1/completions", &asking(policy));
        assert_eq!(choices(&answer), choices(&want), "{policy}");
    }
    let bytes = https.get("/metrics").1;
    assert!(!bytes.contains("\nexchange_bytes_total 0\n"), "nothing went from worker to worker");

    let url = format!("https://{}", coordinator.address("grpc"));
    let own =
        ["--tls-ca", files.ca(), "--tls-cert", text(&caller.cert), "--tls-key", text(&caller.key)];
    let asks =
        ["generate", "--temperature", "0", "--max-tokens", "4", "Simplify", "--server", &url];
    let output = run(asks.iter().chain(&own));
    assert!(output.status.success() && !output.stdout.is_empty(), "{}", stderr(&output));

    // Without a certificate nobody comes in, nor with one that is not good, and they are told so.
    let check = |more: &[&str], plane: &str, reason: &str| {
        let output = run(asks.iter().chain(more));
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(stderr(&output).contains("received fatal alert"), "{}", stderr(&output));
        until_refused(|| https.get("/metrics").1, plane, reason);
    };
    check(&own[..2], "grpc", "no_certificate");
    for (pem, reason) in [
        (files.others.sign("alice", &["alice"]), "unknown_authority"),
        (files.callers.sign_expired("late", &["alice"]), "expired"),
    ] {
        let shown = ["--tls-cert", text(&pem.cert), "--tls-key", text(&pem.key)];
        check(&[&own[..2], &shown].concat(), "grpc", reason);
        let bad = Https::new(coordinator.address("http"), &files.callers.ca(), Some(&pem));
        assert!(bad.try_call("GET", "/v1/models", "").is_err());
        until_refused(|| https.get("/metrics").1, "http", reason);
    }
    let nobody = Https::new(coordinator.address("http"), &files.callers.ca(), None);
    assert!(nobody.try_call("GET", "/v1/models", "").is_err());
    until_refused(|| https.get("/metrics").1, "http", "no_certificate");
    for plane in ["http", "grpc"] {
        let mut plain = TcpStream::connect(coordinator.address(plane)).unwrap();
        plain.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        until_refused(|| https.get("/metrics").1, plane, "plaintext");
    }
    // Who watches has no certificate, and sees how the server is and nothing else.
    for (path, status) in
        [("/livez", 200), ("/readyz", 200), ("/metrics", 200), ("/v1/models", 404)]
    {
        assert_eq!(coordinator.http_at("monitor", "GET", path, "").0, status, "{path}");
    }
    assert_eq!(coordinator.terminate(), Some(0));
}

#[test]
fn workers_serve_members_of_the_cluster_alone() {
    let files = Files::new();
    let worker = files.worker(&files.cluster.sign("worker", &[WORKER]));
    let metrics = || worker.http_at("monitor", "GET", "/metrics", "").1;
    assert_eq!(worker.http_at("monitor", "GET", "/livez", "").0, 200);

    // Coordinators with the certificate of somebody who may not drive workers, or none.
    let wrong = [
        (files.cluster.sign("caller", &["alice"]), "wrong_role"),
        (files.others.sign("coordinator", &[COORDINATOR]), "unknown_authority"),
        (files.cluster.sign_expired("coordinator", &[COORDINATOR]), "expired"),
    ];
    let start = |flags: &[String]| {
        let mut command = aqueduct();
        command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        command.arg("--model").arg(model()).args(["--worker", worker.address("url")]);
        Running::start(command.args(flags))
    };
    for (pem, reason) in wrong {
        let coordinator = start(&cluster_flags(&pem, &files.cluster));
        until_refused(metrics, "worker", reason);
        assert_eq!(coordinator.http("GET", "/health", "").0, 503);
    }
    let mut plain = TcpStream::connect(worker.address("address")).unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    until_refused(metrics, "worker", "plaintext");
    let nobody = Https::new(worker.address("address"), &files.cluster.ca(), None);
    assert!(nobody.try_call("GET", "/", "").is_err());
    until_refused(metrics, "worker", "no_certificate");

    // A worker may come in, for hand-offs; it may not open a session.
    let before = refused(&metrics(), "worker", "wrong_role");
    let other = files.cluster.sign("other", &[WORKER]);
    let coordinator = start(&cluster_flags(&other, &files.cluster));
    let counted = || (refused(&metrics(), "worker", "wrong_role") > before).then_some(());
    wait_for("a session of a worker", counted);
    assert_eq!(coordinator.http("GET", "/health", "").0, 503);

    // And a coordinator speaks to workers alone, not to whoever answers in their place.
    for (pem, reason) in [
        (files.cluster.sign("posing", &[COORDINATOR]), "wrong_role"),
        (files.cluster.sign_expired("late", &[WORKER]), "expired"),
    ] {
        let impostor = files.worker(&pem);
        let own = files.cluster.sign("coordinator", &[COORDINATOR]);
        let mut command = aqueduct();
        command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        command.arg("--model").arg(model()).args(["--worker", impostor.address("url")]);
        let coordinator = Running::start(command.args(cluster_flags(&own, &files.cluster)));
        until_refused(|| coordinator.http("GET", "/metrics", "").1, "session", reason);
    }
}

#[test]
fn new_certificates_are_shown_without_a_restart() {
    let files = Files::new();
    let worker = files.worker(&files.cluster.sign("worker", &[WORKER]));
    let shown = files.callers.sign("server", &[]);
    let coordinator = files.coordinator(&[&worker], &shown, &[]);
    let believes_old = Https::new(coordinator.address("http"), &files.callers.ca(), None);
    let mut open = believes_old.connect().unwrap();
    assert_eq!(open.call("GET", "/v1/models", "").unwrap().0, 200);
    wait_for("a worker", || (believes_old.get("/health").0 == 200).then_some(()));

    let next = files.others.sign("server", &[]);
    std::fs::copy(&next.cert, &shown.cert).unwrap();
    std::fs::copy(&next.key, &shown.key).unwrap();
    let believes_new = Https::new(coordinator.address("http"), &files.others.ca(), None);
    let call = || believes_new.try_call("POST", "/v1/completions", &asking("h2o")).ok();
    let (status, answer) = wait_for("the new certificate", call);
    assert_eq!(status, 200, "{answer}");
    // What was open goes on; what is new and believes the old authority does not begin.
    assert_eq!(open.call("GET", "/v1/models", "").unwrap().0, 200);
    assert!(believes_old.try_call("GET", "/v1/models", "").is_err());
    drop(files.folder);
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    let files = Files::new();
    let pem = files.cluster.sign("worker", &[WORKER]);
    let (cert, key, ca) = (text(&pem.cert), text(&pem.key), text(&files.cluster.ca()).to_owned());
    let cluster = cluster_flags(&pem, &files.cluster).map(|flag| &*flag.leak());
    let model = text(&model());
    let check = |command: &str, flags: &[&str], said: &str| {
        let output = run([&[command, "--model", model], flags].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(said), "{said:?} in {text}");
    };
    check("serve", &["--tls-cert", cert], "--tls-key");
    check("serve", &["--tls-ca", &ca], "--tls-cert");
    check(
        "serve",
        &["--tls-cert", cert, "--tls-key", key, "--tls-client-auth", "optional"],
        "--tls-ca",
    );
    check("serve", &["--tls-cert", cert, "--tls-key", cert], "must hold a private key");
    check("serve", &["--tls-cert", cert, "--tls-key", "/nowhere"], "/nowhere");
    check("worker", &["--cluster-tls-cert", cert, "--cluster-tls-key", key], "--cluster-tls-ca");
    check(
        "worker",
        &[&cluster[..], &["--advertise", "http://a:1"]].concat(),
        "advertise = http://a:1",
    );
    check("worker", &["--advertise", "https://a:1"], "advertise = https://a:1");
    let etcd = ["--etcd", "https://127.0.0.1:2379"];
    check("worker", &etcd, "etcd = https://127.0.0.1:2379");
    check("coordinator", &["--worker", "https://a:1"], "worker = https://a:1");
    check(
        "coordinator",
        &[&cluster[..], &["--worker", "http://a:1"]].concat(),
        "worker = http://a:1",
    );
    let output = run(["generate", "x", "--server", "https://127.0.0.1:7070"]);
    assert!(stderr(&output).contains("server = https://"), "{}", stderr(&output));
}
