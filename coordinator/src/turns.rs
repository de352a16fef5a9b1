//! Turns of work that keeps a processor busy: what callers send is parsed and tokenised.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is no longer than this takes a moment, and does not wait for what takes seconds.
const SHORT_BYTES_MAX: usize = 64 << 10;

/// As many at once as there are processors, of short ones and of long ones.
#[derive(Debug)]
pub(crate) struct Turns {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = || Arc::new(Semaphore::new(threads));
        Self { short: turns(), long: turns() }
    }

    /// Waits for the turn of work on so many bytes, which it lasts for; `None` at the end of all.
    pub(crate) async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let turns = if bytes <= SHORT_BYTES_MAX { &self.short } else { &self.long };
        turns.clone().acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_is_short_does_not_wait_for_what_is_long() {
        let turns = Turns::new();
        let mut held = Vec::new();
        while let Ok(Some(turn)) =
            tokio::time::timeout(Duration::from_millis(20), turns.take(SHORT_BYTES_MAX + 1)).await
        {
            held.push(turn);
        }
        assert!(!held.is_empty());
        let short = turns.take(SHORT_BYTES_MAX);
        assert!(tokio::time::timeout(Duration::from_secs(10), short).await.unwrap().is_some());
        drop(held);
        assert!(turns.take(usize::MAX).await.is_some());
    }
}
