//! Questions of those who look after the cluster. What requests remember is read here, between
//! two layers; everything about snapshots is answered by threads of its own, so that no token
//! waits for a disk or a checksum.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_core::RequestId;
use aqueduct_core::ask::{Answer, Ask, Declined, Question, Remembered, Rememberer, Reply};
use aqueduct_core::limits;
use aqueduct_core::work::Event;
use aqueduct_kernels::MemorySet;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Executor;
use super::request::{Memory, Request};
use super::session::SessionId;
use crate::snapshots::Place;

/// How long an answer waits for its asker to read what came before.
const DEADLINE: Duration = Duration::from_millis(limits::OPERATOR_DEADLINE_MS);

impl Executor {
    /// Answers, now or soon.
    pub(super) fn answer(&mut self, session: SessionId, ask: Ask) {
        let Ask { ticket, question } = ask;
        let reply = match question {
            Question::Memory {
                of: Rememberer::Request { request, choice },
                layer,
                head,
                start,
            } => self.remembered((request, choice), (layer, head, start)),
            about_snapshots => {
                let Some(asker) = self.sessions.get(&session) else { return };
                let (answers, runtime) = (asker.answers.clone(), self.runtime.clone());
                let asked = self.shared.snapshots.ask(about_snapshots, move |reply, place| {
                    let answer = Event::Answered(Box::new(Answer { ticket, reply }));
                    runtime.block_on(tell(&answers, answer, place));
                });
                match asked {
                    Ok(()) => return,
                    Err(declined) => Err(declined),
                }
            }
        };
        self.send_to(session, Event::Answered(Box::new(Answer { ticket, reply })));
    }

    fn remembered(
        &self,
        (request, choice): (RequestId, u32),
        (layer, head, start): (u32, u32, u32),
    ) -> Result<Reply, Declined> {
        let layers = self.model.memory_layers() as u32;
        let held = self.requests.get(&request).ok_or(Declined::Gone)?;
        if layer >= layers {
            return Err(Declined::Refused(format!("layer = {layer}: must be below {layers}")));
        }
        let set = held.remembers(choice, layer as usize)?;
        shown(set, (layers, head, start)).map(|it| Reply::Memory(Box::new(it)))
    }
}

/// Tells who asked. It may ask for the next part as soon as it is told, so the place is given back
/// before; it is kept while there is no room for the answer, or unread answers would pile up.
async fn tell(answers: &mpsc::Sender<Event>, answer: Event, place: Place) {
    // Whoever asked may be gone, or not read what it is told.
    let Ok(Ok(room)) = timeout(DEADLINE, answers.reserve()).await else { return };
    drop(place);
    room.send(answer);
}

/// The keys of one KV head, from the `start`-th on.
pub(crate) fn shown(
    set: &MemorySet,
    (layers, head, start): (u32, u32, u32),
) -> Result<Remembered, Declined> {
    let (kv_heads, keys) = (set.keys.kv_heads() as u32, set.keys.len());
    if head >= kv_heads {
        return Err(Declined::Refused(format!("kv_head = {head}: must be below {kv_heads}")));
    }
    let from = (start as usize).min(keys);
    let to = keys.min(from + limits::SHOWN_KEYS_MAX);
    let first = head as usize * keys;
    let scores = set.score.get(first + from..first + to).unwrap_or_default().to_vec();
    Ok(Remembered {
        end: set.end,
        layers,
        kv_heads,
        keys: keys as u32,
        start: from as u32,
        positions: set.keys.head_positions(head as usize)[from..to].to_vec(),
        scores,
    })
}

impl Request {
    /// What the completion remembers, or the prompt as far as it was read here.
    fn remembers(&self, choice: u32, layer: usize) -> Result<&MemorySet, Declined> {
        let in_shards = || Declined::Refused("its keys are in shards, with many workers".into());
        if let Some(decoding) = &self.decoding {
            // One that is not there is in a step that needs other workers, or has ended.
            let sets = decoding.remembers(choice).ok_or(Declined::Gone)?;
            return sets.map(|sets| &*sets[layer]).ok_or_else(in_shards);
        }
        if let Some(home) = &self.home {
            return match &home.memory {
                Memory::Sets(sets, _) => Ok(&sets[layer]),
                Memory::Sharded(_) => Err(in_shards()),
            };
        }
        let left = self.left.iter().find(|left| left.choice == choice);
        let left = left.map(|left| &left.sequence.memory()[layer]);
        let mut given = self.outbox.values().rev();
        let given = given.find_map(|outgoing| outgoing.sets.get(layer)).map(|kept| &kept.memory);
        left.or(given).map(Arc::as_ref).ok_or(Declined::Gone)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use tokio::sync::Semaphore;

    use super::*;
    use crate::link::conformance::state;

    /// Somebody who waits for an answer, and sees how many places there are when it is told.
    struct Asker {
        places: Arc<Semaphore>,
        seen: AtomicUsize,
    }

    impl Wake for Asker {
        fn wake(self: Arc<Self>) {
            self.seen.store(self.places.available_permits(), Ordering::Relaxed);
        }
    }

    #[test]
    fn of_a_layer_that_has_a_state_no_keys_are_shown() {
        let shown = shown(&state(1), (9, 1, 7)).unwrap();
        assert_eq!((shown.layers, shown.keys, shown.start, shown.end), (9, 0, 0, 10));
        assert!(shown.positions.is_empty() && shown.scores.is_empty());
    }

    #[tokio::test]
    async fn who_is_told_may_ask_again_at_once() {
        let places = Arc::new(Semaphore::new(1));
        let place = || places.clone().try_acquire_owned().unwrap();
        let event = || Event::ChoiceDone { request: RequestId(1), choice: 0, eos: true };
        let (answers, mut told) = mpsc::channel(1);
        let asker = Arc::new(Asker { places: places.clone(), seen: AtomicUsize::new(9) });
        let waker = Waker::from(asker.clone());
        assert!(told.poll_recv(&mut Context::from_waker(&waker)).is_pending());
        tell(&answers, event(), place()).await;
        assert_eq!(asker.seen.load(Ordering::Relaxed), 1);

        // Its answer before was not read.
        let mut telling = std::pin::pin!(tell(&answers, event(), place()));
        let mut poll = || telling.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        assert_eq!(places.available_permits(), 0, "it takes up room until it is read");
        assert_eq!(told.try_recv(), Ok(event()));
        assert_eq!(poll(), Poll::Ready(()));
        assert_eq!((told.try_recv(), places.available_permits()), (Ok(event()), 1));

        drop(told);
        tell(&answers, event(), place()).await;
        assert_eq!(places.available_permits(), 1, "nobody is there to be told");
    }
}
