//! The tape of one answer: it is written whether or not somebody reads, and read by one at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aqueduct_core::{RequestId, StartKey};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::generation::{About, Generation, Report, TextEvent};
use crate::submit::RequestError;

/// The caller who asked.
const FIRST: u64 = 1;

/// Whose a tape is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Who asked, and knows nothing of the request before the first event.
    Starts,
    /// Who came back to it.
    ComesBack,
}

#[derive(Debug)]
pub(super) struct Tape {
    request: RequestId,
    about: About,
    state: Mutex<State>,
    /// Wakes the reader.
    changed: Notify,
    reading: watch::Sender<Reading>,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<TextEvent>,
    bytes: u64,
    /// The figures as of the last event that tells of them.
    report: Arc<Report>,
    /// How it has ended, if it has.
    end: Option<Result<(), RequestError>>,
    /// Who reads; each one's number is higher than that of who read before.
    reader: u64,
    /// What is read next.
    next: usize,
}

/// Whether somebody reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Now,
    NotSince(Instant),
    NeverAgain,
}

/// What there is to read.
enum Found {
    Event(TextEvent, Arc<Report>),
    End(Result<(), RequestError>, Arc<Report>),
    NothingYet,
}

impl Tape {
    pub(super) fn new(request: RequestId, about: About, whose: Whose) -> Self {
        let (reader, reading) = match whose {
            Whose::Starts => (0, Reading::Now),
            // Who asked may turn out not to read it, and then nobody does.
            Whose::ComesBack => (FIRST, Reading::NotSince(Instant::now())),
        };
        let state = Mutex::new(State { reader, ..State::default() });
        let (changed, reading) = (Notify::new(), watch::Sender::new(reading));
        Self { request, about, state, changed, reading }
    }

    pub(super) fn request(&self) -> RequestId {
        self.request
    }

    pub(super) fn about(&self) -> &About {
        &self.about
    }

    /// The key that `holder` started it with, unless it was given up.
    pub(super) fn start_key(&self, holder: &str) -> Option<&StartKey> {
        let is_open = *self.reading.borrow() != Reading::NeverAgain;
        let telling = &self.about.telling;
        telling.once.as_ref().filter(|_| is_open && telling.holder == holder)
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// The tokens of the completions that have ended, as far as that is written.
    pub(super) fn ended(&self) -> Vec<Option<u32>> {
        let mut ended = vec![None; self.about.choices as usize];
        for event in &self.state().events {
            if let TextEvent::ChoiceDone { choice, tokens, .. } = event
                && let Some(known) = ended.get_mut(*choice as usize)
            {
                *known = Some(*tokens);
            }
        }
        ended
    }

    /// Nobody will read it.
    pub(super) fn cancel(&self) {
        self.is_read(Reading::NeverAgain);
    }

    pub(super) fn push(&self, event: TextEvent, report: &Report) {
        let mut state = self.state();
        let is_figures = !matches!(event, TextEvent::Token(_) | TextEvent::Progress(_));
        if is_figures {
            state.report = Arc::new(report.clone());
        }
        match (state.events.last_mut(), &event) {
            // Progress gives way to newer progress, read or not.
            (Some(last @ TextEvent::Progress(_)), TextEvent::Progress(_)) => {
                *last = event;
                state.next = state.next.min(state.events.len() - 1);
            }
            _ => {
                state.bytes += event.bytes();
                state.events.push(event);
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    fn end(&self, end: Result<(), RequestError>, report: &Report) {
        let mut state = self.state();
        state.report = Arc::new(report.clone());
        state.end = Some(end);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Writes until the end; false when that is not the request's, or nobody has read for `grace`.
    pub(super) async fn record(&self, mut generation: Generation, grace: Duration) -> bool {
        let mut reading = self.reading.subscribe();
        loop {
            let event = tokio::select! {
                event = generation.next() => event,
                () = forsaken(&mut reading, grace) => {
                    self.end(Err(RequestError::Unknown(self.request)), generation.report());
                    return false;
                }
            };
            match event {
                Some(Ok(event)) => self.push(event, generation.report()),
                Some(Err(error)) => {
                    // It may go on without this process, or in another try.
                    let goes_on = matches!(error, RequestError::Stopping | RequestError::TakenOver);
                    self.end(Err(error), generation.report());
                    return !goes_on;
                }
                None => {
                    self.end(Ok(()), generation.report());
                    return true;
                }
            }
        }
    }

    fn find(&self, reader: u64) -> Found {
        let mut state = self.state();
        let report = state.report.clone();
        if state.reader != reader {
            return Found::End(Err(RequestError::TakenOver), report);
        }
        if let Some(event) = state.events.get(state.next).cloned() {
            state.next += 1;
            return Found::Event(event, report);
        }
        state.end.clone().map_or(Found::NothingYet, |end| Found::End(end, report))
    }

    fn leave(&self, reader: u64) {
        let state = self.state();
        if state.reader != reader {
            return;
        }
        // Who asked and has not read even by what id does not come back, unless by a key.
        let is_keyed = self.about.telling.once.is_some();
        let is_lost = reader == FIRST && state.next == 0 && !is_keyed;
        self.is_read(if is_lost { Reading::NeverAgain } else { Reading::NotSince(Instant::now()) });
    }

    /// What was given up remains so.
    fn is_read(&self, reading: Reading) {
        self.reading.send_if_modified(|known| {
            let changes = *known != Reading::NeverAgain;
            if changes {
                *known = reading;
            }
            changes
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until nobody has read for `grace`.
async fn forsaken(reading: &mut watch::Receiver<Reading>, grace: Duration) {
    loop {
        let until = match *reading.borrow_and_update() {
            Reading::NeverAgain => return,
            Reading::NotSince(since) => Some(since + grace),
            Reading::Now => None,
        };
        let over = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = over => return,
            changed = reading.changed() => if changed.is_err() {
                return; // the tape is gone, and with it who could read
            },
        }
    }
}

/// Reads an answer from its beginning, until somebody else does.
#[derive(Debug)]
pub struct Reader {
    tape: Arc<Tape>,
    number: u64,
    report: Arc<Report>,
    is_over: bool,
}

impl Reader {
    /// Who reads `tape` from now on.
    pub(super) fn of(tape: Arc<Tape>) -> Self {
        let mut state = tape.state();
        state.reader += 1;
        state.next = 0;
        let (number, report) = (state.reader, state.report.clone());
        // Before the next one comes, which may leave at once: what it says then is the last word.
        tape.is_read(Reading::Now);
        drop(state);
        tape.changed.notify_waiters();
        Self { tape, number, report, is_over: false }
    }

    /// The next event; `None` after the last one and after an error.
    pub async fn next(&mut self) -> Option<Result<TextEvent, RequestError>> {
        while !self.is_over {
            let changed = self.tape.changed.notified();
            match self.tape.find(self.number) {
                Found::Event(event, report) => {
                    self.report = report;
                    return Some(Ok(event));
                }
                Found::End(end, report) => {
                    self.report = report;
                    self.is_over = true;
                    return end.err().map(Err);
                }
                Found::NothingYet => changed.await,
            }
        }
        None
    }

    /// The figures, as far as they are known.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The request.
    pub fn request(&self) -> RequestId {
        self.tape.request
    }

    /// What was asked for.
    pub fn about(&self) -> &About {
        &self.tape.about
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.tape.leave(self.number);
    }
}
