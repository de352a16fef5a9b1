//! Callers of a server, and what they heard when.

use std::time::{Duration, Instant};

use aqueduct_client::{Client, ClientError, GenerateEvent, GenerateOptions};
use futures::StreamExt;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::draws::Draws;

/// Callers that share a connection.
pub(super) struct Callers {
    client: Client,
    under_way: JoinSet<Result<Outcome, ClientError>>,
}

/// What became of one request.
enum Outcome {
    Answered(Answer),
    Rejected,
}

/// When an answer came.
#[derive(Debug, Clone)]
struct Answer {
    prompt_tokens: usize,
    asked: Instant,
    tokens: Vec<Instant>,
}

/// What all callers of a run heard.
#[derive(Debug, Clone, Default)]
pub(super) struct Heard {
    /// From the call to the first token.
    pub(super) first: Vec<Duration>,
    /// From token to token.
    pub(super) between: Vec<Duration>,
    pub(super) output_tokens: usize,
    /// Of prompts whose first token came.
    pub(super) prompt_tokens: usize,
    pub(super) rejected: usize,
    pub(super) elapsed: Duration,
}

impl Callers {
    pub(super) fn new(client: Client) -> Self {
        Self { client, under_way: JoinSet::new() }
    }

    /// `rate` requests a second, at random times.
    ///
    /// # Errors
    /// The first failure that is no rejection.
    pub(super) async fn poisson(
        &mut self,
        (rate, mut waits): (f64, Draws),
        asks: impl Iterator<Item = GenerateOptions>,
        during: Duration,
    ) -> Result<Heard, ClientError> {
        let started = Instant::now();
        let mut due = started;
        for options in asks {
            due += waits.wait(rate);
            if due > started + during {
                break;
            }
            tokio::time::sleep_until(due.into()).await;
            self.under_way.spawn(answer(self.client.clone(), options, never()));
        }
        self.all(started).await
    }

    /// `callers` callers, each of which asks again when it has its answer.
    ///
    /// # Errors
    /// The first failure that is no rejection.
    pub(super) async fn closed<A>(
        &mut self,
        callers: u32,
        asks: impl Fn(u32) -> A,
        during: Duration,
    ) -> Result<Heard, ClientError>
    where
        A: Iterator<Item = GenerateOptions>,
    {
        let started = Instant::now();
        let mut asks: Vec<A> = (0..callers).map(asks).collect();
        let mut heard = Heard::default();
        let mut turns = JoinSet::new();
        let ask = |asks: &mut [A], caller: usize| {
            let (client, options) = (self.client.clone(), asks[caller].next());
            async move {
                let options = options.unwrap_or_else(|| GenerateOptions::tokens(Vec::new()));
                (caller, answer(client, options, never()).await)
            }
        };
        for caller in 0..asks.len() {
            turns.spawn(ask(&mut asks, caller));
        }
        while let Some(turn) = turns.join_next().await {
            let Ok((caller, outcome)) = turn else { continue };
            heard.take(outcome?, None);
            if started.elapsed() < during {
                turns.spawn(ask(&mut asks, caller));
            }
        }
        heard.elapsed = started.elapsed();
        Ok(heard)
    }

    /// Callers that read on and on: for a while alone, and then while `long` is prefilled. What
    /// they heard before, and what they heard meanwhile.
    ///
    /// # Errors
    /// The first failure.
    pub(super) async fn long(
        &mut self,
        readers: Vec<GenerateOptions>,
        long: GenerateOptions,
        alone: Duration,
    ) -> Result<(Heard, Heard), ClientError> {
        let (stop, stopped) = watch::channel(false);
        for options in readers {
            self.under_way.spawn(answer(self.client.clone(), options, stopped.clone()));
        }
        // The readers' own prompts do not count.
        tokio::time::sleep(alone / 4).await;
        let settled = Instant::now();
        tokio::time::sleep(alone).await;
        let asked = Instant::now();
        let outcome = answer(self.client.clone(), long, never()).await?;
        let prefilled = Instant::now();
        stop.send_replace(true);
        let (mut idle, mut meanwhile) = (Heard::default(), Heard::default());
        while let Some(reader) = self.under_way.join_next().await {
            if let Ok(Outcome::Answered(reader)) = reader.unwrap_or(Ok(Outcome::Rejected)) {
                idle.take(Outcome::Answered(reader.clone()), Some((settled, asked)));
                meanwhile.take(Outcome::Answered(reader), Some((asked, prefilled)));
            }
        }
        meanwhile.first.clear(); // the readers' first tokens came long before
        if let Outcome::Answered(long) = &outcome {
            meanwhile.first.extend(long.tokens.first().map(|first| *first - long.asked));
            meanwhile.prompt_tokens = long.prompt_tokens;
        }
        (idle.elapsed, meanwhile.elapsed) = (asked - settled, prefilled - asked);
        Ok((idle, meanwhile))
    }

    /// What all that are under way hear.
    async fn all(&mut self, started: Instant) -> Result<Heard, ClientError> {
        let mut heard = Heard::default();
        while let Some(outcome) = self.under_way.join_next().await {
            if let Ok(outcome) = outcome {
                heard.take(outcome?, None);
            }
        }
        heard.elapsed = started.elapsed();
        Ok(heard)
    }
}

impl Heard {
    /// Adds what one caller heard; of its tokens only those that were waited for in `window`.
    fn take(&mut self, outcome: Outcome, window: Option<(Instant, Instant)>) {
        let Outcome::Answered(Answer { prompt_tokens, asked, tokens }) = outcome else {
            self.rejected += 1;
            return;
        };
        if let Some(first) = tokens.first() {
            self.first.push(*first - asked);
            self.prompt_tokens += prompt_tokens;
        }
        let inside = |since: Instant, until: Instant| {
            window.is_none_or(|(from, to)| until > from && since < to)
        };
        let waits = tokens.windows(2).filter(|pair| inside(pair[0], pair[1]));
        self.between.extend(waits.map(|pair| pair[1] - pair[0]));
        self.output_tokens += tokens.iter().filter(|token| inside(**token, **token)).count();
    }
}

/// Nobody stops this request.
fn never() -> watch::Receiver<bool> {
    watch::channel(false).1
}

/// Asks and listens, until the end or until `stopped`.
async fn answer(
    client: Client,
    options: GenerateOptions,
    mut stopped: watch::Receiver<bool>,
) -> Result<Outcome, ClientError> {
    let aqueduct_client::Prompt::Tokens(prompt) = &options.prompt else {
        return Err(ClientError::InvalidArgument("prompt: must be tokens".into()));
    };
    let mut answer =
        Answer { prompt_tokens: prompt.len(), asked: Instant::now(), tokens: Vec::new() };
    let listen = async {
        let mut events = client.generate(options).await?;
        while let Some(event) = events.next().await {
            if let GenerateEvent::Token(_) = event? {
                answer.tokens.push(Instant::now());
            }
        }
        Ok(())
    };
    let until = async {
        if stopped.wait_for(|stopped| *stopped).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let outcome = tokio::select! {
        outcome = listen => outcome,
        () = until => Ok(()),
    };
    match outcome {
        Ok(()) => Ok(Outcome::Answered(answer)),
        Err(ClientError::Busy { .. }) => Ok(Outcome::Rejected),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_count_where_they_overlap_the_window() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let answer =
            Answer { prompt_tokens: 7, asked: start, tokens: [5, 6, 9, 30, 31].map(at).into() };
        let check = |window: Option<(u64, u64)>, waits: &[u64], tokens| {
            let mut heard = Heard::default();
            let window = window.map(|(from, to)| (at(from), at(to)));
            heard.take(Outcome::Answered(answer.clone()), window);
            let waits: Vec<_> = waits.iter().map(|&ms| Duration::from_millis(ms)).collect();
            assert_eq!((heard.between, heard.output_tokens), (waits, tokens));
            assert_eq!(heard.first, [Duration::from_millis(5)]);
        };
        check(None, &[1, 3, 21, 1], 5);
        check(Some((6, 9)), &[3], 0);
        check(Some((10, 20)), &[21], 0);
        check(Some((8, 31)), &[3, 21, 1], 2);
    }
}
