//! The log of what a plugin writes to its standard output and error.
//!
//! A plugin writes straight into its file, opened for appending, so its output survives the agent
//! and needs no reader. That leaves two jobs, both here: showing the end of it, bounded and fit to
//! be put into an event, and keeping it from growing without end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

/// Most that is shown of a log: bytes and lines.
const TAIL_BYTES: u64 = 4096;
const TAIL_LINES: usize = 20;

/// Most that is kept of a log that is cut: it passes through memory.
const KEPT_MAX: u64 = 16 * 1024 * 1024;

/// Opens a log for appending, readable by its owner and group.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// The end of a log, nothing before `start`: at most 20 lines and 4 KiB, without control characters.
/// Empty when there is nothing or it cannot be read.
pub(crate) fn tail(path: &Path, start: u64) -> String {
    read_end(path, start).map(|bytes| presentable(&bytes)).unwrap_or_default()
}

/// Cuts a log that is longer than `max` bytes down to its newest bytes, half of `max` and at most
/// 16 MiB, and answers how many bytes went from its beginning; `0` when it was short enough.
///
/// The file stays the same, because the plugin has it open: what is kept is copied to memory, the
/// file is emptied and the copy written back. Writers append, so they go on at the new end. What a
/// plugin writes in the microseconds between the last read and the emptying is lost.
pub(crate) fn trim(path: &Path, max: u64) -> io::Result<u64> {
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() <= max {
        return Ok(0);
    }
    let keep = (max / 2).min(KEPT_MAX);
    let from = metadata.len() - keep;
    file.seek(SeekFrom::Start(from))?;
    let mut kept = Vec::new();
    // A plugin that writes faster than this reads must not keep us here.
    (&mut file).take(keep.saturating_mul(2)).read_to_end(&mut kept)?;
    let line = kept.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    // A last line that is longer than everything kept is kept as it is.
    let line = if line == kept.len() { 0 } else { line };
    file.set_len(0)?;
    file.write_all(&kept[line..])?;
    Ok(from + u64::try_from(line).unwrap_or(0))
}

fn read_end(path: &Path, start: u64) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let length = file.metadata()?.len();
    // A log shorter than that was trimmed or emptied; then all of it is new.
    let start = if start > length { 0 } else { start };
    file.seek(SeekFrom::Start(start.max(length.saturating_sub(TAIL_BYTES))))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn presentable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let clean = |line: &str| -> String {
        line.chars().map(|c| if c == '\t' { ' ' } else { c }).filter(|c| !c.is_control()).collect()
    };
    let lines: Vec<String> =
        text.lines().map(clean).filter(|line| !line.trim().is_empty()).collect();
    let mut shown = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
    // Each byte that is no UTF-8 became three.
    let limit = usize::try_from(TAIL_BYTES).unwrap_or(usize::MAX);
    if shown.len() > limit {
        let cut = (shown.len() - limit..shown.len()).find(|&at| shown.is_char_boundary(at));
        shown.drain(..cut.unwrap_or(0));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(content: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        std::fs::write(&path, content).expect("written");
        (dir, path)
    }

    #[test]
    fn a_tail_is_bounded_and_has_no_control_characters() {
        let (_dir, path) = log(&[&[0xff; 9000][..], b"\x1b[31mred\x07\r\nlast\tline\n"].concat());
        let tail = tail(&path, 0);
        assert!(tail.len() <= 4096);
        assert!(tail.ends_with("[31mred\nlast line"), "{tail}");
    }

    #[test]
    fn a_tail_has_at_most_twenty_lines() {
        let (_dir, path) = log(&b"x\n\n".repeat(100));
        assert_eq!(tail(&path, 0).lines().count(), 20);
    }

    #[test]
    fn a_tail_begins_where_the_launch_began() {
        let (_dir, path) = log(b"old\nnew\n");
        assert_eq!(tail(&path, 4), "new");
        assert_eq!(tail(&path, 400), "old\nnew");
        assert_eq!(tail(&path.with_extension("none"), 0), "");
    }

    #[test]
    fn a_trimmed_log_keeps_its_newest_whole_lines_and_its_writers() {
        let (_dir, path) = log(&b"0123456789\n".repeat(10));
        let mut writer = open(&path).expect("opened");
        assert_eq!(trim(&path, 200).expect("trimmed"), 0);
        let gone = trim(&path, 60).expect("trimmed");
        assert_eq!(gone, 88);
        writer.write_all(b"more\n").expect("written");
        let now = std::fs::read_to_string(&path).expect("read");
        assert_eq!(now, "0123456789\n0123456789\nmore\n");
    }

    #[test]
    fn a_huge_log_does_not_pass_through_memory_whole() {
        let (_dir, path) = log(b"");
        // A hole, so that the test costs no disk.
        let length = 64 * KEPT_MAX;
        open(&path).expect("opened").set_len(length).expect("extended");
        let gone = trim(&path, length / 2).expect("trimmed");
        assert_eq!(gone, length - KEPT_MAX);
        assert_eq!(std::fs::metadata(&path).expect("there").len(), KEPT_MAX);
    }
}
