//! Writes a file and has the kernel send its pages to the disk at once (`sync_file_range`), so that
//! the flush of the whole installation has less left to write.
//!
//! The kernel keeps written pages in memory for a while, because the file may be deleted soon, and
//! allocates their blocks on the disk when it writes them out. An installed file stays, and the
//! archive states its size, so this allocates the blocks first (`fallocate`), in large pieces: the
//! kernel then does not account for each block on its own. To flush a hundred megabytes only after
//! the last of them was written takes as long as to unpack them. `tree` calls this.
//!
//! This is one of the modules with `unsafe`: no safe wrapper of `sync_file_range` exists.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::libc;
use rustix::fs::{FallocateFlags, fallocate};

/// Each time this many bytes are written, the agent tells the kernel to begin writing them to the
/// disk.
const PIECE_BYTES: u64 = 1 << 20;

/// Most bytes for which one call allocates blocks. The archive states the size of a file, and that
/// size may be wrong.
const ROOM_BYTES: u64 = 8 << 20;

/// Fewer bytes than this are left to the final flush, which writes many small files together.
const WORTH_IT_BYTES: u64 = 64 << 10;

/// A file that is being written, from its beginning.
#[derive(Debug)]
pub(crate) struct WriteOut {
    file: File,
    /// The size that the archive states for the file; 0 when no blocks are to be allocated.
    expected: u64,
    /// Blocks were allocated, or could not be, for the bytes before this offset.
    room: u64,
    written: u64,
    /// The agent told the kernel to write the bytes before this offset to the disk.
    begun: u64,
}

// === impl WriteOut ===

impl WriteOut {
    /// Begins to write an empty file, for which the archive states a size of `expected` bytes.
    pub(crate) fn new(file: OwnedFd, expected: u64) -> Self {
        Self { file: file.into(), expected, room: 0, written: 0, begun: 0 }
    }

    /// Writes the next bytes.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.written + bytes.len() as u64 > self.room {
            self.make_room();
        }
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.written - self.begun >= PIECE_BYTES {
            self.begin();
        }
        Ok(())
    }

    /// The file, when all bytes are written.
    pub(crate) fn end(mut self) -> OwnedFd {
        if self.written - self.begun >= WORTH_IT_BYTES {
            self.begin();
        }
        self.file.into()
    }

    fn make_room(&mut self) {
        let more = self.expected.saturating_sub(self.room).min(ROOM_BYTES);
        if more >= WORTH_IT_BYTES {
            let made = fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.room, more);
            self.room += more;
            if made.is_err() {
                // The allocation is not tried again. If the file system is full, `write` returns
                // the error.
                self.expected = 0;
            }
        }
    }

    #[expect(unsafe_code, reason = "no safe wrapper of this call exists")]
    fn begin(&mut self) {
        let from = i64::try_from(self.begun).unwrap_or(i64::MAX);
        let length = i64::try_from(self.written - self.begun).unwrap_or(0);
        // SAFETY: the call takes numbers and touches no memory of this process. `self` owns the
        // descriptor, which stays open during the call, and the call changes neither it nor the
        // file.
        unsafe {
            // If the file system does not support the call, the final flush writes everything, and
            // returns the errors.
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
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    /// Writes pieces of these sizes into a file for which `expected` bytes were announced. Returns
    /// the contents of the file and the bytes that it takes on the disk.
    fn written(expected: u64, sizes: &[usize]) -> (Vec<u8>, u64) {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut file = WriteOut::new(path.reopen().unwrap().into(), expected);
        for (number, size) in sizes.iter().enumerate() {
            file.write_all(&vec![u8::try_from(number).unwrap(); *size]).unwrap();
        }
        file.end();
        let taken = path.as_file().metadata().unwrap().blocks() * 512;
        (std::fs::read(path.path()).unwrap(), taken)
    }

    #[test]
    fn what_is_written_is_there_however_it_comes_and_whatever_was_said() {
        for sizes in
            [&[1, 2, 3][..], &[MIB], &[MIB - 1, 2, MIB * 2 + 1, 70_000], &[9 * MIB, 1], &[]]
        {
            let pieces = sizes.iter().enumerate();
            let expected: Vec<u8> = pieces
                .flat_map(|(number, size)| vec![u8::try_from(number).unwrap(); *size])
                .collect();
            let exact = expected.len() as u64;
            for said in [exact, 0, 1, exact / 2, exact * 2, u64::MAX] {
                let (found, _) = written(said, sizes);
                assert!(found == expected, "{sizes:?}, {said} were said");
            }
        }
    }

    #[test]
    fn a_file_takes_no_more_of_the_disk_than_it_holds() {
        for size in [1, 70 * KIB, MIB + 1, 9 * MIB, 16 * MIB + 5] {
            let (found, taken) = written(size as u64, &[size]);
            assert_eq!(found.len(), size);
            assert!(taken <= (size + 64 * KIB) as u64, "{taken} for {size}");
        }
    }

    #[test]
    fn a_size_that_is_not_true_takes_little_of_the_disk() {
        let (_, taken) = written(u64::MAX, &[100]);
        assert!(taken <= 2 * ROOM_BYTES, "{taken}");
        let (_, taken) = written(1 << 40, &[MIB; 20]);
        assert!(taken <= (20 * MIB) as u64 + 2 * ROOM_BYTES, "{taken}");
    }
}
