//! Writes a file and has the disk begin with it at once, so that a flush of all has less left to wait for.
//!
//! The kernel keeps what is written for a while, because it may be deleted soon, and looks for a place on the disk when it
//! knows how much it is. What is installed stays, and its size is known: room for it is made first, in large pieces, which
//! spares the kernel to account for each block. And flushing a hundred megabytes after the last of them came takes as long as
//! unpacking them. `tree` calls this.
//!
//! One of the places with `unsafe`: no safe wrapper of the system call exists.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::libc;
use rustix::fs::{FallocateFlags, fallocate};

/// Told to the disk in pieces of this size, as long as they come.
const PIECE_BYTES: u64 = 1 << 20;

/// Room is made for so much at once. How much a file will hold is only what its archive says.
const ROOM_BYTES: u64 = 8 << 20;

/// What is smaller is left to the flush, which writes many small files together.
const WORTH_IT_BYTES: u64 = 64 << 10;

/// A file that is being written, from its beginning.
#[derive(Debug)]
pub(crate) struct WriteOut {
    file: File,
    /// What it is said to hold in the end.
    expected: u64,
    /// Up to where room was made, or could not be.
    room: u64,
    written: u64,
    /// Up to where the disk was told.
    begun: u64,
}

// === impl WriteOut ===

impl WriteOut {
    /// An empty file that is said to hold so many bytes in the end.
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

    /// The file, when all is written.
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
                // It is not tried again. A file system that is full says so when the bytes are written.
                self.expected = 0;
            }
        }
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
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    /// What a file holds and the bytes it takes of the disk when these pieces were written, after so much was said.
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
