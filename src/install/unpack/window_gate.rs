//! Lets a decoder see a header only when the installation holds the memory that it asks for.
//!
//! It stands between `Source` and the decoder of zstd, whose frames each have a header. For an
//! archive in xz, `unpack` reads the first header and makes a decoder that takes no more memory
//! than that.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};

use super::limits_reader::{Intake, Source, poll_read_buffered};
use super::window_header::ZstdHeaders;
use crate::install::window_budget::Hold;

/// The compressed bytes; the installation holds the memory for every header in them.
pub(crate) struct WindowGate {
    source: Source,
    headers: ZstdHeaders,
    /// How many of the bytes that the source has ready were examined.
    seen: usize,
    /// How many of those belong to frames, so that the decoder may read them.
    frames: usize,
    hold: Arc<Hold>,
    intake: Arc<Intake>,
}

// === impl WindowGate ===

impl WindowGate {
    pub(crate) fn new(source: Source, hold: Arc<Hold>) -> Self {
        let intake = source.intake();
        Self { source, headers: ZstdHeaders::default(), seen: 0, frames: 0, hold, intake }
    }
}

impl AsyncBufRead for WindowGate {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { source, headers, seen, frames, hold, intake } = self.get_mut();
        let bytes = ready!(Pin::new(source).poll_fill_buf(cx))?;
        if let Some(fresh) = bytes.get(*seen..).filter(|fresh| !fresh.is_empty()) {
            *seen += fresh.len();
            let found = headers.read(fresh);
            *frames += found.frames;
            if let Some(window) = found.window
                && let Err(reason) = hold.grow(window)
            {
                return Poll::Ready(Err(intake.refuse(reason)));
            }
        }
        if *frames == 0 && !bytes.is_empty() {
            let error = "something else than a zstd frame follows";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        Poll::Ready(Ok(&bytes[..*frames]))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        let this = self.get_mut();
        this.seen = this.seen.saturating_sub(amount);
        this.frames = this.frames.saturating_sub(amount);
        Pin::new(&mut this.source).consume(amount);
    }
}

impl AsyncRead for WindowGate {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        poll_read_buffered(self, cx, into)
    }
}
