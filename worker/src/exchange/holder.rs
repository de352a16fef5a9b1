//! The thread that answers what other workers ask about the shards held here.
//!
//! It is not the device thread: a chunk under way does not keep others waiting for theirs.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aqueduct_core::limits;
use aqueduct_engine::Model;
use aqueduct_engine::shards::{Answer, ShardError, ShardStore};
use tokio::sync::watch;

use super::{Ask, CallError, Reply};
use crate::doorbell::Doorbell;
use crate::lost;

/// Who is told how an ask ended.
pub trait Tell: Send {
    /// Told, once.
    fn tell(self: Box<Self>, reply: Result<Reply, CallError>);

    /// Whether anybody still listens; an ask that is not wanted may be forgotten.
    fn is_wanted(&self) -> bool {
        true
    }
}

impl<F: FnOnce(Result<Reply, CallError>) + Send> Tell for F {
    fn tell(self: Box<Self>, reply: Result<Reply, CallError>) {
        self(reply);
    }
}

/// An ask that waits for its answer.
struct Waiting {
    ask: Ask,
    deadline: Instant,
    tell: Box<dyn Tell>,
}

/// Where asks are left, and the thread behind it.
pub struct Holder {
    model: Arc<Model>,
    store: Arc<ShardStore>,
    doorbell: Doorbell,
    arrivals: Mutex<Vec<Waiting>>,
    /// Asks that arrived earlier and wait on.
    waiting: AtomicUsize,
    stopped: watch::Sender<bool>,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({} new)", self.lock().len())
    }
}

impl Holder {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread.
    pub fn start(model: Arc<Model>, store: Arc<ShardStore>) -> std::io::Result<Arc<Self>> {
        let holder = Arc::new(Self {
            model,
            store,
            doorbell: Doorbell::default(),
            arrivals: Mutex::default(),
            waiting: AtomicUsize::new(0),
            stopped: watch::Sender::new(false),
        });
        let thread = holder.clone();
        std::thread::Builder::new().name("shards".to_owned()).spawn(move || thread.run())?;
        Ok(holder)
    }

    /// The shards that it answers about.
    pub fn store(&self) -> &Arc<ShardStore> {
        &self.store
    }

    /// The model whose shards they are.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Leaves an ask; `tell` is told once, by `deadline` or soon after.
    pub fn ask(&self, ask: Ask, deadline: Instant, tell: Box<dyn Tell>) {
        let mut arrivals = self.lock();
        let waiting = arrivals.len() + self.waiting.load(Ordering::Relaxed);
        // Under the lock, so that a stopping thread cannot miss it.
        let refusal = if *self.stopped.borrow() {
            CallError::Lost("the worker is stopping".to_owned())
        } else if waiting >= limits::EXCHANGE_CALLS_MAX {
            CallError::Lost(format!("{waiting} asks wait"))
        } else {
            arrivals.push(Waiting { ask, deadline, tell });
            self.doorbell.ring();
            return;
        };
        drop(arrivals);
        tell.tell(Err(refusal));
    }

    /// The store has changed: who waits for a shard may find it now.
    pub fn changed(&self) {
        self.doorbell.ring();
    }

    /// Ends the thread; asks that wait are told so.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
        self.doorbell.ring();
    }

    /// Whether the thread has ended, or is about to.
    pub(crate) fn stopped(&self) -> watch::Receiver<bool> {
        self.stopped.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let _stop = StopOnDrop(self); // also when an answer panics
        let mut waiting: Vec<Waiting> = Vec::new();
        while !*self.stopped.borrow() {
            let mut arrivals = self.lock();
            waiting.append(&mut arrivals);
            self.waiting.store(waiting.len(), Ordering::Relaxed);
            drop(arrivals);
            waiting = waiting.into_iter().filter_map(|one| self.serve(one)).collect();
            self.waiting.store(waiting.len(), Ordering::Relaxed);
            self.doorbell.wait_until(waiting.iter().map(|one| one.deadline).min());
        }
        for one in waiting {
            one.tell.tell(Err(CallError::Lost("the worker is stopping".to_owned())));
        }
    }

    /// Answers one ask, or gives it back when it must wait on.
    fn serve(&self, one: Waiting) -> Option<Waiting> {
        if !one.tell.is_wanted() {
            return None;
        }
        match self.answer(&one.ask) {
            Ok(Answer::Ready(reply)) => one.tell.tell(Ok(reply)),
            Ok(Answer::NotYet) if Instant::now() < one.deadline => return Some(one),
            Ok(Answer::NotYet) => {
                one.tell.tell(Err(CallError::Lost("a shard was not there in time".to_owned())));
            }
            Err(error) => {
                if let ShardError::Backend(source) = &error
                    && lost::is_lost(&self.model, source)
                {
                    self.stop(); // and with it the worker, so that others have its shards made
                }
                one.tell.tell(Err(CallError::Refused(error.to_string())));
            }
        }
        None
    }

    /// What the store says, at once.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn answer(&self, ask: &Ask) -> Result<Answer<Reply>, ShardError> {
        let (store, model) = (&self.store, &self.model);
        Ok(match ask {
            Ask::Attend { place, q } => match store.attend(model, place, q)? {
                Answer::Ready(states) => Answer::Ready(Reply::States(states)),
                Answer::NotYet => Answer::NotYet,
            },
            Ask::Weigh { place, spent } => {
                Answer::Ready(Reply::Standing(store.weigh(model, place, spent)?))
            }
            Ask::Settle { place, cutoffs } => {
                let masses = store.settle(place, cutoffs)?;
                self.changed(); // the next block may wait for it
                Answer::Ready(Reply::Settled(masses))
            }
            Ask::Keys { place } => match store.shards(place)? {
                Answer::Ready(shards) => Answer::Ready(Reply::Keys(shards)),
                Answer::NotYet => Answer::NotYet,
            },
        })
    }
}

struct StopOnDrop<'a>(&'a Holder);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
        for one in self.0.lock().drain(..) {
            one.tell.tell(Err(CallError::Lost("the worker is stopping".to_owned())));
        }
    }
}
