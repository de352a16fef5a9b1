//! The threads that all operations of one [`super::Cpu`] share.

use std::sync::Mutex;

use rayon::prelude::*;

/// A fixed number of threads, however many callers there are.
pub(super) enum Threads {
    /// The caller's own thread, one caller at a time: no hand-over, no second thread.
    One(Mutex<()>),
    /// A pool.
    Many(rayon::ThreadPool),
}

impl Threads {
    /// `count` threads, at least one; names are `aq-cpu-N`.
    pub(super) fn new(count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        if count <= 1 {
            return Ok(Self::One(Mutex::new(())));
        }
        rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|idx| format!("aq-cpu-{idx}"))
            .build()
            .map(Self::Many)
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(pool) => pool.current_num_threads(),
        }
    }

    /// Runs a whole operation. Operations must not be nested.
    pub(super) fn enter<R: Send>(&self, operation: impl FnOnce(Crew) -> R + Send) -> R {
        match self {
            Self::One(busy) => {
                // A poisoned lock guards nothing: it only makes callers wait for each other.
                let _alone = busy.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                operation(Crew { threads: 1 })
            }
            Self::Many(pool) => pool.install(|| operation(Crew { threads: self.count() })),
        }
    }
}

/// The threads inside an operation. What a task computes never depends on which thread has it.
#[derive(Clone, Copy)]
pub(super) struct Crew {
    /// How many.
    pub(super) threads: usize,
}

impl Crew {
    /// Runs `run` on every task; results are in the tasks' order.
    pub(super) fn map<T: Send, R: Send>(
        self,
        tasks: Vec<T>,
        run: impl Fn(T) -> R + Sync + Send,
    ) -> Vec<R> {
        if self.threads == 1 || tasks.len() == 1 {
            tasks.into_iter().map(run).collect()
        } else {
            tasks.into_par_iter().with_max_len(1).map(run).collect()
        }
    }
}
