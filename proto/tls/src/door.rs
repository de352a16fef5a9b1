//! An address that connections are accepted at: how many there may be at once, and what they hear
//! of when it is closed.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::Shared;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::under_way::UnderWay;

/// Resolves when a door is closed.
pub type Closing = Shared<oneshot::Receiver<()>>;

/// After so long it is told again that connections wait to be accepted.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Where connections are accepted, until it is dropped.
#[derive(Debug)]
pub struct Door {
    tcp: TcpListener,
    address: Option<SocketAddr>,
    connections_max: usize,
    places: Arc<Semaphore>,
    /// When it was told last that no place was free.
    told: Mutex<Option<Instant>>,
    under_way: UnderWay,
    closing: Closing,
    /// Dropped with the door.
    _open: oneshot::Sender<()>,
}

/// What a connection has of the door that it came by. Its place is free when this is dropped.
#[derive(Debug)]
pub struct Visit {
    /// Resolves when the door is closed.
    pub closing: Closing,
    pub(crate) under_way: UnderWay,
    _place: OwnedSemaphorePermit,
}

impl Door {
    /// Has room for `connections_max` connections, whose calls are counted in `under_way`.
    pub fn new(tcp: TcpListener, connections_max: usize, under_way: &UnderWay) -> Self {
        let (open, closing) = oneshot::channel();
        Self {
            address: tcp.local_addr().ok(),
            tcp,
            connections_max,
            places: Arc::new(Semaphore::new(connections_max)),
            told: Mutex::new(None),
            under_way: under_way.clone(),
            closing: closing.shared(),
            _open: open,
        }
    }

    /// The next connection, when a place is free for it: until then the system lets it wait. `None`
    /// if that one could not be accepted.
    pub async fn accept(&self) -> Option<(TcpStream, Visit)> {
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                self.tell_full();
                self.places.clone().acquire_owned().await.ok()?
            }
        };
        let stream = self.tcp.accept().await.map(|(stream, _)| stream);
        let stream = accepted(stream).await?;
        let (closing, under_way) = (self.closing.clone(), self.under_way.of_another());
        Some((stream, Visit { closing, under_way, _place: place }))
    }

    fn tell_full(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            *told = Some(Instant::now());
            let (address, connections) = (self.address, self.connections_max);
            tracing::warn!(?address, connections, "all connections are taken: more wait");
        }
    }
}

/// Before the next connection is accepted, where there was nothing left to accept one with.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// ENOMEM, ENFILE, EMFILE and ENOBUFS: only the first has a kind of its own in [`io::ErrorKind`].
const NOTHING_LEFT: [i32; 4] = [12, 23, 24, if cfg!(target_os = "linux") { 105 } else { 55 }];

/// After so long without another failure connections are accepted again: handles come and go while
/// there are few.
const SHORT_FOR: Duration = Duration::from_secs(10);

/// Whether this process has nothing left to accept connections with, whatever they come by.
static SHORTAGE: Shortage = Shortage(Mutex::new(None));

/// When there was nothing left last, if that was not long ago.
#[derive(Debug)]
struct Shortage(Mutex<Option<Instant>>);

impl Shortage {
    /// There is nothing left; whether that is new.
    fn begins(&self, now: Instant) -> bool {
        self.lock().replace(now).is_none()
    }

    /// A connection was accepted; whether a shortage is over by that.
    fn ends(&self, now: Instant) -> bool {
        let is_over = |last: &mut Instant| now.saturating_duration_since(*last) >= SHORT_FOR;
        self.lock().take_if(is_over).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection, if there is one. Where there is none for want of file handles or memory, the
/// next try would fail as fast, and waits. Any other error is of one connection, which may have
/// gone before it was accepted; those behind it do not wait for that.
async fn accepted(stream: io::Result<TcpStream>) -> Option<TcpStream> {
    let now = Instant::now();
    let error = match stream {
        Ok(stream) => {
            if SHORTAGE.ends(now) {
                tracing::info!("connections are accepted again");
            }
            return Some(stream);
        }
        Err(error) => error,
    };
    if error.raw_os_error().is_some_and(|code| NOTHING_LEFT.contains(&code)) {
        if SHORTAGE.begins(now) {
            tracing::warn!(%error, "no connection can be accepted; what follows is not told");
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    } else {
        tracing::debug!(%error, "a connection could not be accepted");
    }
    None
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_shortage_is_told_when_it_begins_and_when_it_ends() {
        let shortage = Shortage(Mutex::new(None));
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(!shortage.ends(at(0)), "there was none");
        assert!(shortage.begins(at(0)));
        assert!(!shortage.begins(at(0)) && !shortage.begins(at(7)), "ten times a second");
        assert!(!shortage.ends(at(8)) && !shortage.begins(at(9)), "one handle came free");
        assert!(!shortage.ends(at(18)));
        assert!(shortage.ends(at(19)) && !shortage.ends(at(19)));
        assert!(shortage.begins(at(20)), "another one");
    }

    #[tokio::test]
    async fn others_wait_only_where_nothing_is_left() {
        let check = |code: i32, waits: bool| {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(accepted(Err(error)).now_or_never().is_none(), waits, "{code}");
        };
        NOTHING_LEFT.into_iter().for_each(|code| check(code, true));
        // EPERM by a firewall's rule, EPROTO, ECONNABORTED, EHOSTUNREACH: as Linux has them.
        [1, 71, 103, 113].into_iter().for_each(|code| check(code, false));
        let unknown = io::Error::from(io::ErrorKind::ConnectionReset);
        assert!(accepted(Err(unknown)).now_or_never().is_some_and(|none| none.is_none()));
    }
}
