//! Takes the oldest part off a file that others append to.
//!
//! Where the file system can do it (ext4, xfs) whole blocks are taken out of the file at once, and
//! no byte is lost that is written meanwhile. That waits until the disk has what is kept, so a
//! plugin that writes faster than the disk would outgrow its bound by what it writes in that time.
//! A log that has outgrown it, and any log on another file system, is cut in memory instead: what is
//! kept is moved to the beginning through a small buffer, and what is written in the microseconds
//! between the last read and the shortening is lost.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, fallocate};

/// How many bytes are moved at a time.
const STEP: usize = 64 * 1024;

/// Most bytes that one cut moves: moving takes time, and the plugin continues to write meanwhile.
pub(super) const MOVED_MAX: u64 = 16 * 1024 * 1024;

/// No file system that can take blocks out has smaller blocks.
const LEAST_BLOCK: u64 = 4096;

/// How long a log may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    /// In bytes.
    pub(super) max: u64,
}

// === impl Bound ===

impl Bound {
    /// Longer logs are cut. The file may grow above it until the cut is made.
    pub(super) const fn trigger(self) -> u64 {
        self.max - self.max / 4
    }

    /// How many bytes are left of a log that is cut.
    pub(super) const fn kept(self) -> u64 {
        self.max / 2
    }
}

/// Cuts a file down to its newest bytes, and answers how many went from its beginning; `0` when it
/// is short enough. The file is not to be open for appending.
pub(super) fn down_to(file: &File, bound: Bound) -> io::Result<u64> {
    let metadata = file.metadata()?;
    let length = metadata.len();
    if length <= bound.trigger() {
        return Ok(0);
    }
    let from = length - bound.kept();
    let block = metadata.blksize().max(LEAST_BLOCK);
    let whole = from / block * block;
    let is_outgrown = length > bound.max;
    if !is_outgrown && whole > 0 && length - whole <= bound.trigger() {
        // Any error is handled like this: file systems return different errors when they cannot do
        // it.
        if fallocate(file, FallocateFlags::COLLAPSE_RANGE, 0, whole).is_ok() {
            return Ok(whole);
        }
    }
    move_down(file, from.max(length.saturating_sub(MOVED_MAX)))
}

/// Moves everything after `from` to the beginning, less the rest of a line that begins before it.
fn move_down(file: &File, from: u64) -> io::Result<u64> {
    let mut buffer = vec![0; STEP];
    let first = file.read_at(&mut buffer, from)?;
    let line = buffer[..first].iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    // A line that is longer than the part that was read is kept as it is.
    let line = if line == first { 0 } else { line };
    let start = from + u64::try_from(line).unwrap_or(0);
    let (mut source, mut target) = (start, 0);
    loop {
        let count = file.read_at(&mut buffer, source)?;
        // A plugin that writes faster than this moves must not keep the loop running.
        if count == 0 || target >= 2 * MOVED_MAX {
            break;
        }
        file.write_all_at(&buffer[..count], target)?;
        let count = u64::try_from(count).unwrap_or(0);
        source += count;
        target += count;
    }
    file.set_len(target)?;
    Ok(start)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use super::*;
    use crate::process::logs::file::{open_to_append, open_to_cut};

    fn log(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        std::fs::write(&path, content).expect("written");
        (dir, path)
    }

    fn cut(path: &std::path::Path, max: u64) -> u64 {
        down_to(&open_to_cut(path).expect("opened"), Bound { max }).expect("cut")
    }

    #[test]
    fn a_short_log_keeps_its_newest_whole_lines_and_its_writers() {
        let (_dir, path) = log(&b"0123456789\n".repeat(10));
        let mut writer = open_to_append(&path).expect("opened");
        assert_eq!(cut(&path, 200), 0);
        assert_eq!(cut(&path, 60), 88);
        writer.write_all(b"more\n").expect("written");
        let now = std::fs::read_to_string(&path).expect("read");
        assert_eq!(now, "0123456789\n0123456789\nmore\n");
    }

    #[test]
    fn a_long_log_keeps_exactly_its_newest_bytes_and_its_writers() {
        let content: Vec<u8> = (0..40_000).flat_map(|n| format!("{n:07}\n").into_bytes()).collect();
        let (_dir, path) = log(&content);
        let mut writer = open_to_append(&path).expect("opened");
        let gone = cut(&path, 400_000);
        writer.write_all(b"more\n").expect("written");
        let now = std::fs::read(&path).expect("read");
        let kept = now.len() - "more\n".len();
        assert!((200_000 - 8..=200_000 + 4096).contains(&kept), "{kept}");
        assert_eq!(usize::try_from(gone).expect("small"), content.len() - kept);
        assert!([&content[content.len() - kept..], b"more\n"].concat() == now);
    }

    /// Without memory only blocks can be taken out, and a line does not begin where a block does.
    #[test]
    fn a_log_that_outgrew_its_bound_is_cut_in_memory() {
        let content: Vec<u8> = (0..40_000).flat_map(|n| format!("{n:09}\n").into_bytes()).collect();
        let (_dir, path) = log(&content);
        let gone = usize::try_from(cut(&path, 300_000)).expect("small");
        // Less the rest of the line that the newest half begins with.
        assert_eq!(gone, content.len() - 150_000 + 10);
        assert!(gone % 4096 != 0, "whole blocks");
        assert!(std::fs::read(&path).expect("read") == content[gone..]);
    }

    #[test]
    fn moving_does_the_same_where_blocks_cannot_be_taken_out() {
        let content: Vec<u8> = (0..40_000).flat_map(|n| format!("{n:07}\n").into_bytes()).collect();
        let (_dir, path) = log(&content);
        let gone = move_down(&open_to_cut(&path).expect("opened"), 200_001).expect("moved");
        assert_eq!(gone, 200_008);
        assert!(std::fs::read(&path).expect("read") == content[200_008..]);
    }

    #[test]
    fn one_endless_line_is_cut_all_the_same() {
        let (_dir, path) = log(&vec![b'x'; 300_000]);
        let gone = move_down(&open_to_cut(&path).expect("opened"), 200_000).expect("moved");
        assert_eq!(gone, 200_000);
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 100_000);
    }

    #[test]
    fn a_file_that_was_made_huge_is_short_again_at_once() {
        let (_dir, path) = log(b"");
        // A hole, so that the test costs no disk.
        let length = 64 * MOVED_MAX;
        open_to_append(&path).expect("opened").set_len(length).expect("extended");
        let max = 4 * MOVED_MAX;
        let gone = cut(&path, max);
        let left = std::fs::metadata(&path).expect("there").len();
        assert_eq!(gone + left, length);
        assert!(left <= max * 3 / 4, "{left}");
    }
}
