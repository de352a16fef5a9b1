//! Whose turn it is to have the threads: callers in the order in which they came, and before
//! them those in a hurry.
//!
//! An operation has a turn. A thread that goes first has the threads to itself until it lines up
//! again, for as many operations as it likes: who has the turn makes way between two tasks. So
//! that nobody in line starves, the threads belong to the line for a while after every such stay.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long the line has the threads after a stay, where somebody stands in it: the stay over
/// this number. So the line has at least a third of the time.
const STAY_OVER_TURN: u32 = 2;

/// Callers of one crew.
#[derive(Default)]
pub(super) struct Turns {
    line: Mutex<Line>,
    moved: Condvar,
    /// Whether who has the turn is to make way; a copy of the line's, to be looked at often.
    wanted: AtomicBool,
}

#[derive(Default)]
struct Line {
    /// Tickets given out, and tickets done with.
    tickets: (u64, u64),
    /// Whether the first in line computes, rather than waits or has made way.
    inside: bool,
    /// Somebody in a hurry waits for who is inside.
    wanted: bool,
    /// Who goes first now, and since when.
    stay: Option<(ThreadId, Instant)>,
    /// The line has the threads until then.
    due: Option<Instant>,
}

/// A caller's turn, or its part in a stay.
pub(super) struct Turn<'a>(Option<&'a Turns>);

impl Turns {
    /// Waits for the caller's turn; one that goes first has it already.
    pub(super) fn wait(&self) -> Turn<'_> {
        let mut line = self.lock();
        if line.is_staying() {
            return Turn(None);
        }
        let ticket = line.tickets.0;
        line.tickets.0 += 1;
        while line.tickets.1 != ticket || line.wanted || line.stay.is_some() {
            line = self.until_moved(line);
        }
        line.inside = true;
        Turn(Some(self))
    }

    /// Between two tasks of the operation that has the turn: waits until those in a hurry are
    /// done.
    pub(super) fn make_way(&self) {
        let mut line = self.lock();
        line.inside = false;
        self.moved.notify_all();
        while line.wanted || line.stay.is_some() {
            line = self.until_moved(line);
        }
        line.inside = true;
    }

    /// Whether somebody waits for that.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// From now on the caller's operations go first, others' wait.
    pub(super) fn go_first(&self) {
        let mut line = self.lock();
        loop {
            // One moment for both questions: were the line's time over only at the second, the
            // caller would wait for somebody to make way, and the line for the caller.
            let now = Instant::now();
            if line.may_stay(now) {
                break;
            }
            let left = line.left(now).filter(|_| line.stay.is_none());
            if left.is_none() && line.stay.is_none() {
                self.want(&mut line, true);
            }
            line = match left {
                Some(left) => self
                    .moved
                    .wait_timeout(line, left)
                    .map_or_else(|poisoned| poisoned.into_inner().0, |(line, _)| line),
                None => self.until_moved(line),
            };
        }
        self.want(&mut line, false);
        line.stay = Some((std::thread::current().id(), Instant::now()));
    }

    /// The end of what [`go_first`](Self::go_first) began.
    pub(super) fn line_up(&self) {
        let mut line = self.lock();
        if let Some((_, since)) = line.stay.take_if(|(thread, _)| is_me(*thread)) {
            let turn = since.elapsed() / STAY_OVER_TURN;
            line.due = line.is_waited_in().then(|| Instant::now() + turn);
            self.moved.notify_all();
        }
    }

    fn want(&self, line: &mut Line, wanted: bool) {
        line.wanted = wanted;
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        // Nothing panics while it is held.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until_moved<'a>(&self, line: MutexGuard<'a, Line>) -> MutexGuard<'a, Line> {
        self.moved.wait(line).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn is_staying(&self) -> bool {
        self.stay.is_some_and(|(thread, _)| is_me(thread))
    }

    fn is_waited_in(&self) -> bool {
        self.tickets.0 != self.tickets.1
    }

    /// What is left of the line's time, if anything.
    fn left(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// Whether a caller in a hurry may go first: when nobody is in line, or the line has had its
    /// time and who was inside has made way.
    fn may_stay(&self, now: Instant) -> bool {
        let had_its_time = self.left(now).is_none();
        self.stay.is_none() && !self.inside && (had_its_time || !self.is_waited_in())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(turns) = self.0 else { return };
        let mut line = turns.lock();
        line.tickets.1 += 1;
        line.inside = false;
        turns.moved.notify_all();
    }
}

fn is_me(thread: ThreadId) -> bool {
    std::thread::current().id() == thread
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    /// Until the line is as wanted.
    fn until(turns: &Turns, wanted: impl Fn(&Line) -> bool) {
        while !wanted(&turns.lock()) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn callers_have_their_turns_in_order() {
        let (turns, order) = (Turns::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            let turn = turns.wait();
            for caller in 0..4 {
                let (turns, order) = (&turns, &order);
                scope.spawn(move || {
                    let _turn = turns.wait();
                    order.lock().unwrap().push(caller);
                });
                until(turns, |line| line.tickets.0 == caller + 2);
            }
            drop(turn);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn who_is_inside_makes_way_for_a_whole_stay() {
        let turns = Turns::default();
        let (say, said) = mpsc::sync_channel(8);
        std::thread::scope(|scope| {
            let turn = turns.wait();
            let (turns, hurried) = (&turns, say.clone());
            scope.spawn(move || {
                turns.go_first();
                for _ in 0..2 {
                    let _turn = turns.wait();
                    hurried.send("hurried").unwrap();
                }
                turns.line_up();
            });
            until(turns, |line| line.wanted);
            turns.make_way();
            say.send("goes on").unwrap();
            drop(turn);
        });
        drop(say);
        assert_eq!(said.iter().collect::<Vec<_>>(), ["hurried", "hurried", "goes on"]);
        assert!(!turns.is_wanted());
    }

    #[test]
    fn the_line_has_its_time_after_a_stay() {
        let turns = Turns::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let check = |line: &Line, at, may| assert_eq!(line.may_stay(at), may);
        let mut line = turns.lock();
        check(&line, now, true);
        line.due = Some(later);
        check(&line, now, true); // nobody is in line
        line.tickets.0 += 1;
        check(&line, now, false);
        check(&line, later, true);
        line.inside = true;
        check(&line, later, false);
    }

    #[test]
    fn a_stay_that_held_nobody_up_owes_nothing() {
        let turns = Turns::default();
        turns.go_first();
        turns.line_up();
        assert!(turns.lock().due.is_none());
        std::thread::scope(|scope| {
            turns.go_first();
            scope.spawn(|| drop(turns.wait()));
            until(&turns, Line::is_waited_in);
            turns.line_up();
            assert!(turns.lock().due.is_some());
        });
    }

    #[test]
    fn many_in_a_hurry_and_many_in_line_all_end() {
        let (turns, done) = (Turns::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for caller in 0..6 {
                let (turns, done) = (&turns, &done);
                scope.spawn(move || {
                    for _ in 0..200 {
                        if caller % 2 == 0 {
                            turns.go_first();
                            drop(turns.wait());
                            turns.line_up();
                        } else {
                            let _turn = turns.wait();
                            if turns.is_wanted() {
                                turns.make_way();
                            }
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), 1200);
        let line = turns.lock();
        assert!(line.stay.is_none() && !line.inside && !line.wanted && !line.is_waited_in());
    }
}
