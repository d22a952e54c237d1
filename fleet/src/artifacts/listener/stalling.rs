//! A connection that breaks when its client reads nothing for some time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Breaks a write that waits longer than it may. A connection on which no write waits may rest.
pub(super) struct Stalling<S> {
    stream: S,
    longest: Duration,
    /// Passes when the waiting write has waited too long.
    over: Pin<Box<Sleep>>,
    is_waiting: bool,
}

impl<S> Stalling<S> {
    pub(super) fn new(stream: S, longest: Duration) -> Self {
        let over = Box::pin(tokio::time::sleep(longest));
        Self { stream, longest, over, is_waiting: false }
    }

    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_waiting = false;
            return written;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            self.over.as_mut().reset(Instant::now() + self.longest);
        }
        ready!(self.over.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(context, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_served_and_one_that_reads_nothing_is_cut() {
        let (mut client, server) = tokio::io::duplex(8);
        let mut server = Stalling::new(server, LONGEST);
        let reading = tokio::spawn(async move {
            let mut bytes = [0; 8];
            for _ in 0..4 {
                tokio::time::sleep(LONGEST / 2).await;
                client.read_exact(&mut bytes).await.expect("something to read");
            }
            client
        });
        server.write_all(&[1; 40]).await.expect("it is read, though slowly");
        let _client = reading.await.expect("it read");
        let since = Instant::now();
        let error = server.write_all(&[1; 40]).await.expect_err("nothing is read");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(since.elapsed(), LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_on_which_nothing_waits_may_rest() {
        let (mut client, server) = tokio::io::duplex(8);
        let mut server = Stalling::new(server, LONGEST);
        tokio::time::sleep(LONGEST * 5).await;
        server.write_all(b"x").await.expect("there is room");
        assert_eq!(client.read_u8().await.expect("it was written"), b'x');
    }
}
