//! The body of an answer, in chunks, with its injected faults.
//!
//! A chunk is read when the transport asks for it, so a slow reader costs one chunk of memory.

use std::io::{self, SeekFrom};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::catalog::Content;
use super::faults::RequestFaults;

/// Each read of a file runs on another thread; with small chunks the hand-over would cost more than
/// the read.
const CHUNK: u64 = 256 << 10;
/// Throttled bodies are sent in so many pieces per second.
const PIECES_PER_SECOND: u64 = 20;

/// How long a client that reads has to take what was sent before its connection is cut.
const BEFORE_CUTTING: Duration = Duration::from_millis(100);

/// The bytes to send, and the faults on the way.
pub(super) struct Plan {
    pub(super) first: u64,
    pub(super) length: u64,
    pub(super) faults: RequestFaults,
    pub(super) shutdown: CancellationToken,
}

struct Sending<C> {
    source: Source,
    plan: Plan,
    sent: u64,
    since: Instant,
    count: C,
}

enum Source {
    Memory(Bytes),
    File(tokio::fs::File),
}

/// The body. It calls `count` with the size of every chunk that it hands to the transport.
pub(super) fn stream<C>(content: Content, plan: Plan, count: C) -> Body
where
    C: Fn(u64) + Send + 'static,
{
    let source = match content {
        Content::Memory(bytes) => Source::Memory(bytes),
        Content::File(file) => Source::File(tokio::fs::File::from_std(file)),
    };
    let sending = Sending { source, plan, sent: 0, since: Instant::now(), count };
    Body::from_stream(stream::try_unfold(sending, |mut sending| async move {
        Ok::<_, io::Error>(sending.next().await?.map(|chunk| (chunk, sending)))
    }))
}

// === impl Sending ===

impl<C: Fn(u64)> Sending<C> {
    /// The next chunk; `None` at the end; an error closes the connection.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        if self.sent >= self.plan.length {
            return Ok(None);
        }
        let faults = self.plan.faults;
        if faults.stall_after.is_some_and(|after| self.sent >= after) {
            self.plan.shutdown.cancelled().await;
            return Err(io::Error::other("stalled until the shutdown"));
        }
        if faults.truncate_after.is_some_and(|after| self.sent >= after) {
            // An error makes the transport drop the bytes that it has not written yet, so it gets
            // time to write them first.
            tokio::time::sleep(BEFORE_CUTTING).await;
            return Err(io::Error::other("truncated"));
        }
        let mut size = CHUNK.min(self.plan.length - self.sent);
        for limit in [faults.stall_after, faults.truncate_after].into_iter().flatten() {
            size = size.min(limit - self.sent);
        }
        if let Some(rate) = faults.bytes_per_second {
            size = size.min((rate / PIECES_PER_SECOND).max(1));
            self.keep_to(rate.max(1)).await?;
        }
        let chunk = self.read(size).await?;
        self.sent += chunk.len() as u64;
        (self.count)(chunk.len() as u64);
        Ok(Some(chunk))
    }

    /// Waits until the rate allows the bytes that were sent.
    async fn keep_to(&mut self, bytes_per_second: u64) -> io::Result<()> {
        let micros = u128::from(self.sent) * 1_000_000 / u128::from(bytes_per_second);
        let due = self.since + Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        tokio::select! {
            () = tokio::time::sleep_until(due) => Ok(()),
            () = self.plan.shutdown.cancelled() => Err(io::Error::other("the server shut down")),
        }
    }

    async fn read(&mut self, size: u64) -> io::Result<Bytes> {
        let too_large = |_| io::Error::other("larger than memory");
        let capacity = usize::try_from(size).map_err(too_large)?;
        let file = match &mut self.source {
            Source::Memory(bytes) => {
                let start = usize::try_from(self.plan.first + self.sent).map_err(too_large)?;
                return Ok(bytes.slice(start..start + capacity));
            }
            Source::File(file) => file,
        };
        if self.sent == 0 {
            file.seek(SeekFrom::Start(self.plan.first)).await?;
        }
        let mut chunk = BytesMut::with_capacity(capacity);
        file.take(size).read_buf(&mut chunk).await?;
        if chunk.is_empty() {
            // The body cannot have the promised length; the connection is closed so that the client
            // notices.
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        Ok(chunk.freeze())
    }
}
