//! Over sockets, to a worker that may go away.

use aqueduct_core::WireDtype;
use aqueduct_core::work::Peer;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::*;
use crate::exchange::Ask;
use crate::exchange::conformance::{Rig, dense, place, suite};
use crate::link::conformance::fit;
use crate::{LoopbackHub, Worker, WorkerOptions, serve, tiny_model};

const LONG: Duration = Duration::from_secs(600);

/// A worker behind `address`, on a runtime of its own. No coordinator is in these tests.
pub(super) fn worker_at(address: &str) -> (Runtime, Worker, String) {
    worker_with(address, Duration::MAX)
}

/// The same, which answers for so long though no coordinator leads it.
fn worker_with(address: &str, unled: Duration) -> (Runtime, Worker, String) {
    let theirs = Runtime::new().unwrap();
    let listener = theirs.block_on(TcpListener::bind(address)).unwrap();
    let peer = format!("http://{}", listener.local_addr().unwrap());
    let worker = {
        let _inside = theirs.enter();
        let options = WorkerOptions::new(&peer, LoopbackHub::default());
        Worker::start(tiny_model::tiny(fit().kv), WorkerOptions { unled, ..options }).unwrap()
    };
    theirs.spawn(serve(worker.clone(), listener, std::future::pending()));
    (theirs, worker, peer)
}

/// A link to `peer`, and `worker` as who answers beside it.
fn link_to(peer: String, worker: &Worker, fingerprint: Option<&str>) -> (Runtime, Rig) {
    let own = Runtime::new().unwrap();
    let doorbell = Arc::<Doorbell>::default();
    let holder = worker.holder().clone();
    let fingerprint = fingerprint.unwrap_or(holder.model().fingerprint()).to_owned();
    let link = GrpcExchange::open(own.handle(), Peer(peer), fingerprint, doorbell.clone());
    (own, Rig { link: Box::new(link), doorbell, holder, _keep: Box::new(()) })
}

#[test]
fn conforms() {
    suite(|fingerprint| {
        let (theirs, worker, peer) = worker_at("127.0.0.1:0");
        let (own, rig) = link_to(peer, &worker, fingerprint);
        Rig { _keep: Box::new((own, theirs, worker)), ..rig }
    });
}

#[test]
fn a_peer_that_is_gone_is_lost_at_the_deadline() {
    let (theirs, worker, peer) = worker_at("127.0.0.1:0");
    theirs.shutdown_background();
    let (_own, mut rig) = link_to(peer, &worker, None);
    let ask = Ask::Keys { place: place(0, 2, dense()) };
    rig.send(1, ask, WireDtype::F32, Duration::from_millis(200));
    let lost = rig.wait(1).remove(&1).unwrap().reply;
    assert!(matches!(lost, Err(CallError::Lost(_))), "{lost:?}");
}

#[test]
fn a_process_that_no_coordinator_leads_is_out_of_reach() {
    let (_theirs, worker, peer) = worker_with("127.0.0.1:0", Duration::ZERO);
    let (_own, mut rig) = link_to(peer, &worker, None);
    let ask = Ask::Keys { place: place(0, 2, dense()) };
    rig.put(ask.place(), 4);
    rig.send(1, ask, WireDtype::F32, Duration::from_secs(20));
    let lost = rig.wait(1).remove(&1).unwrap().reply;
    let Err(CallError::Lost(why)) = &lost else { panic!("{lost:?}") };
    assert!(why.contains("no coordinator") && !why.ends_with("deadline"), "{why}");
}

#[test]
fn what_nobody_waits_for_is_not_asked_again() {
    let (theirs, worker, peer) = worker_at("127.0.0.1:0");
    theirs.shutdown_background();
    let (_own, mut rig) = link_to(peer, &worker, None);
    let ask = Ask::Keys { place: place(0, 2, dense()) };
    let asker = Arc::new(());
    let call = |id, asker| {
        let (ask, wire) = (ask.clone(), WireDtype::F32);
        Box::new(Call { id, ask, wire, deadline: Instant::now() + LONG, asker })
    };
    rig.link.send(call(1, Arc::downgrade(&asker))).unwrap();
    rig.link.send(call(2, crate::exchange::conformance::asker())).unwrap();
    let since = Instant::now();
    drop(asker);
    let lost = rig.wait(1).remove(&1).expect("the call that is given up").reply;
    assert!(matches!(lost, Err(CallError::Lost(_))) && since.elapsed() < LONG, "{lost:?}");
}

#[test]
fn a_peer_that_comes_back_is_asked_again() {
    let (theirs, worker, peer) = worker_at("127.0.0.1:0");
    let (_own, mut rig) = link_to(peer.clone(), &worker, None);
    let place = place(0, 2, dense());
    rig.put(&place, 4);
    let ask = Ask::Keys { place };
    rig.check(ask.clone());
    theirs.shutdown_timeout(Duration::from_secs(10));
    rig.send(1, ask.clone(), WireDtype::F32, Duration::from_secs(20));
    drop(worker);
    let (_theirs, worker, _) = worker_at(peer.trim_start_matches("http://"));
    rig.holder = worker.holder().clone();
    rig.put(ask.place(), 4);
    let reply = rig.wait(1).remove(&1).unwrap().reply;
    assert_eq!(reply, Ok(rig.told(&ask)));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a pause between looks at a condition, no guess")]
fn a_link_that_nothing_is_asked_over_closes() {
    let (theirs, worker, peer) = worker_at("127.0.0.1:0");
    let (retry, idle) = (Duration::from_secs(2), Duration::from_millis(50));
    let fingerprint = worker.holder().model().fingerprint().to_owned();
    let (doorbell, holder) = (Arc::<Doorbell>::default(), worker.holder().clone());
    let whom = (Remote::from(Peer(peer)), fingerprint);
    let link = GrpcExchange::open_with(theirs.handle(), whom, doorbell.clone(), (retry, idle));
    let mut rig = Rig { link: Box::new(link), doorbell, holder, _keep: Box::new(()) };
    let since = Instant::now();
    while !rig.link.is_over() && since.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!rig.link.is_open() && rig.link.is_over());
    let (ask, wire) = (Ask::Keys { place: place(0, 2, dense()) }, WireDtype::F32);
    let (deadline, asker) = (Instant::now() + LONG, crate::exchange::conformance::asker());
    rig.link.send(Box::new(Call { id: 1, ask, wire, deadline, asker })).unwrap_err();
}
