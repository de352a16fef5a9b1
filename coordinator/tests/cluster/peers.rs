//! Members of a group over gRPC: they agree though one of them hangs, a member that was away is
//! told what it has missed, and who is of another group is not heard.

use std::path::Path;
use std::time::Duration;

use aqueduct_coordinator::peers::{Group, Known, Post, Reason, Unheard, serve};
use aqueduct_core::journal::{Accepted, Outcome, Record, RecordKind};
use aqueduct_core::{Addresses, RequestId};
use aqueduct_journal::{Bounds, Journal, Message, MessageType, Options, Standing, encode};
use aqueduct_proto::convert::peers::{Envelope, split};
use aqueduct_proto::v1::coordinators_client::CoordinatorsClient;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Code;

use crate::fake::SOON;

/// One member, as its process would have it.
struct Member {
    journal: Journal,
    known: watch::Receiver<Known>,
    unheard: Unheard,
    server: JoinHandle<()>,
}

/// Three members, of whom some are there.
struct Trio {
    peers: Vec<String>,
    folders: Vec<TempDir>,
    members: Vec<Option<Member>>,
}

fn addresses(member: usize) -> Addresses {
    let url = |port| format!("http://c{member}:{port}");
    Addresses { http: url(8080), grpc: url(7070) }
}

async fn start(group: Group, member: usize, listener: TcpListener, folder: &Path) -> Member {
    // Small, so that who is away for long must be sent a snapshot.
    let bounds = Bounds { log_entries: 8, log_bytes: 1, ..Bounds::default() };
    let options = Options { identity: group.identity(), bounds, ..Options::alone() };
    let unheard = Unheard::default();
    let post = Post::new(group.clone(), addresses(member), None, unheard.clone()).unwrap();
    let journal = Journal::open(folder, options, post).unwrap();
    let (publish, known) = watch::channel(Known::default());
    let ear = journal.ear();
    let counted = (publish, unheard.clone());
    let server = tokio::spawn(async move {
        serve(group, ear, counted, listener, std::future::pending()).await.unwrap();
    });
    Member { journal, known, unheard, server }
}

impl Trio {
    async fn start() -> Self {
        let mut listeners = Vec::new();
        for _ in 0..3 {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let names = ["a", "b", "c"].into_iter();
        let peers = names.zip(&listeners).map(|(name, at)| format!("{name}={}", url(at))).collect();
        let folders = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let mut trio = Self { peers, folders, members: Vec::new() };
        for (idx, listener) in listeners.into_iter().enumerate() {
            let member = start(trio.group(idx, "t"), idx, listener, trio.folders[idx].path()).await;
            trio.members.push(Some(member));
        }
        trio
    }

    fn group(&self, idx: usize, token: &str) -> Group {
        Group::new(["a", "b", "c"][idx], &self.peers, token).unwrap()
    }

    fn address(&self, idx: usize) -> &str {
        self.peers[idx].split_once("http://").unwrap().1
    }

    /// What is left of a process that has ended: its folder.
    async fn stop(&mut self, idx: usize) {
        let Member { journal, server, .. } = self.members[idx].take().unwrap();
        server.abort();
        server.await.ok(); // it was aborted
        let mut standing = journal.standing();
        drop(journal);
        let closed = async { while standing.changed().await.is_ok() {} };
        tokio::time::timeout(SOON, closed).await.expect("it goes on");
    }

    async fn start_again(&mut self, idx: usize) {
        let listener = TcpListener::bind(self.address(idx)).await.unwrap();
        let group = self.group(idx, "t");
        self.members[idx] = Some(start(group, idx, listener, self.folders[idx].path()).await);
    }

    /// Who leads of those that are there.
    async fn leader(&self) -> (usize, Journal) {
        let find = async {
            loop {
                for (idx, member) in self.members.iter().enumerate() {
                    let Some(member) = member else { continue };
                    let standing = *member.journal.standing().borrow();
                    if matches!(standing, Standing::Leads { .. }) {
                        return (idx, member.journal.clone());
                    }
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, find).await.expect("nobody leads")
    }

    /// Waits until this member knows of a request.
    async fn knows(&self, idx: usize, request: u64) {
        let journal = &self.members[idx].as_ref().unwrap().journal;
        let look = async {
            let is_there =
                move |state: &aqueduct_journal::State| state.get(RequestId(request)).is_some();
            while !journal.read(is_there).await.unwrap() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, look).await.expect("it is not told");
    }
}

/// A whole request, in two records.
async fn write(journal: &Journal, request: u64) {
    let accepted = Accepted::of("m", vec![1, 2, 3]);
    let kinds = [RecordKind::Accepted(Box::new(accepted)), RecordKind::Ended(Outcome::Finished)];
    for kind in kinds {
        journal.append(Record { request: RequestId(request), at_ms: 1, kind }).await.unwrap();
    }
}

#[tokio::test]
async fn who_was_away_is_told_and_who_hangs_holds_nobody_up() {
    let mut trio = Trio::start().await;
    let (first, journal) = trio.leader().await;
    write(&journal, 1).await;
    let (away, other) = ((first + 1) % 3, (first + 2) % 3);
    trio.knows(away, 1).await;
    let known = trio.members[away].as_ref().unwrap().known.clone();
    assert_eq!(known.borrow().get(&(first as u64 + 1)), Some(&addresses(first)));
    trio.stop(away).await;
    // In its place there is somebody who takes connections and says nothing.
    let hangs = TcpListener::bind(trio.address(away)).await.unwrap();
    for request in 2..20 {
        write(&journal, request).await;
    }
    trio.knows(other, 19).await;
    drop(hangs);
    trio.start_again(away).await;
    trio.knows(away, 19).await;

    drop(journal);
    trio.stop(first).await;
    let (second, journal) = trio.leader().await;
    assert_ne!(second, first);
    write(&journal, 20).await;
    trio.start_again(first).await;
    trio.knows(first, 20).await;
    let (third, _) = trio.leader().await;
    assert_eq!(third, second, "who comes back disturbs nobody");
    assert!(journal.resign(&[]).await.is_some());
    let resigned = async {
        while trio.leader().await.0 == second {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, resigned).await.expect("it leads for ever");
}

#[tokio::test]
async fn who_lost_its_disk_is_told_everything_by_the_same_leader() {
    let mut trio = Trio::start().await;
    let (leader, journal) = trio.leader().await;
    write(&journal, 1).await;
    write(&journal, 2).await;
    let leads = *journal.standing().borrow();
    let lost = (leader + 1) % 3;
    trio.knows(lost, 2).await;
    trio.stop(lost).await;
    trio.folders[lost] = tempfile::tempdir().unwrap();
    trio.start_again(lost).await;
    trio.knows(lost, 2).await;
    write(&journal, 3).await;
    trio.knows(lost, 3).await;
    assert_eq!(*journal.standing().borrow(), leads, "nobody had to be elected");
}

#[tokio::test]
async fn strangers_are_not_heard() {
    let trio = Trio::start().await;
    let (leader, journal) = trio.leader().await;
    let group = trio.group(leader, "t").identity().group;
    let url = format!("http://{}", trio.address(leader));
    let mut client = CoordinatorsClient::connect(url).await.unwrap();
    let to = leader as u64 + 1;
    let from = to % 3 + 1;
    let mut check = async |envelope: Envelope, batch: &[u8], want: Code, text: &str| {
        let frames: Vec<_> = split(&envelope, batch.to_vec().into()).collect();
        let status = client.deliver(futures::stream::iter(frames)).await.unwrap_err();
        assert_eq!(status.code(), want, "{status}");
        assert!(status.message().contains(text), "{status}");
    };
    let birth = trio.members[from as usize - 1].as_ref().unwrap().journal.ear().birth();
    let sender = Envelope { group, from, to, addresses: addresses(0), birth };
    let stranger = trio.group(leader, "u").identity().group;
    let other = Envelope { group: stranger, ..sender.clone() };
    check(other, b"x", Code::FailedPrecondition, "the group that this coordinator").await;
    check(
        Envelope { to: from, from: to, ..sender.clone() },
        b"x",
        Code::FailedPrecondition,
        "from, to",
    )
    .await;
    check(Envelope { from: 7, ..sender.clone() }, b"x", Code::FailedPrecondition, "from, to").await;
    check(sender.clone(), b"no batch", Code::InvalidArgument, "batch").await;
    check(Envelope { from: 9, ..sender.clone() }, b"x", Code::InvalidArgument, "header.from").await;
    // Raft would end the process over it.
    let term = match *journal.standing().borrow() {
        Standing::Leads { term } => term,
        Standing::Follows { .. } => panic!("somebody else leads"),
    };
    let msg_type = MessageType::MsgAppendResponse;
    let beyond = Message { msg_type, term, index: 1 << 40, ..Message::default() };
    let frames: Vec<_> = split(&sender, encode(vec![beyond]).into()).collect();
    client.deliver(futures::stream::iter(frames)).await.unwrap();
    write(&journal, 1).await;
    let unheard = &trio.members[leader].as_ref().unwrap().unheard;
    for (reason, want) in
        [(Reason::Group, 1), (Reason::Member, 2), (Reason::Form, 2), (Reason::State, 1)]
    {
        assert_eq!(unheard.of(reason), want, "{reason:?}");
    }
    let standing = *journal.standing().borrow();
    assert!(matches!(standing, Standing::Leads { .. }), "{standing:?}");
}
