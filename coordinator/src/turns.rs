//! Turns of work that keeps a processor busy: what callers send is parsed and tokenised, and
//! grammars are compiled.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is no longer than this takes a moment, and does not wait for what takes seconds.
const SHORT_BYTES_MAX: usize = 64 << 10;

/// As many at once as there are processors, of short ones and of long ones, and half as many of
/// each that compile grammars: one of those takes up to seconds whatever its length, cannot be
/// interrupted, and lets nobody else wait who has none.
#[derive(Debug)]
pub(crate) struct Turns {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
    short_grammars: Arc<Semaphore>,
    /// Beside which there is a long prompt.
    long_grammars: Arc<Semaphore>,
}

/// One turn, which work lasts as long as.
#[derive(Debug)]
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
    compiles: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum May {
    Compile,
    /// Not on this turn.
    Not,
    /// That was found out by asking.
    Asked,
}

thread_local! {
    /// Whether the work on this thread may compile grammars; who has no turn may.
    static MAY: Cell<May> = const { Cell::new(May::Compile) };
}

/// Whether this thread's turn is one for compiling; if not, [`Turn::run`] says so.
pub(crate) fn may_compile() -> bool {
    let may = MAY.get();
    if may == May::Not {
        MAY.set(May::Asked);
    }
    may == May::Compile
}

impl Turn {
    /// Does `work` on this thread; `None` where it would have compiled a grammar on a turn that is
    /// not for that.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        /// Also where work panics: threads are used again.
        struct Free;
        impl Drop for Free {
            fn drop(&mut self) {
                MAY.set(May::Compile);
            }
        }
        let _free = Free;
        MAY.set(if self.compiles { May::Compile } else { May::Not });
        let done = work();
        (MAY.get() != May::Asked).then_some(done)
    }
}

impl Turns {
    pub(crate) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = |count: usize| Arc::new(Semaphore::new(count));
        let half = (threads / 2).max(1);
        Self {
            short: turns(threads),
            long: turns(threads),
            short_grammars: turns(half),
            long_grammars: turns(half),
        }
    }

    /// Waits for the turn of work on so many bytes, which it lasts for; `compiles`: and on a
    /// grammar. `None` at the end of all.
    pub(crate) async fn take(&self, bytes: usize, compiles: bool) -> Option<Turn> {
        let turns = match (compiles, bytes <= SHORT_BYTES_MAX) {
            (true, true) => &self.short_grammars,
            (true, false) => &self.long_grammars,
            (false, true) => &self.short,
            (false, false) => &self.long,
        };
        Some(Turn { _permit: turns.clone().acquire_owned().await.ok()?, compiles })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use aqueduct_core::Grammar;

    use super::*;
    use crate::text::TextModel;

    async fn all(turns: &Turns, bytes: usize, compiles: bool) -> Vec<Turn> {
        let mut held = Vec::new();
        let moment = Duration::from_millis(20);
        while let Ok(Some(turn)) = tokio::time::timeout(moment, turns.take(bytes, compiles)).await {
            held.push(turn);
        }
        assert!(!held.is_empty());
        held
    }

    #[tokio::test]
    async fn what_is_short_does_not_wait_for_what_is_long() {
        let turns = Turns::new();
        for compiles in [false, true] {
            let held = all(&turns, SHORT_BYTES_MAX + 1, compiles).await;
            let short = turns.take(SHORT_BYTES_MAX, compiles);
            assert!(tokio::time::timeout(Duration::from_secs(10), short).await.unwrap().is_some());
            drop(held);
            assert!(turns.take(usize::MAX, compiles).await.is_some());
        }
    }

    #[tokio::test]
    async fn nothing_else_waits_for_grammars() {
        let turns = Turns::new();
        let _held = (all(&turns, 1, true).await, all(&turns, usize::MAX, true).await);
        for bytes in [1, usize::MAX] {
            let other = turns.take(bytes, false);
            assert!(tokio::time::timeout(Duration::from_secs(10), other).await.unwrap().is_some());
        }
    }

    #[tokio::test]
    async fn a_turn_says_whether_it_was_the_wrong_one() {
        let turns = Turns::new();
        let words = turns.take(1, false).await.unwrap();
        assert_eq!(words.run(|| 1), Some(1));
        assert_eq!(words.run(may_compile), None);
        let grammars = turns.take(1, true).await.unwrap();
        assert_eq!(grammars.run(may_compile), Some(true));
        assert!(may_compile(), "nobody's turn");
    }
    #[tokio::test]
    async fn grammars_are_compiled_on_no_other_turn() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model");
        let text = TextModel::load(&folder).unwrap();
        let turns = Turns::new();
        let compiled = |turn: &Turn| {
            let grammar = Grammar::Regex("a".into());
            turn.run(|| text.constraint("grammar", grammar.into()).is_ok())
        };
        assert_eq!(compiled(&turns.take(1, false).await.unwrap()), None);
        assert_eq!(compiled(&turns.take(1, true).await.unwrap()), Some(true));
        // What asks for none takes any.
        let none = |turn: &Turn| turn.run(|| text.encode("a", true).is_ok());
        assert_eq!(none(&turns.take(1, false).await.unwrap()), Some(true));
    }
}
