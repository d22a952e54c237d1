//! Writes a file and has the disk begin with it at once, so that a flush of all has less left to wait for.
//!
//! The kernel keeps what is written for a while, because it may be deleted soon. What is installed stays; and
//! flushing a hundred megabytes after the last of them came takes as long as unpacking them. `tree` calls this.
//!
//! One of the places with `unsafe`: no safe wrapper of the system call exists.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::libc;

/// Told to the disk in pieces of this size, as long as they come.
const PIECE_BYTES: u64 = 1 << 20;

/// What is smaller is left to the flush, which writes many small files together.
const WORTH_IT_BYTES: u64 = 64 << 10;

/// A file that is being written, from its beginning.
#[derive(Debug)]
pub(super) struct WriteOut {
    file: File,
    written: u64,
    /// Up to where the disk was told.
    begun: u64,
}

// === impl WriteOut ===

impl WriteOut {
    /// An empty file.
    pub(super) fn new(file: OwnedFd) -> Self {
        Self { file: file.into(), written: 0, begun: 0 }
    }

    /// Writes the next bytes.
    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.written - self.begun >= PIECE_BYTES {
            self.begin();
        }
        Ok(())
    }

    /// The file, when all is written.
    pub(super) fn end(mut self) -> OwnedFd {
        if self.written - self.begun >= WORTH_IT_BYTES {
            self.begin();
        }
        self.file.into()
    }

    #[expect(unsafe_code, reason = "no safe wrapper of this call exists")]
    fn begin(&mut self) {
        let from = i64::try_from(self.begun).unwrap_or(i64::MAX);
        let length = i64::try_from(self.written - self.begun).unwrap_or(0);
        // SAFETY: the call takes numbers and touches no memory of this process. The descriptor is open for as long as
        // `self` is, and the call changes neither it nor the file.
        unsafe {
            // File systems that cannot do it have all left to the flush, which tells of errors.
            libc::sync_file_range(self.file.as_raw_fd(), from, length, libc::SYNC_FILE_RANGE_WRITE)
        };
        self.begun = self.written;
    }
}

impl AsFd for WriteOut {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_there_however_it_comes() {
        let piece = usize::try_from(PIECE_BYTES).unwrap();
        for sizes in [&[1, 2, 3][..], &[piece], &[piece - 1, 2, piece * 2 + 1, 70_000], &[]] {
            let path = tempfile::NamedTempFile::new().unwrap();
            let mut file = WriteOut::new(path.reopen().unwrap().into());
            let mut expected = Vec::new();
            for (number, size) in sizes.iter().enumerate() {
                let bytes = vec![u8::try_from(number).unwrap(); *size];
                file.write_all(&bytes).unwrap();
                expected.extend(bytes);
            }
            file.end();
            assert!(std::fs::read(path.path()).unwrap() == expected, "{sizes:?}");
        }
    }
}
