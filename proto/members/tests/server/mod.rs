//! A real etcd (Debian's etcd-server; the test command installs it) in a folder of its own.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::ffi::OsString;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running etcd; killed when dropped.
pub(crate) struct EtcdServer {
    folder: tempfile::TempDir,
    /// For clients and for other members.
    ports: [u16; 2],
    /// More arguments.
    flags: Vec<OsString>,
    child: Child,
}

impl EtcdServer {
    /// An empty etcd on free ports.
    pub(crate) fn start() -> Self {
        Self::with(Vec::new())
    }

    /// One that shows a certificate, and asks its clients for one of the same authority.
    pub(crate) fn with_certificates(cert: &Path, key: &Path, ca: &Path) -> Self {
        let files = [("--cert-file", cert), ("--key-file", key), ("--trusted-ca-file", ca)];
        let flags = files.into_iter().flat_map(|(flag, path)| [flag.into(), path.into()]);
        Self::with(flags.chain(["--client-cert-auth".into()]).collect())
    }

    fn with(flags: Vec<OsString>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let free = [0, 0].map(|any| TcpListener::bind(("127.0.0.1", any)).unwrap());
        let ports = free.map(|listener| listener.local_addr().unwrap().port());
        let child = spawn(folder.path(), ports, &flags);
        Self { folder, ports, flags, child }
    }

    /// Where clients find it.
    pub(crate) fn url(&self) -> String {
        url(&self.flags, self.ports[0])
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it where it was, with its data or, if `forgetful`, without.
    pub(crate) fn start_again(&mut self, forgetful: bool) {
        if forgetful {
            self.folder = tempfile::tempdir().unwrap();
        }
        self.child = spawn(self.folder.path(), self.ports, &self.flags);
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn url(flags: &[OsString], port: u16) -> String {
    let scheme = if flags.is_empty() { "http" } else { "https" };
    format!("{scheme}://127.0.0.1:{port}")
}

fn spawn(folder: &Path, [clients, peers]: [u16; 2], flags: &[OsString]) -> Child {
    let listen = url(flags, clients);
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(folder)
        .args(["--name", "one", "--initial-cluster", &format!("one={}", url(peers))])
        .args(["--listen-client-urls", &listen, "--advertise-client-urls", &listen])
        .args(["--listen-peer-urls", &url(peers), "--initial-advertise-peer-urls", &url(peers)])
        .args(flags)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd, which `ops/test` installs (Debian: etcd-server)");
    wait_for_port(clients);
    child
}

#[expect(clippy::disallowed_methods, reason = "a pause between looks at a condition, no guess")]
fn wait_for_port(port: u16) {
    let started = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(started.elapsed() < Duration::from_secs(30), "etcd does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
}
