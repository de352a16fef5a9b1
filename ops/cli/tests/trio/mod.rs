//! Three coordinators with one journal, each in a process of its own, and their workers.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use aqueduct_coordinator::peers::Group;
use aqueduct_core::journal::Kept;
use aqueduct_journal::{Node, Options, Store};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binary::{Running, aqueduct, model, wait_for};

pub(crate) const COORDINATORS: usize = 3;

pub(crate) struct Trio {
    /// `None` while one is dead.
    coordinators: Vec<Option<Running>>,
    pub(crate) workers: Vec<Running>,
    pub(crate) folders: Vec<TempDir>,
    site: Site,
}

/// Where coordinators are, and how they find workers.
pub(crate) struct Site {
    /// For each coordinator: where it listens for callers, and its URL for the others.
    pub(crate) listen: [String; COORDINATORS],
    pub(crate) peers: [String; COORDINATORS],
    /// Arguments that say where workers are.
    pub(crate) find: Vec<String>,
    /// Has a command run where a coordinator is.
    pub(crate) there: Box<dyn Fn(usize, Command) -> Command>,
}

/// An address of this process alone, so that a port that is free remains so.
fn own_address() -> String {
    let [.., a, b, c] = std::process::id().to_be_bytes();
    let host = format!("127.{}.{b}.{c}", a | 128);
    let listener = TcpListener::bind((host.as_str(), 0)).unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

impl Site {
    /// On this machine.
    pub(crate) fn here(find: Vec<String>) -> Self {
        Self {
            listen: [(); COORDINATORS].map(|()| "127.0.0.1:0".to_owned()),
            peers: [(); COORDINATORS].map(|()| own_address()),
            find,
            there: Box::new(|_, command| command),
        }
    }

    /// What all are told of each other.
    fn group(&self) -> Vec<String> {
        self.peers.iter().enumerate().map(|(idx, url)| format!("coordinator-{idx}={url}")).collect()
    }
}

impl Trio {
    /// On this machine, of workers that it is told of.
    pub(crate) fn start(workers: Vec<Running>) -> Self {
        let urls = workers.iter().map(|worker| worker.address("url").to_owned());
        let find = ["--worker".to_owned()].into_iter().chain(urls).collect();
        Self::at_site(Site::here(find), workers)
    }

    pub(crate) fn at_site(site: Site, workers: Vec<Running>) -> Self {
        let folders = (0..COORDINATORS).map(|_| tempfile::tempdir().unwrap()).collect();
        let mut trio = Self { coordinators: Vec::new(), workers, folders, site };
        for idx in 0..COORDINATORS {
            let coordinator = Some(trio.run(idx, "aqueduct"));
            trio.coordinators.push(coordinator);
        }
        trio
    }

    pub(crate) fn run(&self, idx: usize, token: &str) -> Running {
        let Site { listen, find, there, .. } = &self.site;
        let mut command = aqueduct();
        command.args([
            "coordinator",
            "--id",
            &format!("coordinator-{idx}"),
            "--cluster-token",
            token,
        ]);
        command.args(["--http", "--grpc"].iter().flat_map(|flag| [*flag, &listen[idx]]));
        command.args(["--peers", &self.site.group().join(","), "--data-dir"]);
        command.arg(self.folders[idx].path()).arg("--model").arg(model()).args(find);
        Running::start(&mut there(idx, command))
    }

    pub(crate) fn start_again(&mut self, idx: usize) {
        self.coordinators[idx] = Some(self.run(idx, "aqueduct"));
    }

    pub(crate) fn kill(&mut self, idx: usize) {
        self.coordinators[idx] = None;
    }

    /// One that ends by itself.
    pub(crate) fn take(&mut self, idx: usize) -> Running {
        self.coordinators[idx].take().unwrap()
    }

    pub(crate) fn at(&self, idx: usize) -> &Running {
        self.coordinators[idx].as_ref().unwrap()
    }

    /// Who leads, other than `not`, once all workers are there.
    pub(crate) fn leader(&self, not: Option<usize>) -> usize {
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

    pub(crate) fn follows(&self, idx: usize, leader: usize) {
        let want = json!(format!("http://{}", self.at(leader).address("http")));
        wait_for("a follower", || {
            let (status, health) = health(self.at(idx));
            (status == 200 && health["role"] == "follower" && health["leader"]["http"] == want)
                .then_some(())
        });
    }

    /// Streams with which a coordinator has gone on.
    pub(crate) fn resumed(&self, idx: usize) -> f64 {
        self.at(idx).metric("streams_resumed_total")
    }

    /// Its URL for the other coordinators.
    pub(crate) fn peer(&self, idx: usize) -> &str {
        &self.site.peers[idx]
    }

    pub(crate) fn url(&self, idx: usize) -> String {
        format!("http://{}", self.at(idx).address("grpc"))
    }

    /// All of them, for a caller.
    pub(crate) fn urls(&self) -> String {
        (0..COORDINATORS).map(|idx| self.url(idx)).collect::<Vec<_>>().join(",")
    }

    /// Ends all of them, first the one that leads, which writes what callers have been told
    /// already; all requests that its journal has, after all that is on disk.
    pub(crate) fn kept(mut self, leader: usize) -> Vec<Kept> {
        assert_eq!(self.coordinators[leader].take().unwrap().terminate(), Some(0));
        (0..COORDINATORS).for_each(|idx| self.kill(idx));
        kept(self.folders[leader].path(), &self.site.group(), leader)
    }
}

/// Status and body of `/health`.
pub(crate) fn health(coordinator: &Running) -> (u16, Value) {
    let (status, body) = coordinator.http("GET", "/health", "");
    (status, serde_json::from_str(&body).unwrap())
}

fn kept(folder: &Path, peers: &[String], idx: usize) -> Vec<Kept> {
    let group = Group::new(&format!("coordinator-{idx}"), peers, "aqueduct").unwrap();
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
