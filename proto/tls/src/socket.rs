//! A socket, for as long as its other end takes what is written to it.

use std::io::{self, IoSlice, Write};
use std::net;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use aqueduct_core::limits;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// How long what is to be written may wait before the other end has taken any of it.
const PATIENCE: Duration = Duration::from_millis(limits::WRITE_STALL_MS);

/// A socket that fails who writes when the other end has long taken nothing. Below TLS, which
/// takes bytes itself that are not sent yet. Pings of HTTP/2 do not find that out: they wait behind
/// what is not taken, and so does the goodbye of who gave up waiting for them. Linux could
/// (`TCP_USER_TIMEOUT`), but ends just so who takes little at a time.
#[derive(Debug)]
pub(crate) struct Socket {
    tcp: TcpStream,
    patience: Duration,
    /// From when nothing more could be written.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Whether it took some when that had been long enough.
    took: bool,
}

impl From<TcpStream> for Socket {
    fn from(tcp: TcpStream) -> Self {
        Self::new(tcp, PATIENCE)
    }
}

impl Socket {
    /// One whose other end takes something within `patience`.
    pub(crate) fn new(tcp: TcpStream, patience: Duration) -> Self {
        Self { tcp, patience, waiting: None, took: false }
    }

    /// What `polled` says, or that it has said so for too long. `again` writes the same.
    fn in_time(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
        mut again: impl FnMut(net::TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if polled.is_ready() {
            (self.waiting, self.took) = (None, false);
            return polled;
        }
        let patience = self.patience;
        loop {
            let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
            ready!(waiting.as_mut().poll(cx));
            // The system tells of room when a third of its buffer is free, which is megabytes that
            // a slow reader may need long for; it takes bytes when any is.
            match self.twin().and_then(&mut again) {
                Ok(bytes) => {
                    self.took = true;
                    return Poll::Ready(Ok(bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.took => {
                    (self.waiting, self.took) = (None, false);
                }
                Err(error) => return Poll::Ready(Err(self.given_up(error))),
            }
        }
    }

    /// The same socket, as the standard library has it, which asks the system at once.
    fn twin(&self) -> io::Result<net::TcpStream> {
        Ok(self.tcp.as_fd().try_clone_to_owned()?.into())
    }

    fn given_up(&self, error: io::Error) -> io::Error {
        // When it is closed, what was written is forgotten: the system would go on to offer it.
        if let Err(error) = self.tcp.set_zero_linger() {
            tracing::debug!(%error, "what is not taken stays with the system for a while");
        }
        if error.kind() != io::ErrorKind::WouldBlock {
            return error;
        }
        let (address, after) = (self.tcp.peer_addr().ok(), self.patience);
        tracing::debug!(?address, ?after, "a connection is closed whose other end takes nothing");
        io::Error::new(io::ErrorKind::TimedOut, "the other end takes nothing")
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_read(cx, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.tcp).poll_write(cx, bytes);
        this.in_time(cx, polled, |mut twin| twin.write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.tcp).poll_write_vectored(cx, parts);
        this.in_time(cx, polled, |mut twin| twin.write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    /// Nothing is kept here that could wait.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }
}
