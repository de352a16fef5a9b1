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
    /// Where it listens.
    host: String,
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
        let host = "127.0.0.1".to_owned();
        let child = start(&mut command(folder.path(), &host, ports, &flags), &host, ports);
        Self { folder, host, ports, flags, child }
    }

    /// An empty etcd on another host, where `there` has a command run.
    pub(crate) fn on(host: &str, there: impl FnOnce(&Command) -> Command) -> Self {
        let (folder, ports) = (tempfile::tempdir().unwrap(), [2379, 2380]);
        let mut command = there(&command(folder.path(), host, ports, &[]));
        let child = start(&mut command, host, ports);
        Self { folder, host: host.to_owned(), ports, flags: Vec::new(), child }
    }

    /// Where clients find it.
    pub(crate) fn url(&self) -> String {
        url(&self.flags, &self.host, self.ports[0])
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
        let Self { host, ports, .. } = self;
        let mut command = command(self.folder.path(), host, *ports, &self.flags);
        self.child = start(&mut command, host, *ports);
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn url(flags: &[OsString], host: &str, port: u16) -> String {
    let scheme = if flags.is_empty() { "http" } else { "https" };
    format!("{scheme}://{host}:{port}")
}

fn command(folder: &Path, host: &str, ports: [u16; 2], flags: &[OsString]) -> Command {
    let [clients, peers] = ports;
    let listen = url(flags, host, clients);
    let peers = url(&[], host, peers);
    let mut command = Command::new("etcd");
    command
        .arg("--data-dir")
        .arg(folder)
        .args(["--name", "one", "--initial-cluster", &format!("one={peers}")])
        .args(["--listen-client-urls", &listen, "--advertise-client-urls", &listen])
        .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
        .args(flags);
    command
}

fn start(command: &mut Command, host: &str, [clients, _]: [u16; 2]) -> Child {
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd, which `ops/test` installs (Debian: etcd-server)");
    wait_for_port(host, clients);
    child
}

#[expect(clippy::disallowed_methods, reason = "a pause between looks at a condition, no guess")]
fn wait_for_port(host: &str, port: u16) {
    let started = Instant::now();
    while TcpStream::connect((host, port)).is_err() {
        assert!(started.elapsed() < Duration::from_secs(30), "etcd does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
}
