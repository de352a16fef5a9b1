//! Against a real etcd: members come, stay while it is away, and go.

#[path = "../../tls/tests/certificates/mod.rs"]
mod certificates;
mod server;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_members::{Etcd, Load, Members, Record, Registration, Roll};
use aqueduct_tls::{ClientTls, Expected, Identity, Reason, Refusals, TlsFiles};
use certificates::{Authority, Pem};
use server::EtcdServer;
use tokio::sync::watch;

const TTL_S: u32 = 2;

fn record(port: u16) -> Record {
    Record {
        url: format!("http://127.0.0.1:{port}"),
        fingerprint: "abc".into(),
        device: "cpu".into(),
        pool_tokens: Some(4096),
        threads: 2,
        load: Load::default(),
    }
}

fn register(etcd: &Etcd, port: u16) -> (Registration, watch::Sender<Record>) {
    let (change, record) = watch::channel(record(port));
    (Registration::start(etcd.clone(), record).unwrap(), change)
}

/// Waits until the members are as `wanted` says.
async fn until(roll: &Roll, what: &str, wanted: impl Fn(&Members) -> bool) -> Arc<Members> {
    let mut members = roll.members();
    let seen = members.wait_for(|members| wanted(members));
    let seen = tokio::time::timeout(Duration::from_secs(30), seen).await;
    seen.unwrap_or_else(|_| panic!("not within half a minute: {what}")).unwrap().clone()
}

fn ports(members: &Members) -> Vec<&str> {
    members.keys().map(|host| host.rsplit_once(':').unwrap().1).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_change_and_go() {
    let server = EtcdServer::start();
    let etcd = Etcd::new(vec![server.url()], "/aqueduct", TTL_S, None).unwrap();
    let roll = Roll::follow(etcd.clone());
    let (first, change) = register(&etcd, 7001);
    let (second, _keep) = register(&etcd, 7002);
    let other_cluster = Etcd::new(vec![server.url()], "/other", TTL_S, None).unwrap();
    let (_third, _keep_third) = register(&other_cluster, 7003);

    let members = until(&roll, "both", |members| members.len() == 2).await;
    assert_eq!(ports(&members), ["7001", "7002"]);
    assert_eq!(members["127.0.0.1:7001"], record(7001));

    let load = Load { requests: 3, bytes: 9 };
    change.send_modify(|record| record.load = load);
    until(&roll, "its load", |members| members["127.0.0.1:7001"].load == load).await;

    // One says that it goes; the other's process dies, and its lease ends.
    first.end().await;
    until(&roll, "one is gone", |members| ports(members) == ["7002"]).await;
    drop(change);
    second.kill();
    until(&roll, "both are gone", Members::is_empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_another_took_along_is_made_again() {
    let server = EtcdServer::start();
    let etcd = Etcd::new(vec![server.url()], "/aqueduct", TTL_S, None).unwrap();
    let roll = Roll::follow(etcd.clone());
    let (_first, _keep) = register(&etcd, 7001);
    until(&roll, "the first", |members| members.len() == 1).await;
    let (twin, change) = register(&etcd, 7001);
    let load = Load { requests: 3, bytes: 9 };
    change.send_modify(|record| record.load = load);
    until(&roll, "the twin", |members| members["127.0.0.1:7001"].load == load).await;
    twin.end().await;
    until(&roll, "nobody", Members::is_empty).await;
    let members = until(&roll, "the first again", |members| members.len() == 1).await;
    assert_eq!(members["127.0.0.1:7001"], record(7001));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_leaves_because_etcd_does() {
    let mut server = EtcdServer::start();
    let etcd = Etcd::new(vec![server.url()], "/aqueduct", TTL_S, None).unwrap();
    let roll = Roll::follow(etcd.clone());
    let (_first, _keep) = register(&etcd, 7001);
    let (second, _keep_second) = register(&etcd, 7002);
    until(&roll, "both", |members| members.len() == 2).await;

    server.kill();
    let mut members = roll.members();
    members.mark_unchanged();
    let changed =
        tokio::time::timeout(Duration::from_secs(2 * u64::from(TTL_S)), members.changed());
    assert!(changed.await.is_err(), "somebody came or went: {:?}", members.borrow());

    // It comes back without its data: it learns who is there, and who is not there goes.
    second.kill();
    server.start_again(true);
    let seen = until(&roll, "the one that is there", |members| members.len() == 1).await;
    assert_eq!(ports(&seen), ["7001"]);
}

/// An etcd with its own defaults cuts off whoever pings it often. Then a worker registers anew,
/// and its record is another version.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_little_to_say_is_not_cut_off() {
    const PATIENCE: Duration = Duration::from_secs(14);
    let server = EtcdServer::start();
    let etcd = Etcd::new(vec![server.url()], "/aqueduct", 30, None).unwrap();
    let roll = Roll::follow(etcd.clone());
    let (_first, _keep) = register(&etcd, 7001);
    until(&roll, "it", |members| members.len() == 1).await;
    tokio::time::sleep(PATIENCE).await;
    let mut client = etcd_client::Client::connect([server.url()], None).await.unwrap();
    let found = client.get("/aqueduct/workers/127.0.0.1:7001", None).await.unwrap();
    assert_eq!(found.kvs()[0].version(), 1, "it was registered more than once");
    assert_eq!(client.leases().await.unwrap().leases().len(), 1);
}

/// Whoever lets us in and then has no answers is not waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_answers_is_passed_over() {
    let (silent, server) = (TcpListener::bind("127.0.0.1:0").unwrap(), EtcdServer::start());
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let etcd = Etcd::new(vec![silent, server.url()], "/aqueduct", TTL_S, None).unwrap();
    let roll = Roll::follow(etcd.clone());
    let (_first, _keep) = register(&etcd, 7001);
    until(&roll, "it", |members| members.len() == 1).await;
}

/// How much time they have meanwhile is said, to the second, by the tests of `grace`.
#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_come_back_goes_though_etcd_comes_and_goes() {
    const BREAKS: usize = 3;
    let mut server = EtcdServer::start();
    let etcd = Etcd::new(vec![server.url()], "/aqueduct", TTL_S, None).unwrap();
    let roll = Roll::follow(etcd.clone());
    let (_first, _keep) = register(&etcd, 7001);
    let (second, _keep_second) = register(&etcd, 7002);
    until(&roll, "both", |members| members.len() == 2).await;
    second.kill();
    server.kill();
    server.start_again(true);
    for _ in 0..BREAKS {
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.kill();
        server.start_again(false);
    }
    let seen = until(&roll, "the one that is there", |members| members.len() == 1).await;
    assert_eq!(ports(&seen), ["7001"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_record_is_nobody() {
    let server = EtcdServer::start();
    let etcd = Etcd::new(vec![server.url()], "/aqueduct", TTL_S, None).unwrap();
    let mut client = etcd_client::Client::connect([server.url()], None).await.unwrap();
    client.put("/aqueduct/workers/10.0.0.9:7001", "{", None).await.unwrap();
    let elsewhere = Record { url: "http://10.0.0.8:7001".into(), ..record(1) };
    client.put("/aqueduct/workers/10.0.0.7:7001", elsewhere.to_json(), None).await.unwrap();
    let roll = Roll::follow(etcd.clone());
    let (_first, _keep) = register(&etcd, 7001);
    let members = until(&roll, "the good one", |members| !members.is_empty()).await;
    assert_eq!(ports(&members), ["7001"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_may_have_certificates_and_ask_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let authority = |name: &str| Authority::new(&folder.path().join(name));
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    let pem = ours.sign("etcd", &[]);
    let server = EtcdServer::with_certificates(&pem.cert, &pem.key, &ours.ca());
    let refusals = Refusals::default();
    let etcd = |ca: &Authority, pem: &Pem| {
        let identity = Identity { cert: pem.cert.clone(), key: pem.key.clone() };
        let files = TlsFiles { ca: ca.ca(), identity: Some(identity) };
        let tls = ClientTls::open(files, Expected::Host, "etcd", refusals.clone()).unwrap();
        Etcd::new(vec![server.url()], "/aqueduct", TTL_S, Some(tls)).unwrap()
    };
    let good = etcd(&ours, &ours.sign("worker", &[]));
    let roll = Roll::follow(good.clone());
    // Somebody else's etcd, as it seems; and one that does not know us.
    let _lost = register(&etcd(&theirs, &ours.sign("lost", &[])), 7002);
    let _unknown = register(&etcd(&ours, &theirs.sign("unknown", &[])), 7003);
    let (_first, _keep) = register(&good, 7001);
    let members = until(&roll, "the one that may", |members| !members.is_empty()).await;
    assert_eq!(ports(&members), ["7001"]);
    let counted = async {
        while refusals.of("etcd", Reason::UnknownAuthority) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), counted).await.expect("it is counted");
    assert_eq!(ports(&roll.members().borrow()), ["7001"]);
}
