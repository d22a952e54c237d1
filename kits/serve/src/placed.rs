//! A connection with its place among those of its listener.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use super::shares::{Place, Requested};

/// How often other tasks have their turn before a connection that has to leave does: a request that
/// was just read may be on its way to its server.
const TURNS: u8 = 3;

/// A stream that is used like any other. Its place is free when it is closed. When it has to leave,
/// it ends for its reader after what was sent until then.
#[derive(Debug)]
pub struct Placed<S> {
    stream: S,
    place: Place,
    turns: u8,
}

/// What a gRPC server knows of the connection of a request.
#[derive(Clone, Debug)]
pub struct PlacedInfo<I> {
    /// What it would know without a place.
    pub info: I,
    requested: Requested,
}

// === impl Placed ===

impl<S> Placed<S> {
    /// A stream that has this place.
    #[must_use]
    pub fn new(stream: S, place: Place) -> Self {
        Self { stream, place, turns: 0 }
    }

    /// The stream itself.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The place itself.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// To be noted when a complete request has come.
    pub fn requested(&self) -> Requested {
        self.place.requested()
    }

    /// Whether the stream ended because it had to leave.
    pub fn left(&self) -> bool {
        self.place.left()
    }
}

// === impl PlacedInfo ===

impl<I> PlacedInfo<I> {
    /// A call that may stay has come over the connection.
    pub fn note_request(&self) {
        self.requested.note();
    }
}

impl<S: Connected> Connected for Placed<S> {
    type ConnectInfo = PlacedInfo<S::ConnectInfo>;

    fn connect_info(&self) -> Self::ConnectInfo {
        PlacedInfo { info: self.stream.connect_info(), requested: self.requested() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Placed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            self.turns = 0;
            return read;
        }
        if !self.place.is_to_leave(cx) {
            return Poll::Pending;
        }
        if self.turns < TURNS {
            self.turns += 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // The end of the stream.
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Placed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.place.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
