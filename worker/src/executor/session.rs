//! One coordinator's session, as the device thread sees it: polled, never awaited.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use aqueduct_core::limits;
use aqueduct_core::work::{Command, Event, PoolUse, WorkerInfo};
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use crate::led::Leading;

/// Names a session within its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionId(pub(crate) u64);

/// Commands from a coordinator, events to it.
pub(crate) struct Session {
    commands: mpsc::Receiver<Command>,
    pub(crate) outlet: Outlet,
    /// For threads that answer beside the device's.
    pub(crate) answers: mpsc::Sender<Event>,
    /// What it was told of the pool last.
    pub(crate) told_pool: PoolUse,
    _leading: Leading,
}

/// The way out for events.
pub(crate) struct Outlet {
    sender: PollSender<Event>,
    /// Resolves when nobody reads events any more.
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Events that must arrive and found no room.
    pending: VecDeque<Event>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({} pending)", self.outlet.pending.len())
    }
}

impl Session {
    pub(crate) fn new(
        commands: mpsc::Receiver<Command>,
        events: mpsc::Sender<Event>,
        info: WorkerInfo,
        leading: Leading,
    ) -> Self {
        let (watched, answers) = (events.clone(), events.clone());
        let outlet = Outlet {
            sender: PollSender::new(events),
            closed: Box::pin(async move { watched.closed().await }),
            pending: VecDeque::from([Event::Hello(Box::new(info))]),
        };
        Self { commands, outlet, answers, told_pool: PoolUse::default(), _leading: leading }
    }

    /// The next command; `Ready(None)` when the session is over.
    pub(crate) fn poll_command(&mut self, waker: &Waker) -> Poll<Option<Command>> {
        let cx = &mut Context::from_waker(waker);
        self.outlet.flush(cx);
        if self.outlet.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        if self.outlet.pending.len() > limits::EVENTS_MAX {
            tracing::warn!("a coordinator does not read its events; its session ends");
            return Poll::Ready(None);
        }
        self.commands.poll_recv(cx)
    }
}

impl Outlet {
    /// Sends an event that must arrive: now, or as soon as there is room.
    pub(crate) fn send(&mut self, event: Event, waker: &Waker) {
        self.pending.push_back(event);
        self.flush(&mut Context::from_waker(waker));
    }

    /// Sends an event that may be lost if there is room for it now.
    pub(crate) fn offer(&mut self, event: Event, waker: &Waker) {
        if self.has_room(waker) {
            self.send(event, waker);
        }
    }

    /// Whether the next event goes out at once; if not, the waker is woken when it would.
    pub(crate) fn has_room(&mut self, waker: &Waker) -> bool {
        let cx = &mut Context::from_waker(waker);
        self.flush(cx);
        self.pending.is_empty() && self.sender.poll_reserve(cx).is_ready()
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        while !self.pending.is_empty() {
            match self.sender.poll_reserve(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {
                    if let Some(event) = self.pending.pop_front() {
                        let _ = self.sender.send_item(event); // closed: `closed` tells
                    }
                }
                Poll::Ready(Err(_)) => self.pending.clear(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aqueduct_core::RequestId;

    fn event(choice: u32) -> Event {
        Event::ChoiceDone { request: RequestId(1), choice, eos: true }
    }

    #[test]
    fn events_wait_for_room_in_order_and_progress_does_not() {
        let (sender, mut events) = mpsc::channel(2);
        let outlet = Outlet {
            closed: Box::pin(std::future::pending()),
            sender: PollSender::new(sender),
            pending: VecDeque::new(),
        };
        let (mut outlet, waker) = (outlet, Waker::noop());
        for choice in 0..4 {
            outlet.send(event(choice), waker);
        }
        assert!(!outlet.has_room(waker));
        outlet.offer(event(9), waker);
        for choice in 0..4 {
            outlet.flush(&mut Context::from_waker(waker));
            assert_eq!(events.try_recv(), Ok(event(choice)));
        }
        assert!(outlet.has_room(waker));
        outlet.offer(event(5), waker);
        assert_eq!(events.try_recv(), Ok(event(5)));
        assert!(events.try_recv().is_err());
    }
}
