//! What the console shows: the last requests and, of those that asked for it, a map of what was
//! remembered of the prompt and of what each token looked at.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aqueduct_core::work::{Seen, SeenHead};
use aqueduct_core::{MemoryPolicy, RequestId, TokenId, limits};

use crate::metrics::Outcome;
use crate::submit::{Submission, Update, WorkerProgress};

/// The last requests, oldest first.
#[derive(Debug, Default)]
pub struct Board(Mutex<VecDeque<Entry>>);

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It waits, or its prompt is being read.
    Prefill,
    /// Tokens come.
    Decode,
    /// It is over.
    Ended(Outcome),
}

/// A request, as far as it has come.
#[derive(Debug, Clone)]
pub struct Entry {
    /// As the runtime numbers it.
    pub request: RequestId,
    /// As its caller knows it.
    pub caller_id: String,
    /// Where it is.
    pub stage: Stage,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Of those, tokens that need not be computed.
    pub cached_tokens: u32,
    /// Of its grid.
    pub chunk_count: u32,
    /// Whose memory has been given.
    pub chunks_done: u32,
    /// One entry for each worker that has had a chunk of it.
    pub workers: Vec<WorkerProgress>,
    /// Generated so far, over all completions.
    pub output_tokens: u32,
    /// When it was accepted.
    pub began: Instant,
    /// How long it took, if it is over.
    pub elapsed: Option<Duration>,
    /// If it asked for one.
    pub map: Option<Arc<Map>>,
}

/// What was remembered of a prompt, and what the first completion's tokens looked at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Map {
    /// As used.
    pub policy: MemoryPolicy,
    /// Position of the first token of the prompt.
    pub start: u32,
    /// The prompt.
    pub prompt: Vec<TokenId>,
    /// The first completion.
    pub completion: Vec<TokenId>,
    /// What each layer remembers of the prompt, per KV head.
    pub kept: BTreeMap<u32, Vec<SeenHead>>,
    /// What each token looked at, by token and layer, per KV head.
    pub looks: BTreeMap<(u32, u32), Vec<SeenHead>>,
}

impl Map {
    fn see(&mut self, seen: &Seen) {
        let heads = seen.heads.clone();
        match seen.token_idx {
            None => self.kept.insert(seen.layer, heads),
            Some(token_idx) => self.looks.insert((token_idx, seen.layer), heads),
        };
    }
}

impl Board {
    /// What `view` makes of each request, oldest first.
    pub fn each<T>(&self, view: impl Fn(&Entry) -> T) -> Vec<T> {
        self.lock().iter().map(view).collect()
    }

    /// The request of this id, the runtime's or its caller's; the last one of several.
    pub fn find(&self, id: &str) -> Option<Entry> {
        let is_it = |entry: &&Entry| entry.caller_id == id || entry.request.to_string() == id;
        self.lock().iter().rev().find(is_it).cloned()
    }

    fn begin(&self, entry: Entry) {
        let mut entries = self.lock();
        if entries.len() == limits::BOARD_REQUESTS_MAX {
            let ended = entries.iter().position(|entry| matches!(entry.stage, Stage::Ended(_)));
            entries.remove(ended.unwrap_or(0));
        }
        entries.push_back(entry);
        let maps = entries.iter_mut().rev().filter(|entry| entry.map.is_some());
        maps.skip(limits::MAPS_MAX).for_each(|entry| entry.map = None);
    }

    fn change(&self, request: RequestId, how: impl FnOnce(&mut Entry)) {
        let mut entries = self.lock();
        if let Some(entry) = entries.iter_mut().rev().find(|entry| entry.request == request) {
            how(entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's place on the board.
pub(super) struct Place {
    board: Arc<Board>,
    /// Until it is accepted.
    waiting: Option<Entry>,
    request: RequestId,
}

impl Place {
    pub(super) fn new(board: Arc<Board>, submission: &Submission) -> Self {
        let map = submission.shows.then(|| {
            let (start, prompt) = (submission.known_tokens(), submission.prompt.clone());
            Arc::new(Map { start, prompt, ..Map::default() })
        });
        let entry = Entry {
            request: RequestId(0),
            caller_id: submission.caller_id.clone(),
            stage: Stage::Prefill,
            prompt_tokens: submission.prompt_tokens(),
            cached_tokens: 0,
            chunk_count: 0,
            chunks_done: 0,
            workers: Vec::new(),
            output_tokens: 0,
            began: Instant::now(),
            elapsed: None,
            map,
        };
        Self { board, waiting: Some(entry), request: RequestId(0) }
    }

    /// Writes down what happened.
    pub(super) fn take(&mut self, update: &Update) {
        if let Update::Accepted { request, chunk_count, policy, .. } = update {
            let Some(entry) = self.waiting.take() else { return };
            self.request = *request;
            let map =
                entry.map.map(|map| Arc::new(Map { policy: *policy, ..Arc::unwrap_or_clone(map) }));
            let chunk_count = *chunk_count;
            return self.board.begin(Entry { request: *request, chunk_count, map, ..entry });
        }
        self.board.change(self.request, |entry| entry.take(update));
    }

    pub(super) fn end(&self, outcome: Outcome) {
        self.board.change(self.request, |entry| {
            entry.stage = Stage::Ended(outcome);
            entry.elapsed = Some(entry.began.elapsed());
        });
    }
}

impl Entry {
    fn take(&mut self, update: &Update) {
        match update {
            Update::Progress(progress) => {
                self.chunks_done = progress.chunks_done;
                self.cached_tokens = progress.cached_tokens;
                self.workers.clone_from(&progress.workers);
            }
            Update::Escalated(escalation) => {
                (self.chunks_done, self.workers) = (0, Vec::new());
                self.map_mut().into_iter().for_each(|map| map.policy = escalation.next);
            }
            Update::Prefilled(_) => {
                (self.stage, self.chunks_done) = (Stage::Decode, self.chunk_count);
            }
            Update::Token(emitted) => {
                self.output_tokens += 1;
                let map = self.map_mut().filter(|_| emitted.choice == 0);
                map.into_iter().for_each(|map| map.completion.push(emitted.token));
            }
            Update::Seen(seen) => self.map_mut().into_iter().for_each(|map| map.see(seen)),
            _ => {}
        }
    }

    /// A copy, while somebody reads it.
    fn map_mut(&mut self) -> Option<&mut Map> {
        self.map.as_mut().map(Arc::make_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::submit::Update;
    use aqueduct_core::work::Emitted;

    fn begin(board: &Board, request: u64, shows: bool) {
        let map = shows.then(Arc::default);
        let submission = Submission { shows, caller_id: format!("call {request}"), ..submission() };
        let mut place = Place::new(Arc::default(), &submission);
        let entry = place.waiting.take().unwrap();
        board.begin(Entry { request: RequestId(request), map, ..entry });
    }

    fn submission() -> Submission {
        crate::submit::tests::good()
    }

    #[test]
    fn a_request_is_followed_from_its_beginning_to_its_end() {
        let board = Arc::new(Board::default());
        let submission = Submission { shows: true, caller_id: "mine".into(), ..submission() };
        let mut place = Place::new(board.clone(), &submission);
        assert!(board.each(|_| ()).is_empty());
        let (request, policy) = (RequestId(7), MemoryPolicy::h2o(1, 2, 3));
        place.take(&Update::Accepted { request, chunk_count: 3, policy, clamps: Vec::new() });
        let head = SeenHead { positions: vec![0, 5], weights: vec![0.5, 0.5], left_out: 0 };
        let seen = |token_idx| {
            let heads = vec![head.clone()];
            Update::Seen(Box::new(Seen { request, token_idx, layer: 1, heads }))
        };
        place.take(&seen(None));
        place.take(&Update::Prefilled(Box::default()));
        let token =
            Emitted { request, choice: 0, token_idx: 0, token: 9, logprob: -1.0, top: Vec::new() };
        place.take(&Update::Token(Box::new(token)));
        place.take(&seen(Some(0)));
        place.end(Outcome::Finished);
        let entry = board.find("mine").unwrap();
        assert_eq!((entry.chunks_done, entry.output_tokens), (3, 1));
        assert_eq!(entry.stage, Stage::Ended(Outcome::Finished));
        let map = entry.map.unwrap();
        assert_eq!((map.policy, &map.completion[..]), (policy, &[9][..]));
        assert_eq!((&map.kept[&1], &map.looks[&(0, 1)]), (&vec![head.clone()], &vec![head]));
        assert!(board.find(&request.to_string()).is_some());
    }

    #[test]
    fn only_the_last_requests_and_maps_are_kept() {
        let board = Board::default();
        for request in 0..=limits::BOARD_REQUESTS_MAX as u64 {
            begin(&board, request, true);
        }
        let entries = board.each(Entry::clone);
        assert_eq!(entries.len(), limits::BOARD_REQUESTS_MAX);
        assert_eq!(entries[0].request, RequestId(1));
        let maps = entries.iter().filter(|entry| entry.map.is_some());
        assert_eq!(maps.count(), limits::MAPS_MAX);
        assert!(entries.last().unwrap().map.is_some());
        assert!(board.find("call 0").is_none());
    }
}
