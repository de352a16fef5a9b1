//! A cluster that finds itself through a real etcd.

mod binary;
#[path = "../../../proto/members/tests/server/mod.rs"]
mod server;

use binary::{Running, aqueduct, model, run, stderr, wait_for};
use server::EtcdServer;

fn worker(etcd: &EtcdServer) -> Running {
    let mut command = aqueduct();
    command.args(["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--model"]).arg(model());
    command.args(["--etcd", &etcd.url(), "--etcd-ttl-s", "2"]);
    Running::start(&mut command)
}

fn coordinator(etcd: &EtcdServer) -> Running {
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(model()).args(["--etcd", &etcd.url(), "--etcd-ttl-s", "2"]);
    Running::start(&mut command)
}

/// Waits until as many workers are up.
fn until_up(coordinator: &Running, workers: usize) {
    let line = format!("\nworkers_up {workers}\n");
    wait_for(&line, || coordinator.http("GET", "/metrics", "").1.contains(&line).then_some(()));
}

#[test]
fn workers_are_found_and_missed_and_etcd_may_go() {
    let mut etcd = EtcdServer::start();
    let coordinator = coordinator(&etcd);
    assert_eq!(coordinator.http("GET", "/health", "").0, 503);
    let first = worker(&etcd);
    until_up(&coordinator, 1);
    let alone = coordinator.complete("Simplify, simplify");

    let second = worker(&etcd);
    until_up(&coordinator, 2);
    // One says that it goes, and nobody waits for its lease.
    assert_eq!(first.terminate(), Some(0));
    until_up(&coordinator, 1);

    // Without etcd nobody comes, and nobody goes who is there.
    etcd.kill();
    let text = |answer: &serde_json::Value| answer["choices"].clone();
    assert_eq!(text(&coordinator.complete("Simplify, simplify")), text(&alone));
    let late = worker(&etcd);
    etcd.start_again(true);
    until_up(&coordinator, 2);
    assert_eq!(text(&coordinator.complete("Simplify, simplify")), text(&alone));
    drop((second, late));
    until_up(&coordinator, 0);
    assert_eq!(coordinator.terminate(), Some(0));
}

#[test]
fn wrong_addresses_are_named() {
    let model = model();
    let model = model.to_str().unwrap();
    let check = |args: &[&str], field: &str| {
        let output = run([&["coordinator", "--model", model], args].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(field), "{}", stderr(&output));
    };
    check(&["--etcd", "127.0.0.1:2379"], "--etcd = 127.0.0.1:2379");
    check(&["--etcd", "http://127.0.0.1:2379", "--etcd-prefix", "x"], "--etcd-prefix = x");
    check(&["--etcd", "http://127.0.0.1:2379", "--etcd-ttl-s", "1"], "--etcd-ttl-s = 1");
    check(&[], "--worker");
    check(&["--worker", "http://a:1", "--etcd", "http://127.0.0.1:2379"], "--worker");
}
