//! Three coordinators, for those who look after them and for those who do not belong to them: what
//! an operator has ordered of one holds for the next, and behind certificates nobody else is heard.

mod binary;
mod caller;
#[path = "../../../proto/tls/tests/certificates/mod.rs"]
mod certificates;
mod https;
mod trio;

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

use binary::{Running, aqueduct, model, rows, run, stderr, wait_for};
use caller::{answer, in_decode, uninterrupted, worker};
use certificates::{Authority, Pem};
use https::Https;
use serde_json::Value;
use trio::{COORDINATORS, Site, Trio, health};

const COORDINATOR: &str = "coordinator.aqueduct";
const WORKER: &str = "worker.aqueduct";

/// What an operator orders of whoever leads.
fn order(trio: &Trio, leader: usize, word: &str, worker: &str) {
    let output = run(["node", word, worker, "--server", &trio.url(leader)]);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// Until whoever leads says so of its workers, by their URLs.
fn until_they_stand(trio: &Trio, leader: usize, mut want: Vec<(&str, &str)>) {
    want.sort_unstable();
    wait_for("the workers' states", || {
        let listed = rows(&run(["node", "list", "--json", "--server", &trio.url(leader)]));
        let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
        let state = |row: &Value| (text(row, "worker"), text(row, "state"));
        let mut states: Vec<_> = listed.iter().map(state).collect();
        states.sort_unstable();
        let states = states.iter().map(|(worker, state)| (&**worker, &**state));
        states.eq(want.iter().copied()).then_some(())
    });
}

#[test]
fn who_was_drained_remains_so_whoever_leads() {
    let mut trio = Trio::start(vec![worker(), worker()]);
    let [one, two] = [0, 1].map(|idx| trio.workers[idx].address("url").to_owned());
    let first = trio.leader(None);
    order(&trio, first, "drain", &one);
    until_they_stand(&trio, first, vec![(&one, "drained"), (&two, "up")]);
    trio.kill(first);
    let second = trio.leader(Some(first));
    until_they_stand(&trio, second, vec![(&one, "drained"), (&two, "up")]);
    trio.at(second).complete("Once");

    order(&trio, second, "undrain", &one);
    trio.start_again(first);
    trio.follows(first, second);
    trio.kill(second);
    let third = trio.leader(Some(second));
    until_they_stand(&trio, third, vec![(&one, "up"), (&two, "up")]);
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// What a member of the cluster is told of certificates.
fn flags(pem: &Pem, authority: &Authority) -> [String; 6] {
    let [cert, key, ca] = ["cert", "key", "ca"].map(|kind| format!("--cluster-tls-{kind}"));
    [cert, text(&pem.cert), key, text(&pem.key), ca, text(&authority.ca())]
}

/// So many connections of others were refused by a coordinator.
fn refused(coordinator: &Running, reason: &str) -> f64 {
    let name = format!("connections_refused_total{{plane=\"peers\",reason=\"{reason}\"}} ");
    let metrics = coordinator.http("GET", "/metrics", "").1;
    let count = metrics.lines().find_map(|line| line.strip_prefix(&name));
    count.map_or(0.0, |count| count.trim().parse().unwrap())
}

#[test]
fn behind_certificates_a_group_keeps_its_streams_and_hears_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let authority = |name| Authority::new(&folder.path().join(name));
    let (cluster, others) = (authority("cluster"), authority("others"));
    let of_workers = flags(&cluster.sign("worker", &[WORKER]), &cluster);
    let worker = || {
        let mut command = aqueduct();
        command.args(["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--model"]);
        Running::start(command.arg(model()).args(["--snapshot-bytes", "0"]).args(&of_workers))
    };
    let workers = vec![worker(), worker()];
    let mut site = Site::here(vec!["--worker".to_owned()]);
    site.peers = site.peers.map(|url| url.replace("http://", "https://"));
    let peers = site.peers.each_ref().map(|url| url.replace("https://", ""));
    let host = peers[0].split(':').next().unwrap();
    site.find.extend(workers.iter().map(|worker| worker.address("url").to_owned()));
    site.find.extend(flags(&cluster.sign("coordinator", &[COORDINATOR, host]), &cluster));
    let mut trio = Trio::at_site(site, workers);

    let first = trio.leader(None);
    let want = answer(&trio.url(first), |_| false, |_| {});
    assert!(want.len() > 20, "{want:?}");
    let lost = trio.at(first);
    let told = uninterrupted(&trio.urls(), in_decode, |_| lost.signal("KILL"));
    assert_eq!(told, want);
    trio.kill(first);
    let second = trio.leader(Some(first));
    trio.start_again(first);
    trio.follows(first, second);

    // Nobody else comes in: the certificate must be the cluster's, in time, and a coordinator's.
    let at = &peers[second];
    let shows = |pem: Option<&Pem>, reason: &str| {
        let before = refused(trio.at(second), reason);
        assert!(Https::new(at, &cluster.ca(), pem).try_call("GET", "/", "").is_err());
        wait_for(reason, || (refused(trio.at(second), reason) > before).then_some(()));
    };
    shows(None, "no_certificate");
    shows(Some(&others.sign("coordinator", &[COORDINATOR])), "unknown_authority");
    shows(Some(&cluster.sign_expired("late", &[COORDINATOR])), "expired");
    shows(Some(&cluster.sign("alice", &["alice"])), "wrong_role");
    let before = refused(trio.at(second), "plaintext");
    let mut plain = TcpStream::connect(at).unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    wait_for("plaintext", || (refused(trio.at(second), "plaintext") > before).then_some(()));

    let follower = (0..COORDINATORS).find(|idx| *idx != second).unwrap();
    assert_eq!(health(trio.at(follower)).1["role"], "follower");
    assert_eq!(trio.leader(None), second, "nobody else changed anything");
}
