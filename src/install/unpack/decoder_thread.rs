//! Expands an archive on a thread of its own, a little ahead of the thread that writes files.
//!
//! ```text
//! download task ──Piece──► thread: Source ──► decoder ──Step──►
//!                          thread: DecoderThread ──► LimitsReader ──► tar parser ──► files
//!                                                     ◄─empty─
//! ```
//!
//! Inflating takes as long as everything else together, so two processors need half the time. A few
//! buffers circulate between the threads; when all are full the decoder waits. `unpack` calls this.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::{Scope, ScopedJoinHandle};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::sync::mpsc;

use super::format::Format;
use crate::install::error::UnpackError;
use crate::install::unpack::limits_reader::{Intake, Meter, Source, block_on};
use crate::install::window_budget::Hold;

/// The number of buffers, and the size of each.
const BUFFERS: usize = 4;
const BUFFER_BYTES: usize = 128 * 1024;

/// The messages of the decoding thread.
enum Step {
    /// The next expanded bytes, and how many compressed ones were read until then.
    Data { bytes: Vec<u8>, compressed: u64 },
    /// The end. `is_verified`: the decoder read the whole archive, and the checksum was right.
    End { is_verified: bool },
    /// The decoder failed. `verdict` is the reason when the download caused it, not the decoder.
    Failed { error: io::Error, verdict: Option<UnpackError> },
}

/// The expanded bytes.
pub(crate) struct DecoderThread {
    steps: mpsc::Receiver<Step>,
    empty: mpsc::Sender<Vec<u8>>,
    current: Vec<u8>,
    taken: usize,
    has_ended: bool,
    meter: Rc<Meter>,
}

/// The memory for the decoder's window.
pub(crate) struct Windows {
    /// The installation's hold on the budget.
    pub(crate) hold: Arc<Hold>,
    /// What the first header of an archive in xz asks for, in bytes.
    pub(crate) of_xz: u64,
}

// === impl Windows ===

impl Windows {
    /// Whether a decoder of xz failed because it needed more memory than the first header asks for.
    fn outgrown(&self, error: &io::Error) -> Option<UnpackError> {
        // The crate that has the type of this error is not a dependency.
        let is_outgrown = self.of_xz > 0 && error.to_string().contains("memory limit");
        is_outgrown.then_some(UnpackError::WindowGrows { first: self.of_xz })
    }
}

// === impl DecoderThread ===

impl DecoderThread {
    /// Starts a thread in this scope that expands the archive. The thread ends soon after this is
    /// dropped; the task that sends pieces to the source may have to wait until then.
    ///
    /// # Errors
    /// The system has no thread to spare.
    pub(crate) fn begin<'scope>(
        scope: &'scope Scope<'scope, '_>,
        format: Format,
        source: Source,
        meter: Rc<Meter>,
        windows: Windows,
    ) -> io::Result<(Self, ScopedJoinHandle<'scope, ()>)> {
        let (tell, steps) = mpsc::channel(BUFFERS);
        let (empty, emptied) = mpsc::channel(BUFFERS);
        let builder = std::thread::Builder::new().name("expand".to_owned());
        let thread = builder.spawn_scoped(scope, move || {
            block_on(expand(format, source, &windows, tell, emptied));
            // The decoder is dropped, and its window with it.
            windows.hold.release();
        })?;
        let ahead = Self { steps, empty, current: Vec::new(), taken: 0, has_ended: false, meter };
        Ok((ahead, thread))
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.taken == self.current.len() && !self.has_ended {
            match ready!(self.steps.poll_recv(cx)) {
                Some(Step::Data { bytes, compressed }) => {
                    let before = std::mem::replace(&mut self.current, bytes);
                    self.taken = 0;
                    self.meter.has_read(compressed);
                    if before.capacity() > 0 {
                        // The channel has room for all buffers.
                        drop(self.empty.try_send(before));
                    }
                }
                Some(Step::End { is_verified }) => {
                    self.meter.has_ended(is_verified);
                    self.has_ended = true;
                }
                Some(Step::Failed { error, verdict }) => {
                    if let Some(verdict) = verdict {
                        return Poll::Ready(Err(self.meter.refuse(verdict)));
                    }
                    return Poll::Ready(Err(error));
                }
                // The thread panicked.
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for DecoderThread {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_step(cx))?;
        let available = &this.current[this.taken..];
        let amount = available.len().min(into.remaining());
        into.put_slice(&available[..amount]);
        this.taken += amount;
        Poll::Ready(Ok(()))
    }
}

/// Expands the whole stream, until the receiver is dropped.
async fn expand(
    format: Format,
    source: Source,
    windows: &Windows,
    tell: mpsc::Sender<Step>,
    mut emptied: mpsc::Receiver<Vec<u8>>,
) {
    let intake = source.intake();
    let mut decoder = format.decoder(source, &windows.hold, windows.of_xz);
    let mut made = 0;
    loop {
        let buffer = if made < BUFFERS {
            made += 1;
            Some(Vec::with_capacity(BUFFER_BYTES))
        } else {
            emptied.recv().await
        };
        let Some(mut buffer) = buffer else { return };
        buffer.clear();
        let read = tokio::select! {
            biased;
            read = decoder.read_buf(&mut buffer) => read,
            () = tell.closed() => return,
        };
        let step = told(read, buffer, &intake, windows);
        let is_last = !matches!(step, Step::Data { .. });
        if tell.send(step).await.is_err() || is_last {
            return;
        }
    }
}

fn told(read: io::Result<usize>, bytes: Vec<u8>, intake: &Intake, windows: &Windows) -> Step {
    match read {
        // The decoder ends here only when it saw the end of its input.
        Ok(0) => Step::End { is_verified: intake.is_verified() },
        Ok(_) => Step::Data { bytes, compressed: intake.compressed() },
        Err(error) => {
            let verdict = intake.verdict().or_else(|| windows.outgrown(&error));
            Step::Failed { error, verdict }
        }
    }
}
