//! The thread that answers what other workers ask about the shards held here.
//!
//! It is not the device thread: a chunk under way does not keep others waiting for theirs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aqueduct_core::limits;
use aqueduct_engine::Model;
use aqueduct_engine::shards::{Answer, ShardError, ShardStore};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

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
    room: OwnedSemaphorePermit,
}

impl Waiting {
    /// Gives its room back and tells who asked, in this order: who is told may ask again.
    fn end(self, reply: Result<Reply, CallError>) {
        drop(self.room);
        self.tell.tell(reply);
    }
}

/// Where asks are left, and the thread behind it.
pub struct Holder {
    model: Arc<Model>,
    store: Arc<ShardStore>,
    doorbell: Doorbell,
    arrivals: Mutex<Vec<Waiting>>,
    /// Room for asks that wait.
    room: Arc<Semaphore>,
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
            room: Arc::new(Semaphore::new(limits::EXCHANGE_CALLS_MAX)),
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
        // Under the lock, so that a stopping thread cannot miss it.
        let refusal = if *self.stopped.borrow() {
            "the worker is stopping".to_owned()
        } else if let Ok(room) = self.room.clone().try_acquire_owned() {
            arrivals.push(Waiting { ask, deadline, tell, room });
            self.doorbell.ring();
            return;
        } else {
            format!("{} asks wait", limits::EXCHANGE_CALLS_MAX)
        };
        drop(arrivals);
        tell.tell(Err(CallError::Lost(refusal)));
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
            waiting.append(&mut self.lock());
            waiting = waiting.into_iter().filter_map(|one| self.serve(one)).collect();
            self.doorbell.wait_until(waiting.iter().map(|one| one.deadline).min());
        }
        for one in waiting {
            one.end(Err(CallError::Lost("the worker is stopping".to_owned())));
        }
    }

    /// Answers one ask, or gives it back when it must wait on.
    fn serve(&self, one: Waiting) -> Option<Waiting> {
        if !one.tell.is_wanted() {
            return None;
        }
        match self.answer(&one.ask) {
            Ok(Answer::Ready(reply)) => one.end(Ok(reply)),
            Ok(Answer::NotYet) if Instant::now() < one.deadline => return Some(one),
            Ok(Answer::NotYet) => {
                one.end(Err(CallError::Lost("a shard was not there in time".to_owned())));
            }
            Err(error) => {
                if let ShardError::Backend(source) = &error
                    && lost::is_lost(&self.model, source)
                {
                    self.stop(); // and with it the worker, so that others have its shards made
                }
                one.end(Err(CallError::Refused(error.to_string())));
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
                let masses = store.settle(place, cutoffs, model.window(place.layer as usize))?;
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
        let arrived = std::mem::take(&mut *self.0.lock());
        for one in arrived {
            one.end(Err(CallError::Lost("the worker is stopping".to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::exchange::conformance::{dense, place};
    use crate::link::conformance::fit;
    use crate::tiny_model;

    #[test]
    fn who_is_told_may_ask_again_of_a_full_holder() {
        let holder = Holder::start(tiny_model::tiny(fit().kv), Arc::default()).unwrap();
        let ask = Ask::Keys { place: place(7, 2, dense()) };
        let (told, answers) = mpsc::sync_channel(limits::EXCHANGE_CALLS_MAX);
        let soon = Instant::now() + Duration::from_millis(300);
        for _ in 0..limits::EXCHANGE_CALLS_MAX {
            let (again, told, ask) = (holder.clone(), told.clone(), ask.clone());
            let tell =
                move |_| again.ask(ask, soon, Box::new(move |said| told.send(said).unwrap()));
            holder.ask(Ask::Keys { place: place(7, 2, dense()) }, soon, Box::new(tell));
        }
        for _ in 0..limits::EXCHANGE_CALLS_MAX {
            let said = answers.recv_timeout(Duration::from_secs(30)).unwrap();
            let late = "a shard was not there in time".to_owned();
            assert_eq!(said.err(), Some(CallError::Lost(late)));
        }
        holder.stop();
    }
}
