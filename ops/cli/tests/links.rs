//! Connections that delay, break off, end too early, go slowly or say nothing, between the
//! coordinator and its workers and among these: the caller sees the stream that it always sees.

mod binary;
mod proxy;
mod random;
mod streamed;

use std::time::Duration;

use binary::{Running, aqueduct, model, wait_for};
use proxy::{Harm, Proxy};
use serde_json::{Value, json};
use streamed::Moment::{Decode, Prefill};
use streamed::{Answer, Moment, answer_with, ask};

const WORKERS: usize = 3;

/// A worker, and the only ways to it that others know.
struct Lane {
    from_coordinator: Proxy,
    from_workers: Proxy,
    _worker: Running,
}

struct Fleet {
    lanes: Vec<Lane>,
    coordinator: Running,
}

#[derive(Debug, Clone, Copy)]
enum Way {
    FromCoordinator,
    FromWorkers,
}

impl Lane {
    fn start(seed: u64) -> Self {
        let [from_coordinator, from_workers] = [0, 1].map(|way| Proxy::start(seed * 2 + way));
        let mut command = aqueduct();
        command.args(["worker", "--threads", "1", "--snapshot-bytes", "0"]);
        command.args(["--listen", "127.0.0.1:0", "--advertise", &from_workers.url(), "--model"]);
        let worker = Running::start(command.arg(model()));
        for way in [&from_coordinator, &from_workers] {
            way.lead_to(worker.address("address"));
        }
        Self { from_coordinator, from_workers, _worker: worker }
    }

    fn way(&self, way: Way) -> &Proxy {
        match way {
            Way::FromCoordinator => &self.from_coordinator,
            Way::FromWorkers => &self.from_workers,
        }
    }
}

impl Fleet {
    fn start(seed: u64) -> Self {
        let lanes: Vec<_> =
            (0..WORKERS as u64).map(|lane| Lane::start(seed * 100 + lane)).collect();
        let mut command = aqueduct();
        command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        command.arg("--model").arg(model());
        for lane in &lanes {
            command.args(["--worker", &lane.from_coordinator.url()]);
        }
        let fleet = Self { lanes, coordinator: Running::start(&mut command) };
        fleet.wait_for_all();
        fleet
    }

    fn wait_for_all(&self) {
        let is_so = || (self.coordinator.metric("workers_up") == WORKERS as f64).then_some(());
        wait_for("all workers", is_so);
    }

    /// What comes of `ask` while from `moment` on `harm` is done on the way to some workers.
    fn harmed(&self, ask: &Value, moment: Moment, harm: Harm, (way, lanes): Where) -> Answer {
        let all = |harm| lanes.iter().for_each(|lane| self.lanes[*lane].way(way).harm(harm));
        let answer = answer_with(&self.coordinator, ask, moment, || all(harm));
        all(Harm::None);
        self.wait_for_all();
        answer
    }

    fn check(&self, ask: &Value, cases: &[(Moment, Harm, Where)]) {
        let want = self.harmed(ask, Prefill(10), Harm::None, (Way::FromWorkers, &[]));
        for &(moment, harm, at) in cases {
            let seen = self.harmed(ask, moment, harm, at);
            assert!(seen == want, "{moment:?} {harm:?} {at:?}: {seen:?} instead of {want:?}");
        }
    }
}

/// The way to which workers.
type Where = (Way, &'static [usize]);

const ALL: &[usize] = &[0, 1, 2];

fn handed_on() -> Value {
    ask(20_000, 60, json!({ "chunk_tokens": 64, "local": 16, "heavy": 16 }))
}

fn dense() -> Value {
    ask(8_000, 40, json!({ "chunk_tokens": 256, "policy": "dense" }))
}

#[test]
fn slow_and_late_connections_change_no_bit() {
    let fleet = Fleet::start(1);
    let late = Harm::Delay(Duration::from_millis(20));
    let cases = [
        (Prefill(20), late, (Way::FromCoordinator, ALL)),
        (Prefill(20), late, (Way::FromWorkers, ALL)),
        (Prefill(20), Harm::Throttle(1 << 20), (Way::FromWorkers, &[1][..])),
        (Decode(5), Harm::Throttle(1 << 14), (Way::FromCoordinator, &[0, 1])),
    ];
    fleet.check(&handed_on(), &cases);
    fleet.check(&dense(), &[(Prefill(20), late, (Way::FromWorkers, ALL))]);
}

#[test]
fn connections_that_break_off_change_no_bit() {
    let fleet = Fleet::start(2);
    let cases = [
        (Prefill(30), Harm::Reset(1 << 16), (Way::FromWorkers, &[1][..])),
        (Prefill(30), Harm::Truncate(1 << 16), (Way::FromWorkers, &[2])),
        (Prefill(40), Harm::Reset(1 << 12), (Way::FromCoordinator, &[0])),
        (Decode(5), Harm::Truncate(1 << 10), (Way::FromCoordinator, &[1, 2])),
    ];
    fleet.check(&handed_on(), &cases);
    let cases = [
        (Prefill(30), Harm::Reset(1 << 16), (Way::FromWorkers, &[1][..])),
        (Decode(5), Harm::Truncate(1 << 16), (Way::FromWorkers, &[0])),
    ];
    fleet.check(&dense(), &cases);
}

#[test]
fn half_open_connections_change_no_bit() {
    let fleet = Fleet::start(3);
    let cases = [
        (Prefill(30), Harm::HalfOpen, (Way::FromCoordinator, &[1][..])),
        (Prefill(30), Harm::HalfOpen, (Way::FromWorkers, &[2])),
        (Decode(5), Harm::HalfOpen, (Way::FromCoordinator, &[0])),
    ];
    fleet.check(&handed_on(), &cases);
    fleet.check(&dense(), &[(Prefill(30), Harm::HalfOpen, (Way::FromWorkers, &[1][..]))]);
}
