//! Hosts that cannot reach each other, in a network of the tests' own: workers cut off from all,
//! from the coordinator alone, from each other, everybody from etcd, and who leads from those who
//! follow. The caller sees the stream that it always sees.

mod binary;
mod net;
#[path = "../../../proto/members/tests/server/mod.rs"]
mod server;
mod streamed;
mod told;
mod trio;

use std::rc::Rc;

use aqueduct_client::{GenerateOptions, MemoryPolicy};
use binary::{Running, aqueduct, model, wait_for};
use net::Net;
use serde_json::{Value, json};
use server::EtcdServer;
use streamed::Moment::{Decode, Prefill};
use streamed::{Moment, answer_with, ask};
use tokio::runtime::Runtime;
use trio::{COORDINATORS, Site, Trio, health};

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

/// A test that was killed leaves its network behind: the next one goes around it.
#[test]
fn networks_share_no_address() {
    if !net::can("networks_share_no_address") {
        return;
    }
    let one = net::claim(511);
    let other = net::claim(511);
    net::release(one);
    net::release(other);
    assert_ne!(one, other);
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

/// Three coordinators, hosts 0 to 2, and two workers, hosts 3 and 4. The test asks them.
fn group() -> (Trio, Rc<Net>) {
    let mut net = Net::new(5);
    net.join_all(&[0, 1, 2, 3, 4]);
    (0..COORDINATORS).for_each(|host| net.join_self(host));
    let net = Rc::new(net);
    let worker = |host| {
        let mut command = aqueduct();
        command.args(["worker", "--threads", "1", "--snapshot-bytes", "0", "--listen"]);
        command.arg(format!("{}:7001", net.address(host))).arg("--model").arg(model());
        Running::start(&mut net.on(host, &command))
    };
    let workers = [3, 4].map(worker);
    let urls = workers.each_ref().map(|worker| worker.address("url").to_owned());
    let there = net.clone();
    let site = Site {
        listen: [0, 1, 2].map(|host| format!("{}:0", net.address(host))),
        peers: [0, 1, 2].map(|host| format!("http://{}:7072", net.address(host))),
        find: ["--worker".to_owned()].into_iter().chain(urls).collect(),
        there: Box::new(move |host, command| there.on(host, &command)),
    };
    (Trio::at_site(site, workers.into()), net)
}

/// Has workers run an eighth of the time until a coordinator other than `leader` goes on with a
/// stream: however fast they are, the answer does not end before.
fn slow_until_resumed(trio: &Trio, leader: usize, before: [f64; COORDINATORS]) {
    let mut looks = 0;
    wait_for("another one to go on with the stream", || {
        looks += 1;
        let name = if looks % 8 == 0 { "CONT" } else { "STOP" };
        trio.workers.iter().for_each(|worker| worker.signal(name));
        let mut others = (0..COORDINATORS).filter(|idx| *idx != leader);
        others.any(|idx| trio.resumed(idx) > before[idx]).then_some(())
    });
    trio.workers.iter().for_each(|worker| worker.signal("CONT"));
}

fn long() -> GenerateOptions {
    let book = std::fs::read_to_string(model().join("../ops/demo/walden.txt")).unwrap();
    let mut options = GenerateOptions::text(book.chars().take(20_000).collect::<String>());
    (options.max_tokens, options.ignore_eos) = (Some(4_000), true);
    (options.temperature, options.seed) = (Some(0.9), Some(11));
    (options.policy, options.chunk_tokens) = (Some(MemoryPolicy::h2o(4, 16, 16)), Some(64));
    options
}

#[test]
fn who_led_and_is_cut_off_leads_no_more() {
    use told::Moment::{ChunksDone, Tokens};
    if !net::can("who_led_and_is_cut_off_leads_no_more") {
        return;
    }
    let (trio, net) = group();
    let runtime = Runtime::new().unwrap();
    let mut leader = trio.leader(None);
    let want = told::ask(runtime.handle(), &trio.urls(), long(), |_| {});
    let cases =
        [(ChunksDone(20), false), (ChunksDone(20), true), (Tokens(50), false), (Tokens(50), true)];
    for (moment, from_all) in cases {
        // From the others of its group alone, or from workers and callers too.
        let others = (0..5).filter(|host| *host != leader && (from_all || *host < COORDINATORS));
        let term = trio.at(leader).metric("term");
        let before = [0, 1, 2].map(|idx| trio.resumed(idx));
        let mut is_cut = false;
        let told = told::ask(runtime.handle(), &trio.urls(), long(), |event| {
            if !is_cut && moment.has_come(event) {
                is_cut = true;
                others.clone().for_each(|other| net.cut(leader, other));
                if from_all {
                    net.cut_self(leader);
                }
                slow_until_resumed(&trio, leader, before);
            }
        });
        assert!(is_cut, "too late: {moment:?}");
        told::check_same(&told, &want, (moment, from_all));
        let next = trio.leader(Some(leader));
        assert!(trio.resumed(next) > before[next]);
        assert!(trio.at(next).metric("term") > term);
        if !from_all {
            wait_for("it to know", || {
                let (status, health) = health(trio.at(leader));
                (status == 503 && health["role"] == "follower").then_some(())
            });
        }
        others.for_each(|other| net.plug(leader, other));
        if from_all {
            net.plug_self(leader);
        }
        trio.follows(leader, next);
        assert_eq!(trio.at(leader).metric("num_requests_running"), 0.0);
        // Who leads answers by whom it is reached, and says what is wrong.
        let body = r#"{"prompt": "a", "max_tokens": -1}"#;
        let (status, passed_on) = trio.at(leader).http("POST", "/v1/completions", body);
        assert_eq!(status, 400, "{passed_on}");
        assert_eq!(trio.leader(None), next);
        leader = next;
    }
    let kept = trio.kept(leader);
    assert_eq!(kept.len(), cases.len() + 1);
    told::check_kept(&want, &kept);
}
