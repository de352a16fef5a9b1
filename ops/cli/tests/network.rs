//! Hosts that cannot reach each other, in a network of the tests' own: workers cut off from all,
//! from the coordinator alone, from each other, and everybody from etcd. The caller sees the
//! stream that it always sees.

mod binary;
mod net;
#[path = "../../../proto/members/tests/server/mod.rs"]
mod server;
mod streamed;

use binary::{Running, aqueduct, model, wait_for};
use net::Net;
use serde_json::{Value, json};
use server::EtcdServer;
use streamed::Moment::{Decode, Prefill};
use streamed::{Moment, answer_with, ask};

const COORDINATOR: usize = 0;
const WORKERS: [usize; 3] = [1, 2, 3];
const ETCD: usize = 4;

/// A coordinator and workers, each on a host of its own.
struct Fleet {
    coordinator: Running,
    _workers: Vec<Running>,
    _etcd: EtcdServer,
    /// Dropped last.
    net: Net,
}

/// Cables to pull: the end of the first, to the second.
type Cut<'a> = &'a [(usize, usize)];

impl Fleet {
    fn start() -> Self {
        let mut net = Net::new(5);
        net.join_all(&[COORDINATOR, 1, 2, 3, ETCD]);
        net.join_self(COORDINATOR);
        net.join_self(ETCD);
        let etcd = EtcdServer::on(&net.address(ETCD), |command| net.on(ETCD, command));
        let members = ["--etcd", &etcd.url(), "--etcd-ttl-s", "3"];
        let start = |host: usize, args: &[&str]| {
            let mut command = aqueduct();
            command.args(args).args(members).arg("--model").arg(model());
            Running::start(&mut net.on(host, &command))
        };
        let worker = |host: usize| {
            let listen = format!("{}:7001", net.address(host));
            let args = ["worker", "--threads", "1", "--snapshot-bytes", "0", "--listen", &listen];
            start(host, &args)
        };
        let workers = WORKERS.map(worker).into();
        let [http, grpc] = [8080, 7070].map(|port| format!("{}:{port}", net.address(COORDINATOR)));
        let coordinator = start(COORDINATOR, &["coordinator", "--http", &http, "--grpc", &grpc]);
        let fleet = Self { coordinator, _workers: workers, _etcd: etcd, net };
        fleet.wait_for_workers(WORKERS.len());
        fleet
    }

    fn wait_for_workers(&self, up: usize) {
        let is_so = || (self.coordinator.metric("workers_up") == up as f64).then_some(());
        wait_for(&format!("{up} workers"), is_so);
    }

    /// Cables that are pulled change no bit, and what was behind them is there again when they are
    /// plugged in.
    fn check(&self, ask: &Value, cases: &[(Moment, Cut<'_>)]) {
        let want = answer_with(&self.coordinator, ask, Prefill(10), || {});
        for &(moment, cut) in cases {
            let seen = answer_with(&self.coordinator, ask, moment, || {
                cut.iter().for_each(|(one, other)| self.net.cut(*one, *other));
            });
            assert!(seen == want, "{moment:?} {cut:?}: {seen:?} instead of {want:?}");
            cut.iter().for_each(|(one, other)| self.net.plug(*one, *other));
            self.wait_for_workers(WORKERS.len());
        }
    }
}

fn handed_on() -> Value {
    ask(20_000, 60, json!({ "chunk_tokens": 64, "local": 16, "heavy": 16 }))
}

fn dense() -> Value {
    ask(8_000, 40, json!({ "chunk_tokens": 256, "policy": "dense" }))
}

/// A worker that nobody reaches any more, and that reaches nobody.
fn alone(worker: usize) -> Vec<(usize, usize)> {
    let others = (0..=ETCD).filter(|other| *other != worker);
    others.map(|other| (worker, other)).collect()
}

#[test]
fn a_worker_that_is_cut_off_changes_no_bit_and_returns() {
    if !net::can("a_worker_that_is_cut_off_changes_no_bit_and_returns") {
        return;
    }
    let fleet = Fleet::start();
    let before = fleet.coordinator.metric("chunk_retries_total");
    let [one, two] = [alone(1), alone(2)];
    let cases = [(Prefill(30), &one[..]), (Decode(5), &one), (Decode(5), &two)];
    fleet.check(&handed_on(), &cases);
    fleet.check(&dense(), &[(Prefill(30), &two)]);
    let done_again = fleet.coordinator.metric("chunk_retries_total") - before;
    assert!(done_again > 0.0, "nothing was lost");
}

#[test]
fn workers_that_some_do_not_reach_change_no_bit() {
    if !net::can("workers_that_some_do_not_reach_change_no_bit") {
        return;
    }
    let fleet = Fleet::start();
    let cases: [(_, Cut<'_>); 4] = [
        (Prefill(30), &[(2, COORDINATOR)]),
        (Decode(5), &[(COORDINATOR, 2)]),
        (Prefill(30), &[(1, 2)]),
        (Decode(5), &[(2, 3)]),
    ];
    fleet.check(&handed_on(), &cases);
    fleet.check(&dense(), &cases);
}

#[test]
fn nobody_misses_etcd() {
    if !net::can("nobody_misses_etcd") {
        return;
    }
    let fleet = Fleet::start();
    let all: Cut<'_> = &[(ETCD, 0), (ETCD, 1), (ETCD, 2), (ETCD, 3)];
    let one: Cut<'_> = &[(1, ETCD), (COORDINATOR, ETCD)];
    fleet.check(&handed_on(), &[(Prefill(20), all), (Decode(5), one)]);
}

#[test]
fn lost_packets_change_no_bit() {
    let test = "lost_packets_change_no_bit";
    if !net::can(test) {
        return;
    }
    let fleet = Fleet::start();
    let want = answer_with(&fleet.coordinator, &handed_on(), Prefill(10), || {});
    if !WORKERS.into_iter().all(|host| fleet.net.lose(test, host, 2)) {
        return;
    }
    let seen = answer_with(&fleet.coordinator, &handed_on(), Prefill(10), || {});
    assert!(seen == want, "{seen:?} instead of {want:?}");
}
