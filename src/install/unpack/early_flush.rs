//! Has the disk make durable what is there while more is being written.
//!
//! A disk takes what it is given into memory of its own, and many begin to move it from there only when they are
//! told to flush: virtual ones above all, whose memory is the host's. A flush of all at the end then waits for
//! nearly all of an installation, however early each file was handed to the disk. A thread of its own flushes
//! from time to time; the last flush has little left. `tree` calls this.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// After so much the disk is told again. What is smaller than this waits for the flush at its end alone.
const EVERY_BYTES: u64 = 8 << 20;

/// Flushes a file, and with it the disk's own memory.
type Flush = fn(&OwnedFd) -> io::Result<()>;

/// Flushes that go on beside the writing of files, one at a time.
pub(crate) struct EarlyFlush {
    flush: Flush,
    /// Bytes that were written since a flush was begun.
    since: u64,
    thread: Option<Thread>,
}

struct Thread {
    /// Takes a file only while the thread has nothing to do.
    files: SyncSender<OwnedFd>,
    handle: JoinHandle<io::Result<()>>,
}

// === impl EarlyFlush ===

impl EarlyFlush {
    /// Nothing is to be flushed yet.
    pub(crate) fn new() -> Self {
        Self::with(|file| Ok(rustix::fs::fdatasync(file)?))
    }

    fn with(flush: Flush) -> Self {
        Self { flush, since: 0, thread: None }
    }

    /// So much was written into a file. Does not wait: while one flush goes on no other is begun.
    pub(crate) fn has_written(&mut self, file: impl AsFd, bytes: u64) {
        self.since = self.since.saturating_add(bytes);
        if self.since < EVERY_BYTES {
            return;
        }
        self.since = 0;
        // Without a descriptor or a thread to spare, all is left to the last flush.
        let Ok(file) = file.as_fd().try_clone_to_owned() else { return };
        match &self.thread {
            Some(thread) => drop(thread.files.try_send(file)),
            None => self.thread = Thread::begin(self.flush, file).ok(),
        }
    }

    /// Waits for the flush that goes on.
    ///
    /// # Errors
    /// A flush has failed. The one that comes after it may not: the kernel tells of what could not be written once.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        let Some(Thread { files, handle }) = self.thread.take() else { return Ok(()) };
        drop(files);
        handle.join().unwrap_or_else(|_| Err(io::Error::other("the flushing thread panicked")))
    }
}

impl Drop for EarlyFlush {
    fn drop(&mut self) {
        // Whoever gives up needs no answer, but the thread has one of the files.
        drop(self.end());
    }
}

// === impl Thread ===

impl Thread {
    fn begin(flush: Flush, first: OwnedFd) -> io::Result<Self> {
        let (files, next) = sync_channel(0);
        let all = move || std::iter::once(first).chain(next).try_for_each(|file| flush(&file));
        let handle = std::thread::Builder::new().name("flush".to_owned()).spawn(all)?;
        Ok(Self { files, handle })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use rustix::fs::FileType;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }

    /// Flushing one end of a pipe takes until a byte comes out of it.
    fn flush_until_told(file: &OwnedFd) -> io::Result<()> {
        File::from(file.try_clone()?).read_exact(&mut [0])
    }

    #[test]
    fn what_is_small_is_left_to_the_last_flush() {
        let mut early = EarlyFlush::with(|_| Err(io::Error::other("it was flushed")));
        for _ in 0..7 {
            early.has_written(file(), MIB);
        }
        early.end().unwrap();
    }

    #[test]
    fn the_disk_is_told_while_files_are_written() {
        let (until, mut tell) = io::pipe().unwrap();
        let mut early = EarlyFlush::with(flush_until_told);
        early.has_written(&until, 8 * MIB);
        // The first is not over, so that nothing is told of the others, and nothing waits for it.
        for _ in 0..100 {
            early.has_written(&until, 8 * MIB);
        }
        tell.write_all(&[1]).unwrap();
        early.end().unwrap();
        drop(tell);
        let mut unread = Vec::new();
        { until }.read_to_end(&mut unread).unwrap();
        assert!(unread.is_empty(), "the flush that was begun was not waited for");
    }

    #[test]
    fn a_flush_that_failed_is_told_though_others_follow() {
        // Only a regular file is flushed well.
        let mut early = EarlyFlush::with(|file| {
            let mode = rustix::fs::fstat(file)?.st_mode;
            if FileType::from_raw_mode(mode) == FileType::RegularFile {
                return Ok(());
            }
            Err(rustix::io::Errno::NOSPC.into())
        });
        early.has_written(io::pipe().unwrap().0, 8 * MIB);
        while early.thread.as_ref().is_some_and(|thread| !thread.handle.is_finished()) {
            std::thread::yield_now();
        }
        early.has_written(file(), 8 * MIB);
        let error = early.end().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
        early.end().unwrap();
    }

    #[test]
    fn real_files_are_flushed() {
        let mut early = EarlyFlush::new();
        early.has_written(file(), 8 * MIB);
        assert!(early.thread.is_some());
        early.end().unwrap();
    }
}
