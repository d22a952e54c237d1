//! Readers between the download and the tar parser: they count the bytes and check the limits.
//!
//! ```text
//! download task ──Piece──► Source ──► decoder ──► DecoderThread ──► LimitsReader ──► tar parser
//!                          (compressed bytes)              (expanded bytes, limits)
//! ```
//!
//! All of it runs on the two threads of one installation and is driven by [`block_on`], which needs
//! no runtime: the threads wait only for the next piece. `unpack` calls this.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::Thread;

use bytes::{Buf, Bytes, BytesMut};
use guest_agent_actors::error::Chain;
use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};
use tokio::sync::mpsc;

use crate::install::error::UnpackError;
use crate::install::limits::Limits;

/// The messages of the download to the unpacking thread.
#[derive(Debug)]
pub(crate) enum Piece {
    /// The next bytes of the archive.
    Data(Bytes),
    /// All bytes were handed over, and their checksum is the ordered one. A channel that closes
    /// without this means that the download was given up.
    Verified,
}

/// Counters and the verdict, shared by the readers of one installation.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: Limits,
    compressed: Cell<u64>,
    expanded: Cell<u64>,
    /// While the tar parser is between two members: how many bytes it may still take. It holds
    /// long names and extended attributes in memory without a limit of its own.
    header_allowance: Cell<Option<u64>>,
    verified: Cell<bool>,
    at_end: Cell<bool>,
    verdict: RefCell<Option<UnpackError>>,
}

/// The compressed bytes, as they arrive.
pub(crate) struct Source {
    pieces: mpsc::Receiver<Piece>,
    current: Bytes,
    intake: Arc<Intake>,
}

/// The counts of the compressed bytes, also while a decoder owns the source.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    compressed: AtomicU64,
    verified: AtomicBool,
    /// Why the decoder got no more bytes.
    verdict: Mutex<Option<UnpackError>>,
}

/// The expanded bytes, counted.
pub(crate) struct LimitsReader<R> {
    inner: R,
    meter: Rc<Meter>,
}

// === impl Meter ===

impl Meter {
    pub(crate) fn new(limits: Limits) -> Rc<Self> {
        Rc::new(Self {
            limits,
            compressed: Cell::new(0),
            expanded: Cell::new(0),
            header_allowance: Cell::new(None),
            verified: Cell::new(false),
            at_end: Cell::new(false),
            verdict: RefCell::new(None),
        })
    }

    /// The tar parser is about to read headers.
    pub(crate) fn expect_headers(&self) {
        // In addition to the limit: the padding of the member before, and the header block itself.
        self.header_allowance.set(Some(self.limits.header_bytes.saturating_add(4 * 512)));
    }

    /// The tar parser is about to read a member's content.
    pub(crate) fn expect_content(&self) {
        self.header_allowance.set(None);
    }

    /// How many bytes of the archive were read.
    pub(crate) fn has_read(&self, compressed: u64) {
        self.compressed.set(compressed);
    }

    /// The decoder saw the end of its input.
    pub(crate) fn has_ended(&self, is_verified: bool) {
        self.verified.set(is_verified);
    }

    /// Whether every byte arrived and the checksum was right.
    pub(crate) fn is_verified(&self) -> bool {
        self.verified.get()
    }

    /// Whether the expanded stream has ended.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at_end.get()
    }

    /// The reason for an error that came back through the parsers: a limit that a reader here
    /// found, want of memory, or else damage in the stream.
    pub(crate) fn explain(&self, format: &'static str, error: io::Error) -> UnpackError {
        let verdict = self.verdict.borrow_mut().take();
        verdict.unwrap_or_else(|| {
            let is_short = wants_memory(&error);
            let source = quotable(error);
            match is_short {
                true => UnpackError::Memory { format, source },
                false => UnpackError::Damaged { format, source },
            }
        })
    }

    /// Keeps the reason, for an error that goes back through the parsers.
    pub(crate) fn refuse(&self, verdict: UnpackError) -> io::Error {
        let error = io::Error::other(verdict.to_string());
        self.verdict.borrow_mut().get_or_insert(verdict);
        error
    }

    fn count_expanded(&self, bytes: u64) -> io::Result<()> {
        let limits = &self.limits;
        let expanded = self.expanded.get().saturating_add(bytes);
        self.expanded.set(expanded);
        if expanded > limits.expanded_bytes {
            let limit = limits.expanded_bytes;
            return Err(self.refuse(UnpackError::Limit { what: "bytes when unpacked", limit }));
        }
        if expanded > limits.ratio_from_bytes
            && expanded > self.compressed.get().saturating_mul(limits.ratio)
        {
            return Err(self.refuse(UnpackError::Ratio { limit: limits.ratio }));
        }
        if let Some(allowance) = self.header_allowance.get() {
            let Some(rest) = allowance.checked_sub(bytes) else {
                let limit = limits.header_bytes;
                let what = "bytes of headers before one member";
                return Err(self.refuse(UnpackError::Limit { what, limit }));
            };
            self.header_allowance.set(Some(rest));
        }
        Ok(())
    }
}

// === impl Intake ===

impl Intake {
    /// How many bytes the decoder has taken.
    pub(crate) fn compressed(&self) -> u64 {
        self.compressed.load(Ordering::Relaxed)
    }

    /// Whether every byte arrived and the checksum was right.
    pub(crate) fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Relaxed)
    }

    /// Why the decoder got no more bytes, if it failed because of that.
    pub(crate) fn verdict(&self) -> Option<UnpackError> {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the reason, for an error that goes through the decoder.
    pub(crate) fn refuse(&self, verdict: UnpackError) -> io::Error {
        let error = io::Error::other(verdict.to_string());
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(verdict);
        error
    }
}

// === impl Source ===

impl Source {
    pub(crate) fn new(pieces: mpsc::Receiver<Piece>) -> Self {
        Self { pieces, current: Bytes::new(), intake: Arc::default() }
    }

    /// The counts of the bytes that are read from now on.
    pub(crate) fn intake(&self) -> Arc<Intake> {
        Arc::clone(&self.intake)
    }

    /// The first `wanted` bytes, or all of them if there are fewer, without consuming them.
    pub(crate) async fn peek(&mut self, wanted: usize) -> io::Result<&[u8]> {
        std::future::poll_fn(|cx| self.poll_piece(cx)).await?;
        if self.current.len() < wanted && !self.intake.is_verified() {
            let mut start = BytesMut::from(&self.current[..]);
            while start.len() < wanted && !self.intake.is_verified() {
                self.current = Bytes::new();
                std::future::poll_fn(|cx| self.poll_piece(cx)).await?;
                start.extend_from_slice(&self.current);
            }
            self.current = start.freeze();
        }
        Ok(&self.current[..self.current.len().min(wanted)])
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.current.is_empty() && !self.intake.is_verified() {
            match ready!(self.pieces.poll_recv(cx)) {
                Some(Piece::Data(bytes)) => self.current = bytes,
                Some(Piece::Verified) => self.intake.verified.store(true, Ordering::Relaxed),
                None => return Poll::Ready(Err(self.intake.refuse(UnpackError::Abandoned))),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for Source {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.poll_piece(cx))?;
        Poll::Ready(Ok(&this.current))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        let this = self.get_mut();
        this.current.advance(amount);
        this.intake.compressed.fetch_add(amount as u64, Ordering::Relaxed);
    }
}

impl AsyncRead for Source {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        poll_read_buffered(self, cx, into)
    }
}

/// Returns the bytes that a buffered reader has ready.
pub(super) fn poll_read_buffered(
    mut reader: Pin<&mut impl AsyncBufRead>,
    cx: &mut Context<'_>,
    into: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let available = ready!(reader.as_mut().poll_fill_buf(cx))?;
    let amount = available.len().min(into.remaining());
    into.put_slice(&available[..amount]);
    reader.consume(amount);
    Poll::Ready(Ok(()))
}

// === impl LimitsReader ===

impl<R> LimitsReader<R> {
    pub(crate) fn new(inner: R, meter: Rc<Meter>) -> Self {
        Self { inner, meter }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for LimitsReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let had_room = into.remaining() > 0;
        ready!(Pin::new(&mut self.inner).poll_read(cx, into))?;
        let amount = into.filled().len() - before;
        if amount == 0 && had_room {
            self.meter.at_end.set(true);
        }
        Poll::Ready(self.meter.count_expanded(amount as u64))
    }
}

/// Whether a decoder failed because the system gave it no memory. Decoders have no error kind for
/// it, only these texts, which zstd and xz use for nothing else.
fn wants_memory(error: &io::Error) -> bool {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let texts = ["Allocation error : not enough memory", "can't allocate memory"];
    error.kind() == io::ErrorKind::OutOfMemory || texts.contains(&cause.to_string().as_str())
}

/// A parser's error text quotes the archive, which can contain any text.
fn quotable(error: io::Error) -> io::Error {
    const MAX: usize = 300;
    let text = Chain(&error).to_string();
    if text.len() <= MAX && !text.contains(char::is_control) {
        return error;
    }
    let shown: String = text.chars().flat_map(char::escape_debug).take(MAX).collect();
    io::Error::new(error.kind(), shown)
}

/// Runs a future to its end on this thread, which sleeps while the future waits.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_memory_is_no_damage_of_the_archive() {
        let explain = |error| Meter::new(Limits::default()).explain("zstd", error);
        for text in ["Allocation error : not enough memory", "can't allocate memory"] {
            let error = explain(io::Error::other(io::Error::other(text)));
            assert!(matches!(error, UnpackError::Memory { .. }), "{error}");
            assert!(!error.is_about_content());
        }
        // As an archive could quote it.
        let error = explain(io::Error::other("a member called can't allocate memory"));
        assert!(error.is_about_content(), "{error}");
    }
}
