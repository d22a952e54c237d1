//! A stream that does not wait for ever for a reader who reads nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails when nothing can be written for some time. An idle stream is not meant: only one on which a
/// write waits.
pub(crate) struct Patient<S> {
    stream: S,
    patience: Duration,
    /// When the write that waits has waited too long.
    over: Pin<Box<Sleep>>,
    is_waiting: bool,
}

// === impl Patient ===

impl<S> Patient<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        let over = Box::pin(tokio::time::sleep(patience));
        Self { stream, patience, over, is_waiting: false }
    }

    /// What a write came to, unless it waits too long.
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
            self.over.as_mut().reset(Instant::now() + self.patience);
        }
        ready!(self.over.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
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
        let patience = Duration::from_secs(20);
        let (mut client, server) = tokio::io::duplex(8);
        let mut server = Patient::new(server, patience);
        let reading = tokio::spawn(async move {
            let mut bytes = [0; 8];
            for _ in 0..4 {
                tokio::time::sleep(patience / 2).await;
                client.read_exact(&mut bytes).await.expect("something to read");
            }
            client
        });
        server.write_all(&[1; 40]).await.expect("slow, but read");
        let _client = reading.await.expect("it read");
        let begun_at = Instant::now();
        let error = server.write_all(&[1; 40]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun_at.elapsed(), patience);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_nobody_writes_to_may_rest() {
        let (mut client, server) = tokio::io::duplex(8);
        let mut server = Patient::new(server, Duration::from_secs(1));
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            server.write_all(b"x").await.expect("there is room");
            assert_eq!(client.read_u8().await.expect("written"), b'x');
        }
    }
}
