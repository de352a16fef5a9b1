//! Runs the built binary, as a user would.
#![allow(dead_code)] // every test file uses a part of it

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The binary under test.
pub(crate) fn aqueduct() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct"));
    command.stdin(Stdio::null());
    command
}

/// The shipped model.
pub(crate) fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model")
}

/// A copy of the shipped model that `change` makes another.
pub(crate) fn changed_model(change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(model().join(file), folder.path().join(file)).unwrap();
    }
    change(folder.path());
    folder
}

/// Runs with `args` to the end.
pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    aqueduct().args(args).output().unwrap()
}

/// The rows of an output; panics with its stderr unless it went well.
pub(crate) fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", stderr(output));
    let stdout = std::str::from_utf8(&output.stdout).unwrap();
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What a command said to people.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until `condition` gives something, for at most half a minute.
#[expect(clippy::disallowed_methods, reason = "a pause between looks at a condition, no guess")]
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        if let Some(value) = condition() {
            return value;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("not within half a minute: {what}");
}

/// A worker of a cluster of processes.
pub(crate) fn worker() -> Running {
    let mut command = aqueduct();
    command.args(["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--model"]).arg(model());
    Running::start(command.args(["--monitor", "127.0.0.1:0", "--grace-s", "120"]))
}

/// A coordinator of these workers, all of which are up.
pub(crate) fn coordinator(workers: &[&Running], more: &[&str]) -> Running {
    let mut command = aqueduct();
    command.args(["coordinator", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"]);
    command.arg(model()).args(["--grace-s", "120"]).args(more).arg("--worker");
    let coordinator =
        Running::start(command.args(workers.iter().map(|worker| worker.address("url"))));
    let line = format!("\nworkers_up {}\n", workers.len());
    wait_for(&line, || coordinator.http("GET", "/metrics", "").1.contains(&line).then_some(()));
    coordinator
}

/// A command that stays up; killed when dropped.
pub(crate) struct Running {
    child: Child,
    /// What it printed when it listened.
    pub(crate) listening: Value,
}

impl Running {
    /// Starts a command and waits until it says where it listens.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let listening = serde_json::from_str(&line).unwrap_or_else(|error| {
            panic!("{error}: {line:?}, {:?}", child.wait());
        });
        Self { child, listening }
    }

    /// `aqueduct serve` on free ports with more `args`.
    pub(crate) fn serve(args: &[&str]) -> Self {
        let ports = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
        Self::start(aqueduct().arg("serve").arg("--model").arg(model()).args(ports).args(args))
    }

    /// A field of what it printed when it listened.
    pub(crate) fn address(&self, field: &str) -> &str {
        self.listening[field].as_str().unwrap()
    }

    /// One HTTP call, whose connection is closed after the answer: status and body.
    pub(crate) fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.http_at("http", method, path, body)
    }

    /// The same, with the head of the answer before its body.
    pub(crate) fn http_head(&self, method: &str, path: &str, body: &str) -> String {
        let mut answer = String::new();
        self.send(method, path, body).read_to_string(&mut answer).unwrap();
        answer
    }

    /// The same at another of its addresses.
    pub(crate) fn http_at(
        &self,
        field: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> (u16, String) {
        whole(self.send_to(field, method, path, body))
    }

    /// A POST with more headers, each `name: value`.
    pub(crate) fn post_with(&self, path: &str, headers: &[&str], body: &str) -> (u16, String) {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let mut stream = self.connect("http");
        write_request(&mut stream, &format!("POST {path}"), &headers, body);
        whole(stream)
    }

    /// What it counts, in OpenMetrics.
    pub(crate) fn open_metrics_at(&self, field: &str) -> (u16, String) {
        let mut stream = self.connect(field);
        let accept = "accept: application/openmetrics-text\r\n";
        write_request(&mut stream, "GET /metrics", accept, "");
        whole(stream)
    }

    /// Sends an HTTP request and leaves the answer to the caller.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        self.send_to("http", method, path, body)
    }

    fn send_to(&self, field: &str, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = self.connect(field);
        write_request(&mut stream, &format!("{method} {path}"), "", body);
        stream
    }

    fn connect(&self, field: &str) -> TcpStream {
        let stream = TcpStream::connect(self.address(field)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Waits until a worker is up.
    pub(crate) fn wait_until_ready(&self) {
        wait_for("a worker", || (self.http("GET", "/health", "").0 == 200).then_some(()));
    }

    /// A completion, which must go well.
    pub(crate) fn complete(&self, prompt: &str) -> Value {
        let body = serde_json::json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0 });
        let (status, answer) = self.http("POST", "/v1/completions", &body.to_string());
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (status, text) = self.http("GET", "/metrics", "");
        assert_eq!(status, 200, "{text}");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
    }

    /// As the system numbers it.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// Asks it to stop with SIGTERM and gives its exit code.
    pub(crate) fn terminate(self) -> Option<i32> {
        self.signal("TERM");
        self.ended()
    }

    /// Waits for its end and gives its exit code.
    pub(crate) fn ended(mut self) -> Option<i32> {
        wait_for("the end of the process", || self.child.try_wait().unwrap()).code()
    }
}

/// Sends a process a signal.
pub(crate) fn signal(pid: u32, name: &str) {
    let pid = pid.to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok(); // it may have ended by itself
        self.child.wait().ok();
    }
}

/// `headers` end in line breaks.
fn write_request(stream: &mut TcpStream, target: &str, headers: &str, body: &str) {
    write!(
        stream,
        "{target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
}

/// Status and body of an answer after which the connection is closed.
fn whole(mut stream: TcpStream) -> (u16, String) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status in {head:?}")), body.to_owned())
}
