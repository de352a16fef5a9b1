//! The threads that all operations of one [`super::Cpu`] share.
//!
//! A decode step is some hundred fork-joins of tens of microseconds, so a thread that sleeps
//! and is woken for each would spend as long on that as on its tasks. Here the caller itself
//! takes tasks, helpers look out for the next ones for a moment before they sleep, and nobody
//! waits for a helper that has not begun. Which thread has a task never shows: tasks are taken
//! by index, and every result has its own place.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::turns::Turns;

/// How long a helper looks out for tasks before it sleeps: longer than what lies between two
/// fork-joins of a layer, shorter than anybody would notice on a machine with other work.
const LOOKOUT: Duration = Duration::from_micros(50);
/// Looks between two looks at the clock.
const LOOKS: usize = 64;

/// A fixed number of threads, the caller's among them, for one caller at a time.
pub(super) struct Threads {
    floor: Arc<Floor>,
    helpers: Vec<JoinHandle<()>>,
}

impl Threads {
    /// `count` threads, at least one; helpers are named `aq-cpu-N`.
    pub(super) fn new(count: usize) -> std::io::Result<Self> {
        let mut threads =
            Self { floor: Arc::new(Floor::new(count.saturating_sub(1))), helpers: Vec::new() };
        for idx in 1..count {
            let floor = threads.floor.clone();
            let helper = std::thread::Builder::new().name(format!("aq-cpu-{idx}"));
            threads.helpers.push(helper.spawn(move || floor.help(idx - 1))?);
        }
        Ok(threads)
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Who has them when.
    pub(super) fn turns(&self) -> &Turns {
        &self.floor.turns
    }

    /// Runs a whole operation on the caller's thread when its turn comes. Operations must not be
    /// nested.
    pub(super) fn enter<R>(&self, operation: impl FnOnce(Crew<'_>) -> R) -> R {
        let _turn = self.turns().wait();
        operation(Crew { floor: &self.floor, threads: self.count(), here: PhantomData })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.floor.closed.store(true, Ordering::SeqCst);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            let _ = helper.join(); // a helper catches its tasks' panics
        }
    }
}

/// The threads inside an operation. What a task computes never depends on which thread has it.
///
/// It is neither `Send` nor `Sync`, so that no task can have it: fork-joins are never nested.
#[derive(Clone, Copy)]
pub(super) struct Crew<'a> {
    floor: &'a Floor,
    /// How many.
    pub(super) threads: usize,
    here: PhantomData<*const ()>,
}

impl Crew<'_> {
    /// Runs `run` for every index below `count`, each once, and returns when all have ended.
    ///
    /// # Panics
    /// When `run` does; other indices may then have been left out.
    pub(super) fn for_each_index(self, count: usize, run: impl Fn(usize) + Sync) {
        if self.threads == 1 || count <= 1 {
            (0..count).for_each(|idx| self.floor.alone(|| run(idx)));
        } else {
            self.floor.fork(count, &run);
        }
    }

    /// Runs `run` on pieces of `size` elements, the last one maybe shorter, with their indices.
    pub(super) fn for_each_chunk<T: Send>(
        self,
        data: &mut [T],
        size: usize,
        run: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let (size, len) = (size.max(1), data.len());
        let first = Base(data.as_mut_ptr());
        self.for_each_index(len.div_ceil(size), |idx| {
            let start = idx * size;
            // SAFETY: pieces lie inside `data`, which is borrowed until all tasks have ended,
            // and do not overlap; every index, so every piece, belongs to one task alone.
            let piece =
                unsafe { std::slice::from_raw_parts_mut(first.at(start), size.min(len - start)) };
            run(idx, piece);
        });
    }

    /// Runs `run` on every task; results are in the tasks' order.
    pub(super) fn map<T: Send, R: Send>(
        self,
        tasks: Vec<T>,
        run: impl Fn(T) -> R + Sync,
    ) -> Vec<R> {
        if self.threads == 1 || tasks.len() <= 1 {
            return tasks.into_iter().map(|task| self.floor.alone(|| run(task))).collect();
        }
        let mut places: Vec<(Option<T>, Option<R>)> =
            tasks.into_iter().map(|task| (Some(task), None)).collect();
        self.for_each_chunk(&mut places, 1, |_, place| {
            for (task, result) in place {
                *result = task.take().map(&run);
            }
        });
        places.into_iter().filter_map(|(_, result)| result).collect()
    }
}

/// Where a slice begins; tasks reach their own pieces from here.
struct Base<T>(*mut T);

// SAFETY: the pointer leads to elements that may be sent, and only `for_each_chunk` follows it,
// to a different part in every task.
unsafe impl<T: Send> Sync for Base<T> {}

impl<T> Base<T> {
    /// # Safety
    /// `offset` must be inside the slice.
    unsafe fn at(&self, offset: usize) -> *mut T {
        // SAFETY: as the caller promises.
        unsafe { self.0.add(offset) }
    }
}

/// A lock here is never held while anything can panic.
fn relock<G>(lock: Result<G, PoisonError<G>>) -> G {
    lock.unwrap_or_else(PoisonError::into_inner)
}

/// What a fork-join's threads are given.
#[derive(Clone, Copy)]
struct Job {
    run: *const (dyn Fn(usize) + Sync),
    count: usize,
}

/// Set in [`Floor::door`] while there may be tasks that nobody has taken; the rest of it
/// counts the helpers inside.
const OPEN: u32 = 1 << 31;

/// Where caller and helpers meet.
///
/// The caller, who has the turn, writes `job` while the door is 0, then opens it. A helper
/// comes in only by adding itself to an open door, which shows it the job; whoever finds no
/// task left shuts the door, and the caller returns when the door is 0 again: when nobody is
/// inside, and nobody can come in. So whoever reads `job` is inside, nobody is when it is
/// written, and what it points to outlives the fork.
#[repr(align(128))] // the two words that everybody writes, away from other data
struct Floor {
    door: AtomicU32,
    /// The first task that nobody has taken.
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    helpers: Box<[Helper]>,
    closed: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    turns: Turns,
}

#[derive(Default)]
struct Helper {
    /// Whether it sleeps or is about to.
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

// SAFETY: `job` is the only part that is not `Sync` by itself; see `Floor` for who reads and
// writes it when. What it points to is `Sync`.
unsafe impl Sync for Floor {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Floor {}

impl Floor {
    fn new(helpers: usize) -> Self {
        let nothing: &(dyn Fn(usize) + Sync) = &|_| {};
        Self {
            door: AtomicU32::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { run: nothing, count: 0 }),
            helpers: (0..helpers).map(|_| Helper::default()).collect(),
            closed: AtomicBool::new(false),
            panic: Mutex::new(None),
            turns: Turns::default(),
        }
    }

    /// A task of a caller that computes alone.
    fn alone<R>(&self, task: impl FnOnce() -> R) -> R {
        if self.turns.is_wanted() {
            self.turns.make_way();
        }
        task()
    }

    /// Fork-joins until all tasks have run: one, and one more whenever others went first.
    fn fork(&self, count: usize, run: &(dyn Fn(usize) + Sync)) {
        let mut first = self.fork_from(0, count, run);
        while first < count {
            self.turns.make_way();
            first = self.fork_from(first, count, run);
        }
    }

    /// One fork-join of the tasks from `first` on; the caller must have the turn. Returns the
    /// first task that has not run, because somebody else wants the threads.
    fn fork_from(&self, first: usize, count: usize, run: &(dyn Fn(usize) + Sync)) -> usize {
        // SAFETY: only the lifetime changes; nobody is inside any more when this returns.
        let run: *const (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(run) };
        // SAFETY: the door is 0, so nobody reads; only the caller who has the turn writes.
        unsafe { *self.job.get() = Job { run, count } };
        self.next.store(first, Ordering::Relaxed);
        // Sequentially consistent against `sleep`: either the helper sees the open door, or
        // this thread sees that it sleeps.
        self.door.store(OPEN, Ordering::SeqCst);
        self.wake(count - first - 1);
        let own = catch_unwind(AssertUnwindSafe(|| self.take_tasks()));
        self.shut();
        let mut looks = 0;
        while self.door.load(Ordering::Acquire) != 0 {
            looks += 1;
            match looks < LOOKS * LOOKS {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(), // somebody has its processor
            }
        }
        let panic = relock(self.panic.lock()).take();
        if let Some(panic) = own.err().or(panic) {
            resume_unwind(panic);
        }
        self.next.load(Ordering::Relaxed).min(count) // all below were taken, and have ended
    }

    /// Wakes sleeping helpers, at most `wanted`.
    fn wake(&self, wanted: usize) {
        let sleeping = |helper: &&Helper| helper.asleep.load(Ordering::SeqCst);
        for helper in self.helpers.iter().filter(sleeping).take(wanted) {
            helper.asleep.store(false, Ordering::Relaxed);
            if let Some(thread) = helper.thread.get() {
                thread.unpark();
            }
        }
    }

    /// Runs tasks until none is left or somebody wants the threads. Only for those inside, the
    /// caller among them.
    fn take_tasks(&self) {
        // SAFETY: this thread is inside, so nobody writes.
        let Job { run, count } = unsafe { *self.job.get() };
        while !self.turns.is_wanted() {
            let idx = self.next.fetch_add(1, Ordering::Relaxed);
            if idx >= count {
                return;
            }
            // SAFETY: the caller keeps it alive while anybody is inside.
            unsafe { (*run)(idx) };
        }
    }

    /// There is no task any more that anybody should come in for.
    fn shut(&self) {
        self.door.fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// What helper `idx` does all its life.
    fn help(&self, idx: usize) {
        let me = &self.helpers[idx];
        let _ = me.thread.set(std::thread::current());
        while !self.closed.load(Ordering::SeqCst) {
            if self.come_in() {
                let ended = catch_unwind(AssertUnwindSafe(|| self.take_tasks()));
                if let Err(panic) = ended {
                    relock(self.panic.lock()).get_or_insert(panic);
                }
                self.shut();
                self.door.fetch_sub(1, Ordering::Release);
            } else if !self.look_out() {
                self.sleep(me);
            }
        }
    }

    /// Adds this helper to those inside, if the door is open.
    fn come_in(&self) -> bool {
        let added = |door: u32| (door & OPEN != 0).then_some(door + 1);
        self.door.fetch_update(Ordering::Acquire, Ordering::Relaxed, added).is_ok()
    }

    /// Waits for the door to open; whether it did before the time was up.
    fn look_out(&self) -> bool {
        let start = Instant::now();
        while start.elapsed() < LOOKOUT {
            for _ in 0..LOOKS {
                if self.door.load(Ordering::Relaxed) & OPEN != 0 {
                    return true;
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now(); // to the caller, should it share this processor
        }
        false
    }

    fn sleep(&self, me: &Helper) {
        me.asleep.store(true, Ordering::SeqCst);
        let idle = || {
            let open = self.door.load(Ordering::SeqCst) & OPEN != 0;
            !open && !self.closed.load(Ordering::SeqCst)
        };
        while me.asleep.load(Ordering::Relaxed) && idle() {
            std::thread::park();
        }
        me.asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every index once, and its result in its place, whoever took it.
    fn check(threads: &Threads, count: usize) {
        let taken: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        threads.enter(|crew| {
            crew.for_each_index(count, |idx| {
                taken[idx].fetch_add(1, Ordering::Relaxed);
            });
            assert!(taken.iter().all(|taken| taken.load(Ordering::Relaxed) == 1));
            let tasks: Vec<Box<usize>> = (0..count).map(Box::new).collect();
            let doubled = crew.map(tasks, |task| format!("{}", 2 * *task));
            assert!(doubled.iter().enumerate().all(|(idx, text)| *text == (2 * idx).to_string()));
            let mut data = vec![0; count];
            crew.for_each_chunk(&mut data, 3, |idx, piece| {
                piece.iter_mut().enumerate().for_each(|(i, x)| *x = 3 * idx + i);
            });
            assert!(data.into_iter().eq(0..count));
        });
    }

    /// Only for who has the turn: others would wake them.
    fn until_helpers_sleep(threads: &Threads) {
        let asleep = |helper: &Helper| helper.asleep.load(Ordering::SeqCst);
        while !threads.floor.helpers.iter().all(asleep) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn every_task_runs_once() {
        for count in [1, 2, 3, 8] {
            let threads = Threads::new(count).unwrap();
            assert_eq!(threads.count(), count);
            for tasks in [0, 1, 2, 3, 7, 64, 1000] {
                check(&threads, tasks);
            }
        }
    }

    #[test]
    fn many_callers_and_many_forks_with_pauses_that_put_helpers_to_sleep() {
        let threads = Threads::new(3).unwrap();
        std::thread::scope(|scope| {
            for caller in 0..4 {
                let threads = &threads;
                scope.spawn(move || {
                    for round in 0..300 {
                        check(threads, (caller * 31 + round * 7) % 40);
                        if round % 50 == 0 {
                            threads.enter(|_| until_helpers_sleep(threads));
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn results_outlive_their_fork_and_tasks_are_dropped_once() {
        let threads = Threads::new(2).unwrap();
        let shared = Arc::new(());
        let tasks = vec![shared.clone(); 100];
        let back = threads.enter(|crew| crew.map(tasks, |task| task));
        assert_eq!(Arc::strong_count(&shared), 101);
        drop(back);
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_threads_live_on() {
        let threads = Threads::new(3).unwrap();
        for bad in [0, 1, 17, 99] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                threads.enter(|crew| {
                    crew.for_each_index(100, |idx| assert_ne!(idx, bad, "task {idx}"));
                });
            }));
            let text = *caught.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains(&format!("task {bad}")), "{text}");
            check(&threads, 100);
        }
    }

    /// Whoever goes first has all threads, however long the operation is that has the turn, and
    /// every task of that one runs once all the same.
    #[test]
    fn a_long_operation_makes_way() {
        for count in [1, 2, 3] {
            let threads = Threads::new(count).unwrap();
            let (seen, begun) = (AtomicUsize::new(0), AtomicBool::new(false));
            let taken: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !begun.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    threads.turns().go_first();
                    check(&threads, 100);
                    check(&threads, 1);
                    seen.store(1, Ordering::SeqCst);
                    threads.turns().line_up();
                });
                threads.enter(|crew| {
                    crew.for_each_index(64, |idx| {
                        taken[idx].fetch_add(1, Ordering::Relaxed);
                        begun.store(true, Ordering::SeqCst);
                        // The last ones are too late to have been first.
                        while idx < 16 && !threads.turns().is_wanted() {
                            if seen.load(Ordering::SeqCst) == 1 {
                                break;
                            }
                            std::thread::yield_now();
                        }
                    });
                    assert_eq!(seen.load(Ordering::SeqCst), 1, "{count} threads");
                });
            });
            assert!(taken.iter().all(|taken| taken.load(Ordering::Relaxed) == 1));
            check(&threads, 100);
        }
    }
}
