//! A caller that asks for anything and does not always wait for it.

use std::fmt;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_client::{
    Client, ClientError, Exchange, GenerateEvent, GenerateOptions, MemoryPolicy, TokenId,
};
use futures::StreamExt;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::draws::Draws;

/// A request that takes longer is stuck.
const STUCK: Duration = Duration::from_secs(120);
/// Failures of which the words are kept.
const FAILURES_MAX: usize = 8;

#[derive(Clone)]
pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) http: SocketAddr,
    pub(super) book: Arc<[TokenId]>,
    /// The longest.
    pub(super) prompt_tokens: u32,
    /// Whether the model has layers that remember in states, whose keys never stay.
    pub(super) has_states: bool,
}

/// What became of requests.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Tally {
    pub(super) finished: u64,
    /// Dropped by the caller.
    pub(super) dropped: u64,
    pub(super) rejected: u64,
    /// Past the deadline that they came with.
    pub(super) late: u64,
    pub(super) failed: u64,
    pub(super) output_tokens: u64,
    /// The first failures, in words.
    pub(super) failures: Vec<String>,
}

impl Tally {
    pub(super) fn fail(&mut self, what: String) {
        self.failed += 1;
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(what);
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.finished += other.finished;
        self.dropped += other.dropped;
        self.rejected += other.rejected;
        self.late += other.late;
        self.failed += other.failed;
        self.output_tokens += other.output_tokens;
        self.failures.extend(other.failures);
        self.failures.truncate(FAILURES_MAX);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { finished, dropped, rejected, late, failed, output_tokens, .. } = self;
        write!(
            f,
            "{finished} finished, {dropped} dropped, {rejected} rejected, {late} late, \
             {failed} failed, {output_tokens} tokens"
        )
    }
}

/// How a request over gRPC ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Patience {
    /// Read to the end.
    Whole,
    /// Dropped after so many events.
    Events(usize),
    /// Too short a deadline.
    Deadline,
}

impl Caller {
    /// Asks one thing after the other.
    pub(super) async fn ask_until(self, until: Instant, mut draws: Draws) -> Tally {
        let mut tally = Tally::default();
        while Instant::now() < until {
            let pause = draws.wait(50.0);
            tokio::time::sleep(pause).await;
            let asked = async {
                match draws.below(4) {
                    0 => self.over_http(&mut draws, &mut tally).await,
                    _ => self.over_grpc(&mut draws, &mut tally).await,
                }
            };
            if tokio::time::timeout(STUCK, asked).await.is_err() {
                tally.fail(format!("no end within {STUCK:?}"));
            }
        }
        tally
    }

    async fn over_grpc(&self, draws: &mut Draws, tally: &mut Tally) {
        let patience = match draws.below(8) {
            0 | 1 => Patience::Events(draws.below(20)),
            2 => Patience::Deadline,
            _ => Patience::Whole,
        };
        let options = self.options(draws, patience);
        match self.listen(options, patience, tally).await {
            Ok(true) => tally.finished += 1,
            Ok(false) => tally.dropped += 1,
            Err(ClientError::Busy { .. }) => tally.rejected += 1,
            Err(ClientError::Deadline(_) | ClientError::Cancelled(_))
                if patience == Patience::Deadline =>
            {
                tally.late += 1;
            }
            Err(error) => tally.fail(format!("{patience:?}: {error}")),
        }
    }

    fn options(&self, draws: &mut Draws, patience: Patience) -> GenerateOptions {
        let policies = [
            MemoryPolicy::default(),
            MemoryPolicy::h2o(4, 32, 16),
            MemoryPolicy::window(2, 60),
            MemoryPolicy::dense(),
        ];
        let policy = policies[draws.below(policies.len())];
        // Short ones are as frequent as long ones, on a log axis.
        let length = f64::from(self.prompt_tokens).powf(draws.unit()) as usize;
        let start = draws.below(self.book.len());
        let prompt = self.book.iter().copied().cycle().skip(start).take(length.max(1));
        let exchanges: &[Exchange] = match self.has_states {
            true => &[Exchange::Auto, Exchange::Move],
            false => &[Exchange::Auto, Exchange::Move, Exchange::Stay],
        };
        let deadline = match patience {
            Patience::Deadline => Duration::from_millis(draws.below(50) as u64 + 1),
            Patience::Whole | Patience::Events(_) => STUCK,
        };
        GenerateOptions {
            max_tokens: Some(draws.below(48) as u32),
            temperature: Some(1.0),
            seed: Some(draws.below(1000) as u64),
            policy: Some(policy),
            chunk_tokens: Some([64, 256, 1024][draws.below(3)]),
            exchange: Some(exchanges[draws.below(exchanges.len())]),
            stop: if draws.below(3) == 0 { vec!["e".into()] } else { Vec::new() },
            choices: Some(1 + draws.below(3) as u32),
            deadline,
            ..GenerateOptions::tokens(prompt.collect())
        }
    }

    /// Whether the answer was read to its end.
    async fn listen(
        &self,
        options: GenerateOptions,
        patience: Patience,
        tally: &mut Tally,
    ) -> Result<bool, ClientError> {
        let mut events = self.client.generate(options).await?;
        let mut seen = 0;
        while let Some(event) = events.next().await {
            tally.output_tokens += u64::from(matches!(event?, GenerateEvent::Token(_)));
            seen += 1;
            if patience == Patience::Events(seen) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One call whose connection is closed after the answer, or before.
    async fn over_http(&self, draws: &mut Draws, tally: &mut Tally) {
        let length = f64::from(self.prompt_tokens).powf(draws.unit()) as usize;
        let start = draws.below(self.book.len());
        let prompt: Vec<_> =
            self.book.iter().cycle().skip(start).take(length.max(1)).copied().collect();
        let body = serde_json::json!({
            "prompt": prompt,
            "max_tokens": 1 + draws.below(32),
            "stream": draws.below(2) == 0,
        });
        let bytes = (draws.below(2) == 0).then(|| draws.below(2000));
        match self.exchange(&body.to_string(), bytes).await {
            Ok(None) => tally.dropped += 1,
            Ok(Some(answer)) if answer.starts_with("HTTP/1.1 200") => tally.finished += 1,
            Ok(Some(answer)) if answer.starts_with("HTTP/1.1 429") => tally.rejected += 1,
            Ok(Some(answer)) => tally.fail(format!("over HTTP: {answer}")),
            Err(error) => tally.fail(format!("over HTTP: {error}")),
        }
    }

    /// The whole answer, or nothing where the caller left after `bytes`.
    async fn exchange(&self, body: &str, bytes: Option<usize>) -> std::io::Result<Option<String>> {
        let mut stream = TcpStream::connect(self.http).await?;
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut answer = Vec::new();
        match bytes {
            Some(bytes) => {
                let read = stream.take(bytes as u64).read_to_end(&mut answer).await?;
                Ok((read < bytes).then(|| String::from_utf8_lossy(&answer).into_owned()))
            }
            None => {
                stream.read_to_end(&mut answer).await?;
                Ok(Some(String::from_utf8_lossy(&answer).into_owned()))
            }
        }
    }
}
