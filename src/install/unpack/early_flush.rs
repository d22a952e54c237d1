//! Flushes the disk's write cache on a thread of its own while `tree` still writes files.
//!
//! A disk takes written data into a write cache, and many disks move it to durable storage only
//! when the kernel sends a flush: above all virtual disks, whose cache is the memory of the host. A
//! single flush at the end then waits for nearly all of an installation, however early the kernel
//! sent each file to the disk. This thread flushes from time to time, so the last flush has little
//! left. `tree` calls this.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// After so many written bytes, the thread flushes again. A smaller installation has only the flush
/// at its end.
const EVERY_BYTES: u64 = 8 << 20;

/// Flushes a file, and with it the disk's write cache.
type Flush = fn(&OwnedFd) -> io::Result<()>;

/// Flushes files, one at a time, while the caller writes others.
pub(crate) struct EarlyFlush {
    flush: Flush,
    /// Bytes that were written since a flush was last due.
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
    /// Starts no thread; the first flush that is due does.
    pub(crate) fn new() -> Self {
        Self::with(|file| Ok(rustix::fs::fdatasync(file)?))
    }

    fn with(flush: Flush) -> Self {
        Self { flush, since: 0, thread: None }
    }

    /// Counts the bytes that were written into a file, and begins a flush when one is due. Does not
    /// wait: while a flush is running, another one that is due is left out.
    pub(crate) fn has_written(&mut self, file: impl AsFd, bytes: u64) {
        self.since = self.since.saturating_add(bytes);
        if self.since < EVERY_BYTES {
            return;
        }
        self.since = 0;
        // If the system has no descriptor or thread to spare, the last flush does all the work.
        let Ok(file) = file.as_fd().try_clone_to_owned() else { return };
        match &self.thread {
            Some(thread) => drop(thread.files.try_send(file)),
            None => self.thread = Thread::begin(self.flush, file).ok(),
        }
    }

    /// Waits for the flush that is running.
    ///
    /// # Errors
    /// A flush has failed. A later flush of the same file may succeed all the same, because the
    /// kernel reports a failed write only once.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        let Some(Thread { files, handle }) = self.thread.take() else { return Ok(()) };
        drop(files);
        handle.join().unwrap_or_else(|_| Err(io::Error::other("the flushing thread panicked")))
    }
}

impl Drop for EarlyFlush {
    fn drop(&mut self) {
        // A caller that gives up does not need the result, but has to wait: the thread holds one of
        // the files open.
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

    /// Flushing one end of a pipe lasts until a byte comes out of it.
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
        // The first flush is still running, so the others are left out, and `has_written` does not
        // wait for it.
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
        // Only a regular file can be flushed without an error.
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
