//! A worker in a process of its own: the same binary, `aqueduct worker`.

use std::process::Stdio;

use anyhow::Context;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};

use super::Workers;
use crate::args::{Fault, ModelArgs};

/// A worker that ended before it listened, in its own words and with its own exit code.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct WorkerExited {
    /// Its exit code; see `--help`.
    pub(crate) code: u8,
    message: String,
}

/// What a worker prints when it listens.
#[derive(Debug, Deserialize)]
struct Listening {
    url: String,
}

/// A running worker process; dropping it kills it.
pub(crate) struct WorkerProcess {
    child: Child,
    url: String,
}

impl WorkerProcess {
    /// Starts a worker on a free port and waits until it listens.
    ///
    /// # Errors
    /// No process, or one that ends before it listens.
    pub(crate) async fn start(
        model: &ModelArgs,
        threads: usize,
        workers: Workers<'_>,
    ) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("the path of this binary")?;
        let memory_mib = model.device.device_memory_mib.map(|mib| mib.to_string());
        let mut child = Command::new(binary)
            .args(["worker", "--listen", "127.0.0.1:0"])
            .arg("--model")
            .arg(&model.model)
            .args(["--kv", model.kv.as_str(), "--weights", model.weights.as_str()])
            .args(["--threads", &threads.to_string()])
            .args(["--pool-tokens", &workers.pool_tokens.to_string()])
            .args(["--pool-bytes", &workers.pool_bytes.to_string()])
            .args(["--device", &model.device.choice().to_string()])
            .args(memory_mib.iter().flat_map(|mib| ["--device-memory-mib", mib]))
            .args(model.device.isa.isa.iter().flat_map(|isa| ["--isa", isa.as_str()]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a worker process")?;
        let stdout = child.stdout.take().context("the worker's stdout")?;
        let stderr = child.stderr.take().context("the worker's stderr")?;
        let line = BufReader::new(stdout).lines().next_line().await?;
        let Some(line) = line else { return Err(exited(child, stderr).await.into()) };
        let Listening { url } = serde_json::from_str(&line)
            .with_context(|| format!("a worker said {line:?} instead of where it listens"))?;
        tokio::spawn(pass_on(stderr));
        Ok(Self { child, url })
    }

    /// As the system numbers it; `None` once it has ended.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Where it is reached.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Has a fault happen to it, and does not wait for its end.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) async fn strike(&mut self, fault: Fault) -> anyhow::Result<()> {
        if fault == Fault::Kill {
            return Ok(self.child.start_kill()?);
        }
        // The only signal that the library sends is the other one; every shell sends all.
        let id = self.child.id().context("a worker process that is there")?.to_string();
        let stopped = Command::new("sh").args(["-c", "kill -s STOP \"$0\"", &id]).status();
        anyhow::ensure!(stopped.await?.success(), "worker process {id} cannot be stopped");
        Ok(())
    }

    /// Ends it, whether it is still there or not.
    pub(crate) async fn stop(mut self) {
        if let Err(error) = self.child.kill().await {
            tracing::warn!(%error, url = self.url, "a worker process could not be ended");
        }
    }
}

async fn exited(mut child: Child, mut stderr: ChildStderr) -> WorkerExited {
    let mut said = String::new();
    let read = stderr.read_to_string(&mut said).await;
    let status = child.wait().await.ok();
    let code = status.and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
    let last = said.lines().last().filter(|_| read.is_ok()).unwrap_or("it said nothing");
    let message = format!("worker: {}", last.trim_start_matches("error: "));
    WorkerExited { code: code.unwrap_or(crate::exit::FAILURE), message }
}

/// What a worker logs is ours to show.
async fn pass_on(stderr: ChildStderr) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        eprintln!("{line}");
    }
}
