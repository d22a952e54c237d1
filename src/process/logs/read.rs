//! Reads a log from a position on, also while it is cut, deleted and made again.
//!
//! A reader keeps the file open, so it reads a deleted log to its end before it continues with the
//! next one. Positions count bytes that were cut, so a cut neither repeats nor skips anything; the
//! reader reports how many bytes were cut before it read them.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::PoisonError;
use std::time::SystemTime;

use guest_agent_actors::model::id::PluginName;

use super::PluginLogs;
use super::file;
use super::forwarded::FileId;
use super::mark::Mark;
use super::times::Times;

/// How many bytes are read at a time.
const STEP: usize = 64 * 1024;

/// The part of the file's end in which the last lines are searched.
const LOOKED_AT_MAX: u64 = 64 * 1024 * 1024;

/// Where reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// So many lines before the end.
    LastLines(u32),
    /// With the first byte that was not cut.
    First,
    /// At the position where an earlier reader stopped.
    At(u64),
    /// With the lines that may have been written at or after this time, of them at most the last
    /// `lines`.
    Since { at: SystemTime, lines: u32 },
}

/// A part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its text, at most 64 KiB.
    pub(crate) data: Vec<u8>,
    /// How many bytes before it were cut before the reader came to them.
    pub(crate) skipped: u64,
    /// The position after it.
    pub(crate) next: u64,
}

/// Where a part of a piece begins, in bytes, and when it was written, if that is known.
pub(crate) type Written = (usize, Option<SystemTime>);

/// When the byte at an offset of a piece was written, if that is known.
pub(crate) fn written_at(times: &[Written], offset: usize) -> Option<SystemTime> {
    let after = times.partition_point(|(at, _)| *at <= offset);
    times.get(after.checked_sub(1)?)?.1
}

/// A reader of one log.
#[derive(Debug)]
pub(crate) struct Reader {
    logs: PluginLogs,
    name: PluginName,
    file: Option<File>,
    /// How many bytes were cut from the open file, as far as the reader knows.
    cut: u64,
    at: u64,
}

// === impl Reader ===

impl Reader {
    /// Begins to read. Where no log exists yet, the reader waits for one.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn new(logs: PluginLogs, name: PluginName, begin: Begin) -> io::Result<Self> {
        let mut reader = Self { logs, name, file: None, cut: 0, at: 0 };
        let logs = reader.logs.clone();
        let _nothing_is_cut = logs.shared.gate.read().unwrap_or_else(PoisonError::into_inner);
        reader.open()?;
        reader.at = match (begin, &reader.file) {
            (Begin::At(position), _) => position,
            (Begin::LastLines(_), None) | (Begin::First, _) => reader.cut,
            (Begin::LastLines(lines), Some(file)) => reader.cut + last_lines(file, lines)?,
            (Begin::Since { .. }, None) => reader.cut,
            (Begin::Since { at, lines }, Some(file)) => {
                let last = reader.cut + last_lines(file, lines)?;
                let since = reader.times().since(at).saturating_sub(reader.cut);
                last.max(reader.cut + line_around(file, since)?)
            }
        };
        Ok(reader)
    }

    /// When the parts of a piece were written. To be asked before the next one is read.
    pub(crate) fn written(&self, piece: &Piece) -> Vec<Written> {
        let length = u64::try_from(piece.data.len()).unwrap_or_default();
        let start = piece.next.saturating_sub(length);
        let parts = self.times().of(start, piece.next).into_iter();
        parts.filter_map(|(at, time)| Some((usize::try_from(at - start).ok()?, time))).collect()
    }

    /// The times of the log up to now.
    fn times(&self) -> Times {
        // The process that keeps the logs may not have seen the newest lines yet.
        self.logs.note(&self.name, None);
        self.logs.times(&self.name)
    }

    /// The position up to which was read.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Goes to a position of the log that is open.
    pub(crate) fn seek(&mut self, at: u64) {
        self.at = at;
    }

    /// The file that the reader is in; `None` while there is no log.
    pub(crate) fn file(&self) -> Option<FileId> {
        self.file.as_ref()?.metadata().ok().as_ref().map(FileId::of)
    }

    /// The position after everything that is in the log now.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn end(&self) -> io::Result<u64> {
        let length = self.file.as_ref().map_or(Ok(0), |file| file.metadata().map(|it| it.len()))?;
        Ok(self.cut + length)
    }

    /// The next part; `None` while there is no more.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn next(&mut self) -> io::Result<Option<Piece>> {
        let logs = self.logs.clone();
        let _nothing_is_cut = logs.shared.gate.read().unwrap_or_else(PoisonError::into_inner);
        if self.file.is_none() {
            self.open()?;
        }
        let Some(piece) = self.read()? else { return Ok(None) };
        if piece.skipped > 0 || !piece.data.is_empty() || self.is_current() {
            return Ok(Some(piece).filter(|it| it.skipped > 0 || !it.data.is_empty()));
        }
        // The reader is at the end, and another file is in its place, or none.
        self.file = None;
        self.open()?;
        self.at = self.cut;
        Ok(self.read()?.filter(|piece| !piece.data.is_empty()))
    }

    fn read(&mut self) -> io::Result<Option<Piece>> {
        let Some(file) = &self.file else { return Ok(None) };
        if self.is_current() {
            self.cut = Mark::read(&self.logs.mark_path(&self.name)).cut;
        }
        let skipped = self.cut.saturating_sub(self.at);
        self.at = self.at.max(self.cut);
        if self.at - self.cut > file.metadata()?.len() {
            // Another process emptied it; all of its content is new.
            self.at = self.cut;
        }
        let mut data = vec![0; STEP];
        let count = file.read_at(&mut data, self.at - self.cut)?;
        data.truncate(count);
        self.at += u64::try_from(count).unwrap_or(0);
        Ok(Some(Piece { data, skipped, next: self.at }))
    }

    fn open(&mut self) -> io::Result<()> {
        match file::open_to_read(&self.logs.path(&self.name)) {
            Ok(file) => {
                self.cut = Mark::read(&self.logs.mark_path(&self.name)).cut;
                self.file = Some(file);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the open file still is the log.
    fn is_current(&self) -> bool {
        let known = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let open = self.file.as_ref().and_then(|file| file.metadata().ok()).map(known);
        let named = self.logs.path(&self.name).symlink_metadata().ok().map(known);
        open.is_some() && open == named
    }
}

/// Where the line begins that has the byte `at`, or that begins there; the end of the file where
/// `at` is beyond it. Of a line that is longer than [`STEP`], its last part.
fn line_around(file: &File, at: u64) -> io::Result<u64> {
    let end = file.metadata()?.len();
    if at >= end {
        return Ok(end);
    }
    let mut before = vec![0; STEP];
    let from = at.saturating_sub(STEP as u64);
    before.truncate(usize::try_from(at - from).unwrap_or(STEP));
    file.read_exact_at(&mut before, from)?;
    let line = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |index| index + 1);
    Ok(from + u64::try_from(line).unwrap_or(0))
}

/// Where the last lines begin, from the beginning of the file as it is.
fn last_lines(file: &File, lines: u32) -> io::Result<u64> {
    let end = file.metadata()?.len();
    if lines == 0 {
        return Ok(end);
    }
    let least = end.saturating_sub(LOOKED_AT_MAX);
    let mut buffer = vec![0; STEP];
    let (mut from, mut ends) = (end, 0);
    while from > least {
        let count = (from - least).min(u64::try_from(STEP).unwrap_or(u64::MAX));
        let part = &mut buffer[..usize::try_from(count).unwrap_or(STEP)];
        from -= count;
        file.read_exact_at(part, from)?;
        for (index, _) in part.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let after = from + u64::try_from(index).unwrap_or(0) + 1;
            // No line begins after the end of the very last line.
            if after == end {
                continue;
            }
            ends += 1;
            if ends == lines {
                return Ok(after);
            }
        }
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::process::logs::times::Look;

    struct Bed {
        _dir: tempfile::TempDir,
        logs: PluginLogs,
        name: PluginName,
        writer: File,
    }

    impl Bed {
        fn new(max: u64) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let logs = PluginLogs::new(dir.path().to_owned(), None, max);
            let name: PluginName = "p".parse().unwrap();
            let writer = logs.begin(&name, &revision()).unwrap();
            Self { _dir: dir, logs, name, writer }
        }

        fn write(&mut self, text: &str) {
            self.writer.write_all(text.as_bytes()).unwrap();
        }

        fn reader(&self, begin: Begin) -> Reader {
            Reader::new(self.logs.clone(), self.name.clone(), begin).unwrap()
        }
    }

    fn revision() -> guest_agent_actors::model::id::RevisionId {
        "1".parse().unwrap()
    }

    fn all(reader: &mut Reader) -> (String, u64) {
        let (mut text, mut skipped) = (String::new(), 0);
        while let Some(piece) = reader.next().unwrap() {
            text.push_str(std::str::from_utf8(&piece.data).unwrap());
            skipped += piece.skipped;
        }
        (text, skipped)
    }

    #[test]
    fn the_last_lines_are_whole_lines() {
        let mut bed = Bed::new(1 << 20);
        let shown = |bed: &Bed, lines| all(&mut bed.reader(Begin::LastLines(lines))).0;
        assert_eq!(shown(&bed, 5), "");
        bed.write("one\ntwo\nthree\n");
        assert_eq!(shown(&bed, 2), "two\nthree\n");
        assert_eq!(shown(&bed, 10), "one\ntwo\nthree\n");
        assert_eq!(shown(&bed, 0), "");
        bed.write("unfinished");
        assert_eq!(shown(&bed, 1), "unfinished");
        bed.write(&"x".repeat(3 * STEP));
        assert_eq!(shown(&bed, 1).len(), "unfinished".len() + 3 * STEP);
        assert!(shown(&bed, 2).starts_with("three\nunfinishedx"));
    }

    /// Everything that was written comes exactly once, however often the log is cut meanwhile.
    #[test]
    fn a_log_that_is_cut_is_followed_without_losing_or_repeating_a_line() {
        let mut bed = Bed::new(40_000);
        let mut reader = bed.reader(Begin::LastLines(0));
        let (mut written, mut seen, mut cuts) = (String::new(), String::new(), 0);
        for round in 0..200 {
            let part: String = (0..40).map(|line| format!("{round:05} {line:03}\n")).collect();
            bed.write(&part);
            written.push_str(&part);
            if round % 7 == 0 {
                // Sometimes another agent makes the cut, which knows only the mark.
                reader = bed.reader(Begin::At(reader.at));
            }
            let (text, skipped) = all(&mut reader);
            assert_eq!(skipped, 0);
            seen.push_str(&text);
            let before = std::fs::metadata(bed.logs.path(&bed.name)).unwrap().len();
            bed.logs.tend(&bed.name).unwrap();
            cuts += u32::from(std::fs::metadata(bed.logs.path(&bed.name)).unwrap().len() < before);
        }
        assert!(cuts > 2, "it was cut {cuts} times");
        assert!(seen == written);
    }

    #[test]
    fn what_was_cut_before_it_was_read_is_said_to_be_missing() {
        let mut bed = Bed::new(40_000);
        let mut reader = bed.reader(Begin::LastLines(0));
        let written = "0123456789abcde\n".repeat(5000);
        bed.write(&written);
        bed.logs.tend(&bed.name).unwrap();
        let (text, skipped) = all(&mut reader);
        assert!(skipped > 0);
        assert_eq!(u64::try_from(text.len()).unwrap() + skipped, 80_000);
        assert!(written.ends_with(&text));
    }

    #[test]
    fn a_log_that_was_deleted_is_read_to_its_end_before_the_next_one() {
        let mut bed = Bed::new(1 << 20);
        let mut reader = bed.reader(Begin::LastLines(0));
        bed.write("last words\n");
        std::fs::remove_file(bed.logs.path(&bed.name)).unwrap();
        std::fs::remove_file(bed.logs.mark_path(&bed.name)).unwrap();
        assert_eq!(all(&mut reader).0, "last words\n");
        bed.writer = bed.logs.begin(&bed.name, &revision()).unwrap();
        bed.write("again\n");
        assert_eq!(all(&mut reader), ("again\n".to_owned(), 0));
    }

    #[test]
    fn lines_since_a_time_are_whole_and_say_when_they_were_written() {
        let mut bed = Bed::new(1 << 20);
        let at = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let mut write = |text: &str, seconds: u64| {
            bed.write(text);
            let length = bed.writer.metadata().unwrap().len();
            let look = Look { length, written: seconds * 1000, cut: None };
            bed.logs.note_look(&bed.name, look, seconds * 1000);
        };
        // The second part begins in the middle of a line.
        write("one\ntw", 100);
        write("o\nthree\n", 110);
        let since =
            |seconds, lines| all(&mut bed.reader(Begin::Since { at: at(seconds), lines })).0;
        assert_eq!(since(105, 10), "two\nthree\n");
        assert_eq!(since(105, 1), "three\n");
        assert_eq!(since(0, 10), "one\ntwo\nthree\n");
        assert_eq!(since(200, 10), "");
        let mut reader = bed.reader(Begin::At(0));
        let piece = reader.next().unwrap().unwrap();
        assert_eq!(reader.written(&piece), [(0, Some(at(100))), (6, Some(at(110)))]);
    }

    #[test]
    fn a_log_that_somebody_emptied_is_read_from_its_beginning() {
        let mut bed = Bed::new(1 << 20);
        bed.write("something long\n");
        let mut reader = bed.reader(Begin::LastLines(0));
        bed.writer.set_len(0).unwrap();
        bed.write("new\n");
        assert_eq!(all(&mut reader), ("new\n".to_owned(), 0));
    }
}
