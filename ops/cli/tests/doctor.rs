//! What the doctor says of what is there and of what stands in the way: real files, sockets and
//! servers.

mod binary;
#[path = "../../../proto/tls/tests/certificates/mod.rs"]
mod certificates;
#[path = "../../../proto/members/tests/server/mod.rs"]
mod server;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use binary::{Running, aqueduct, model, stderr};
use certificates::{Authority, Pem};
use serde_json::Value;
use server::EtcdServer;
use tempfile::TempDir;

/// Addresses that are always free, so that nothing but what a test is about can fail.
const FREE: [&str; 6] =
    ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--listen", "127.0.0.1:0"];

fn doctor() -> Command {
    let mut command = aqueduct();
    command.env("AQUEDUCT_CONFIG", "/nowhere/config.json").env_remove("AQUEDUCT_SERVER");
    command.arg("doctor");
    command
}

fn examine(args: &[&str]) -> (Option<i32>, Vec<Value>) {
    rows(doctor().args(FREE).args(args).arg("--json"))
}

fn rows(command: &mut Command) -> (Option<i32>, Vec<Value>) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let rows = std::str::from_utf8(&stdout).unwrap().lines();
    let rows: Vec<_> = rows.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() > 3, "{}", String::from_utf8_lossy(&stderr));
    (status.code(), rows)
}

/// The check of this name, which must be so, and say so; the exit code goes with it.
fn check((code, rows): (Option<i32>, Vec<Value>), name: &str, state: &str, words: &str) {
    let is_it = |row: &&Value| row["check"] == name && row["state"].is_string();
    let mut found = rows.iter().filter(is_it);
    let row =
        found.find(|row| row["state"] == state).unwrap_or_else(|| panic!("{name}: {rows:#?}"));
    let found = row["found"].as_str().unwrap();
    assert!(found.contains(words), "{row}");
    assert_eq!(row["next"].is_string(), state != "ok", "{row}");
    assert_eq!(code, Some(i32::from(state == "fail")), "{rows:#?}");
}

/// For arguments; a test is short.
fn text(path: &Path) -> &'static str {
    path.to_str().unwrap().to_owned().leak()
}

fn member(pem: &Pem, authority: &Authority) -> [&'static str; 6] {
    let ca = text(&authority.ca());
    let (cert, key) = (text(&pem.cert), text(&pem.key));
    ["--cluster-tls-cert", cert, "--cluster-tls-key", key, "--cluster-tls-ca", ca]
}

#[test]
fn where_all_is_well_every_check_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (etcd, server) = (EtcdServer::start(), Running::serve(&[]));
    server.wait_until_ready();
    let authority = Authority::new(&folder.path().join("authority"));
    let pem = authority.sign("worker", &["worker.aqueduct"]);
    let url = format!("http://{}", server.address("grpc"));
    let (code, rows) = rows(
        doctor()
            .args(["--listen", "127.0.0.1:0", "--pool-bytes", "1M", "--json"])
            .args(["--http", server.address("http"), "--grpc", server.address("grpc")])
            .args(["--server", &url, "--etcd", &etcd.url(), "--snapshot-dir"])
            .arg(folder.path().join("not/there/yet"))
            .args(["--snapshot-disk-bytes", "1M"])
            .args(member(&pem, &authority))
            .arg("--model")
            .arg(model())
            .arg("--data-dir")
            .arg(folder.path()),
    );
    assert_eq!(code, Some(0), "{rows:#?}");
    let states = |name: &str| {
        let named = rows.iter().filter(|row| row["check"] == name && row["state"].is_string());
        named.map(|row| (row["state"].clone(), row["found"].clone())).collect::<Vec<_>>()
    };
    // Held by what runs, so that another one would not start: no failure, and not passed over.
    for name in ["port http", "port grpc"] {
        let found = states(name);
        assert_eq!((found.len(), &found[0].0), (1, &"warn".into()), "{name}: {found:?}");
        let words = "is held by aqueduct, process ";
        assert!(found[0].1.as_str().unwrap().contains(words), "{name}: {found:?}");
    }
    for (name, words) in [
        ("gpu", ""),
        ("config", "fit together"),
        ("model", "can be served"),
        ("memory", "available"),
        ("port listen", "is free"),
        ("certificate cluster", "worker.aqueduct"),
        ("etcd", "the only member, 0 workers registered"),
        ("clock etcd", "as this machine's"),
        ("clock server", "as this machine's"),
        ("server", "1 of 1 workers up"),
    ] {
        let found = states(name);
        assert_eq!((found.len(), &found[0].0), (1, &"ok".into()), "{name}: {found:?}");
        assert!(found[0].1.as_str().unwrap().contains(words), "{name}: {found:?}");
    }
    for name in ["disk data-dir", "disk snapshot-dir"] {
        assert!(states(name)[0].1.as_str().unwrap().contains("safe on disk within"), "{name}");
    }
    assert!(!folder.path().join("not").exists(), "nothing stays");
    assert_eq!(states("open files").len(), 1);
}

#[test]
fn people_and_programs_are_told_alike() {
    let output = doctor().args(FREE).args(["--device", "cuda:99"]).output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(table.contains("\nfail  gpu: ") && table.contains("\n      -> "), "{table}");
    assert!(table.contains("\nok    port http: 127.0.0.1:0 is free\n"), "{table}");
    assert!(stderr(&output).contains("error: 1 of "), "{}", stderr(&output));
    let args = ["--device", "cuda:99", "-o", "json"];
    let output = doctor().args(FREE).args(args).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["checks"][0]["check"], "gpu");
    assert_eq!((&report["checks"][0]["state"], output.status.code()), (&"fail".into(), Some(1)));
    let yaml = doctor().args(FREE).args(["-o", "yaml"]).output().unwrap();
    assert!(String::from_utf8_lossy(&yaml.stdout).contains("\nchecks:\n  - check: gpu\n"));
}

#[test]
fn ports_folders_and_files_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let own = format!("process {}", std::process::id());
    let ports = ["--grpc", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--http"];
    check(rows(doctor().args(ports).args([&*address, "--json"])), "port http", "fail", &own);
    check(rows(doctor().args(ports).args(["a b", "--json"])), "port http", "fail", "a b");

    let file = folder.path().join("file");
    std::fs::write(&file, "[]").unwrap();
    let below = text(&file.join("below"));
    check(examine(&["--data-dir", below]), "disk data-dir", "fail", "is no folder");
    check(examine(&["--snapshot-dir", below]), "disk snapshot-dir", "fail", "below");
    let most = u64::MAX.to_string();
    let wanting = ["--snapshot-dir", text(folder.path()), "--snapshot-disk-bytes", &most];
    check(examine(&wanting), "disk snapshot-dir", "warn", "free");

    let config = "config of contexts";
    check(examine(&["--config", text(&file)]), config, "fail", "a file of contexts");
    check(examine(&["--context", "blue"]), config, "fail", "context = blue");
    check(examine(&["--server", "first:1"]), config, "fail", "server = first:1");
    check(examine(&["--api-keys", text(&file)]), "config of API keys", "fail", "api_keys = ");
    check(examine(&["--pool-bytes", "0"]), "config of the pool", "fail", "pool_bytes = 0");
    let etcd = ["--etcd", "http://127.0.0.1:1", "--etcd-prefix", "x"];
    check(examine(&etcd), "config of etcd", "fail", "etcd_prefix = x");

    check(examine(&["--model", below]), "model", "fail", "below");
    check(examine(&["--model", text(&file)]), "model", "fail", "");
    let limited = format!(
        "ulimit -n 200 && exec {} doctor --json {}",
        env!("CARGO_BIN_EXE_aqueduct"),
        FREE.join(" ")
    );
    let mut limited_shell = Command::new("bash");
    limited_shell.args(["-c", &limited]).env("AQUEDUCT_CONFIG", "/nowhere/config.json");
    check(rows(&mut limited_shell), "open files", "fail", "at most 200");
}

#[test]
fn a_journal_that_a_server_has_open_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--data-dir", text(folder.path())];
    let server = Running::serve(&flags);
    check(examine(&flags), "disk data-dir", "warn", "the journal is open in another process");
    assert_eq!(server.terminate(), Some(0));
    let (code, rows) = examine(&flags);
    assert_eq!(code, Some(0), "{rows:#?}");
    let row = rows.iter().find(|row| row["check"] == "disk data-dir").unwrap();
    assert!(!row["found"].as_str().unwrap().contains("open in another process"), "{row}");
}

/// Where a server's own certificate is told by flags or by variables, these are looked at, and no
/// command takes them for its own.
#[test]
fn the_certificate_of_a_server_is_no_callers() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(&folder.path().join("authority"));
    let pem = authority.sign("server", &[]);
    let ca = authority.ca();
    let (cert, key) = (text(&pem.cert), text(&pem.key));
    check(examine(&["--tls-cert", cert, "--tls-key", key]), "certificate api", "ok", "more days");
    let config = "config of the API";
    check(examine(&["--tls-cert", cert]), config, "fail", "must be given with --tls-key");
    let server = Running::serve(&[]);
    server.wait_until_ready();
    let url = format!("http://{}", server.address("grpc"));
    let own = [("AQUEDUCT_TLS_CERT", cert), ("AQUEDUCT_TLS_KEY", key)];
    let asked = [("AQUEDUCT_TLS_CA", text(&ca)), ("AQUEDUCT_SERVER", url.as_str())];
    for variables in [&own[..], &asked[..1], &[own, asked].concat()] {
        let mut command = doctor();
        command.args(FREE).args(["--server", &url, "--json"]);
        let seen = rows(command.envs(variables.iter().copied()));
        assert_eq!(seen.0, Some(0), "{variables:?}: {:#?}", seen.1);
        let generate = ["generate", "--server", &url, "--max-tokens", "1", "a"];
        for args in [&["status", "--server", &url][..], &generate] {
            let output = aqueduct().args(args).envs(variables.iter().copied()).output().unwrap();
            assert!(output.status.success(), "{variables:?} {args:?}: {}", stderr(&output));
        }
        let args = ["generate", "--max-tokens", "1", "a", "--model", text(&model())];
        let output = aqueduct().args(args).envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{variables:?}: {}", stderr(&output));
    }
    for (flags, said) in [
        (&["--tls-ca", text(&ca)][..], "server = http://"),
        (&["--tls-cert", cert, "--tls-key", key][..], "must be given with --tls-ca"),
        (&["--tls-key", key][..], "must be given with --tls-cert"),
    ] {
        let output = aqueduct().args(["status", "--server", &url]).args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(stderr(&output).contains(said), "{flags:?}: {}", stderr(&output));
    }
}

#[test]
fn certificates_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let authority = |name| Authority::new(&folder.path().join(name));
    let (ours, others) = (authority("ours"), authority("others"));
    let plane = "certificate cluster";
    let worker = ["worker.aqueduct"];
    let examine = |pem: &Pem| examine(&member(pem, &ours));
    check(examine(&ours.sign("fine", &worker)), plane, "ok", "worker.aqueduct");
    check(examine(&ours.sign_expired("old", &worker)), plane, "fail", "expired");
    check(examine(&others.sign("foreign", &worker)), plane, "fail", "invalid peer certificate");
    check(examine(&ours.sign("nameless", &["elsewhere"])), plane, "fail", "elsewhere");
    let [one, another] = ["one", "another"].map(|name| ours.sign(name, &worker));
    let mixed = Pem { cert: one.cert.clone(), key: another.key };
    check(examine(&mixed), plane, "fail", "the key of the certificate");
    let lost = Pem { cert: folder.path().join("lost.pem"), key: one.key.clone() };
    check(examine(&lost), plane, "fail", "lost.pem");
    std::fs::write(folder.path().join("lost.pem"), "no certificate").unwrap();
    check(examine(&lost), plane, "fail", "must hold certificates");
}

#[test]
fn servers_that_are_away_silent_or_of_another_time() {
    let away = "http://127.0.0.1:1";
    check(examine(&["--server", away]), "server", "fail", "127.0.0.1:1");
    check(examine(&["--etcd", away]), "etcd", "fail", "127.0.0.1:1");
    // Connections are accepted by the system, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    check(examine(&["--server", &url, "--deadline-s", "1"]), "server", "fail", "within 1 s");
    check(examine(&["--etcd", &url, "--deadline-s", "1"]), "etcd", "fail", "within 1 s");
    let past = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", past.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in past.incoming().flatten() {
            let answer = "HTTP/1.1 200 OK\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";
            // Who has gone need not hear it.
            drop(stream.read(&mut [0; 1024]).and_then(|_| stream.write_all(answer.as_bytes())));
        }
    });
    check(examine(&["--etcd", &url]), "clock etcd", "fail", "s behind this machine's");
}

#[test]
fn servers_that_let_nobody_in_or_have_no_worker() {
    let folder: TempDir = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.json");
    let made = aqueduct().args(["keys", "new", "--name", "a", "--api-keys"]).arg(&keys).output();
    assert!(made.unwrap().status.success());
    let server = Running::serve(&["--api-keys", text(&keys)]);
    let url = format!("http://{}", server.address("grpc"));
    check(examine(&["--server", &url]), "server", "fail", "");
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    let alone = Running::start(command.arg(model()).args(["--worker", "http://127.0.0.1:1"]));
    let url = format!("http://{}", alone.address("grpc"));
    check(examine(&["--server", &url]), "server", "fail", "0 of 1 workers up");
}
