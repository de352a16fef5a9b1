//! What the task that keeps a journal is asked.

use std::sync::{Arc, Mutex, PoisonError};

use aqueduct_core::journal::Record;
use tokio::sync::oneshot;

use crate::journal::AppendError;
use crate::{Message, MessageType, Node};

/// Who waits for a record.
pub(crate) type Reply = oneshot::Sender<Result<(), AppendError>>;

pub(crate) enum Ask {
    /// Of which each is added only if those before it are.
    Append {
        records: Records,
        term: Option<u64>,
    },
    Do(Box<dyn FnOnce(&mut Node) + Send>),
    Hear {
        birth: u64,
        message: Box<Message>,
    },
    Sent {
        kind: MessageType,
        to: u64,
        arrived: bool,
    },
}

/// Records that are to be added, at both ends of their way: as soon as one of the two is dropped
/// they are gone, all or none. Whoever asks again when its time is over fills no memory while the
/// disk hangs, and what it asked for first is not added later.
pub(crate) struct Records(Arc<Mutex<Vec<(Record, Reply)>>>);

impl Records {
    /// Both ends.
    pub(crate) fn offered(records: Vec<(Record, Reply)>) -> (Self, Self) {
        let records = Arc::new(Mutex::new(records));
        (Self(records.clone()), Self(records))
    }

    /// From now on they are whoever's that has taken them.
    pub(crate) fn take(&self) -> Vec<(Record, Reply)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_core::RequestId;
    use aqueduct_core::journal::{Outcome, RecordKind};

    use super::*;

    fn record() -> Record {
        Record { request: RequestId(1), at_ms: 1, kind: RecordKind::Ended(Outcome::Finished) }
    }

    #[test]
    fn records_are_there_until_either_end_is_dropped() {
        let offered = || {
            let (reply, answer) = oneshot::channel();
            (Records::offered(vec![(record(), reply)]), answer)
        };
        let ((taker, offer), mut answer) = offered();
        drop(offer);
        assert!(taker.take().is_empty() && answer.try_recv().is_err());
        let ((taker, _offer), answer) = offered();
        drop(taker);
        assert!(answer.blocking_recv().is_err(), "whoever waits is told at once");
        let ((taker, offer), mut answer) = offered();
        let mut taken = taker.take();
        drop((taker, offer));
        let (taken, reply) = taken.remove(0);
        assert_eq!((taken, reply.send(Ok(()))), (record(), Ok(())));
        assert_eq!(answer.try_recv(), Ok(Ok(())));
    }
}
