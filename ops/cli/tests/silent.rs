//! Connections that say nothing, or half of something: they do not stay, and no end of a process
//! waits for them. Those that live stay, also where nothing is asked on them. Nor does an end take
//! longer than it may for those that hear nothing.

mod binary;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use binary::{Running, aqueduct, model, wait_for, worker};

/// How HTTP/2 begins, and its first frame: settings, of which there are none.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// A frame's head, and what it says of a ping that is answered.
const HEAD_BYTES: usize = 9;
const PING: u8 = 6;
const ACK: u8 = 1;

const HALF_A_HEAD: &[u8] = b"POST /v1/completions HTTP/1.1\r\nhost: loc";
const HALF_A_BODY: &[u8] = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n\
    content-type: application/json\r\ncontent-length: 100\r\n\r\n{\"prompt\"";
const ASKED: &[u8] = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Much longer than what is to happen at once, and much shorter than the graces of these tests.
const AT_ONCE: Duration = Duration::from_secs(12);

fn open(address: &str, said: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(25))).unwrap();
    stream.write_all(said).unwrap();
    stream
}

/// Panics if the other end keeps it.
fn until_closed(mut stream: TcpStream, what: &str) {
    if let Err(error) = stream.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}: {error}");
    }
}

/// A connection that answers pings and asks for nothing; done when the other end closes it.
fn idle(address: &str) -> JoinHandle<()> {
    let mut stream = open(address, &[PREFACE, SETTINGS].concat());
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).unwrap(); // of its settings: it was let in
    std::thread::spawn(move || {
        loop {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            if stream.read_exact(&mut payload).is_err() {
                return;
            }
            if head[3] == PING && head[4] & ACK == 0 {
                let pong = [&[0, 0, 8, PING, ACK, 0, 0, 0, 0], &payload[..]].concat();
                stream.write_all(&pong).ok(); // it may be gone
            }
            if stream.read_exact(&mut head).is_err() {
                return;
            }
        }
    })
}

/// A connection that has said so much, and read nothing of what it was answered, that no more is
/// taken of it.
fn deaf(address: &str, opening: &[u8], said: &[u8]) -> TcpStream {
    let mut stream = open(address, opening);
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let said = said.repeat(1000);
    let error = loop {
        if let Err(error) = stream.write_all(&said) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    stream
}

/// Starts a process, whose log goes to `log`.
fn logged(command: &mut Command, log: &Path) -> Running {
    Running::start(command.stderr(File::create(log).unwrap()))
}

fn coordinator(worker: &Running, more: &[&str], log: &Path) -> Running {
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(model()).args(["--monitor", "127.0.0.1:0", "--grace-s", "120"]).args(more);
    let coordinator = logged(command.args(["--worker", worker.address("url")]), log);
    coordinator.wait_until_ready();
    coordinator
}

/// Ends it and says how long that took; nothing may be cut off.
fn ends_at_once(running: Running, log: &Path) {
    let began = Instant::now();
    assert_eq!(running.terminate(), Some(0));
    let took = began.elapsed();
    let said = std::fs::read_to_string(log).unwrap();
    assert!(took < AT_ONCE, "{took:?}: {said}");
    assert!(!said.contains("cut off"), "{said}");
}

#[test]
fn who_does_not_begin_is_closed_and_who_lives_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let worker = worker();
    let peers = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (group, data) = (format!("one=http://{peers}"), folder.path().join("journal"));
    let group = ["--id", "one", "--cluster-token", "silent", "--peers", &group];
    let group = [&group[..], &["--data-dir", data.to_str().unwrap()]].concat();
    let log = folder.path().join("log");
    let coordinator = coordinator(&worker, &group, &log);

    let doors = [worker.address("url"), coordinator.address("grpc"), &peers];
    let alive = doors.map(idle);
    let said: [&[u8]; 2] = [b"", &PREFACE[..10]];
    let silent = doors.map(|door| said.map(|said| (door, said, open(door, said))));
    let unsettled = (doors[1], PREFACE, open(doors[1], PREFACE)); // answers no ping
    for (door, said, stream) in silent.into_iter().flatten().chain([unsettled]) {
        until_closed(stream, &format!("{door}, {said:?}"));
    }
    assert!(!alive.iter().any(JoinHandle::is_finished), "{alive:?}");
    coordinator.complete("Simplify");

    ends_at_once(coordinator, &log);
    assert_eq!(worker.terminate(), Some(0));
    wait_for("idle connections to be closed", || {
        alive.iter().all(JoinHandle::is_finished).then_some(())
    });
}

#[test]
fn an_end_waits_for_nobody_who_has_asked_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (log, worker_log) = (folder.path().join("log"), folder.path().join("worker"));
    let mut command = aqueduct();
    command.args(["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--model"]).arg(model());
    command.args(["--monitor", "127.0.0.1:0", "--grace-s", "120"]);
    let worker = logged(&mut command, &worker_log);
    let coordinator = coordinator(&worker, &[], &log);

    let http: [&[u8]; 5] = [b"", HALF_A_HEAD, HALF_A_BODY, ASKED, PREFACE];
    let h2 = [PREFACE, SETTINGS].concat();
    let grpc: [&[u8]; 5] = [b"", &PREFACE[..10], PREFACE, &h2, HALF_A_HEAD];
    let all = |running: &Running, field: &str, said: [&[u8]; 5]| {
        said.map(|said| open(running.address(field), said))
    };
    let _open = [
        all(&coordinator, "http", http),
        all(&coordinator, "monitor", http),
        all(&coordinator, "grpc", grpc),
        all(&worker, "monitor", http),
        all(&worker, "url", grpc),
    ];
    // They come behind those, which have been accepted when they have.
    for (running, field) in
        [(&coordinator, "http"), (&coordinator, "monitor"), (&worker, "monitor")]
    {
        assert_eq!(running.http_at(field, "GET", "/livez", "").0, 200);
    }
    let _alive = [coordinator.address("grpc"), worker.address("url")].map(idle);
    ends_at_once(coordinator, &log);
    ends_at_once(worker, &worker_log);
}

/// What their connections are closed by at other times takes minutes: `aqueduct-tls` tries that.
#[test]
fn an_end_waits_for_nobody_who_hears_nothing() {
    let args = ["--workers", "1", "--monitor", "127.0.0.1:0", "--grace-s", "2"];
    let server = Running::serve(&args);
    server.wait_until_ready();
    let ping = [&[0, 0, 8, PING, 0, 0, 0, 0, 0], &[7; 8][..]].concat();
    let asked = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let _deaf = [
        deaf(server.address("http"), b"", asked),
        deaf(server.address("monitor"), b"", asked),
        deaf(server.address("grpc"), &[PREFACE, SETTINGS].concat(), &ping),
    ];
    let began = Instant::now();
    assert_eq!(server.terminate(), Some(0));
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}
