//! A stream whose writes fail when its reader reads nothing for some time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails a write that has waited for `timeout`. A stream without a waiting write may be idle for
/// ever.
pub struct WriteTimeout<S> {
    stream: S,
    timeout: Duration,
    /// Elapses when the waiting write has waited too long.
    over: Pin<Box<Sleep>>,
    is_waiting: bool,
}

// === impl WriteTimeout ===

impl<S> WriteTimeout<S> {
    /// A stream whose writes may wait for so long.
    #[must_use]
    pub fn new(stream: S, timeout: Duration) -> Self {
        let over = Box::pin(tokio::time::sleep(timeout));
        Self { stream, timeout, over, is_waiting: false }
    }

    /// The result of a write, or an error when it has waited too long.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_waiting = false;
            return written;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            self.over.as_mut().reset(Instant::now() + self.timeout);
        }
        ready!(self.over.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_who_reads_nothing_is_given_up_and_a_slow_one_is_not() {
        let timeout = Duration::from_secs(20);
        let (mut client, server) = tokio::io::duplex(8);
        let mut server = WriteTimeout::new(server, timeout);
        let reading = tokio::spawn(async move {
            let mut bytes = [0; 8];
            for _ in 0..4 {
                tokio::time::sleep(timeout / 2).await;
                client.read_exact(&mut bytes).await.expect("something to read");
            }
            client
        });
        server.write_all(&[1; 40]).await.expect("slow, but read");
        let _client = reading.await.expect("it read");
        let begun_at = Instant::now();
        let error = server.write_all(&[1; 40]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun_at.elapsed(), timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_nobody_writes_to_may_rest() {
        let (mut client, server) = tokio::io::duplex(8);
        let mut server = WriteTimeout::new(server, Duration::from_secs(1));
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            server.write_all(b"x").await.expect("there is room");
            assert_eq!(client.read_u8().await.expect("written"), b'x');
        }
    }
}
