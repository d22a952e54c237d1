//! A connection that holds its permit, such as its place among those that are counted.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// A stream that is used like any other, and gives its permit back when it is closed.
pub(crate) struct WithPermit<S, P> {
    stream: S,
    _permit: P,
}

impl<S, P> WithPermit<S, P> {
    pub(crate) fn new(stream: S, permit: P) -> Self {
        Self { stream, _permit: permit }
    }

    /// The stream itself.
    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S: Connected, P> Connected for WithPermit<S, P> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin, P: Unpin> AsyncRead for WithPermit<S, P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin, P: Unpin> AsyncWrite for WithPermit<S, P> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
