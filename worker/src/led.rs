//! Whether a coordinator leads here. Behind a worker's address there may be a second process, of
//! which no coordinator knows: an old one that was given up and still lives, or whatever a stale
//! name leads to. What others brought it would be taken, and never come to who waits for it.
//!
//! Nobody brings anything before a coordinator has named this worker to them, which it does in a
//! session of its own here, so one without any sees nothing that is meant for it.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::sleep_until;

/// The coordinators' sessions of one worker, counted. Clones count the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Led {
    grace: Duration,
    sessions: watch::Sender<Sessions>,
}

#[derive(Debug, Clone, Copy)]
struct Sessions {
    open: usize,
    /// When the last one ended, or the worker began.
    since: Instant,
}

/// That there is a session, as long as this is there.
#[derive(Debug)]
pub(crate) struct Leading(Led);

impl Led {
    /// No session yet; without one for longer than `grace` nobody leads.
    pub(crate) fn new(grace: Duration) -> Self {
        let sessions = Sessions { open: 0, since: Instant::now() };
        Self { grace, sessions: watch::Sender::new(sessions) }
    }

    /// A session begins.
    pub(crate) fn enter(&self) -> Leading {
        self.sessions.send_modify(|sessions| sessions.open += 1);
        Leading(self.clone())
    }

    /// Whether nobody leads.
    pub(crate) fn is_over(&self) -> bool {
        let sessions = *self.sessions.borrow();
        sessions.open == 0 && sessions.since.elapsed() >= self.grace
    }

    /// Until nobody leads.
    pub(crate) async fn over(&self) {
        let mut changes = self.sessions.subscribe();
        while !self.is_over() {
            let Sessions { open, since } = *changes.borrow_and_update();
            let due = since.checked_add(self.grace).filter(|_| open == 0);
            let passes = async {
                match due {
                    Some(due) => sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = passes => {}
                _ = changes.changed() => {} // who counts is here, so it is never closed
            }
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.sessions.send_modify(|sessions| {
            sessions.open -= 1;
            sessions.since = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn nobody_leads_once_the_last_session_is_over_for_long() {
        let led = Led::new(Duration::ZERO);
        assert!(led.is_over(), "it never had one");
        let (first, second) = (led.enter(), led.clone().enter());
        assert!(!led.is_over());
        drop(first);
        assert!(!led.is_over() && led.over().now_or_never().is_none(), "another is open");
        drop(second);
        assert!(led.is_over());
        timeout(SOON, led.over()).await.unwrap();
    }

    #[tokio::test]
    async fn for_a_while_nobody_need_lead() {
        let led = Led::new(Duration::MAX);
        drop(led.enter());
        assert!(!led.is_over() && led.over().now_or_never().is_none());
        let led = Led::new(Duration::from_millis(20));
        let session = led.enter();
        let over = tokio::spawn({
            let led = led.clone();
            async move { led.over().await }
        });
        timeout(Duration::from_millis(100), led.over()).await.unwrap_err();
        assert!(!over.is_finished(), "it is led, however long that takes");
        drop(session);
        timeout(SOON, over).await.unwrap().unwrap();
        assert!(led.is_over());
        let _session = led.enter();
        assert!(!led.is_over(), "another coordinator has come");
    }
}
