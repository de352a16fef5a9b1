//! Writes down what happens to requests. The loop never waits for it: what comes while the
//! journal is busy is written together, in order, when it is done. What waits is bounded by the
//! requests under way, because none is accepted before it was written down.

pub(crate) mod accepted;
mod clock;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aqueduct_core::RequestId;
use aqueduct_core::journal::{Accepted, Batch, Drawn, Outcome, Record, RecordKind};
use aqueduct_journal::{AppendError, Journal, Misfit, Standing, Unable};
pub(crate) use clock::Clock;
use tokio::sync::{mpsc, oneshot, watch};

/// Tokens wait so long for others: a disk that is quick is not flushed for each.
const TOGETHER: Duration = Duration::from_millis(20);
/// How often what is left at the end is written before it is left.
const LAST_TRIES: usize = 2;

/// Who waits for something to be written down.
pub(crate) type Reply = oneshot::Sender<Result<(), AppendError>>;

/// A record on its way.
#[derive(Debug)]
pub(crate) struct Note {
    record: Record,
    reply: Option<Reply>,
}

/// How the journal stands, and in which term it must lead for something to be written; `None`: no
/// other member could lead.
pub(crate) type Lead = (watch::Receiver<Standing>, Option<u64>);

/// What came of writing.
#[derive(Debug)]
pub(crate) enum Written {
    /// All is there, but for what is to be written once more.
    Done(Vec<Note>),
    /// Nothing more can be written: what follows could not be found again.
    Broken(AppendError),
}

/// The journal, and what is not in it yet.
#[derive(Debug)]
pub(crate) struct Scribe {
    journal: Journal,
    /// In which it writes; `None`: in any. What is left of a term that is over is written in none.
    term: Option<u64>,
    clock: Clock,
    notes: Vec<Note>,
    /// Tokens that wait for others, by request and completion.
    drawn: BTreeMap<(RequestId, u32), Batch>,
    /// When what waits is to be written; `None` while nothing does.
    due: Option<Instant>,
    is_writing: bool,
    written: mpsc::Sender<Written>,
}

impl Scribe {
    /// One that says to `written` what came of it.
    pub(crate) fn new(
        journal: Journal,
        (term, clock): (Option<u64>, Clock),
        written: mpsc::Sender<Written>,
    ) -> Self {
        Self {
            journal,
            term,
            clock,
            notes: Vec::new(),
            drawn: BTreeMap::new(),
            due: None,
            is_writing: false,
            written,
        }
    }

    /// What time it is for what is written down.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// On what it depends that something is written.
    pub(crate) fn lead(&self) -> Lead {
        (self.journal.standing(), self.term)
    }

    /// A request is accepted as soon as `reply` says so.
    pub(crate) fn accepted(&mut self, request: RequestId, accepted: Accepted, reply: Reply) {
        self.note(request, RecordKind::Accepted(Box::new(accepted)), Some(reply));
        self.due = Some(Instant::now());
    }

    /// The next token of a completion.
    pub(crate) fn drew(&mut self, request: RequestId, choice: u32, token_idx: u32, drawn: Drawn) {
        let empty = Batch { choice, first_idx: token_idx, tokens: Vec::new() };
        self.drawn.entry((request, choice)).or_insert(empty).tokens.push(drawn);
        self.due.get_or_insert_with(|| Instant::now() + TOGETHER);
    }

    /// A completion has ended.
    pub(crate) fn choice_ended(&mut self, request: RequestId, choice: u32, eos: bool) {
        self.gather(request, choice);
        self.note(request, RecordKind::ChoiceEnded { choice, eos }, None);
    }

    /// A request of so many completions has ended.
    pub(crate) fn ended(&mut self, request: RequestId, choices: u32, outcome: Outcome) {
        (0..choices).for_each(|choice| self.gather(request, choice));
        self.note(request, RecordKind::Ended(outcome), None);
    }

    /// A worker is to be left, or not any more; `reply` says to its operator when that counts.
    pub(crate) fn drained(&mut self, worker: String, draining: bool, reply: Option<Reply>) {
        self.note(RequestId(0), RecordKind::Drained { worker, draining }, reply);
        self.due = Some(Instant::now());
    }

    fn note(&mut self, request: RequestId, kind: RecordKind, reply: Option<Reply>) {
        let record = Record { request, at_ms: self.clock.now_ms(), kind };
        self.notes.push(Note { record, reply });
        self.due.get_or_insert_with(|| Instant::now() + TOGETHER);
    }

    /// The tokens of a completion wait no longer for others.
    fn gather(&mut self, request: RequestId, choice: u32) {
        if let Some(batch) = self.drawn.remove(&(request, choice)) {
            self.note(request, RecordKind::Tokens(batch), None);
        }
    }

    /// When [`go_on`](Self::go_on) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_writing)
    }

    /// Begins to write what is due.
    pub(crate) fn go_on(&mut self) {
        if self.due().is_none_or(|due| due > Instant::now()) {
            return;
        }
        let notes = self.take();
        let (journal, term, written) = (self.journal.clone(), self.term, self.written.clone());
        self.is_writing = true;
        tokio::spawn(async move {
            let result = write(&journal, term, notes).await;
            // The loop has ended: nobody waits for it.
            let _ = written.send(result).await;
        });
    }

    /// Some of what was written is to be written once more.
    pub(crate) fn again(&mut self, mut notes: Vec<Note>) {
        self.is_writing = false;
        if notes.is_empty() {
            return;
        }
        notes.append(&mut self.notes);
        self.notes = notes;
        self.due = Some(Instant::now() + TOGETHER);
    }

    /// Nothing more will come. Who does not lead adds nothing: only if it `may_write` does it write
    /// what is left. `written` hears of what is being written.
    pub(crate) async fn end(self, may_write: bool, written: &mut mpsc::Receiver<Written>) {
        if may_write {
            return self.finish(written).await;
        }
        // What is lost is the lead, not the journal, where another member may have it.
        let why = self.term.map_or(AppendError::Ended, |_| AppendError::Lost);
        self.notes.into_iter().for_each(|note| note.answer(Err(why.clone())));
    }

    /// Waits for what is being written, of which `written` hears, and writes what is left.
    async fn finish(mut self, written: &mut mpsc::Receiver<Written>) {
        if self.is_writing
            && let Some(Written::Done(again)) = written.recv().await
        {
            self.again(again);
        }
        for _ in 0..LAST_TRIES {
            let notes = self.take();
            match write(&self.journal, self.term, notes).await {
                Written::Done(again) if again.is_empty() => return,
                Written::Done(again) => self.again(again),
                Written::Broken(error) => {
                    return tracing::warn!(%error, "the end of the journal was not written");
                }
            }
            tokio::time::sleep(TOGETHER).await;
        }
        let notes = self.notes.len();
        tracing::warn!(notes, "the end of the journal was not written: it takes too long");
    }

    fn take(&mut self) -> Vec<Note> {
        let drawn: Vec<_> = self.drawn.keys().copied().collect();
        drawn.into_iter().for_each(|(request, choice)| self.gather(request, choice));
        self.due = None;
        std::mem::take(&mut self.notes)
    }
}

impl Note {
    fn answer(self, result: Result<(), AppendError>) {
        if let Some(reply) = self.reply {
            drop(reply.send(result)); // whoever waited may be gone
        }
    }
}

/// What came of a record of which `written` hears. While the lead is there it is waited for; where
/// it is lost first, whoever waits is not kept by a disk that hangs: others are asked.
///
/// # Errors
/// As the journal has it; [`AppendError::Lost`] of a group whose journal has ended here, as the
/// others' have not.
pub(crate) async fn heard(
    written: oneshot::Receiver<Result<(), AppendError>>,
    (mut standing, term): Lead,
) -> Result<(), AppendError> {
    let Some(term) = term else {
        return written.await.unwrap_or(Err(AppendError::Ended));
    };
    tokio::select! {
        biased;
        heard = written => match heard {
            Ok(Err(AppendError::Ended)) | Err(_) => Err(AppendError::Lost),
            Ok(result) => result,
        },
        _ = standing.wait_for(|now| *now != Standing::Leads { term }) => Err(AppendError::Lost),
    }
}

/// Adds `notes` in their order. From the first that is to be written once more all are: what is
/// there already counts once.
async fn write(journal: &Journal, term: Option<u64>, notes: Vec<Note>) -> Written {
    let records = notes.iter().map(|note| note.record.clone()).collect();
    let appended = journal.append_in(term, records).await;
    let mut again = Vec::new();
    let mut written = notes.into_iter().zip(appended);
    while let Some((note, result)) = written.next() {
        match result {
            Err(error) if is_over(&error) => {
                note.answer(Err(error.clone()));
                written.for_each(|(note, result)| note.answer(result));
                return Written::Broken(error);
            }
            Err(AppendError::Unable(Unable::Busy) | AppendError::Deadline(_))
                if note.reply.is_none() =>
            {
                again.push(note);
            }
            _ if !again.is_empty() && note.reply.is_none() => again.push(note),
            result => tell(note, result),
        }
    }
    Written::Done(again)
}

/// Whether nothing more can be written by who was told so.
fn is_over(error: &AppendError) -> bool {
    let does_not_lead = matches!(error, AppendError::Unable(Unable::NotLeading));
    does_not_lead || matches!(error, AppendError::Ended | AppendError::Lost)
}

fn tell(note: Note, result: Result<(), AppendError>) {
    let request = note.record.request;
    match note.reply {
        // A caller that has gone cancels its request by itself.
        Some(reply) => drop(reply.send(result)),
        None => match result {
            Ok(()) => {}
            // Of a request that was not accepted in time, or that had ended.
            Err(AppendError::Misfit(error @ (Misfit::Unknown | Misfit::Over))) => {
                tracing::debug!(%request, %error, "a record was not written");
            }
            Err(error) => tracing::error!(%request, %error, "a record was not written"),
        },
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_journal::Options;

    use super::*;

    #[tokio::test]
    async fn who_waits_is_told_that_the_lead_is_lost_and_not_kept_by_a_disk() {
        let (standing, shown) = watch::channel(Standing::Leads { term: 3 });
        let check = async |result: Option<Result<(), AppendError>>, term: Option<u64>| {
            let (reply, written) = oneshot::channel();
            match result {
                Some(result) => reply.send(result).unwrap(),
                None => drop(reply),
            }
            heard(written, (shown.clone(), term)).await
        };
        let (ended, lost) = (|| Err(AppendError::Ended), || Err(AppendError::Lost));
        assert_eq!(check(Some(Ok(())), Some(3)).await, Ok(()));
        assert_eq!(check(Some(ended()), Some(3)).await, lost());
        assert_eq!(check(None, Some(3)).await, lost());
        assert_eq!(check(Some(ended()), None).await, ended());
        assert_eq!(check(None, None).await, ended());

        let (_reply, written) = oneshot::channel();
        let waits = tokio::spawn(heard(written, (shown.clone(), Some(3))));
        standing.send_replace(Standing::Follows { leader: None });
        let told = tokio::time::timeout(Duration::from_secs(10), waits).await;
        assert_eq!(told.expect("it waits for the disk").unwrap(), lost());
        assert_eq!(check(Some(Ok(())), Some(3)).await, Ok(()), "it was there before");
    }

    #[tokio::test]
    async fn nobody_is_left_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path(), Options::alone(), ()).unwrap();
        for (term, want) in [(Some(1), AppendError::Lost), (None, AppendError::Ended)] {
            let (sender, mut written) = mpsc::channel(1);
            let clock = Clock::new(None, false);
            let mut scribe = Scribe::new(journal.clone(), (term, clock), sender);
            let (reply, answer) = oneshot::channel();
            scribe.accepted(RequestId(7), Accepted::of("m", vec![1]), reply);
            scribe.end(false, &mut written).await;
            assert_eq!(answer.await.unwrap(), Err(want));
        }

        // Behind one that nobody waits for, in a term that is not.
        let note = |reply: Option<Reply>| {
            let kind = RecordKind::Ended(Outcome::Cancelled);
            Note { record: Record { request: RequestId(7), at_ms: 1, kind }, reply }
        };
        let (reply, answer) = oneshot::channel();
        let written = write(&journal, Some(99), vec![note(None), note(Some(reply))]).await;
        let want = AppendError::Unable(Unable::NotLeading);
        assert!(matches!(written, Written::Broken(error) if error == want));
        assert_eq!(answer.await.unwrap(), Err(want));
    }
}
