//! A connection that was let in, and how long it may be silent: while it begins, and when its
//! server ends. How long it may be deaf its [`Socket`] knows.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use aqueduct_core::limits;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::door::{Closing, Visit};
use crate::role::Caller;
use crate::socket::Socket;

#[cfg(test)]
mod tests;

/// How HTTP/2 begins (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long that may take. Afterwards pings say who is gone.
const PREFACE_DEADLINE: Duration = Duration::from_millis(limits::CONNECT_DEADLINE_MS);

/// How long a connection may be silent whose server ends, while nothing is answered on it: as long
/// as who lives needs to hear goodbye and say so, or to send the rest of what it began.
const FAREWELL: Duration = Duration::from_millis(500);

/// A connection that was let in.
#[derive(Debug)]
pub struct Conn {
    io: Io,
    caller: Caller,
    stay: Stay,
}

#[derive(Debug)]
enum Io {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

/// Until when a connection is kept.
#[derive(Debug, Default)]
struct Stay {
    /// How much of the preface has come, and how long the rest may take.
    beginning: Option<(usize, Pin<Box<Sleep>>)>,
    /// Until its door is closed.
    closing: Option<Closing>,
    /// Until it has been silent for long enough, from then on.
    leaving: Option<Pin<Box<Sleep>>>,
    /// Nothing more is read.
    is_over: bool,
    visit: Option<Visit>,
}

impl Stay {
    /// Resolves when the connection is over, though its other end does not say so.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((_, deadline)) = &mut self.beginning
            && deadline.as_mut().poll(cx).is_ready()
        {
            tracing::debug!("a connection is closed that has not begun to speak in time");
            self.is_over = true;
        }
        if let Some(closing) = &mut self.closing
            && pin!(closing).poll(cx).is_ready()
        {
            self.closing = None;
            self.leaving = Some(Box::pin(sleep(FAREWELL)));
        }
        while !self.is_over {
            let Some(leaving) = &mut self.leaving else { return Poll::Pending };
            ready!(leaving.as_mut().poll(cx));
            let is_needed = self.visit.as_ref().is_some_and(|visit| visit.under_way.is_any_here());
            match is_needed {
                true => leaving.as_mut().reset(Instant::now() + FAREWELL),
                false => self.is_over = true,
            }
        }
        Poll::Ready(())
    }

    /// So much has come or gone.
    fn moved(&mut self, bytes: usize) {
        if let Some(leaving) = self.leaving.as_mut().filter(|_| bytes > 0) {
            leaving.as_mut().reset(Instant::now() + FAREWELL);
        }
    }

    /// This has come.
    fn heard(&mut self, bytes: &[u8]) {
        self.moved(bytes.len());
        let Some((before, _)) = &mut self.beginning else { return };
        let rest = &PREFACE[*before..];
        let is_preface = bytes.starts_with(&rest[..rest.len().min(bytes.len())]);
        *before += bytes.len();
        // What is not HTTP/2 is for the parser of HTTP/1.1, which has a deadline of its own.
        if !is_preface || *before >= PREFACE.len() {
            self.beginning = None;
        }
    }
}

impl Conn {
    pub(crate) fn secured(stream: TlsStream<Socket>, caller: Caller) -> Self {
        Self { io: Io::Tls(Box::new(stream)), caller, stay: Stay::default() }
    }

    /// Who is at its other end.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// It came by a door, and is not kept long when that is closed: to its reader it ends when it
    /// is silent and nothing is answered on it.
    #[must_use]
    pub fn within(mut self, visit: Visit) -> Self {
        self.caller.count_in(&visit.under_way);
        self.stay.closing = Some(visit.closing.clone());
        self.stay.visit = Some(visit);
        self
    }

    /// It is to begin with HTTP/2 in time, or with something else.
    pub(crate) fn beginning(mut self) -> Self {
        self.stay.beginning = Some((0, Box::pin(sleep(PREFACE_DEADLINE))));
        self
    }

    fn wrote(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = polled {
            self.stay.moved(bytes);
        }
        polled
    }
}

impl From<TcpStream> for Conn {
    fn from(stream: TcpStream) -> Self {
        let caller = Caller::unasked(stream.peer_addr().ok());
        Self { io: Io::Plain(stream.into()), caller, stay: Stay::default() }
    }
}

impl Connected for Conn {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Conn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.stay.is_over {
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        let polled = match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        };
        if polled.is_pending() {
            return this.stay.poll_over(cx).map(Ok);
        }
        this.stay.heard(&into.filled()[before..]);
        polled
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        this.wrote(polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        };
        this.wrote(polled)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
