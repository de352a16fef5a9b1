//! Three coordinators and their workers, each in a process of its own. Whoever leads is killed or
//! stopped, in the prefill and while tokens come: what was accepted ends, under the next leader,
//! with the tokens of a run without fault.

mod binary;
mod caller;

use std::net::TcpListener;
use std::path::Path;
use std::process::Child;

use aqueduct_coordinator::peers::Group;
use aqueduct_core::journal::{Kept, Outcome};
use aqueduct_journal::{Node, Options, Store};
use binary::{Running, aqueduct, model, wait_for};
use caller::{Token, answer, in_decode, in_prefill, tokens, uninterrupted, worker};
use serde_json::{Value, json};
use tempfile::TempDir;

const COORDINATORS: usize = 3;

struct Trio {
    workers: Vec<Running>,
    peers: Vec<String>,
    folders: Vec<TempDir>,
    /// `None` while one is dead.
    coordinators: Vec<Option<Running>>,
}

/// An address of this process alone, so that a port that is free remains so.
fn own_address() -> String {
    let [.., a, b, c] = std::process::id().to_be_bytes();
    let host = format!("127.{}.{b}.{c}", a | 128);
    let listener = TcpListener::bind((host.as_str(), 0)).unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

impl Trio {
    fn start(workers: usize) -> Self {
        let mut trio = Self {
            workers: (0..workers).map(|_| worker()).collect(),
            peers: (0..COORDINATORS).map(|idx| format!("c{idx}={}", own_address())).collect(),
            folders: (0..COORDINATORS).map(|_| tempfile::tempdir().unwrap()).collect(),
            coordinators: Vec::new(),
        };
        for idx in 0..COORDINATORS {
            let coordinator = Some(trio.run(idx, "aqueduct"));
            trio.coordinators.push(coordinator);
        }
        trio
    }

    fn run(&self, idx: usize, token: &str) -> Running {
        let mut command = aqueduct();
        command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        command.args(["--id", &format!("c{idx}"), "--peers", &self.peers.join(",")]);
        command.args(["--cluster-token", token, "--data-dir"]).arg(self.folders[idx].path());
        command.arg("--model").arg(model()).arg("--worker");
        command.args(self.workers.iter().map(|worker| worker.address("url")));
        Running::start(&mut command)
    }

    fn start_again(&mut self, idx: usize) {
        self.coordinators[idx] = Some(self.run(idx, "aqueduct"));
    }

    fn kill(&mut self, idx: usize) {
        self.coordinators[idx] = None;
    }

    fn at(&self, idx: usize) -> &Running {
        self.coordinators[idx].as_ref().unwrap()
    }

    /// Who leads, other than `not`, once all workers are there.
    fn leader(&self, not: Option<usize>) -> usize {
        wait_for("a leader", || {
            let others = (0..COORDINATORS).filter(|idx| Some(*idx) != not);
            let mut there = others.filter(|idx| self.coordinators[*idx].is_some());
            there.find(|idx| {
                let (status, health) = health(self.at(*idx));
                let all = self.workers.len() as u64;
                status == 200 && health["role"] == "leader" && health["workers_up"] == all
            })
        })
    }

    fn follows(&self, idx: usize, leader: usize) {
        let want = json!(format!("http://{}", self.at(leader).address("http")));
        wait_for("a follower", || {
            let (status, health) = health(self.at(idx));
            (status == 200 && health["role"] == "follower" && health["leader"]["http"] == want)
                .then_some(())
        });
    }

    fn url(&self, idx: usize) -> String {
        format!("http://{}", self.at(idx).address("grpc"))
    }

    /// Asks the leader, to whom `fault` happens; what its caller had heard by then, and who leads
    /// when what was under way has ended.
    fn interrupted(
        &self,
        leader: usize,
        is_time: fn(&Value) -> bool,
        fault: impl FnOnce(&mut Child),
    ) -> (Vec<Token>, usize) {
        let told = answer(&self.url(leader), is_time, fault);
        let next = self.leader(Some(leader));
        let running = |want: bool| {
            let is_so = (self.at(next).metric("num_requests_running") > 0.0) == want;
            is_so.then_some(())
        };
        wait_for("the request", || running(true));
        wait_for("its end", || running(false));
        (told, next)
    }
}

/// Status and body of `/health`.
fn health(coordinator: &Running) -> (u16, Value) {
    let (status, body) = coordinator.http("GET", "/health", "");
    (status, serde_json::from_str(&body).unwrap())
}

/// All requests of a member that has ended, after all that it has on disk.
fn kept(folder: &Path, peers: &[String], idx: usize) -> Vec<Kept> {
    let group = Group::new(&format!("c{idx}"), peers, "aqueduct").unwrap();
    let options = Options { identity: group.identity(), ..Options::alone() };
    let (_, mut saved) = Store::open(folder, &options.identity).unwrap();
    // The last records were agreed on, though that was not written down any more.
    saved.hard.commit = saved.entries.last().map_or(saved.hard.commit, |entry| entry.index);
    let mut node = Node::new(options, &saved).unwrap();
    while let Some(work) = node.work().unwrap() {
        work.done();
    }
    node.state().iter().map(|(_, kept)| kept.clone()).collect()
}

#[test]
fn what_was_accepted_outlives_its_leaders() {
    let mut trio = Trio::start(2);
    let first = trio.leader(None);
    let want = answer(&trio.url(first), |_| false, |_| {});
    assert!(want.len() > 20, "{want:?}");
    let is_part = |told: &[Token]| told.len() < want.len() && want.starts_with(told);

    let killed = trio.at(first);
    let (told, second) = trio.interrupted(first, in_prefill, |_| killed.signal("KILL"));
    assert_eq!(told, []);
    trio.kill(first);
    trio.start_again(first);
    trio.follows(first, second);

    let killed = trio.at(second);
    let (told, third) = trio.interrupted(second, in_decode, |_| killed.signal("KILL"));
    assert!(is_part(&told), "{told:?}");
    trio.kill(second);
    trio.start_again(second);
    trio.follows(second, third);

    let stopped = trio.at(third);
    let (told, fourth) = trio.interrupted(third, in_decode, |caller| {
        stopped.signal("STOP");
        caller.kill().unwrap(); // it would wait for whoever is stopped
    });
    assert!(is_part(&told), "{told:?}");
    stopped.signal("CONT");
    trio.follows(third, fourth);
    assert_eq!(trio.leader(Some(third)), fourth);
    for idx in 0..COORDINATORS {
        trio.kill(idx);
    }
    let all = kept(trio.folders[fourth].path(), &trio.peers, fourth);
    assert_eq!(all.len(), 4);
    for kept in all {
        assert_eq!(tokens(&kept), want);
        assert_eq!(kept.ended.unwrap().outcome, Outcome::Finished);
    }
}

#[test]
fn callers_see_one_stream_whoever_leads() {
    let mut trio = Trio::start(4);
    let mut leader = trio.leader(None);
    let want = answer(&trio.url(leader), |_| false, |_| {});
    assert!(want.len() > 20, "{want:?}");
    for (is_time, signal) in
        [(in_prefill as fn(&Value) -> bool, "KILL"), (in_decode, "KILL"), (in_decode, "STOP")]
    {
        let urls: Vec<_> = (0..COORDINATORS).map(|idx| trio.url(idx)).collect();
        let lost = trio.at(leader);
        let told = uninterrupted(&urls.join(","), is_time, |_| lost.signal(signal));
        assert_eq!(told, want, "{signal}");
        trio.kill(leader);
        let next = trio.leader(Some(leader));
        trio.start_again(leader);
        trio.follows(leader, next);
        leader = next;
    }
}

#[test]
fn followers_say_who_leads_and_nobody_leads_without_a_majority() {
    let mut trio = Trio::start(1);
    let leader = trio.leader(None);
    let (follower, other) = ((leader + 1) % COORDINATORS, (leader + 2) % COORDINATORS);
    trio.follows(follower, leader);
    let body = json!({ "prompt": "Once", "max_tokens": 2 }).to_string();
    let sent = trio.at(follower).http_head("POST", "/v1/completions?x=1", &body);
    let location = format!("http://{}/v1/completions?x=1", trio.at(leader).address("http"));
    assert!(sent.starts_with("HTTP/1.1 307"), "{sent}");
    assert!(sent.contains(&format!("location: {location}\r\n")), "{sent}");
    assert_eq!(trio.at(follower).http("GET", "/leader", "").0, 503);
    assert_eq!(trio.at(leader).http("GET", "/leader", "").0, 200);
    assert_eq!(trio.at(follower).http("GET", "/v1/models", "").0, 200);
    assert_eq!((trio.at(leader).metric("leads"), trio.at(follower).metric("leads")), (1.0, 0.0));
    trio.at(leader).complete("Once");
    let urls = format!("{},{}", trio.url(follower), trio.url(other));
    let told = aqueduct().args(["generate", "--server", &urls, "--json", "Once"]).output().unwrap();
    assert!(told.status.success(), "{}", binary::stderr(&told));

    // Of another group, whoever has its name and address.
    trio.kill(other);
    let stranger_folder = std::mem::replace(&mut trio.folders[other], tempfile::tempdir().unwrap());
    let stranger = trio.run(other, "another");
    trio.at(leader).complete("Once");
    trio.kill(follower);
    wait_for("the end of the lead", || {
        let (status, health) = health(trio.at(leader));
        (status == 503 && health["role"] == "follower").then_some(())
    });
    assert_eq!(health(&stranger).0, 503);
    let (status, answer) = trio.at(leader).http("POST", "/v1/completions", &body);
    assert_eq!(status, 503, "{answer}");
    drop(stranger);
    trio.folders[other] = stranger_folder;
    trio.start_again(other);
    let again = trio.leader(None);
    trio.at(again).complete("Once");
}
