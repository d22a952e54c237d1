//! The end of a log, bounded and safe to put into an event.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Most bytes and lines that are shown.
const BYTES: u64 = 4096;
const LINES: usize = 20;

/// The end of a log, nothing before `start`: at most 20 lines and 4 KiB, without control
/// characters. Empty when there is nothing or it cannot be read.
pub(super) fn of(file: File, start: u64) -> String {
    read_end(file, start).map(|bytes| presentable(&bytes)).unwrap_or_default()
}

fn read_end(mut file: File, start: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    // A log shorter than that was emptied; all of its content is then new.
    let start = if start > length { 0 } else { start };
    file.seek(SeekFrom::Start(start.max(length.saturating_sub(BYTES))))?;
    let mut bytes = Vec::new();
    file.take(BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn presentable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let clean = |line: &str| -> String {
        line.chars().map(|c| if c == '\t' { ' ' } else { c }).filter(|c| !c.is_control()).collect()
    };
    let lines: Vec<String> =
        text.lines().map(clean).filter(|line| !line.trim().is_empty()).collect();
    let mut shown = lines[lines.len().saturating_sub(LINES)..].join("\n");
    // Each byte that is not UTF-8 became three bytes.
    let limit = usize::try_from(BYTES).unwrap_or(usize::MAX);
    if shown.len() > limit {
        let cut = (shown.len() - limit..shown.len()).find(|&at| shown.is_char_boundary(at));
        shown.drain(..cut.unwrap_or(0));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut file, content).expect("written");
        file
    }

    #[test]
    fn a_tail_is_bounded_and_has_no_control_characters() {
        let content = [&[0xff; 9000][..], b"\x1b[31mred\x07\r\nlast\tline\n"].concat();
        let tail = of(log(&content), 0);
        assert!(tail.len() <= 4096);
        assert!(tail.ends_with("[31mred\nlast line"), "{tail}");
    }

    #[test]
    fn a_tail_has_at_most_twenty_lines() {
        assert_eq!(of(log(&b"x\n\n".repeat(100)), 0).lines().count(), 20);
    }

    #[test]
    fn a_tail_begins_where_the_launch_began() {
        assert_eq!(of(log(b"old\nnew\n"), 4), "new");
        assert_eq!(of(log(b"old\nnew\n"), 400), "old\nnew");
    }
}
